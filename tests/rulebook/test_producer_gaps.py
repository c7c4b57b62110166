"""The gaps of producers: the derived types that a rule needs, and for how long before."""

from __future__ import annotations

import pytest

from cep.base.limits import PRODUCER_GAPS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.lang.ir import CALENDAR_MS_MAX
from cep.lang.load import load_text
from cep.nfa.deployed import FOR_EVER, DeployedRule, ProducerGap
from cep.rulebook.completeness import absent_types, match_reach_ms, with_producer_gaps

EVENTS = """
event pay { tx_id id  event_time time  card string  amount int }
event flag { flag_id id  event_time time  card string }
event echo { echo_id id  event_time time  card string }
"""
SECOND_MS, T1_MS, T2_MS = 1_000, 1_700_000_000_000, 1_700_000_100_000


def deployed(name: str, body: str, **more: object) -> DeployedRule:
    checked = load_text(f"{EVENTS}\npattern {name} by card {{ {body} }}")
    assert checked.ok, [d.message for d in checked.diagnostics]
    return DeployedRule(name, 1, 1, "", checked.patterns[name], **more)  # type: ignore[arg-type]


def gaps(*rules: DeployedRule) -> list[tuple[int, int | None, int, int]]:
    """Return the gaps of the last rule."""
    result = with_producer_gaps(rules, load_text(EVENTS).schema)[-1].gaps
    return [(gap.reach_ms, gap.since_ms, gap.from_ms, gap.until_ms) for gap in result]


FLAGGED = "seq a where a: pay count(pay over 40 s) >= 3 emit card = a.card produce flag"
PAIRED = "seq a -> b within 20 s where a: pay b: pay emit card = a.card produce flag"
LOOSE = "seq a -> b where a: pay b: pay emit card = a.card produce flag"
ABSENT = "seq a -> !f within 10 s where a: pay f: flag"
EVER = (TIME_MS_MIN, TIME_MS_MAX)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("seq a -> f where a: pay f: flag", []),
        ("seq (a | f) -> b where a: pay f: flag b: pay", []),
        ("seq f{3} -> e where f: flag e: echo", []),
        ("seq f{3} -> !e within 1 h where f: flag e: echo", ["echo"]),
        ("seq f+ -> e within 1 h where f: flag e: echo", ["flag"]),
        ("seq (f -> a){2,4} -> e within 1 h where a: pay f: flag e: echo", ["flag"]),
        ("seq a -> f? -> b where a: pay f: flag b: pay", ["flag"]),
        ("seq a, f where a: pay f: flag", ["flag"]),
        ("seq a{2,} strict -> f within 1 h where a: pay f: flag", ["flag"]),
        ("seq a+ until (amount > 5) -> f within 1 h where a: pay f: flag", ["flag"]),
        ("seq a -> f within 1 h where a: pay f: flag on timeout emit n = 1", ["flag"]),
        ("seq a -> f within 20 events where a: pay f: flag", ["flag"]),
        ("seq a, b over all where a: pay b: pay", ["flag", "echo"]),
        ("seq a, b where a: pay b: pay", []),
    ],
)
def test_what_is_not_there_counts(body: str, expected: list[str]) -> None:
    pattern = deployed("p", body).pattern
    assert sorted(absent_types(pattern, frozenset({"flag", "echo"}))) == sorted(expected)


def test_how_far_back_a_match_begins() -> None:
    assert match_reach_ms(deployed("m", FLAGGED).pattern) == 0
    assert match_reach_ms(deployed("m", PAIRED).pattern) == 20_000
    for body in (LOOSE, "seq a+ where a: pay", "seq (a){2} where a: pay", "seq (a|b) where a: pay b: pay"):
        assert match_reach_ms(deployed("m", body).pattern) == FOR_EVER, body


def test_lengths_are_added() -> None:
    reader = deployed("r", ABSENT)
    assert gaps(deployed("m", FLAGGED), reader) == [(39_999, None, *EVER)]
    assert gaps(deployed("m", PAIRED), reader) == [(20_000, None, *EVER)]
    assert gaps(deployed("m", LOOSE), reader) == [], "for ever is not told of the job's first event"
    counting = deployed("r", 'seq a where a: pay count(flag over day in "Europe/Paris") == 0')
    assert gaps(deployed("m", FLAGGED), counting) == [(CALENDAR_MS_MAX["day"] - 1 + 39_999, None, *EVER)]
    echo = deployed("e", "seq f where f: flag count(flag over 5 s) >= 2 emit card = f.card produce echo")
    last = deployed("r", "seq a -> !e within 10 s where a: pay e: echo")
    assert gaps(deployed("m", FLAGGED), echo, last) == [(4_999 + 39_999, None, *EVER)]


def test_a_rule_counts_from_its_start_until_it_starts_no_more() -> None:
    reader, span = deployed("r", ABSENT), (T1_MS, T2_MS)
    later = {"from_ms": T1_MS, "starts_until_ms": T2_MS}
    assert gaps(deployed("m", PAIRED, **later), reader) == [(20_000, None, *span), (20_000, T1_MS, *span)]
    assert gaps(deployed("m", LOOSE, **later), reader) == [(FOR_EVER, T1_MS, *span)]
    producer = deployed("m", FLAGGED, complete_ms=(TIME_MS_MIN, T1_MS))
    assert gaps(producer, reader) == [(39_999, None, *EVER), (39_999, T1_MS, *EVER)]
    assert gaps(deployed("m", FLAGGED, status="shadow"), reader) == [], "it produces nothing"
    assert gaps(deployed("m", FLAGGED), deployed("r", "seq f -> a where f: flag a: pay")) == []


def test_many_that_came_later_count_as_the_last_of_them() -> None:
    many = [deployed(f"m{n}", PAIRED, from_ms=T1_MS + n) for n in range(PRODUCER_GAPS_MAX)]
    result = with_producer_gaps([*many, deployed("r", ABSENT)], load_text(EVENTS).schema)[-1].gaps
    assert [past for past in result if past.since_ms is not None] == [
        ProducerGap(FOR_EVER, T1_MS + PRODUCER_GAPS_MAX - 1, T1_MS, TIME_MS_MAX)
    ]
    assert len(result) == 2

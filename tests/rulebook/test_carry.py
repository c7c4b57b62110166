"""Runs that a new version takes over, rules that a job can run, and the completeness of their histories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from cep.base.limits import PRODUCER_GAPS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.base.text import utc_ms, utc_text
from cep.lang.ir import CALENDAR_MS_MAX, PatternIR
from cep.lang.load import Bundle, load_text
from cep.model.rule import RetireRecord, UpsertRecord
from cep.nfa.deployed import FOR_EVER, DeployedRule, ProducerGap
from cep.rulebook.compatible import cache_checked, checked_text, compile_rule, same_automaton
from cep.rulebook.completeness import absent_types, match_reach_ms, with_producer_gaps
from cep.rulebook.deploy import deploy
from cep.rulebook.outcome import Outcome, RuleReport
from cep.rulebook.publish import lacking_past
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.replay import replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from cep.step.rules import rule_status
from tests.rulebook.carry_cases import Case, drawn
from tests.rulebook.records import SCHEMA, SOURCE, new_book, upsert
from tests.runners.embedded.cases import cut
from tests.runners.embedded.test_engine import feed, finish
from tests.seeds import seeds

# Which versions may take over the runs of another.

MIDDLE_MS = utc_ms("2026-03-01T12:00:00Z")


def bound(old: str = "", new: str = "", **params: object) -> object:
    compiled = compile_rule(upsert(1, source=SOURCE.replace(old, new) if old else SOURCE, params=params), SCHEMA, None)
    assert hasattr(compiled, "structure"), compiled
    return compiled


@pytest.mark.parametrize("params", [{}, {"large": 9}])
def test_numbers_may_differ(params: dict[str, object]) -> None:
    assert same_automaton(bound(), bound(**params), SCHEMA)  # type: ignore[arg-type]


def test_a_comment_may_differ() -> None:
    assert same_automaton(bound(), bound("pattern large", "## Says more.\npattern large"), SCHEMA)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("amount < 1.00", "amount <= 1.00"),
        ("small -> large_one", "small, large_one"),
        ("small -> large_one", "small{2,} -> large_one"),
        ("emit   amount = large_one.amount", "emit   amount = small.amount"),
        ("within window", "within 11 min"),
    ],
)
def test_all_else_may_not(old: str, new: str) -> None:
    assert not same_automaton(bound(), bound(old, new), SCHEMA)  # type: ignore[arg-type]


def test_a_version_that_may_not_carry_drains_and_says_so() -> None:
    book = new_book(upsert(1))
    carrying = book.apply(upsert(2, effective_ms=1_000, on_update="carry", params={"large": 7}), None)
    draining = book.apply(upsert(3, effective_ms=2_000, on_update="carry", params={"window": "1 min"}), None)
    assert (carrying.kind, carrying.reason) == ("applied", "")
    assert draining.kind == "applied"
    assert "version 2 has another automaton, other windows, counts" in draining.reason
    assert [rule.carries for rule in book.deployed()] == [0, 1, 0]
    runs = [rule.runs for rule in book.report().rules]
    assert [None if report is None else (report.version, report.outcome) for report in runs] == [
        None,
        (1, "carried"),
        (2, "drained"),
    ]
    assert runs[2] is not None
    assert "version 2 has another automaton" in runs[2].why
    book.apply(upsert(4, effective_ms=3_000, on_update="restart"), None)
    runs = [rule.runs for rule in book.report().rules]
    assert [report.outcome for report in runs if report is not None] == ["carried", "drained", "restarted"]


COUNTED = """
event payment {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
}
pattern probes(tries: int = 3, tiny: decimal = 2.00, stop: decimal = 40.00, veto: decimal = 60.00, hit: decimal = 50.00)
    by card_id {
  seq    probe{tries,} until (amount == stop) -> !refund -> big  within 60 min
  where  probe:  payment  amount < tiny
         refund: payment  amount == veto
         big:    payment  amount > hit and amount != veto
  emit   probes = count(probe)
}
"""
CHANGES: list[dict[str, object]] = [{"tries": 5}, {"tries": 1}, {"stop": 41}, {"veto": 61}, {"tiny": 3}, {"hit": 45}]


def version(number: int, params: dict[str, object], on_update: str) -> UpsertRecord:
    effective_ms = None if number == 1 else MIDDLE_MS
    return upsert(
        number, "probes", effective_ms, pattern="probes", source=COUNTED, params=params, on_update=on_update,
        message="{probes} on {key}",
    )  # fmt: skip


@pytest.mark.parametrize("params", CHANGES, ids=str)
def test_runs_are_handed_over_where_their_past_means_the_same(params: dict[str, object], tmp_path: Path) -> None:
    """Otherwise `carry` gives the alerts of `drain`, for random payments around the change."""
    is_carried = params.keys() <= {"tiny", "hit"}
    amounts, chance = ("1.00", "2.50", "40.00", "41.00", "47.00", "55.00", "60.00", "61.00"), Random(str(params))
    lines = [
        orjson.dumps({
            "event_type": "payment", "tx_id": f"t{number}", "card_id": f"c{chance.randrange(30)}",
            "event_time": utc_text(MIDDLE_MS + (number - 600) * 1_000),
            "amount": chance.choices(amounts, (8, 2, 1, 1, 1, 1, 1, 1))[0],
        })
        for number in range(1_200)
    ]  # fmt: skip
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    alerts: dict[str, list[bytes]] = {}
    for on_update in ("carry", "drain"):
        deployment = deploy([version(1, {}, "drain"), version(2, params, on_update)])
        job = Job(deployment.schema, deployment.key_domains, to_the_end=True)
        alerts[on_update] = list(json_lines(replay(job, deployment.rulebook, read_pieces(path, job.schema), 1).alerts))
        probes = {(one["version"], int(one["measures"]["probes"])) for one in map(orjson.loads, alerts[on_update])}
        assert {number for number, _ in probes} == {1, 2}
        least = {1: 3, 2: int(str(params.get("tries", 3)))}
        assert all(count >= least[number] for number, count in probes), "an alert has the probes of its version"
    assert (alerts["carry"] == alerts["drain"]) != is_carried


# Carried runs go on as if the new version had built them, otherwise they drain: random patterns and parameters.


def replayed(records: Sequence[UpsertRecord], path: Path) -> list[bytes]:
    deployment = deploy(records)
    assert deployment.set_aside == (), deployment.set_aside
    job = Job(deployment.schema, deployment.key_domains, to_the_end=True)
    return list(json_lines(replay(job, deployment.rulebook, read_pieces(path, job.schema), 1).alerts))


def matches(alerts: Sequence[bytes]) -> list[tuple[object, ...]]:
    """Return the matches, without the version that reports them."""
    values = [orjson.loads(alert) for alert in alerts]
    return sorted(
        (str(a["key"]), tuple(event["event_id"] for event in a["events"]), a["measures"]["first"], a.get("timed_out"))
        for a in values
    )


def outcome_of(case: Case) -> str:
    """Return the job's statement about the runs."""
    (runs,) = [rule.runs for rule in deploy(case.versions("carry")).rulebook.report().rules if rule.runs is not None]
    return runs.outcome


@pytest.mark.parametrize("seed", seeds(150, 12))
def test_a_carried_run_is_one_that_the_new_version_would_have_built(seed: int, tmp_path: Path) -> None:
    case, path = drawn(seed), tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(case.lines))
    carried = replayed(case.versions("carry"), path)
    if outcome_of(case) == "carried":
        assert matches(carried) == matches(replayed([case.version(1, case.after, "drain", None)], path))
    else:
        assert carried == replayed(case.versions("drain"), path)
    records = case.versions("carry")
    deployment, counters = deploy(records), Counter[str]()
    job = Job(deployment.schema, deployment.key_domains, 4, 1, 0)
    engine = Engine(job, tuple(record.to_json() for record in records), MemoryStore(), Workers(1))
    alerts = feed(engine, cut(case.lines, 5, seed), counters) + finish(engine, counters)
    assert sorted(alerts) == sorted(carried)


def test_the_seeds_have_both_outcomes() -> None:
    assert {outcome_of(drawn(seed)) for seed in range(12)} == {"carried", "drained"}


# The rules that a job can run, and the reasons against the others.

PAYMENT = SCHEMA.event_types[0]
WITH_OTHER = SOURCE.replace("amount  ", "other int\n amount ")


def reason(schema: Schema = SCHEMA, domains: tuple[tuple[str, ...], ...] | None = None, **changes: Any) -> str:
    compiled = compile_rule(upsert(1, **changes), schema, domains)
    return compiled.reason if isinstance(compiled, Outcome) else ""


def with_amount(amount: Type) -> Schema:
    fields = tuple(replace(f, type=amount) if f.name == "amount" else f for f in PAYMENT.fields)
    return Schema((replace(PAYMENT, fields=fields),))


def test_a_rule_that_fits_is_bound() -> None:
    compiled = compile_rule(upsert(1, params={"window": "5 min"}), SCHEMA, (("device_id",), ("card_id",)))
    assert isinstance(compiled, PatternIR)
    assert compiled.within_ms == 300_000


def test_rules_that_give_nothing_share_the_pattern_with_its_defaults() -> None:
    first, second = (compile_rule(upsert(version), SCHEMA, None) for version in (1, 2))
    assert first is second
    compiled = compile_rule(upsert(1, params={"window": "10 min"}), SCHEMA, None)
    assert compiled == compile_rule(upsert(1, params={"window": "10 min"}), SCHEMA, None)
    assert compiled is not first


def test_a_job_may_have_more_types_and_fields() -> None:
    wider = Schema(
        (
            EventType("login", (Field("tx_id", Type(Kind.ID)), Field("event_time", Type(Kind.TIME)))),
            replace(PAYMENT, fields=(*PAYMENT.fields, Field("country", Type(Kind.STRING)))),
        )
    )
    assert reason(wider) == ""


def test_a_job_may_lack_a_field_that_the_pattern_does_not_read() -> None:
    assert reason(source=WITH_OTHER) == ""


def test_a_job_may_have_more_symbols() -> None:
    source = SOURCE.replace("amount  ", "status enum(good, bad)\n amount ").replace(
        "< 1.00", "< 1.00 and status == bad"
    )

    def job(*symbols: str) -> Schema:
        return Schema((replace(PAYMENT, fields=(*PAYMENT.fields, Field("status", Type(Kind.ENUM, symbols=symbols)))),))

    assert reason(job("good", "bad", "ugly"), source=source) == ""
    assert "enum(good, bad) in the rule and enum(bad, good) in the job" in reason(job("bad", "good"), source=source)


def test_a_field_of_the_job_may_have_become_nullable() -> None:
    amount = Type(Kind.DECIMAL, nullable=True, scale=2)
    assert reason(with_amount(amount)) == ""
    optional = SOURCE.replace("decimal(2)", "decimal(2)?", 1)
    assert "decimal(2)? in the rule and decimal(2) in the job" in reason(source=optional)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source": "pattern {"}, "the pattern text has mistakes"),
        ({"pattern": "large_after_smal"}, "no pattern `large_after_smal`; did you mean `large_after_small`?"),
        ({"params": {"larg": 1}}, "the parameters do not fit"),
        ({"params": {"large": "much"}}, "the parameters do not fit"),
        ({"message": "{amonut}"}, "{amonut}, which the pattern does not emit; did you mean `amount`?"),
        ({"escalate": "amount"}, "says what breaks `suppress`, which the rule does not have"),
        ({"suppress": "1 h", "escalate": "amonut"}, "is no number that the pattern emits; did you mean `amount`?"),
        ({"domains": (("account_id",), ("a", "b"))}, "by (card_id), only by: account_id; a, b"),
        ({"schema": Schema(())}, "no events `payment`"),
        ({"schema": with_amount(Type(Kind.DECIMAL, scale=3))}, "is decimal(2) in the rule and decimal(3) in the job"),
        ({"schema": with_amount(Type(Kind.DECIMAL, nullable=True, scale=3))}, "decimal(3)? in the job"),
        ({"source": WITH_OTHER.replace("amount > large", "amount > large + other")}, "a field `other` that the job's"),
    ],
)
def test_a_rule_that_does_not_fit_says_why(changes: dict[str, Any], expected: str) -> None:
    assert expected in reason(**changes)


def test_the_diagnostics_of_the_pattern_come_along() -> None:
    compiled = compile_rule(upsert(1, source=SOURCE.replace("amount >", "amuont >")), SCHEMA, None)
    assert isinstance(compiled, Outcome)
    assert any("amuont" in diagnostic.message for diagnostic in compiled.diagnostics)


def test_a_text_that_a_reader_has_checked_is_not_read_again() -> None:
    text = SOURCE + "\n# of a bundle"
    checked = load_text(text).without_syntax()
    cache_checked(Bundle(text, checked))
    assert checked_text(text) is checked
    cache_checked(Bundle(text, load_text(text).without_syntax()))
    assert checked_text("".join([*text])) is checked
    cache_checked(Bundle(text + " with a warning", None))
    assert checked_text(text + " with a warning") is checked_text(text + " with a warning")


# For a rule that arrives while a job runs: the time from which the job has kept the events of its histories.

EVENTS = """
event payment { tx_id id  event_time time  card_id string  shop_id string?  amount decimal(2)  retain_it }
event login { login_id id  event_time time  card_id string  shop_id string? }
"""
DOMAINS = (("card_id",), ("shop_id",))
T1_MS, T2_MS, HOUR_MS = 1_700_000_000_000, 1_700_000_100_000, 3_600_000


def rule(name: str, condition: str, retain: str = "", version: int = 1, by: str = "card_id") -> UpsertRecord:
    events = EVENTS.replace("retain_it", retain)
    source = f"{events}\npattern p by {by} {{ seq a where a: payment {condition} }}"
    checked = load_text(source)
    assert checked.ok, [d.message for d in checked.diagnostics]
    fields = {"id": name, "version": version, "pattern": "p", "status": "live", "severity": "low", "owner": "o"}
    return UpsertRecord.model_validate({**fields, "message": "m", "source": source})


def book_of(*records: UpsertRecord, retain: str = "") -> Rulebook:
    """Return a rulebook to which the records were applied before the first event."""
    book = Rulebook(load_text(EVENTS.replace("retain_it", retain)).schema, DOMAINS)
    for record in records:
        book.apply(record, None)
    return book


def reported(book: Rulebook, name: str) -> RuleReport:
    (rule_report,) = (report for report in book.report().rules if report.rule_id == name)
    return rule_report


def since(book: Rulebook, name: str) -> list[int]:
    return [past.from_ms for past in reported(book, name).past]


def test_what_is_there_before_the_first_event_lacks_nothing() -> None:
    book = book_of()
    assert book.apply(rule("a", "count(payment over 30 d) > 3"), None).reason == ""
    assert reported(book, "a").past == ()


def test_a_rule_that_comes_later_is_told_from_when_its_windows_are_whole() -> None:
    book = book_of(rule("a", "amount > 1.00"))
    outcome = book.apply(rule("b", "count(payment over 1 h) > 3"), T1_MS)
    (past,) = reported(book, "b").past
    assert (past.from_ms, past.whole_ms, past.event_type) == (T1_MS + 1, T1_MS + HOUR_MS, "payment")
    assert outcome.kind == "applied"
    assert outcome.reason == past.text
    for word in ("count(payment over 1 h)", utc_text(T1_MS + 1), utc_text(T1_MS + HOUR_MS), "`retain`"):
        assert word in outcome.reason
    status = rule_status(book)
    assert lacking_past(status, [rule("b", "count(payment over 1 h) > 3")]) == [f"b version 1: {outcome.reason}"]
    assert lacking_past(status, [rule("a", "amount > 1.00")]) == []
    again = rulebook_from_bytes(rulebook_bytes(book), book.schema, DOMAINS)
    assert rulebook_bytes(again) == rulebook_bytes(book)
    assert (again.report().rules, again.fingerprint) == (book.report().rules, book.fingerprint)


@pytest.mark.parametrize(
    ("there", "later", "is_kept"),
    [
        ("count(payment over 30 d) > 1", "count(payment over 1 h) > 1", True),
        ("count(payment over 1 h) > 1", "count(payment over 30 d) > 1", False),
        ("count(payment over 30 d) > 1", "sum(payment.amount over 1 h) > 1.00", False),
        ("sum(payment.amount over 30 d) > 1.00", "max(payment.amount over 1 h) > 1.00", True),
        ("sum(payment.amount over 30 d) > 1.00", "median(payment.amount over day) > 1.00", True),
        # The first stores only events with a shop, and the third only events with an amount above 5.
        ("distinct(payment.shop_id over 30 d) > 1", "count(payment over 1 h) > 1", False),
        ("distinct(payment.shop_id over 30 d) > 1", "count(payment over 1 h by shop_id) > 1", True),
        ("count(payment over 30 d where amount > 5.00) > 1", "count(payment over 1 h) > 1", False),
        ("count(payment over 30 d where amount > 5.00) > 1", "count(payment over 1 h where amount > 5.00) > 1", True),
        ("count(payment over 30 d) > 1", "count(login over 1 h) > 1", False),
        # For these only one event is stored.
        ("exists(payment over previous 30 d)", "count(payment over 1 h) > 1", False),
        ("exists(payment over previous 30 d)", "exists(payment over previous 30 d) and amount > 2.00", True),
        ("count(payment over 30 d) > 1", "exists(payment over previous 1 h)", True),
        ("count(payment over 30 d by shop_id) > 1", "first_seen(shop_id) < 1 h", False),
        ("first_seen(shop_id) < 1 d", "first_seen(shop_id) < 1 h", True),
        # Panes can begin from stored events, but events cannot be restored from panes.
        (
            "approx_percentile(payment.amount over 1 d, 50) > 1.0",
            "approx_percentile(payment.amount over 1 d, 9) > 1.0",
            True,
        ),
        ("distinct(payment.shop_id over 2 d) > 1", "approx_distinct(payment.shop_id over 1 d) > 1", True),
        ("approx_distinct(payment.shop_id over 2 d) > 1", "distinct(payment.shop_id over 1 d) > 1", False),
    ],
)
def test_what_other_rules_keep_is_there(there: str, later: str, is_kept: bool) -> None:
    book = book_of(rule("a", there))
    book.apply(rule("b", later), T1_MS)
    assert since(book, "b") == ([] if is_kept else [T1_MS + 1])


def test_a_window_of_panes_is_whole_a_pane_later() -> None:
    book = book_of(rule("a", "amount > 1.00"))
    book.apply(rule("b", "approx_distinct(payment.shop_id over 64 h) > 3"), T1_MS)
    assert since(book, "b") == [T1_MS + 1 + HOUR_MS]


def test_without_a_window_it_is_never_whole() -> None:
    book = book_of(rule("a", "amount > 1.00"))
    outcome = book.apply(rule("b", "not exists(login)"), T1_MS)
    assert [past.whole_ms for past in reported(book, "b").past] == [None]
    assert "what was before is not known" in outcome.reason


def test_what_came_later_itself_is_known_from_its_own_start() -> None:
    book = book_of(rule("a", "amount > 1.00"))
    book.apply(rule("b", "count(payment over 1 h) > 1"), T1_MS)
    book.apply(rule("b", "count(payment over 1 h) > 2", version=2), T2_MS)
    book.apply(rule("c", "count(payment over 1 h) > 3"), T2_MS)
    assert since(book, "c") == [T1_MS + 1]
    book.apply(RetireRecord(id="b", version=3), T2_MS)
    book.apply(RetireRecord(id="c", version=2), T2_MS)
    book.forget(T2_MS + HOUR_MS)
    book.apply(rule("d", "count(payment over 1 h) > 3"), T2_MS + HOUR_MS)
    assert since(book, "d") == [T2_MS + HOUR_MS + 1], "nobody has kept it for some time"


def test_retain_keeps_what_no_rule_asks_for_where_a_key_has_any_rule() -> None:
    book = book_of(rule("a", "amount > 1.00", "retain 30 d"), retain="retain 30 d")
    book.apply(rule("b", "sum(payment.amount over 1 d) > 1.00", "retain 30 d"), T1_MS)
    book.apply(rule("c", "sum(payment.amount over 31 d) > 1.00", "retain 30 d"), T1_MS)
    book.apply(rule("d", "count(payment over 1 d) > 1", "retain 30 d", by="shop_id"), T1_MS)
    book.apply(rule("e", "count(payment over 2 d) > 1", "retain 30 d", by="shop_id"), T2_MS)
    assert [since(book, name) for name in "bcde"] == [[], [T1_MS + 1], [T1_MS + 1], [T1_MS + 1]]


# The gaps of producers: the derived types that a rule needs, and for how long before.

PRODUCERS = """
event pay { tx_id id  event_time time  card string  amount int }
event flag { flag_id id  event_time time  card string }
event echo { echo_id id  event_time time  card string }
"""
SECOND_MS = 1_000


def deployed(name: str, body: str, **more: object) -> DeployedRule:
    checked = load_text(f"{PRODUCERS}\npattern {name} by card {{ {body} }}")
    assert checked.ok, [d.message for d in checked.diagnostics]
    return DeployedRule(name, 1, 1, "", checked.patterns[name], **more)  # type: ignore[arg-type]


def gaps(*rules: DeployedRule) -> list[tuple[int, int | None, int, int]]:
    result = with_producer_gaps(rules, load_text(PRODUCERS).schema)[-1].gaps
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
    result = with_producer_gaps([*many, deployed("r", ABSENT)], load_text(PRODUCERS).schema)[-1].gaps
    assert [past for past in result if past.since_ms is not None] == [
        ProducerGap(FOR_EVER, T1_MS + PRODUCER_GAPS_MAX - 1, T1_MS, TIME_MS_MAX)
    ]
    assert len(result) == 2

"""Lists that change: each event, and each past one of a history, sees the version of its own time, in any cut."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given as examples
from hypothesis import strategies as st

from cep.base.limits import TIME_MS_MAX
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.lists.entries import keys_of
from cep.lists.store import Content, FixedVersion, Lists, Timeline
from cep.nfa.deployed import DeployedRule
from cep.state.past import decode_page, encode_page
from tests.engine.rules import EVENTS, batch, program
from tests.lang.common import bound_pattern

DECLARED = EVENTS + "list names: string\nlist starts: prefix\nlist sums: decimal(2)\nlist nets: cidr\n"
NOTES = ["-", "ab", "abc", "AB", "b", "10.0.0.1", "10.1.0.1", "::1"]
Version = tuple[int, list[str]]
Row = tuple[str, int, str, str]  # key, time, amount, note


def rule(condition: str, **params: object) -> DeployedRule:
    text = f"pattern p(given: list of string = names) by key {{\n seq x\n where x: e {condition}\n skip none\n}}"
    bound, _ = bound_pattern(DECLARED + text, params)
    return DeployedRule(f"{condition} {params}", 1, 1, condition, bound)


def versions(kind: str, timeline: Sequence[Version]) -> Timeline:
    contents = [(from_ms, Content(kind).changed("replace", keys_of(entries, kind)[0])) for from_ms, entries in timeline]
    return tuple(FixedVersion(from_ms, content) for from_ms, content in contents)


def still_seen(timeline: Sequence[Version], first_ms: int) -> list[Version]:
    """Return the versions that an event from then on sees."""
    return [v for number, v in enumerate(timeline) if number + 1 == len(timeline) or timeline[number + 1][0] > first_ms]


def answer_at(timeline: Sequence[Version], time_ms: int, test: Callable[[list[str]], bool | None]) -> bool | None:
    entries = next((entries for from_ms, entries in reversed(timeline) if from_ms <= time_ms), None)
    return None if entries is None else test(entries)


def timeline(entries: Sequence[str]) -> st.SearchStrategy[list[Version]]:
    one = st.tuples(st.integers(0, 40), st.lists(st.sampled_from(entries), max_size=3))
    return st.lists(one, max_size=4, unique_by=lambda v: v[0]).map(sorted)


AMOUNTS = ["-", "1.00", "2.5"]
ROW = st.tuples(st.sampled_from("xy"), st.integers(0, 45), st.sampled_from(AMOUNTS), st.sampled_from(NOTES))
RULES = (
    rule("note in names"),
    rule("not (note in starts)"),
    rule("lower(note) in given"),
    rule("note in given", given=["b", "abc"]),
    rule("amount in sums"),
    rule("note not in nets"),
    rule("count(e over 15 ms where note in names) > 1"),
)
PROGRAM = program(*RULES)


@examples(
    timeline(["ab", "b", "AB"]), timeline(["a", "10.", "AB"]), timeline(["1", "2.50"]),
    timeline(["10.0.0.0/16", "::/0"]), st.lists(ROW, max_size=14), st.lists(st.integers(0, 14), max_size=4),
)  # fmt: skip
def test_each_event_sees_the_version_of_its_time(
    names: list[Version], starts: list[Version], sums: list[Version], nets: list[Version], rows: list[Row],
    cuts: list[int],
) -> None:  # fmt: skip
    rows = sorted(rows, key=lambda row: row[1])

    def named(row: Row) -> bool | None:
        return None if row[3] == "-" else answer_at(names, row[1], lambda entries: row[3] in entries)

    def past(row: Row) -> int:
        place = rows.index(row)
        same = [r for r in rows[:place] if r[0] == row[0] and r[1] > row[1] - 15] + [row]
        return sum(named(r) is True for r in same)

    def starting(row: Row) -> bool | None:
        return None if row[3] == "-" else answer_at(starts, row[1], lambda e: any(row[3].startswith(one) for one in e))

    def lowered(row: Row) -> bool | None:
        return None if row[3] == "-" else answer_at(names, row[1], lambda entries: row[3].lower() in entries)

    def sum_listed(row: Row) -> bool | None:
        return None if row[2] == "-" else answer_at(sums, row[1], lambda e: float(row[2]) in map(float, e))

    def within(row: Row) -> bool | None:
        networks = {"10.0.0.1": ["10.0.0.0/16"], "10.1.0.1": [], "::1": ["::/0"]}
        network = networks.get(row[3])
        return None if network is None else answer_at(nets, row[1], lambda e: any(one in e for one in network))

    rows = [row for place, row in enumerate(rows) if row not in rows[:place]]
    holds: list[Callable[[Row], bool]] = [
        lambda row: named(row) is True,
        lambda row: starting(row) is False,
        lambda row: lowered(row) is True,
        lambda row: row[3] in ("b", "abc"),
        lambda row: sum_listed(row) is True,
        lambda row: within(row) is False,
        lambda row: past(row) > 1,
    ]
    kinds = {("names", "string"): names, ("starts", "prefix"): starts, ("sums", "decimal(2)"): sums}
    kinds[("nets", "cidr")] = nets
    events = batch(*(f"{key} a@{place} {amount} {note}" for key, place, amount, note in rows))
    matched: set[tuple[int, str]] = set()
    keyed_state: KeyedState | None = None
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    for start, end in [*pairwise(bounds), (len(rows), len(rows))]:
        # Versions that no later event can see are forgotten, as in a rulebook.
        first_ms = rows[start][1] if start < len(rows) else TIME_MS_MAX
        lists: Lists = {
            key: versions(key[1], still_seen(list_timeline, first_ms)) for key, list_timeline in kinds.items()
        }
        part = events.take(np.arange(start, end))
        watermark_ms = TIME_MS_MAX if start == len(rows) else rows[end - 1][1] - 1
        advanced = advance(replace(PROGRAM, lists=lists), keyed_state, part, watermark_ms)
        keyed_state = decode_page(encode_page(advanced.keyed_state))
        matches = advanced.matches
        ids = matches.event_id.to_pylist()
        matched |= set(zip(matches.rule.tolist(), ids, strict=True))
    expected = {(n, f"e{place}") for n, test in enumerate(holds) for place, row in enumerate(rows) if test(row)}
    assert matched == expected

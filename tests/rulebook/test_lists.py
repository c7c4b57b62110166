"""List records in any order, repeated, in parts, among rule records, with restarts and any cut into micro-batches.

The lists are the same in the end, and the alerts equal a plain reference, which looks up the contents of a list at each
event's time.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cep.base.limits import DECIMAL_SCALE_MAX, LIST_ENTRY_BYTES_MAX, LIST_VERSIONS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import utc_text
from cep.lists.entries import is_kind
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, ListRecord, UpsertRecord, parse_control, topic_key
from cep.rulebook import lists as module
from cep.rulebook.deploy import schema_of
from cep.rulebook.publish import replacing
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.step.match import MatchOutput
from cep.step.rules import Programs
from tests.rulebook.timeline import DOMAIN, Arrival, Payment, as_batch, played, step

SOURCE = """
event payment { tx_id id  event_time time  card_id string }
list cards: prefix
pattern listed(given: list of prefix = cards) by card_id {
  seq    x
  where  x: payment  card_id in given
  skip   none
}
"""
CARDS = ["41", "411", "52", "6"]
ENTRIES = ["4", "411", "5", "6", "62"]
END_MS = 1_060


def upsert(version: int, effective: str | None) -> UpsertRecord:
    fields = {
        "id": "r", "version": version, "pattern": "listed", "status": "live", "severity": "low", "owner": "o",
        "message": "m", "source": SOURCE, "effective_at": effective,
    }  # fmt: skip
    return UpsertRecord.model_validate(fields)


SCHEMA = schema_of([upsert(1, None)])


def change(
    version: int, change_: str, entries: Sequence[str], effective_ms: int | None = None, **more: object
) -> ListRecord:
    effective = None if effective_ms is None else utc_text(effective_ms)
    fields = {"id": "cards", "of": "prefix", "version": version, "change": change_, "entries": list(entries)}
    return ListRecord.model_validate({**fields, "effective_at": effective, **more})


# -------------------------------------------------------------------------------------------------- the reference


def held_versions(events: Sequence[Payment], arrivals: Sequence[Arrival]) -> list[tuple[int, int, frozenset[str]]]:
    """Return (version, start, entries) of every version that was ever in force, by plain sets and no store."""
    last, content = 0, frozenset[str]()
    there: dict[int, dict[int, ListRecord]] = {}
    versions: list[tuple[int, int, frozenset[str]]] = []
    for arrival in arrivals:
        record = arrival.record
        if not isinstance(record, ListRecord) or record.version <= last:
            continue
        there.setdefault(record.version, {}).setdefault(record.part, record)
        while True:
            whole = [v for v, parts in sorted(there.items()) if v > last and len(parts) == parts[min(parts)].parts]
            ready = [v for v in whole if v == last + 1 or there[v][1].change == "replace"]
            if not ready:
                break
            last = ready[0]
            first = there[last][min(there[last])]
            new_entries = {str(entry) for part in there[last].values() for entry in part.entries}
            content = frozenset(
                {"replace": new_entries, "add": content | new_entries, "remove": content - new_entries}[first.change]
            )
            start_ms = first.effective_ms if first.effective_ms is not None else TIME_MS_MIN
            if arrival.after:
                start_ms = max(start_ms, events[arrival.after - 1].time_ms + 1)
            versions.append((last, start_ms, content))
    return versions


def reference(events: Sequence[Payment], arrivals: Sequence[Arrival]) -> set[int]:
    """Return the times of the matching events: the rule exists, and the highest started version has the entry."""
    rule = next((a for a in arrivals if isinstance(a.record, UpsertRecord)), None)
    versions = held_versions(events, arrivals)
    times = set()
    for event in events:
        version = max((v for v in versions if v[1] <= event.time_ms), default=None)
        is_ruled = rule is not None and (rule.after == 0 or events[rule.after - 1].time_ms < event.time_ms)
        if is_ruled and version is not None and any(event.card.startswith(entry) for entry in version[2]):
            times.add(event.time_ms)
    return times


# ---------------------------------------------------------------------------------------------------- the engine


def engine(
    events: Sequence[Payment], arrivals: Sequence[Arrival], cuts: Sequence[int], restarts: Sequence[int]
) -> tuple[set[int], Rulebook]:
    """Return the times of the matches, and the rulebook at the end."""
    table, book = played(SCHEMA, events, arrivals, cuts, restarts)
    return set(table["match_start"].cast(pa.int64()).to_pylist()), book


# ---------------------------------------------------------------------------------------------------- properties

EVENTS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(CARDS)), min_size=2, max_size=14).map(
    lambda steps: [Payment(1_000 + sum(gap for gap, _ in steps[: n + 1]), 0, card) for n, (_, card) in enumerate(steps)]
)
TIMES = st.one_of(st.none(), st.integers(1_000, END_MS))


@st.composite
def list_records(draw: st.DrawFn) -> list[ListRecord]:
    """Return versions 1 … n, each with one meaning; some in two parts."""
    records: list[ListRecord] = []
    for version in range(1, draw(st.integers(1, 6)) + 1):
        kind, at_ms = draw(st.sampled_from(["replace", "add", "add", "remove"])), draw(TIMES)
        parts = draw(st.integers(1, 2))
        for part in range(1, parts + 1):
            entries = draw(st.lists(st.sampled_from(ENTRIES), max_size=3))
            records.append(change(version, kind, entries, at_ms, part=part, parts=parts))
    return records


def last_lists(book: Rulebook) -> object:
    return [(r.name, r.version, r.entries, r.digest, r.waiting) for r in book.report().lists]


@given(EVENTS, list_records(), st.data())
@settings(max_examples=80)
def test_records_in_any_order_and_at_any_time(
    events: list[Payment], records: list[ListRecord], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(records), max_size=4))
    given_records: list[ControlRecord] = data.draw(st.permutations([*records, *again, upsert(1, None)]))
    places = data.draw(st.lists(st.integers(0, len(events)), min_size=len(given_records), max_size=len(given_records)))
    arrivals = [Arrival(record, after) for record, after in zip(given_records, sorted(places), strict=True)]
    cuts = data.draw(st.lists(st.integers(0, len(events)), max_size=6))
    changes_max = data.draw(st.sampled_from([0, 2, 100]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cep.lists.store.LIST_CHANGES_MAX", changes_max)
        times, book = engine(events, arrivals, cuts, data.draw(st.sampled_from([[], cuts])))
    assert times == reference(events, arrivals)
    versions = held_versions(events, arrivals)
    report = book.report().lists[0]
    assert (report.version, report.entries) == ((versions[-1][0], len(versions[-1][2])) if versions else (0, 0))


@given(list_records(), st.data())
def test_the_order_of_records_does_not_matter_in_the_end(records: list[ListRecord], data: st.DataObject) -> None:
    """The lists are equal if no version is skipped: a replacement may come before the version that it replaces."""
    orders = [records, data.draw(st.permutations([*records, *data.draw(st.lists(st.sampled_from(records)))]))]
    assert last_lists(engine([], [Arrival(r, 0) for r in orders[0]], [], [])[1]) == last_lists(
        engine([], [Arrival(r, 0) for r in orders[1]], [], [])[1]
    )


@given(EVENTS, list_records(), st.data())
def test_in_time_it_does_not_matter_when_a_record_comes(
    events: list[Payment], records: list[ListRecord], data: st.DataObject
) -> None:
    """With each record in order and before its start, the alerts equal a job that had all from the beginning."""
    starts = sorted(data.draw(st.lists(st.integers(1_000, END_MS), min_size=6, max_size=6)))
    timed = [r.model_copy(update={"effective_at": utc_text(starts[r.version - 1])}) for r in records]
    arrivals, after = [Arrival(upsert(1, None), 0)], 0
    for record in timed:
        in_time = sum(event.time_ms < starts[record.version - 1] for event in events)
        after = data.draw(st.integers(min(after, in_time), in_time))
        arrivals.append(Arrival(record, after))
    cuts = data.draw(st.lists(st.integers(0, len(events)), max_size=6))
    times, _ = engine(events, arrivals, cuts, cuts)
    at_start = [replace(arrival, after=0) for arrival in arrivals]
    assert times == engine(events, at_start, [], [])[0] == reference(events, at_start)


def test_compaction_keeps_what_is_needed() -> None:
    """Compaction keeps the last record of each key: a job that reads only these has the same list."""
    records = [
        change(1, "replace", ["4"]),
        change(2, "add", ["5"]),
        change(3, "remove", ["4"]),
        change(3, "remove", ["4"]),
    ]
    compacted = list({topic_key(record): record for record in records}.values())
    assert len(compacted) == 3
    assert last_lists(engine([], [Arrival(r, 0) for r in records], [], [])[1]) == last_lists(
        engine([], [Arrival(r, 0) for r in compacted], [], [])[1]
    )


# ------------------------------------------------------------------------------------------------------ outcomes


def outcome(book: Rulebook, record: ListRecord, seen_ms: int | None = None) -> tuple[str, str]:
    result = book.apply(record, seen_ms)
    return result.kind, result.full_reason


def test_outcomes() -> None:
    book = Rulebook(SCHEMA, (DOMAIN,))
    assert outcome(book, change(1, "replace", ["4"])) == ("applied", "1 in the list")
    assert outcome(book, change(1, "replace", ["4"])) == ("ignored", "version 1 is not newer than 1")
    assert outcome(book, change(1, "replace", ["5"]))[0] == "refused", "a version has one meaning"
    assert outcome(book, change(3, "add", ["5"])) == ("waiting", "version 3 waits for version 2")
    assert outcome(book, change(3, "add", ["5"])) == ("ignored", "part 1 of version 3 is there")
    assert outcome(book, change(3, "remove", ["5"]))[0] == "refused"
    assert outcome(book, change(2, "add", ["4", "41"], part=2, parts=2))[1] == "version 2 waits for 1 of 2 parts"
    assert book.epoch == 1
    assert outcome(book, change(2, "add", [], part=1, parts=2)) == ("applied", "3 in the list")
    assert book.report().lists[0].version == 3
    kind, reason = outcome(book, change(4, "add", ["5", "x" * (LIST_ENTRY_BYTES_MAX + 1), ""]))
    assert kind == "refused"
    assert "CEP803 entry 2 has 257 bytes" in reason
    assert "CEP802 entry 3 is nothing" in reason
    assert [r.rule_id for r in book.report().refused] == ["list cards"]
    assert outcome(book, change(4, "replace", []))[0] == "applied"
    assert book.report().refused == ()
    assert outcome(book, change(5, "replace", [], stored="0" * 64))[0] == "refused"
    assert outcome(book, ListRecord(id="n", of="int", version=1, change="add", entries=[1, "2", 2.5]))[0] == "refused"
    for version in range(6, 6 + LIST_VERSIONS_MAX):
        last = outcome(book, change(version, "add", ["1"]), 5)
    assert last[0] == "refused"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Rulebook(SCHEMA, (DOMAIN,))
    monkeypatch.setattr(module, "LIST_ENTRIES_MAX", 2)
    monkeypatch.setattr(module, "LISTS_MAX", 1)
    monkeypatch.setattr(module, "CHANGES_BEFORE_EVENTS_MAX", 2)
    assert outcome(book, change(1, "replace", ["1", "2", "3"])) == (
        "refused",
        "the list would have 3 entries, the limit is 2",
    )
    assert outcome(book, change(1, "replace", ["1", "2"]))[0] == "applied"
    other = change(1, "replace", []).model_copy(update={"id": "other"})
    assert outcome(book, other) == ("refused", "the job knows 1 lists, which is the limit")
    assert outcome(book, change(3, "add", []))[0] == "waiting"
    assert outcome(book, change(4, "add", [])) == ("refused", "2 versions of the list wait, which is the limit")


def test_lists_that_rules_ask_and_nobody_has_given() -> None:
    book = Rulebook(SCHEMA, (DOMAIN,))
    book.apply(upsert(1, None), None)
    assert book.report().lists_missing == (("cards", "prefix"),)
    book.apply(change(1, "replace", []).model_copy(update={"of": "string"}), None)
    assert book.report().lists_missing == (("cards", "prefix"),), "a list of another kind is another list"
    before = book.fingerprint
    book.apply(change(1, "replace", ["4"]), None)
    assert book.report().lists_missing == ()
    assert book.fingerprint == before, "a list compiles nothing anew"


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "list", "id": "a", "of": "text", "version": 1, "change": "add"}',
        '{"kind": "list", "id": "a", "of": "int", "version": 1, "change": "add", "entries": [true]}',
        '{"kind": "list", "id": "a", "of": "int", "version": 1, "change": "add", "part": 2}',
        '{"kind": "list", "id": "a", "of": "int", "version": 0, "change": "add"}',
        '{"kind": "list", "id": "a", "of": "int", "version": 1, "change": "merge"}',
        # Such a number ended a job with an audit: it has no JSON, whose hash stands in the audit.
        '{"kind": "list", "id": "a", "of": "string", "version": 1, "change": "add", "entries": [NaN]}',
        '{"kind": "list", "id": "a", "of": "string", "version": 1, "change": "add", "entries": [1, -1e400]}',
        '{"kind": "list", "id": "a", "of": "decimal(19)", "version": 1, "change": "add"}',
    ],
)
def test_records_that_are_none(text: str) -> None:
    record, problems = parse_control(text)
    assert record is None
    assert problems


@pytest.mark.parametrize("scale", [0, 9, 10, DECIMAL_SCALE_MAX])
def test_a_list_has_as_many_decimals_as_a_field(scale: int) -> None:
    assert is_kind(f"decimal({scale})")
    (record,) = replacing("a", f"decimal({scale})", 1, pa.array(["1"], pa.large_string()), None)
    assert parse_control(record.to_json()) == (record, [])


def test_a_rulebook_in_a_folder_comes_back(tmp_path: Path) -> None:
    """Another process maps the files of the first one."""
    book = Rulebook(SCHEMA, (DOMAIN,), ListStore(tmp_path))
    for record in (upsert(1, None), change(1, "replace", ["4", "5"]), change(2, "remove", ["5"])):
        assert book.apply(record, None).kind == "applied"
    again = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (DOMAIN,), ListStore(tmp_path))
    assert last_lists(again) == last_lists(book)
    output = MatchOutput()
    step(Programs(), again, None, as_batch([Payment(1, 0, "41"), Payment(2, 0, "52")]), TIME_MS_MAX, output)
    assert output.alert_table()["key"].to_pylist() == ["41"]

"""Publishing is compare-and-set: a publisher that reads success has changed the job, and jobs of one topic agree."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.limits import CHAIN_VERSIONS_MAX, VERSION_FREE_MAX
from cep.model.rule import (
    Changes,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    SnoozeRecord,
    UpsertRecord,
    topic_key,
)
from cep.rulebook.ledger import Ledger, chain_of, hash_of
from cep.rulebook.publish import acknowledged, counting, lost_to
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import restore, rulebook_bytes, rulebook_from_bytes, save
from cep.rulebook.statement import Signable
from cep.step.rule_status import rule_status
from cep.step.rules import apply_records
from tests.rulebook.people import by_two
from tests.rulebook.records import SCHEMA, new_book, retire, upsert

SOON = "2030-01-01T00:00:00.000Z"


def against(record: Any, before: Signable | None, **update: Any) -> Any:
    """Return the record as a person writes it who has read `before` as the last of its chain."""
    changes = Changes() if before is None else Changes(version=before.version, hash=hash_of(before))
    return record.model_copy(update={"changes": changes, **update})


def status_of(book: Rulebook) -> dict[str, Any]:
    """Return the status as it arrives through the status topic."""
    status: dict[str, Any] = json.loads(json.dumps(rule_status(book)))
    return status


# ---------------------------------------------------------------------------------------------------- two at once

FIRST, LAST = upsert(1), PauseRecord(id="r", version=1)
PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "a rule": (FIRST, upsert(2, severity="high"), upsert(2, severity="low", params={"large": 7})),
    "a rule and its retirement": (FIRST, upsert(2, severity="high"), retire(2)),
    "live and shadow": (FIRST, upsert(2), upsert(2, status="shadow")),
    "a higher version": (FIRST, upsert(5), upsert(3, severity="high")),
    "a higher version, shadow": (FIRST, upsert(5, status="shadow"), upsert(3)),
    "a new rule": (None, upsert(1, "n"), upsert(1, "n", severity="high")),
    "a pause and a resumption": (LAST, PauseRecord(id="r", version=2), ResumeRecord(id="r", version=2)),
    "snoozes": (
        None, SnoozeRecord(id="r", version=1, key="k", until=SOON, by="a"),
        SnoozeRecord(id="r", version=1, key="k", until="2031-01-01T00:00:00Z", by="b"),
    ),
    "lists": (
        None, ListRecord(id="l", version=1, of="string", change="replace", entries=["a"]),
        ListRecord(id="l", version=1, of="string", change="replace", entries=["b"]),
    ),
    "parts of lists": (
        None, ListRecord(id="l", version=1, of="string", change="replace", entries=["a"], parts=2, whole="1" * 64),
        ListRecord(id="l", version=1, of="string", change="replace", entries=["b"], part=2, parts=2, whole="2" * 64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_of_two_at_once_one_is_refused_and_both_sides_are_told(name: str) -> None:
    before, first, second = PAIRS[name]
    for one, other in ((first, second), (second, first)):
        book = new_book()
        book.apply(FIRST, None)
        if before is not None:
            book.apply(before, None)
        ours = against(one, before, by="ann", reason="tuned")
        theirs = against(other, before, by="bob")
        counters = apply_records(book, (ours.to_json(), theirs.to_json()), None)[1]
        assert (counters["control_refused"], counters["control_conflict"]) == (1, 1)
        status = status_of(book)
        reasons = acknowledged(status, [theirs])[1]
        assert len(reasons) == 1
        assert not acknowledged(status, [ours])[1]
        assert lost_to(status, ours) is None
        assert "by ann: tuned" in "".join(reasons.values())
        if one.version <= other.version:
            assert any("by ann: tuned" in refused["reason"] for refused in status["refused"])
        # The loser reads the chain again, and succeeds.
        later = against(other.model_copy(update={"version": one.version + 1, "parts": 1, "part": 1}), one)
        assert book.apply(later, None).kind == "applied"


def test_the_same_change_twice_is_one_change() -> None:
    """Two runs of one pipeline publish it: another start, another sender, the same meaning."""
    book = new_book()
    book.apply(FIRST, None)
    pairs: list[tuple[Any, Any]] = [
        (upsert(2, params={"large": 7}), FIRST), (PauseRecord(id="r", version=1), None),
        (SnoozeRecord(id="r", version=1, until=SOON, by="a"), None),
        (ListRecord(id="l", version=1, of="int", change="replace", entries=[1], whole="1" * 64), None),
        (retire(3), upsert(2, params={"large": 7})),
    ]  # fmt: skip
    for record, before in pairs:
        one = against(record, before, by="one")
        again = against(record, before, by="two", effective_at=SOON)
        assert book.apply(one, None).kind == "applied"
        assert book.apply(again, None).kind == "ignored"
        status = status_of(book)
        both = [one, again]
        assert acknowledged(status, both) == ([], {})


def test_who_and_why_stand_in_the_status() -> None:
    book = new_book()
    book.apply(upsert(1, by="ann", reason="first"), None)
    book.apply(PauseRecord(id="r", version=1, by="bob", reason="floods"), None)
    applied = status_of(book)["taken"]
    assert [(name, one["by"], one["reason"]) for name, (one,) in applied.items()] == [
        ("r", "ann", "first"), ("r/pause", "bob", "floods"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- by chance

CHANGES = st.sampled_from(["upsert", "shadow", "retire", "pause", "resume", "list"])


def written(kind: str, by: str, chains: Ledger) -> Any:
    """Return a change as `cep rules publish`, `cep rules pause` and `cep lists` write it."""
    number = int(by.removeprefix("p"))
    record: Any
    if kind in ("pause", "resume"):
        record = (PauseRecord if kind == "pause" else ResumeRecord)(id="r", version=1)
    elif kind == "list":
        record = ListRecord(id="l", version=1, of="int", change="replace", entries=[number])
    elif kind == "retire":
        record = RetireRecord(id="r", version=1)
    else:
        record = upsert(1, params={"large": number}, status="shadow" if kind == "shadow" else "live")
    head = chains.head(record)
    return record.model_copy(update={"changes": head, "version": head.version + 1, "by": by})


@given(st.data())
def test_publishers_with_old_views_and_a_topic_that_is_compacted(data: st.DataObject) -> None:
    """Each publisher has an old view of topic and status. The job may restart from its bytes at any time."""
    topic: list[tuple[str, bytes, Any]] = []
    book, now_ms = new_book(), 0
    statuses: list[dict[str, Any] | None] = [None]
    for number in range(data.draw(st.integers(1, 12))):
        view = topic[: data.draw(st.integers(max(0, len(topic) - 3), len(topic)))]
        status = statuses[data.draw(st.integers(max(0, len(statuses) - 3), len(statuses) - 1))]
        _, chains = counting(status, [record for _, _, record in view])
        record = written(data.draw(CHANGES), f"p{number}", chains)
        sent = (f"{topic_key(record)}#{secrets.token_hex(6)}", record.to_json(), record)
        topic += [sent] * data.draw(st.integers(1, 2))  # a producer that tries again uses the same key
        for _ in range(data.draw(st.integers(0, len(topic) - now_ms))):
            apply_records(book, (topic[now_ms][1],), number or None)
            now_ms += 1
            statuses.append(status_of(book))
            if data.draw(st.booleans()):
                book = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
    for _, value, _ in topic[now_ms:]:
        apply_records(book, (value,), 100)
    status = status_of(book)
    wins: dict[tuple[str, int], str] = {}
    for _, _, record in topic:
        open_, reasons = acknowledged(status, [record])
        is_waiting = record.kind in ("pause", "resume") and "r" not in status["last_versions"]
        assert not open_
        if reasons or is_waiting:
            continue
        won = wins.setdefault((chain_of(record), record.version), hash_of(record))
        assert won == hash_of(record), "two that differ are told success for one version"
    assert all(any(one["hash"] == won for one in status["taken"][chain]) for (chain, _), won in wins.items())

    compacted = {key: value for key, value, _ in reversed(topic)}  # the last record of each key keeps its place
    rebuilt = new_book()
    for value in reversed(list(compacted.values())):
        apply_records(rebuilt, (value,), None)
    again = status_of(rebuilt)
    assert {name: again[name] for name in ("taken", "content_hash", "paused", "last_versions")} == {
        name: status[name] for name in ("taken", "content_hash", "paused", "last_versions")
    }


# ----------------------------------------------------------------------------------------------------------- edges


def test_a_record_of_another_program_counts_by_its_version() -> None:
    book = new_book()
    for version in (1, 4, 9):
        assert book.apply(upsert(version, params={"large": version}), None).kind == "applied"
    assert book.apply(upsert(4, params={"large": 4}), None).kind == "ignored"
    assert book.apply(upsert(3), None).kind == "ignored"
    assert book.apply(upsert(4, params={"large": 5}), None).is_conflict


def test_no_record_ends_an_id_for_good() -> None:
    top = 2**31 - 1
    book = new_book()
    book.apply(FIRST, None)
    for record in (retire(top), retire(VERSION_FREE_MAX + 1), PauseRecord(id="r", version=top), upsert(top)):
        outcome = book.apply(record, None)
        assert outcome.kind == "refused"
        assert "one by one" in outcome.reason
    assert book.apply(retire(VERSION_FREE_MAX), None).kind == "applied"
    assert book.apply(upsert(VERSION_FREE_MAX + 1), None).kind == "applied"
    assert book.apply(upsert(VERSION_FREE_MAX + 3), None).kind == "refused"
    rebuilt = new_book()
    before = Changes(version=VERSION_FREE_MAX, hash="")
    late = upsert(VERSION_FREE_MAX + 1, changes=before)
    assert rebuilt.apply(late, None).kind == "applied", "its forerunners may be compacted away"


def test_a_pause_without_its_rule_is_told_and_waits() -> None:
    book = new_book()
    outcome = book.apply(PauseRecord(id="ghost", version=1), None)
    assert (outcome.kind, book.epoch) == ("waiting", 0)
    status = status_of(book)
    assert [(one["rule_id"], one["version"]) for one in status["refused"]] == [("ghost", 1)]
    assert "no rule ghost is there" in status["refused"][0]["reason"]
    assert (status["paused"], status["last_versions"]) == ([], {})
    assert acknowledged(status, [PauseRecord(id="ghost", version=1)])[1]
    # Compaction may have put it before its rule.
    book.apply(upsert(1, "ghost"), None)
    status = status_of(book)
    assert (status["paused"], status["refused"]) == (["ghost"], [])


def test_a_book_of_an_earlier_build_has_no_chains() -> None:
    book = new_book()
    book.apply(upsert(3), None)
    book.apply(PauseRecord(id="r", version=2), None)
    saved = save(book)
    index = {**json.loads(saved.index), "format": 2}
    del index["ledger"]
    index["rules"]["r"]["versions"] = [3, 0, 2]
    old = restore(json.dumps(index).encode(), saved.records.__getitem__, SCHEMA, None)
    assert old.apply(against(upsert(4), upsert(3, severity="high")), None).is_conflict
    assert old.apply(against(PauseRecord(id="r", version=3), PauseRecord(id="r", version=2)), None).kind == "applied"
    assert old.apply(against(upsert(4), upsert(3)), None).kind == "applied"


def test_what_a_publisher_reads_in_the_status_of_an_earlier_build() -> None:
    _, chains = counting({"last_versions": {"r": 3}, "refused": []}, [])
    assert chains.head(upsert(4)) == Changes(version=3, hash="")


def test_so_many_versions_are_remembered() -> None:
    book = new_book()
    records = [upsert(1)]
    for version in range(2, CHAIN_VERSIONS_MAX + 3):
        records.append(against(upsert(version, params={"large": version}), records[-1]))
    for record in records:
        book.apply(record, None)
    status = status_of(book)
    assert len(status["taken"]["r"]) == CHAIN_VERSIONS_MAX
    assert acknowledged(status, records[-CHAIN_VERSIONS_MAX:]) == ([], {})
    assert len(acknowledged(status, records[:1])[1]) == 1, "nobody can say what became of it"


def test_a_signed_change_and_an_unsigned_one_have_one_chain() -> None:
    signed = by_two(upsert(1))
    book = new_book()
    assert book.apply(signed, None).kind == "applied"
    assert book.apply(against(upsert(2), upsert(1, severity="high")), None).is_conflict
    assert book.apply(against(upsert(2), upsert(1)), None).kind == "applied"
    assert isinstance(signed, UpsertRecord)

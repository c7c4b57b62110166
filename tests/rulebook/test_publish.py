"""The records to publish: rule files against the running rules."""

from __future__ import annotations

from typing import Any

import pytest

from cep.model.rule import ControlRecord, RetireRecord, RollbackRecord, UpsertRecord
from cep.rulebook.meaning import content_hash
from cep.rulebook.publish import (
    Running,
    acknowledged,
    approval_problem,
    plan,
    running_of_records,
    running_of_status,
)
from cep.step.rule_status import rule_status
from tests.rulebook.records import new_book, retire, upsert

SOON = "2026-06-01T00:00:00.000Z"


def running_version(version: int, **changes: Any) -> dict[str, Running]:
    record = upsert(version, "a", **changes)
    return {"a": Running(version, record.status, content_hash(record))}


def kinds(records: list[UpsertRecord], running: dict[str, Running], *, retire_missing: bool = False) -> dict[str, str]:
    return {step.rule_id: step.kind for step in plan(records, running, SOON, retire_missing=retire_missing)}


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (upsert(3, "a"), "unchanged"),
        (upsert(4, "a", severity="high"), "changed"),
        (upsert(3, "a", severity="high"), "refused"),
        (upsert(2, "a"), "refused"),
        (upsert(3, "a", owner="else"), "unchanged"),
    ],
)
def test_a_file_against_version_three(record: UpsertRecord, kind: str) -> None:
    assert kinds([record], running_version(3)) == {"a": kind}


def test_what_has_no_file_goes_on_unless_it_is_asked_for() -> None:
    assert kinds([upsert(1, "b")], running_version(3)) == {"b": "new", "a": "missing"}
    (_, step) = plan([upsert(1, "b")], running_version(3), SOON, retire_missing=True)
    assert step.record == RetireRecord(id="a", version=4, effective_at=SOON)
    assert kinds([], {"a": Running(3, "retired", None)}, retire_missing=True) == {}


def test_a_start_of_its_own_is_kept() -> None:
    (stamped, timed) = plan([upsert(1, "a"), upsert(1, "b", 5_000)], {}, SOON, retire_missing=False)
    assert stamped.record is not None
    assert timed.record is not None
    assert (stamped.record.effective_at, timed.record.effective_at) == (SOON, "1970-01-01T00:00:05.000Z")


def test_what_runs_is_read_from_a_status_or_from_the_records() -> None:
    book = new_book()
    first, second = upsert(1, "a"), upsert(1, "b")
    back = RollbackRecord(id="a", version=3, to_version=1, rule=first)
    records: list[ControlRecord] = [first, upsert(2, "a", severity="high"), second, back, retire(2, "b"), first]
    for record in records:
        book.apply(record, None)
    running = running_of_status(rule_status(book))
    assert running["a"] == running_of_records(records)["a"] == Running(3, "live", content_hash(first))
    assert (running["b"].status, running_of_records(records)["b"].status) == ("not matched", "retired")


def test_the_answer_of_the_job() -> None:
    book = new_book()
    good, bad, late = upsert(1, "a"), upsert(1, "b", params={"nothing": 1}), upsert(2, "a")
    for record in (good, bad):
        book.apply(record, None)
    open_, reasons = acknowledged(rule_status(book), [good, bad, late])
    assert open_ == ["a version 2"]
    assert list(reasons) == ["b version 1"]
    assert "nothing" in reasons["b version 1"]


@pytest.mark.parametrize(
    ("author", "approved_by", "fragment"),
    [("ann", "bob", None), ("ann", "Ann ", "another person"), ("ann", None, "two people"), (None, "bob", "two people")],
)
def test_two_people(author: str | None, approved_by: str | None, fragment: str | None) -> None:
    problem = approval_problem(upsert(1, author=author, approved_by=approved_by))
    assert (problem is None) if fragment is None else fragment in (problem or "")

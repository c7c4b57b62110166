"""Declared lists against the job's lists: the records to send, and the records that the topic can drop."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.limits import CONTROL_RECORD_BYTES_MAX
from cep.base.utc import utc_text
from cep.lists.content import Content
from cep.lists.entries import TEXT, keys_of
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, parse_control
from cep.nfa.given_lists import GivenList
from cep.rulebook import publish
from cep.rulebook.lists import RuleLists
from cep.rulebook.outcome import ListReport
from cep.rulebook.publish import (
    acknowledged,
    next_version,
    plan_lists,
    pointless_keys,
    replacing,
    running_lists,
)


def declared(*entries: str) -> GivenList:
    texts = pa.array(entries, TEXT)
    content = Content("string").changed("replace", keys_of(texts, "string")[0])
    return GivenList("a", "string", texts, content, 0)


def record(version: int, change: str, *entries: str, **more: object) -> ListRecord:
    fields = {"id": "a", "of": "string", "version": version, "change": change, "entries": list(entries)}
    return ListRecord.model_validate({**fields, **more})


def test_what_has_not_changed_is_not_sent() -> None:
    there = [record(1, "replace", "x"), record(2, "add", "y")]
    running = running_lists(None, there)
    assert [step.kind for step in plan_lists([declared("y", "x")], running, None)] == ["unchanged"]
    (step,) = plan_lists([declared("y")], running, utc_text(5_000))
    assert (step.kind, [r.version for r in step.records]) == ("changed", [3])
    assert step.records[0].effective_ms == 5_000
    (step,) = plan_lists([declared("y")], {}, None)
    assert (step.kind, step.records[0].version) == ("new", 1)


def test_the_job_or_the_topic_whichever_is_ahead() -> None:
    status = {"name": "a", "of": "string", "version": 4, "from_ms": 0, "entries": 9, "digest": "d", "waiting": []}
    there = [record(1, "replace", "x")]
    assert running_lists({"lists": [status]}, there)["a", "string"].version == 4
    assert running_lists({"lists": [{**status, "version": 0}]}, there)["a", "string"].version == 1
    assert next_version(ListReport("a", "string", 2, 0, 0, "", (3, 7))) == 8
    assert next_version(None) == 1


@given(st.lists(st.text(min_size=1, max_size=30), max_size=60), st.integers(20, 400))
def test_a_list_in_many_records_is_the_list(entries: list[str], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_RECORD_BYTES", size)
        records = replacing("a", "string", 3, pa.array(entries, TEXT), None)
    lists = RuleLists(ListStore())
    kinds = [lists.apply(one, None).kind for one in reversed(records)]
    assert kinds == ["waiting"] * (len(records) - 1) + ["applied"]
    assert lists.report()[0].digest == declared(*entries).content.digest


def test_five_million_entries_fit_into_records() -> None:
    """The test checks the sizes: a record of the longest entries is below the limit, even if all of it is escaped."""
    entries = pa.array(['"' * 250, "\n" * 250, "é" * 125] * 5_000, TEXT)
    records = replacing("a", "string", 1, entries, utc_text(1))
    assert all(len(one.to_json()) <= CONTROL_RECORD_BYTES_MAX for one in records)
    assert all(parse_control(one.to_json())[0] == one for one in records)
    assert sum(len(one.entries) for one in records) == len(entries)


def test_records_that_a_replacement_has_made_pointless() -> None:
    first, later = utc_text(1_000), utc_text(9_000)
    there = [
        record(1, "replace", "x"), record(2, "add", "y"),
        record(3, "replace", "z", part=1, parts=2, effective_at=first),
        record(3, "replace", "w", part=2, parts=2, effective_at=first),
        record(4, "add", "v"), record(5, "replace", "u", effective_at=later),
        record(6, "replace", "t", part=1, parts=2),
    ]  # fmt: skip
    places = [(b"key %d" % number, one) for number, one in enumerate(there)]
    assert pointless_keys(places, 5_000) == [b"key 0", b"key 1"]
    assert pointless_keys(places[:3], 5_000) == [], "half a replacement"
    assert len(pointless_keys(places, 9_000)) == 5
    assert pointless_keys([], 0) == []
    others = [(b"first", record(3, "replace", "z", part=1, parts=2, whole="1" * 64))]
    others.append((b"other", record(3, "replace", "w", part=2, parts=2, whole="2" * 64)))
    assert pointless_keys([(b"old", record(1, "replace", "x")), *others], 5_000) == [], "halves of two replacements"


def test_what_the_job_says_of_what_was_sent() -> None:
    sent = [record(2, "add", "x"), record(3, "add", "y")]
    status = {"refused": [], "lists": [{"name": "a", "of": "string", "version": 2}]}
    assert acknowledged(status, sent) == (["list a version 3"], {})
    refused = {**status, "refused": [{"rule_id": "list a", "version": 3, "reason": "no"}]}
    assert acknowledged(refused, sent) == ([], {"list a version 3": "no"})

"""Sets by name in a folder and in memory; the version that an event sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError
from cep.lists.content import Content
from cep.lists.entries import keys_of
from cep.lists.members import KeySet, build
from cep.lists.store import NOTHING, ListStore, name_of
from cep.lists.timeline import FixedVersion, ListVersion, fixed, spans, timeline_of


def members(*texts: str) -> KeySet:
    return build(keys_of(list(texts), "string")[0], "string")


def refuses() -> KeySet:
    raise AssertionError("made again")


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_store_keeps_each_set_once(tmp_path: Path, is_folder: bool) -> None:
    store = ListStore(tmp_path if is_folder else None)
    store.put("one", lambda: members("a"))
    store.put("one", refuses)
    store.put("two", lambda: members("b"))
    assert store.get("one") is store.get("one")
    assert len(store.get(NOTHING)) == 0
    assert store.get("two").has(keys_of(["a", "b"], "string")[0]).tolist() == [False, True]
    store.keep_only(["two"])
    with pytest.raises((StateCorruptError, KeyError)):
        store.get("one")
    store.put("one", lambda: members("a", "c"))
    assert len(store.get("one")) == 2


def test_a_name_tells_its_parts_apart() -> None:
    assert name_of("ab", "c") != name_of("a", "bc")
    assert name_of("a", b"b") == name_of("a", "b")


@given(st.lists(st.integers(0, 9), unique=True, max_size=5), st.lists(st.integers(-1, 10), max_size=10))
def test_an_event_sees_the_last_version_that_has_started(starts: list[int], times: list[int]) -> None:
    timeline = [FixedVersion(start, Content("int")) for start in sorted(starts)]
    content_by_row: dict[int, object] = {}
    for content, rows in spans(timeline, np.array(times, np.int64)):
        content_by_row.update(dict.fromkeys(np.arange(len(times))[rows].tolist(), content))
    for row, time in enumerate(times):
        started = [version for version in timeline if version.from_ms <= time]
        assert content_by_row[row] is (started[-1].content if started else None)


def test_versions_are_loaded_when_they_are_asked_for(tmp_path: Path) -> None:
    store = ListStore(tmp_path)
    store.put("base", lambda: members("a", "b"))
    store.put("added", lambda: members("c"))
    store.put("removed", lambda: members("a"))
    version = ListVersion(0, "string", store, "base", "added", "removed")
    assert version.content is version.content
    assert (len(version.content), version.content.kind) == (2, "string")
    gone = ListVersion(0, "string", store, "gone")
    with pytest.raises(StateCorruptError):
        _ = gone.content


def test_lists_by_name() -> None:
    lists = {("blocked", "string"): fixed(["a"], "string")}
    assert timeline_of(lists, "blocked", "string") is lists["blocked", "string"]
    assert timeline_of(lists, "blocked", "int") == ()
    in_place = timeline_of(lists, '["x", "y"]', "string")
    assert len(in_place[0].content) == 2

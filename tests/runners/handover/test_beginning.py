"""The beginning of a job is there whole, its sources know it, and it is refused by name if it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.runners.handover.beginning import (
    Beginning,
    group_beginning,
    lane_name,
    partition_name,
    read_beginning,
    write_beginning,
)
from cep.runners.handover.group_entries import GroupState, entries_of
from cep.step.event_time import PartitionTime
from tests.runners.handover.test_group_entries import JOB

POSITIONS = {"events": {"pay-ments[0]": 17, "pay-ments[11]": 4}, "control": {"a b.jsonl": -1, "c[d].jsonl": -1}}
TIMES = {"pay-ments[0]": PartitionTime(900, False, 950, 970, 990), "files": PartitionTime(5, is_behind=True)}
BEGINS = Beginning("digest", 1_000, TIMES, POSITIONS, 8)
KEPT = GroupState({1: b"page"}, {1: 77}, {0: b"events"}, {(0, 3): b"ids"})


def test_a_key_group_begins_with_its_own(tmp_path: Path) -> None:
    groups = [(0, []), (2, entries_of(JOB, 1, 2, KEPT))]
    assert write_beginning(tmp_path, BEGINS, groups) == 4
    beginning = read_beginning(tmp_path)
    assert beginning is not None
    assert beginning.groups == (2,)
    assert group_beginning(tmp_path, beginning, JOB, 1, 2) == KEPT
    assert group_beginning(tmp_path, beginning, JOB, 0, 2) == GroupState()
    assert group_beginning(tmp_path, beginning, JOB, 1, 0) == GroupState()
    assert beginning.partition_times() == {"pay-ments-0": TIMES["pay-ments[0]"], "source": TIMES["files"]}
    assert read_beginning(tmp_path / "elsewhere") is None
    (tmp_path / "begins" / "group-00002.cep").unlink()
    with pytest.raises(StateCorruptError, match=r"group-00002\.cep"):
        group_beginning(tmp_path, beginning, JOB, 1, 2)
    path = tmp_path / "begins" / "begins.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    with pytest.raises(StateFormatError, match="another format"):
        read_beginning(tmp_path)
    path.write_text("{")
    with pytest.raises(StateCorruptError, match="restore the savepoint again"):
        read_beginning(tmp_path)


def test_sources_go_on_where_they_were() -> None:
    starting = BEGINS.starting("events", "pay-ments")
    assert starting is not None
    assert json.loads(starting) == {"pay-ments": {"0": 17, "11": 4}}
    assert BEGINS.files_read("control") == ("a b.jsonl", "c[d].jsonl")
    assert Beginning("", 0, {}).starting("events", "any") is None
    assert Beginning("", 0, {}).files_read("events") == ()
    for lane in ("pay-ments[11]", "files"):
        assert lane_name(partition_name(lane)) == lane


def test_another_source_is_refused() -> None:
    with pytest.raises(UsageError, match=r"topic logins, but .* made of pay-ments"):
        BEGINS.starting("events", "logins")
    with pytest.raises(UsageError, match=r"a folder, but .* made of pay-ments"):
        BEGINS.files_read("events")
    with pytest.raises(UsageError, match=r"x\.jsonl was read in part"):
        Beginning("", 0, {}, {"events": {"x.jsonl": 100}}).files_read("events")

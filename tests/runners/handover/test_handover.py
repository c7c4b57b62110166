"""A savepoint comes back unchanged: the entries of a key group, the beginning of a job, and the JSON part.

Bytes that no build has written are refused by name. The search for a key's bytes finds texts, and skips digits of
hashes and of a job's id. A watermark in the future is set back: later events count again, and its other effects are
reported.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.exits import Exit
from cep.base.limits import TIME_MS_MAX
from cep.base.text import utc_text
from cep.cli.main import main
from cep.runners.handover.beginning import (
    Beginning,
    group_beginning,
    lane_name,
    partition_name,
    read_beginning,
    write_beginning,
)
from cep.runners.handover.erase import has_any, has_any_in_file
from cep.runners.handover.group_entries import PAGE_BITS, GroupState, entries_of, state_of
from cep.runners.handover.payload import Payload, consequences, set_back
from cep.state.store import split_key
from cep.step.event_time import PartitionTime, times_from_json
from cep.step.job import Job
from tests.columnar.common import TWO
from tests.runners.embedded.test_future import FAR, PAST_MS, fraud, payment, written
from tests.step.contract import FAR_MS, SOURCE

JOB = Job(TWO, (("card_id",), ("card_id", "device")), groups_count=4, pages_count=3, levels_count=2)
DOMAINS = st.integers(0, 1)
PAGE_IDS = st.builds(lambda number, page: number << PAGE_BITS | page, DOMAINS, st.integers(0, 2))
BYTES = st.binary(max_size=5)
STATES = st.builds(
    GroupState,
    st.dictionaries(PAGE_IDS, BYTES),
    st.dictionaries(PAGE_IDS, st.integers(-(10**13), TIME_MS_MAX - 1)),
    st.dictionaries(DOMAINS, BYTES),
    st.dictionaries(st.tuples(DOMAINS, st.integers(-(10**9), 10**9)), BYTES),
    st.dictionaries(PAGE_IDS, BYTES),
    st.dictionaries(st.tuples(PAGE_IDS, st.integers(0, 10**9)), BYTES),
    st.dictionaries(PAGE_IDS, st.integers(-(10**13), TIME_MS_MAX - 1)),
)


@given(STATES, STATES, st.integers(0, 3))
def test_a_group_comes_back(first: GroupState, second: GroupState, group: int) -> None:
    entries = [*entries_of(JOB, 0, group, first), *entries_of(JOB, 1, group, second)]
    assert len({key for key, _ in entries}) == len(entries)
    assert all(split_key(key).key_group == group for key, _ in entries)
    assert state_of(JOB, 0, entries) == first
    assert state_of(JOB, 1, sorted(entries)) == second


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


ENGINE = {"rulebook": "", "held_memory": [], "watermark_ms": 5, "times": {"topic[0]": [3, False]}}
GOOD = Payload(JOB.to_json(), {"records": ["{}"]}, 7, ENGINE, {"events": {"topic[0]": 17}}, {"events": 9})


def test_a_payload_comes_back() -> None:
    assert Payload.from_bytes(GOOD.to_bytes(), "here").to_bytes() == GOOD.to_bytes()


@pytest.mark.parametrize("value", [None, "text", -1.5, [1], {"a": "b"}, "absent"], ids=repr)
def test_a_field_that_is_absent_or_of_another_type_is_refused(value: Any) -> None:
    places = [("job",), ("rules",), ("rules", "records"), ("checkpoint",), ("job", "event_types")]
    places += [("checkpoint", name) for name in ("format", "base", "engine", "positions", "totals")]
    places += [("checkpoint", "engine", name) for name in ENGINE]
    for *path, last in places:
        if (value == "text" and last == "rulebook") or (value == [1] and last == "held_memory"):
            continue
        whole = json.loads(GOOD.to_bytes())
        fields = whole
        for step in path:
            fields = fields[step]
        if value == "absent":
            del fields[last]
        else:
            fields[last] = value
        with pytest.raises((StateCorruptError, StateFormatError), match="savepoint in here"):
            Payload.from_bytes(json.dumps(whole).encode(), "here")


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"{", b"null", b"\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateCorruptError, match="does not describe a job"):
        Payload.from_bytes(data, "here")


ID, HASH = b"9f00c1aa" * 4, b"0c1e55aa" * 8


@pytest.mark.parametrize(
    ("data", "is_there"),
    [
        (b'{"key":"c1"}', True),
        (b'{"id":"' + ID + b'"}', False),
        (b'{"hash":"' + HASH + b'"}', False),
        (b'{"id":"' + ID + b'","key":"c1"}', True),
        (b'{"id":"' + ID[:-1] + b'"}', True),
        (b'{"key":"c2"}', False),
    ],
)
def test_a_short_key_is_not_found_in_random_digits(data: bytes, is_there: bool) -> None:
    assert has_any(data, [b"c1"]) is is_there


def test_a_short_key_is_not_found_by_chance_in_a_binary_file() -> None:
    noise = Random(7).randbytes(1_000_000)
    assert b"c1" in noise
    assert not has_any_in_file(noise, [b"c1"])
    assert has_any_in_file(noise + b"card-17", [b"c1", b"card-17"])
    assert has_any_in_file(b'{"key":"c1"}', [b"c1"])


@pytest.mark.parametrize("key", [ID, HASH])
def test_a_key_that_looks_like_them_is_found(key: bytes) -> None:
    assert has_any(b'{"key":"' + key + b'"}', [key])


NOW_MS = PAST_MS + 5_000
BACK = utc_text(PAST_MS)


def poisoned(folder: Path) -> str:
    """Run a job with one event from the future, after which twenty frauds were late; return its savepoint."""
    (folder / "rules").mkdir()
    (folder / "rules" / "p.cep").write_text(SOURCE)
    (folder / "rules" / "small_large.toml").write_text(
        'id = "small_large"\nversion = 1\npattern = "small_large"\nfile = "p.cep"\nstatus = "live"\n'
        'severity = "low"\nowner = "o"\nmessage = "{key}"\n'
    )
    frauds = [line for card in range(20) for line in fraud(card, PAST_MS + 10 * card)]
    assert run(folder, "old", [payment("far", "z", FAR, 1)], "--ahead-max", "off") == 0
    assert run(folder, "old", frauds) == 1, "all are late"
    assert written(folder / "alerts") == []
    assert [letter["code"] for letter in written(folder / "old" / "dead_letters")] == ["late"] * 40
    place = str(folder / "savepoint")
    assert main(["job", "savepoint", "--checkpoint", str(folder / "old"), "--to", place]) == 0
    return place


def run(folder: Path, name: str, lines: list[bytes], *more: str) -> int:
    events = folder / "events"
    events.mkdir(exist_ok=True)
    (events / f"{len(list(events.iterdir()))}.jsonl").write_bytes(b"\n".join(lines))
    fixed = ["--rules", str(folder / "rules"), "--events", str(events), "--alerts", str(folder / "alerts")]
    return main(["run", *fixed, "--checkpoint", str(folder / name), "--key-groups", "2", "--available-now", *more])


def test_a_job_goes_on_behind_the_time_that_it_was_set_back_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = poisoned(tmp_path)
    capsys.readouterr()
    restore = ["job", "restore", "--from", place, "--checkpoint", str(tmp_path / "new"), "--watermark-back", BACK]
    assert main(restore) == Exit.USAGE, "it is not confirmed"
    printed = capsys.readouterr()
    assert f"from {FAR[:-1]}" in printed.out
    assert "--yes" in printed.err
    assert not (tmp_path / "new").exists()
    assert main([*restore, "--yes"]) == 0
    frauds = [line for card in range(20, 40) for line in fraud(card, PAST_MS + 10 * card)]
    assert run(tmp_path, "new", frauds) == 0
    assert sorted(str(alert["key"]) for alert in written(tmp_path / "alerts")) == [f"c{card}" for card in range(20, 40)]
    assert all(str(alert["history_from"]) > BACK for alert in written(tmp_path / "alerts")), "events may be missing"
    assert main([*restore[:-1], "2199-01-01T00:00:00Z", "--yes"]) == Exit.USAGE, "that is not back"
    assert main([*restore[:-1], "yesterday", "--yes"]) == Exit.USAGE


def test_a_job_on_spark_begins_with_it(tmp_path: Path) -> None:
    place = poisoned(tmp_path)
    restore = ["job", "restore", "--from", place, "--checkpoint", str(tmp_path / "new"), "--engine", "spark"]
    assert main([*restore, "--watermark-back", BACK, "--yes"]) == 0
    begins = read_beginning(tmp_path / "new")
    assert begins is not None
    assert begins.watermark_ms == PAST_MS
    assert begins.times == {"files": PartitionTime(PAST_MS)}


def test_only_a_portable_savepoint_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    flags = ["--checkpoint", str(tmp_path / "new"), "--watermark-back", BACK, "--yes"]
    assert main(["job", "restore", "--from", str(tmp_path / "empty"), *flags]) == Exit.USAGE
    assert "--portable" in capsys.readouterr().err


def test_what_is_changed_and_what_is_said() -> None:
    engine = {**GOOD.engine, "watermark_ms": FAR_MS, "since_ms": 7}
    engine["times"] = {"a": [FAR_MS, True, NOW_MS, FAR_MS + 1, FAR_MS + 2], "b": [PAST_MS - 5, False]}
    before = replace(GOOD, engine=engine, job=replace(JOB, lateness_ms=1_000).to_json())
    after = set_back(before, PAST_MS, NOW_MS)
    assert (after.engine["watermark_ms"], after.engine["since_ms"], after.engine["gap_ms"]) == (PAST_MS, 7, NOW_MS)
    assert times_from_json(after.engine["times"]) == {
        "a": PartitionTime(PAST_MS + 1_000, is_behind=True),
        "b": PartitionTime(PAST_MS - 5),
    }
    assert orjson.loads(after.to_bytes())["job"] == before.job
    assert before.engine["watermark_ms"] == FAR_MS, "a value never changes"
    assert any("dead letters" in sentence for sentence in consequences(before, PAST_MS))
    with pytest.raises(UsageError, match="is not back from it"):
        set_back(after, PAST_MS, NOW_MS)

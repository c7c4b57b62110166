"""A savepoint comes back unchanged: the entries of a key group, the beginning of a job, and the JSON part.

Bytes that no build has written are refused by name. The search for a key's bytes finds texts, and skips digits of
hashes and of a job's id. A watermark in the future is set back: later events count again, and its other effects are
reported.

Replay up to a cut, then live from its state: together they give the alerts of a replay of everything, in one process
and on Spark.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.exits import Exit
from cep.base.limits import TIME_MS_MAX
from cep.base.text import utc_text
from cep.cli.main import main
from cep.histories.store import Block, StoredSegment
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.rulebook import by_level
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.warm_to_spark import begin_warm
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
from cep.runners.handover.warm_start import FORMAT, NAME, About, Ending, _about, finish, job_until, open_warm_start
from cep.runners.spark.replay import read_events, replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.state.past import decode_head, digests_of
from cep.state.store import split_key
from cep.step.event_time import PartitionTime, times_from_json
from cep.step.job import Job
from tests.columnar.common import TWO
from tests.output_of import OutputOf
from tests.runners.embedded.cases import cut, day, expected
from tests.runners.embedded.test_engine import feed
from tests.runners.embedded.test_engine import finish as end_of_time
from tests.runners.embedded.test_future import FAR, PAST_MS, fraud, payment, rules_folder, written
from tests.runners.laundering import records as laundering
from tests.runners.laundering import transfers
from tests.runners.spark.live_cases import END, LiveRun, rows, rules, split, time_ms
from tests.runners.spark.test_live import history_lines
from tests.runners.spark.test_live import records as histories
from tests.seeds import LATER
from tests.step.contract import FAR_MS

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
    good = path.read_text()
    for wrong in ({"heartbeat_ms": None}, {"gap_ms": "1"}, {"topic_ids": {"pay-ments": None}}):
        path.write_text(json.dumps({**json.loads(good), **wrong}))
        with pytest.raises(StateCorruptError, match="not those that were written"):
            read_beginning(tmp_path)
    path.write_text(json.dumps({**json.loads(good), "format": 9}))
    with pytest.raises(StateFormatError, match="another format"):
        read_beginning(tmp_path)
    path.write_text("{")
    with pytest.raises(StateCorruptError, match="restore the savepoint again"):
        read_beginning(tmp_path)


def test_sources_go_on_where_they_were() -> None:
    starting = BEGINS.starting_offsets("events", "pay-ments")
    assert starting is not None
    assert json.loads(starting) == {"pay-ments": {"0": 17, "11": 4}}
    assert BEGINS.files_read("control") == ("a b.jsonl", "c[d].jsonl")
    assert Beginning("", 0, {}).starting_offsets("events", "any") is None
    assert Beginning("", 0, {}).files_read("events") == ()
    for lane in ("pay-ments[11]", "files"):
        assert lane_name(partition_name(lane)) == lane


def test_another_source_is_refused() -> None:
    with pytest.raises(UsageError, match=r"topic logins, but .* made of pay-ments"):
        BEGINS.starting_offsets("events", "logins")
    with pytest.raises(UsageError, match=r"a folder, but .* made of pay-ments"):
        BEGINS.files_read("events")
    with pytest.raises(UsageError, match=r"x\.jsonl was read in part"):
        Beginning("", 0, {}, {"events": {"x.jsonl": 100}}).files_read("events")


ENGINE = {"rulebook": "", "held_memory": [], "watermark_ms": 5, "times": {"topic[0]": [3, False]}}
ENGINE_TIMES = {"since_ms": 1, "gap_ms": 2, "heartbeat_ms": 3}  # may be absent
GOOD = Payload(JOB.to_json(), {"records": ["{}"]}, 7, ENGINE, {"events": {"topic[0]": 17}}, {"events": 9})


def test_a_payload_comes_back() -> None:
    assert Payload.from_bytes(GOOD.to_bytes(), "here").to_bytes() == GOOD.to_bytes()


@pytest.mark.parametrize("value", [None, "text", -1.5, [1], {"a": "b"}, "absent"], ids=repr)
def test_a_field_that_is_absent_or_of_another_type_is_refused(value: Any) -> None:
    places = [("job",), ("rules",), ("rules", "records"), ("checkpoint",), ("job", "event_types")]
    places += [("checkpoint", name) for name in ("format", "base", "engine", "positions", "totals")]
    places += [("checkpoint", "engine", name) for name in (ENGINE if value == "absent" else {**ENGINE, **ENGINE_TIMES})]
    for *path, last in places:
        if value == "text" and last == "rulebook":
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


@pytest.mark.parametrize(
    "entry", [["r"], ["r", "k"], ["r", 5, 1], [["r"], "k", 1], ["r", "k", "1"], ["r", "k", 1, 2, 3, "z"]], ids=repr
)
def test_who_was_alerted_is_checked(entry: list[Any]) -> None:
    bad = replace(GOOD, engine={**ENGINE, "held_memory": [entry]})
    with pytest.raises(StateCorruptError, match="savepoint in here"):
        Payload.from_bytes(bad.to_bytes(), "here")
    about = {"format": FORMAT, "job": JOB.to_json(), "rules": [], "since_ms": 0, "until_ms": 1, "memory": [entry]}
    with pytest.raises(StateCorruptError, match="warm start in here"):
        _about(orjson.dumps(about), "here")


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
    rules_folder(folder)
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


OVERLAP = 30
RULES = str(Path(__file__).parents[3] / "rules")


def lines_of(table: pa.Table) -> list[bytes]:
    rows = table.to_pylist()
    times = [row.pop("event_time").isoformat().replace("+00:00", "Z") for row in rows]
    return [
        orjson.dumps({"event_type": "transfer", "event_time": time, **row})
        for time, row in zip(times, rows, strict=True)
    ]


def job_for(deployment: Deployment, groups_count: int = 16, pages: int = 1) -> Job:
    levels = len(by_level(deployment.rulebook.deployed(), deployment.schema))
    return Job(deployment.schema, deployment.key_domains, groups_count, pages, levels_count=levels)


def warm_start(
    lines: Sequence[bytes], records: Sequence[UpsertRecord], folder: Path, until_ms: int | None
) -> list[bytes]:
    """Replay these lines up to the cut and leave the state in the folder; return the alerts."""
    deployed = deploy(records)
    path = folder.with_suffix(".jsonl")
    path.write_bytes(b"\n".join(lines))
    ending = Ending(folder, until_ms)
    job = job_until(job_for(deployed), ending)
    replayed = embedded.replay(job, deployed.rulebook, read_pieces(path, job.schema), 2, ending=ending)
    assert replayed.until_ms is not None
    initial = tuple(record.to_json() for record in records)
    finish(folder, replayed.state_files, About(job, initial, replayed.since_ms, replayed.until_ms))
    return list(json_lines(replayed.alerts))


CASES: dict[str, tuple[Callable[[], list[bytes]], Callable[[], list[UpsertRecord]]]] = {
    "runs": (lambda: list(day()), lambda: list(rules().values())),
    "histories": (lambda: history_lines()[:5_000], histories),
    "levels": (lambda: lines_of(transfers(3, 150)), laundering),
}


@pytest.mark.parametrize("share", [0.3, pytest.param(0.7, marks=LATER)])
@pytest.mark.parametrize("name", CASES)
def test_replay_and_then_live_are_a_replay_of_everything(name: str, share: float, tmp_path: Path) -> None:
    lines, records = CASES[name][0](), CASES[name][1]()
    cut_line = int(len(lines) * share)
    until_ms = time_ms(lines[cut_line])
    before = sum(time_ms(line) < until_ms for line in lines)
    # Both sources contain more than their part.
    alerts = warm_start(lines[: cut_line + OVERLAP], records, tmp_path / "warm", until_ms)
    warm = open_warm_start(str(tmp_path / "warm"))
    deployed = deploy(records)
    # The live job has other key groups and pages, and several workers.
    job = replace(job_for(deployed, 24, 3), begins_ms=warm.about.until_ms)
    counters: Counter[str] = Counter()
    engine = Engine(job, warm.about.rules, MemoryStore(), Workers(3))
    engine.begin(warm)
    rest = feed(engine, cut(lines[cut_line - OVERLAP :], 6, seed=cut_line), counters) + end_of_time(engine, counters)
    assert sorted(alerts + rest) == sorted(expected(lines, deployed, tmp_path))
    assert alerts
    assert rest
    assert counters["events_before_start"] == before - (cut_line - OVERLAP)
    assert counters["late_events"] == 0


def test_the_cut_is_behind_the_last_event_if_none_is_given(tmp_path: Path) -> None:
    lines = list(day())[:400]
    warm_start(lines, list(rules().values()), tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    assert warm.about.until_ms == max(map(time_ms, lines)) + 1


def test_the_number_of_runs_is_that_of_a_job_that_saw_everything(tmp_path: Path) -> None:
    lines, records = list(day())[:3_000], list(rules().values())
    warm_start(lines[:2_000], records, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    totals: list[int] = []
    for part in (lines, lines[2_000:]):
        counters: Counter[str] = Counter()
        engine = Engine(job_for(deploy(records)), warm.about.rules, MemoryStore(), Workers(1))
        begun = 0 if part is lines else engine.begin(warm)["runs"]
        feed(engine, [part], counters)
        engine.close()
        totals.append(begun + counters["runs"])
    assert totals[0] == totals[1] > 0


def unread(stored: StoredSegment) -> Block:
    raise AssertionError(f"segment {stored.number} is only counted")


def test_what_spark_begins_with_is_whole(tmp_path: Path) -> None:
    """Every page of histories that still counts has its head, and every segment that a head names exists."""
    rules_of_test = histories()
    warm_start(history_lines()[:2_000], rules_of_test, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    deployment, checkpoint = deploy(rules_of_test), tmp_path / "checkpoint"
    job = replace(job_for(deployment, 8, 2), begins_ms=warm.about.until_ms)
    begin_warm(warm, job, deployment.rulebook, checkpoint)
    begins = read_beginning(checkpoint)
    assert begins is not None
    segments = 0
    for group in range(8):
        group_state = group_beginning(checkpoint, begins, job, 0, group)
        assert group_state.heads.keys() == group_state.expiry_ms.keys()
        for page, head in group_state.heads.items():
            named = digests_of(decode_head(head, unread))
            assert {(page, number) for number in named} <= group_state.segments.keys()
            segments += len(named)
    assert segments > 8


def test_a_damaged_file_is_not_taken(tmp_path: Path) -> None:
    records = list(rules().values())
    warm_start(list(day())[:400], records, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    file = next(iter(warm.files.values()))
    (tmp_path / "warm" / "files" / file.sha256).write_bytes(b"x" * file.size)
    engine = Engine(job_for(deploy(records)), warm.about.rules, MemoryStore(), Workers(1))
    with pytest.raises(StateCorruptError, match="checksum"):
        engine.begin(warm)


def test_a_job_without_the_keys_of_the_state_is_refused(tmp_path: Path) -> None:
    records = list(rules().values())
    warm_start(list(day())[:400], records, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    deployed = deploy(records)
    engine = Engine(Job(deployed.schema, deployed.key_domains[:1], 16), warm.about.rules, MemoryStore(), Workers(1))
    with pytest.raises(UsageError, match="is missing"):
        engine.begin(warm)


# ------------------------------------------------------------------------------------------------- the command line


def place(folder: Path, lines: Sequence[bytes]) -> Path:
    folder.mkdir()
    (folder / "0.jsonl").write_bytes(b"\n".join(lines))
    return folder


def test_a_job_with_other_levels_than_the_state_is_refused(tmp_path: Path) -> None:
    lines = lines_of(transfers(3, 60))
    warm_start(lines, laundering(), tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    job = replace(job_for(deploy(laundering())), levels_count=4)
    engine = Engine(job, warm.about.rules, MemoryStore(), Workers(1))
    with pytest.raises(UsageError, match="`--levels 4`"):
        engine.begin(warm)
    engine.close()


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cep replay --savepoint` and `cep run --from`, stopped and started again in the middle."""
    lines = list(day())
    cut = len(lines) // 2
    until = utc_text(time_ms(lines[cut]))
    history, events = (
        place(tmp_path / "history", lines[: cut + OVERLAP]),
        place(tmp_path / "events", lines[cut - OVERLAP :]),
    )
    control = place(tmp_path / "control", [END])
    (tmp_path / "alerts").mkdir()
    replay = ["replay", "--rules", RULES, "--engine", "embedded", "--key-groups", "16"]
    # Without a savepoint, `--until` only ends the history.
    earlier = place(tmp_path / "earlier", [line for line in lines if time_ms(line) < time_ms(lines[cut])])
    assert main([*replay, "--events", str(history), "--out", str(tmp_path / "cut.jsonl"), "--until", until]) == 0
    assert main([*replay, "--events", str(earlier), "--out", str(tmp_path / "earlier.jsonl")]) == 0
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "earlier.jsonl").read_bytes() != b""
    first = [*replay, "--events", str(history), "--out", str(tmp_path / "alerts" / "past.jsonl")]
    assert main([*first, "--savepoint", str(tmp_path / "warm"), "--until", until]) == 0
    assert main([*first, "--savepoint", str(tmp_path / "warm"), "--until", until]) == Exit.USAGE, "there is one already"
    live = ["run", "--events", str(events), "--alerts", str(tmp_path / "alerts" / "live"), "--available-now"]
    live += ["--checkpoint", str(tmp_path / "job"), "--key-groups", "8"]
    (tmp_path / "alerts" / "live").mkdir()
    assert main([*live, "--from", str(tmp_path / "warm")]) == 0
    capsys.readouterr()
    # A job that continues needs no warm start, and knows its rules and its beginning.
    assert main([*live, "--from", str(tmp_path / "warm"), "--control", str(control)]) == 0
    assert main([*live, "--rules", RULES, "--control", str(control)]) == 0
    assert main(["run", "--rules", RULES, "--events", str(events), "--available-now"]) == 0
    everything = place(tmp_path / "everything", lines)
    assert main([*replay, "--events", str(everything), "--out", str(tmp_path / "all.jsonl")]) == 0
    alerts = [
        line
        for path in (tmp_path / "alerts").rglob("*.jsonl")
        if ".held" not in path.name
        for line in path.read_bytes().splitlines()
    ]
    assert sorted(alerts) == sorted((tmp_path / "all.jsonl").read_bytes().splitlines())


def test_what_cannot_be_begun_from(tmp_path: Path, output_of: OutputOf) -> None:
    events = place(tmp_path / "events", list(day())[:50])
    live = ["run", "--events", str(events), "--alerts", str(tmp_path), "--available-now"]
    assert "has no warm start" in output_of(main([*live, "--from", str(tmp_path)]), Exit.USAGE).err
    warm_start(list(day())[:400], list(rules().values()), tmp_path / "warm", None)
    job = ["--checkpoint", str(tmp_path / "job"), "--key-groups", "16"]
    assert main([*live, *job, "--rules", RULES]) == 0
    output_of.read()
    assert "did not begin from" in output_of(main([*live, *job, "--from", str(tmp_path / "warm")]), Exit.USAGE).err
    assert (tmp_path / "warm" / NAME).exists()


SPARK_CASES = {
    "runs": lambda: (list(day()), list(rules().values())),
    "histories": lambda: (history_lines()[:6_000], histories()),
    "levels": lambda: (lines_of(transfers(3, 150)), laundering()),
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", SPARK_CASES)
def test_replay_and_then_live_on_spark(spark: SparkSession, name: str, tmp_path: Path) -> None:
    lines, records = SPARK_CASES[name]()
    cut = len(lines) * 2 // 3
    deployed = deploy(records)
    past = tmp_path / "past.jsonl"
    past.write_bytes(b"\n".join(lines[: cut + OVERLAP]))
    ending = Ending(tmp_path / "state", time_ms(lines[cut]))
    events = read_events(spark, past)
    replayed = replay(job_until(job_for(deployed), ending), deployed.rulebook, events, 2, ending)
    assert replayed.until_ms == time_ms(lines[cut])
    initial = tuple(record.to_json() for record in records)
    finish(ending.folder, replayed.state_files, About(job_for(deployed), initial, replayed.since_ms, replayed.until_ms))
    warm = open_warm_start(str(ending.folder))
    # The live job has its own number of pages and, except in one case, its own number of key groups.
    job = replace(job_for(deployed, 16 if name == "levels" else 8, 2), begins_ms=warm.about.until_ms)
    live = LiveRun(spark, tmp_path / "live", job, initial)
    begin_warm(warm, job, deployed.rulebook, tmp_path / "live" / "checkpoint")
    parts = split(lines[cut - OVERLAP :], 2)
    live.phase(parts[:1])
    live.phase(parts[1:])
    live.phase([], [END])
    assert sorted(rows(replayed.alerts) + live.alerts()) == sorted(expected(lines, deployed, tmp_path))
    assert replayed.alerts.num_rows
    assert live.totals["events_before_start"] > 0
    assert live.totals["late_events"] == 0
    assert live.totals["runs"] >= 0


@pytest.mark.spark
@pytest.mark.slow
def test_the_cut_on_spark_is_behind_the_last_event(spark: SparkSession, tmp_path: Path) -> None:
    records: list[UpsertRecord] = list(rules().values())
    lines, deployed = list(day())[:300], deploy(records)
    (tmp_path / "past.jsonl").write_bytes(b"\n".join(lines))
    events = read_events(spark, tmp_path / "past.jsonl")
    replayed = replay(job_for(deployed), deployed.rulebook, events, 2, Ending(tmp_path / "state"))
    times = list(map(time_ms, lines))
    assert (replayed.since_ms, replayed.until_ms) == (min(times), max(times) + 1)
    assert pa.types.is_timestamp(replayed.alerts.schema.field("history_from").type)

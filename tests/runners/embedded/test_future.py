"""Events from the future, bursts and quiet partitions in one process: no alert is missing, for any clock."""

import threading
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson
import pyarrow as pa
import pytest

from cep.base.audit import CODE
from cep.base.text import utc_text
from cep.cli.main import main
from cep.model.rule import HeartbeatRecord
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.sinks.files import DeadLetterFiles, FileSink
from cep.sources.live.base import Chunk, Positions
from cep.step.job import Job
from tests.real_kafka import KafkaCluster
from tests.rule_files import rule_text
from tests.runners.embedded.outside import Crash, Steps, Still
from tests.step.contract import DEPLOYED, MINUTE_MS, RECORDS, SOURCE

NOW_MS, PAST_MS, FAR = 1_700_000_000_000, 1_699_999_000_000, "2099-01-01T00:00:00Z"
CARDS = 20
INITIAL = tuple(record.to_json() for record in RECORDS if record.id == "small_large")


def payment(id_: str, card: str, second: int | str, amount: float) -> bytes:
    event_time = second if isinstance(second, str) else utc_text(second)
    return orjson.dumps({"tx_id": id_, "event_time": event_time, "card": card, "shop": "s", "amount": amount})


def fraud(card: int, ms: int) -> list[bytes]:
    """Return a small payment and then a large one, which the rule finds."""
    return [payment(f"small{card}", f"c{card}", ms, 0.5), payment(f"large{card}", f"c{card}", ms + 1, 9)]


def written(folder: Path) -> list[dict[str, object]]:
    files = sorted(folder.glob("*.jsonl")) if folder.exists() else []
    return [orjson.loads(line) for path in files for line in path.read_bytes().splitlines()]


def letters_of(job: Path) -> list[dict[str, object]]:
    """Return the dead letters of a job, without the lines of the audit."""
    return [letter for letter in written(job / "dead_letters") if letter["code"] != CODE]


def rules_folder(folder: Path) -> None:
    """Write a folder with the rule that `fraud` fires."""
    (folder / "rules").mkdir()
    (folder / "rules" / "p.cep").write_text(SOURCE)
    (folder / "rules" / "small_large.toml").write_text(rule_text("small_large", message="{key}"))


@dataclass
class Lanes(Still):
    """A source that gives one piece after the other: (lane, lines), all available lines of the lane."""

    pieces: list[tuple[str, list[bytes]]]
    names: str
    at: int = 0
    unread: str = ""  # the lanes that have more than the pieces
    ended: bool = field(default=False, init=False)

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        if self.at == len(self.pieces):
            return []
        lane, lines = self.pieces[self.at]
        self.at += 1
        return [Chunk(lane, pa.array(lines, pa.large_binary()))]

    def positions(self) -> Positions:
        return {"all": self.at}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.at = positions["all"]

    def behind(self) -> dict[str, bool]:
        return {name: name in self.unread for name in self.names}


@dataclass
class Job1:
    """One life of a job over some pieces, at a clock that the test moves."""

    folder: Path
    source: Lanes
    now_ms: int = NOW_MS
    tick_ms: int = 0  # the step of the clock for each query
    job: Job = field(default_factory=lambda: Job(DEPLOYED.schema, (("card",),), 2))

    def start(self, on_step: Steps | None = None) -> Runner:
        self.commits = Commits(StoreSettings(self.folder / "job"), on_step or (lambda _: None))
        self.engine = Engine(self.job, INITIAL, self.commits.store, Workers(1))
        outlets = Outlets((FileSink(self.folder / "alerts"),), DeadLetterFiles(self.folder / "letters"))
        return Runner(self.engine, Sources(self.source, None), outlets, self.commits, Pace(), clock=self.clock)

    def clock(self) -> int:
        self.now_ms += self.tick_ms
        return self.now_ms

    def end(self) -> None:
        self.engine.close()
        self.commits.close()

    def fired(self) -> list[str]:
        return sorted(str(alert["key"]) for alert in written(self.folder / "alerts"))

    def letters(self) -> list[tuple[object, object]]:
        return [(letter["code"], letter["event_id"]) for letter in written(self.folder / "letters")]


def test_unread_records_of_an_earlier_source_hold_nothing_back(tmp_path: Path) -> None:
    """A job that was stopped in the middle of a folder, for example, goes on with a topic."""
    pieces = [("a", fraud(0, PAST_MS)), ("b", fraud(1, PAST_MS + 10))]
    for lanes in (Lanes(pieces[:1], "a", unread="a"), Lanes(pieces, "b")):
        job = Job1(tmp_path, lanes)
        runner = job.start()
        runner.start()
        runner.cycle(0.0)
        runner.finish()
        job.end()
    assert job.fired() == ["c0", "c1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_one_event_from_the_future_hides_none_of_twenty_frauds(
    restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rules_folder(tmp_path)
    (tmp_path / "events").mkdir()
    lines = [
        payment("far", "c0", FAR, 1),
        *(line for card in range(CARDS) for line in fraud(card, PAST_MS + 10 * card)),
    ]
    cut = 1 if restarts else len(lines)
    for number, part in enumerate((lines[:cut], lines[cut:])):
        (tmp_path / "events" / f"{number}.jsonl").write_bytes(b"\n".join(part))
        command = ["run", "--rules", "rules", "--events", "events", "--checkpoint", "job", "--alerts", "alerts"]
        is_rejected_alone = len(part) == 1
        assert main([*command, "--available-now", "--rejected-max", "0.5"]) == int(is_rejected_alone)
    assert len(written(tmp_path / "alerts")) == CARDS
    (letter,) = written(tmp_path / "job" / "dead_letters")
    assert (letter["code"], letter["event_id"]) == ("ahead", "far")


def test_a_burst_that_is_read_lane_by_lane_makes_nothing_late(tmp_path: Path) -> None:
    """Events are out of order by less than the lateness, over ten hours: the lane that is read first is far ahead."""
    chance, lateness_ms = Random(7), 10 * MINUTE_MS
    start_ms = NOW_MS - 600 * MINUTE_MS
    times = [start_ms + card * MINUTE_MS for card in range(500)]
    lines = [(ms, line) for card, ms in enumerate(times) for line in fraud(card, ms)]
    lines.sort(key=lambda time_and_line: time_and_line[0] + chance.randrange(lateness_ms // 2))
    pieces = [(lane, [line for _, line in lines[number::4]]) for number, lane in enumerate("abcd")]
    job = Job1(tmp_path, Lanes(pieces, "abcd"), job=Job(DEPLOYED.schema, (("card",),), 2, lateness_ms=lateness_ms))
    job.tick_ms = 300
    job.start().run(threading.Event(), until_end=True)
    job.end()
    assert job.commits.totals["late_events"] == 0
    # Events within the lateness of the end still wait, such as the second payment of card 489.
    assert job.fired() == sorted(f"c{card}" for card in range(489))


def test_bursts_and_an_old_heartbeat_on_a_broker_make_nothing_late(
    kafka_broker: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 000 events over 4 partitions, out of order by less than half the lateness, with the default idleness. The
    control topic has a heartbeat as late as the last of them. A later heartbeat counts for the events after it.
    """
    monkeypatch.chdir(tmp_path)
    topic, chance = f"burst-{uuid.uuid4().hex[:8]}", Random(3)
    for name in (topic, f"{topic}-control"):
        kafka_broker.create(name, 4 if name == topic else 1)
    rules_folder(tmp_path)
    end_ms = NOW_MS + 19_999_002
    lines = [(ms, line) for card in range(20_000) for ms in [NOW_MS + 1_000 * card] for line in fraud(card, ms)]
    lines.sort(key=lambda time_and_line: time_and_line[0] + chance.randrange(5 * MINUTE_MS))
    kafka_broker.send(topic, [{"value": line, "partition": chance.randrange(4)} for _, line in lines])
    beat = HeartbeatRecord(event_time=utc_text(end_ms)).to_json()
    kafka_broker.send(f"{topic}-control", [{"key": "heartbeat", "value": beat, "partition": 0}])
    kafka = ["--bootstrap-servers", kafka_broker.address, "--topic", topic, "--control-topic", f"{topic}-control"]
    command = ["run", "--rules", "rules", *kafka, "--checkpoint", "job", "--alerts", "alerts", "--lateness", "10 min"]
    assert main([*command, "--max-records", "1500", "--available-now"]) == 0
    assert letters_of(tmp_path / "job") == []
    assert len(written(tmp_path / "alerts")) == 20_000, "the heartbeat has ended what waited"
    kafka_broker.send(topic, [{"value": payment("after", "c1", end_ms - 1, 1), "partition": 0}])
    assert main([*command, "--available-now"]) == 1, "all that has come is late"
    assert [letter["code"] for letter in letters_of(tmp_path / "job")] == ["late"]


@dataclass
class Greedy(Lanes):
    """A source that gives its whole first lane first, unless the lane is held; `order` has the lanes as read."""

    held: Collection[str] = ()
    order: list[str] = field(default_factory=list)

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        free = [piece for piece in self.pieces if piece[0] not in self.held]
        if not free:
            return []
        self.pieces.remove(free[0])
        self.order.append(free[0][0])
        return [Chunk(free[0][0], pa.array(free[0][1], pa.large_binary()))]

    def hold(self, lanes: Collection[str]) -> None:
        self.held = lanes

    def behind(self) -> dict[str, bool]:
        return {name: any(lane == name for lane, _ in self.pieces) for name in self.names}


def test_a_job_that_catches_up_reads_partitions_in_step(tmp_path: Path) -> None:
    """Ten hours of two lanes, a piece an hour. For any preference of the source, the lanes stay close to each other."""
    start_ms, hour_ms = NOW_MS - 600 * MINUTE_MS, 60 * MINUTE_MS
    pieces = [
        (lane, fraud(10 * number + hour, start_ms + hour * hour_ms))
        for number, lane in enumerate("ab")
        for hour in range(10)
    ]
    source = Greedy(pieces, "ab")
    job = Job1(tmp_path, source)
    job.start().run(threading.Event(), until_end=True)
    job.end()
    order = source.order
    assert sorted(order) == ["a"] * 10 + ["b"] * 10
    assert all(abs(2 * order[:end].count("a") - end) <= 3 for end in range(len(order))), order
    assert job.commits.totals["late_events"] == 0
    assert len(job.fired()) == 18, "the last event of each lane has the time of the watermark"


@pytest.mark.parametrize("piece", [3, 41, 1_000])
def test_events_of_now_hide_nothing_of_a_backlog(piece: int, tmp_path: Path) -> None:
    """After an outage longer than `ahead_ms`, an event that was far ahead on arrival is not ahead of the clock."""
    start_ms = NOW_MS - 180 * MINUTE_MS
    lines = [line for card in range(CARDS) for line in fraud(card, start_ms + card * MINUTE_MS)]
    lines[1:1] = [payment(f"now{n}", "c99", NOW_MS - n, 1) for n in range(3)]
    source = Greedy([("a", lines[start : start + piece]) for start in range(0, len(lines), piece)], "a")
    job = Job1(tmp_path, source)
    job.start().run(threading.Event(), until_end=True)
    job.end()
    assert job.commits.totals["late_events"] == 0
    assert job.fired() == sorted(f"c{card}" for card in range(CARDS))


def test_a_quiet_lane_lets_go_without_another_record(tmp_path: Path) -> None:
    job = Job1(tmp_path, Lanes([("a", fraud(1, PAST_MS)), ("b", [payment("z", "z", PAST_MS - MINUTE_MS, 1)])], "ab"))
    job.source.pieces += [("a", [payment("after", "z", PAST_MS + 2, 1)])]
    runner = job.start()
    runner.start()
    for _ in range(4):
        runner.cycle(0.0)
    assert job.engine.watermark_ms == PAST_MS - MINUTE_MS
    assert not runner.cycle(0.0)
    job.now_ms += job.job.idle_ms + 1
    assert runner.cycle(0.0)
    assert job.engine.watermark_ms == PAST_MS + 2
    runner.finish()
    job.end()
    assert job.fired() == ["c1"]


@pytest.mark.parametrize("step", ["1", "2", "3", "4", "5"])
def test_a_crash_leaves_an_event_at_the_bound_in_one_place(step: str, tmp_path: Path) -> None:
    """The event is too far ahead when it comes. After the crash the clock has moved, and it may be judged again."""
    ahead_ms = NOW_MS + MINUTE_MS + 500
    pieces = [("a", fraud(card, PAST_MS + 10 * card)) for card in range(3)]
    pieces.append(("a", [payment("edge", "e", ahead_ms, 0.5)]))
    first = Job1(tmp_path, Lanes(list(pieces), "a"))
    with pytest.raises(Crash):  # noqa: PT012 which micro-batch it meets is the test's parameter
        runner = first.start(Steps(4, step))
        runner.start()
        for _ in range(8):
            runner.cycle(0.0)
            first.commits.finish(wait=True)
    first.end()
    pieces.append(("a", [payment("edge2", "e", ahead_ms + 1, 9), payment("last", "z", ahead_ms + 2, 9)]))
    second = Job1(tmp_path, Lanes(pieces, "a"), NOW_MS + 2 * MINUTE_MS)
    runner = second.start()
    runner.start()
    while runner.cycle(0.0):
        pass
    runner.finish()
    second.end()
    was_set_aside = ("ahead", "edge") in second.letters()
    assert second.fired() == ["c0", "c1", "c2"] + ["e"] * (not was_set_aside)
    assert second.commits.totals["events_ahead"] == was_set_aside
    assert len(second.letters()) == was_set_aside
    assert second.commits.totals["events"] == sum(len(lines) for _, lines in pieces)

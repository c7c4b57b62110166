"""Each sink has its own position in the committed alerts: one that hangs or fails delays no other, for any crash.

If a process dies between two sinks, or a job goes back, each sink has all alerts in the end. Sinks that can report
their alerts get no alert twice.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.base.errors import SinkAwayError
from cep.engine.alerts import NO_ALERTS
from cep.runners.embedded import queues as queues_module
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.commit_entries import SENT, Head, SinkPosition, parse_head
from cep.runners.embedded.engine import Stepped
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlet, Outlets
from cep.runners.embedded.queues import RecalledIds, open_queues
from cep.runners.patience import Patience
from cep.sinks.base import Recalled
from cep.state.memory import MemoryStore
from cep.state.store import WriteBatch
from cep.step.job import Job
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected
from tests.runners.embedded.outside import Crash, Lines, Still
from tests.runners.embedded.outside import Process as Life
from tests.runners.spark.live_cases import disordered, rules
from tests.seeds import seeds
from tests.sinks.alerts import alert_table

STEPS, LIVES_MAX = 40, 60
WAIT_S = 30.0


@dataclass
class Receiver:
    """The content of a sink, which outlives the processes: by number the first alerts of it, in their order.

    A job that has lost its disk and has only sinks without a memory may use a number again: `era` counts the losses.
    """

    taken: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    era: int = 0

    def take(self, names: list[str], number: int) -> None:
        assert self.taken.setdefault((self.era, number), names) == names, "a number has one meaning"
        assert (self.era, number) == max(self.taken), "only the newest number comes again"

    def names(self) -> list[str]:
        return [name for names in self.taken.values() for name in names]


@dataclass
class Link(Still):
    """A process's connection to a receiver. It breaks at drawn calls, and is down while `gate` is closed."""

    receiver: Receiver
    chance: Random
    share: float = 0.0
    gate: threading.Event | None = None

    def write(self, content: Any, number: int) -> None:
        if self.gate is not None:
            assert self.gate.wait(WAIT_S)
        drawn = self.chance.random()
        if drawn < self.share / 2:
            raise SinkAwayError("no way there")
        is_alerts = isinstance(content, pa.Table)
        self.receiver.take(
            content["alert_id"].to_pylist() if is_alerts else [line.decode() for line in content], number
        )
        if drawn < self.share:
            raise SinkAwayError("no way back")


class TellingLink(Link):
    """A link to a receiver that can report its content."""

    def place(self) -> str:
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        newer = {number: names for (_, number), names in self.receiver.taken.items() if number > after}
        return Recalled(frozenset(name for names in newer.values() for name in names), max([after, *newer]))


@dataclass
class Steps:
    """Replaces engine and sources: step n gives a fixed number of alerts, and sometimes a dead letter."""

    step: int = 0
    groups: range = range(8)

    def stepped(self) -> Stepped:
        step, self.step = self.step, self.step + 1
        letters = (orjson.dumps({"code": "late_event", "step": step}),) if step % 5 == 0 else ()
        return Stepped(alert_table(10 * step, step % 4) if step % 4 else NO_ALERTS, letters, Counter())

    def save(self, batch: WriteBatch, commit: int) -> None:
        pass

    def restore(self) -> None:
        pass

    def audit_head(self) -> None:
        return None

    def positions(self) -> dict[str, dict[str, int]]:
        return {"events": {"step": self.step}}

    def topic_ids(self) -> dict[str, str]:
        return {}

    def seek(self, positions: Any, _: object) -> None:
        self.step = positions["events"]["step"]


def expected_ids() -> tuple[list[str], list[str]]:
    """Return the ids of all alerts and all dead letters, in their order."""
    job = Steps()
    steps = [job.stepped() for _ in range(STEPS)]
    return (
        [name for step in steps for name in step.alerts["alert_id"].to_pylist()],
        [line.decode() for step in steps for line in step.dead_letters],
    )


@dataclass
class Process:
    """A process of the job, which may die before a step. Afterwards none of its threads begins another step."""

    folder: Path
    outlets: Outlets
    steps_left: int = 1 << 30
    checkpoint_ms: int = 3_600_000
    is_gone: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def on_step(self, step: str) -> None:
        with self.lock:
            self.steps_left -= 1
            self.is_gone = self.is_gone or self.steps_left <= 0
            if self.is_gone:
                raise Crash(step)

    def live(self, work: Callable[[Commits, Any], None]) -> bool:
        """Continue from the last commit; return whether the process came to its end."""
        job: Any = Steps()
        settings = StoreSettings(self.folder, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=self.checkpoint_ms)
        commits = None
        try:
            commits = Commits(settings, self.on_step)
            commits.resume(job, job, self.outlets)
            work(commits, job)
        except Crash:
            return False
        finally:
            self.is_gone = True
            self.outlets.patience.stop.set()
            if commits is not None:
                commits.close()
        return True

    def to_the_end(self, chance: Random) -> Callable[[Commits, Any], None]:
        def work(commits: Commits, job: Any) -> None:
            while job.step < STEPS:
                commits.deliveries.take(job.stepped())
                commits.finish(wait=False)
                if chance.random() < 0.7:
                    commits.begin(job, job, self.outlets)
                if chance.random() < 0.3:
                    commits.wait_for_delivery(0.01)
            commits.settle(job, job, self.outlets)

        return work


@pytest.mark.parametrize("seed", seeds(60, inner=4))
def test_sinks_that_fail_at_drawn_calls_have_all_alerts_in_their_order(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)
    monkeypatch.setattr(queues_module, "DELIVERY_ALERTS_MAX", chance.choice((3, 10, 20_000)))
    kinds = [chance.choice((Link, TellingLink)) for _ in range(chance.randrange(1, 5))]
    receivers, letters = [Receiver() for _ in kinds], Receiver()
    lost = 0
    for life in range(LIVES_MAX):
        sinks = [
            kind(receiver, Random(chance.getrandbits(32)), chance.choice((0.0, 0.5, 0.9)))
            for kind, receiver in zip(kinds, receivers, strict=True)
        ]
        patience = Patience(threading.Event(), pause_s=0.0)
        outlets = Outlets(sinks, Link(letters, Random(life)), patience=patience)
        process = Process(tmp_path / "job", outlets, chance.randrange(2, 80) + 4 * life, chance.choice((0, 3_600_000)))
        if process.live(process.to_the_end(chance)):
            break
        if chance.random() < 0.2 and (tmp_path / "job" / "checkpoints").exists():
            shutil.rmtree(tmp_path / "job" / "store")
            lost += 1
            for kind, receiver in zip(kinds, receivers, strict=True):
                receiver.era += kind is Link
            letters.era += 1
    else:
        pytest.fail("it never came to its end")
    names, lines = expected_ids()
    for kind, receiver in zip(kinds, receivers, strict=True):
        received = list(dict.fromkeys(receiver.names()))
        assert received == names, f"all of them in their order, seed {seed}"
        if not lost or kind is TellingLink:
            assert receiver.names() == names, f"and none twice, seed {seed}"
    assert set(letters.names()) == set(lines)


def test_a_sink_that_hangs_delays_no_other_and_gets_all_after_a_restart(tmp_path: Path) -> None:
    gate = threading.Event()
    hanging, healthy, letters = Receiver(), Receiver(), Receiver()
    names, lines = expected_ids()

    def outlets(own_gate: threading.Event | None) -> Outlets:
        sinks = [Link(hanging, Random(1), gate=own_gate), Link(healthy, Random(2))]
        return Outlets(sinks, Link(letters, Random(3)), patience=Patience(threading.Event()), names=("hook", "file"))

    first = Process(tmp_path / "job", outlets(gate))

    def work(commits: Commits, job: Any) -> None:
        while job.step < STEPS:
            commits.deliveries.take(job.stepped())
            commits.begin(job, job, first.outlets)
            commits.finish(wait=False)
        while commits.deliveries.backlogs["file"].size:
            commits.begin(job, job, first.outlets)
            commits.wait_for_delivery(0.01)
            commits.finish(wait=False)
        assert healthy.names() == names
        assert hanging.names() == []
        waiting, oldest = commits.deliveries.backlogs["hook"], commits.deliveries.backlogs["file"].since_ms
        assert (waiting.size, oldest) == (len(names), None)
        assert waiting.since_ms is not None
        assert commits.totals["alerts_delivered[file]"] == len(names)
        assert commits.totals["alerts_delivered[hook]"] == 0
        assert commits.deliveries.undelivered_count >= len(names)
        assert not commits.leave(job, job, first.outlets, 0.0), "the next start sends the rest"
        assert set(letters.names()) == set(lines)
        (hook,) = [queue for queue in commits.deliveries.queues if queue.name == "hook"]
        gate.set()  # the request on its way arrives after all, without a note of it
        assert hook.delivery is not None
        hook.delivery.done.result(WAIT_S)

    assert first.live(work)
    second = Process(tmp_path / "job", outlets(None))
    assert second.live(second.to_the_end(Random(0)))
    assert hanging.names() == healthy.names() == names
    assert set(letters.names()) == set(lines)


def test_the_alerts_of_a_sink_that_is_gone_go_to_a_new_one_or_are_told(tmp_path: Path) -> None:
    abandoned_lines: list[tuple[str, int]] = []
    names, _ = expected_ids()
    receivers = {name: Receiver() for name in ("file", "new hook", "later hook")}

    def outlets(*chosen: str, away: str = "") -> Outlets:
        sinks = [Link(receivers.get(name, Receiver()), Random(1), 2.0 if name == away else 0.0) for name in chosen]
        stop = threading.Event()
        return Outlets(
            sinks,
            None,
            patience=Patience(stop, pause_s=60.0),
            names=chosen,
            abandoned=lambda *line: abandoned_lines.append(line),
        )

    def stop_with_a_backlog(process: Process) -> None:
        def work(commits: Commits, job: Any) -> None:
            while job.step < STEPS // 2:
                commits.deliveries.take(job.stepped())
            commits.begin(job, job, process.outlets)
            process.outlets.patience.stop.set()
            assert not commits.leave(job, job, process.outlets, WAIT_S)

        assert process.live(work)

    stop_with_a_backlog(Process(tmp_path / "job", outlets("file", "hook", away="hook")))
    again = Process(tmp_path / "job", outlets("file", "new hook"))
    assert again.live(again.to_the_end(Random(0)))
    assert receivers["file"].names() == receivers["new hook"].names() == names
    assert abandoned_lines == []
    shutil.rmtree(tmp_path / "job")
    receivers["file"].taken.clear()
    stop_with_a_backlog(Process(tmp_path / "job", outlets("file", "hook", away="hook")))
    alone = Process(tmp_path / "job", outlets("file"))
    assert alone.live(alone.to_the_end(Random(0)))
    assert receivers["file"].names() == names
    assert [name for name, _ in abandoned_lines] == ["hook"]
    sink, stored = Link(Receiver(), Random(1), 0.0), {"file": SinkPosition(2), "hook": SinkPosition(2)}
    outlets_now = [Outlet("audit", sink, lambda _: True), Outlet("file", sink)]
    _, gone = open_queues(outlets_now, stored, 5, has_changelog=False)
    assert gone == {"hook"}, "a new sink of other lines takes over no alerts"
    late = Process(tmp_path / "job", outlets("file", "later hook"))
    assert late.live(late.to_the_end(Random(0)))
    assert receivers["later hook"].names() == [], "a further sink gets the alerts from its beginning on"


def test_the_head_of_an_earlier_build_has_one_position_for_all_sinks() -> None:
    stored = {
        "format": 4, "number": 7, "base": 2, "lineage": "x", "groups": [0, 8], "delivery": 5, "totals": {},
        "positions": {}, "places": ["here"],
    }  # fmt: skip
    head = parse_head(orjson.dumps(stored))
    assert head.lanes[""].delivery == head.lanes[""].last == 5
    assert head.lanes[""].places == ["here"]
    batch = WriteBatch()
    Head(8, 2, "x", range(8), {}, {}, {"a": head.lanes[""]}).save(batch)
    assert parse_head(batch.changes[0][2]).lanes == {"a": head.lanes[""]}


GIVEN = deployment()
INITIAL = tuple(record.to_json() for record in rules().values())
LATENESS_MS = 5 * MINUTE_MS
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8, 2, LATENESS_MS)


@dataclass
class Silent(Still):
    """A sink that cannot report its alerts. It dies before or after a write once `dies_in` writes are over."""

    taken: list[tuple[int, list[str]]] = field(default_factory=list)
    dies_in: int = 1 << 30
    is_first_lost: bool = False

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        self.dies_in -= 1
        if self.dies_in == 0 and self.is_first_lost:
            raise Crash
        if batch_id not in [number for number, _ in self.taken]:
            self.taken.append((batch_id, alerts["alert_id"].to_pylist()))
        if self.dies_in == 0:
            raise Crash

    def ids(self) -> Counter[str]:
        return Counter(alert_id for _, ids in self.taken for alert_id in ids)


@dataclass
class Telling(Silent):
    """A sink that reports its alerts."""

    def place(self) -> str:
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        newer = [(number, ids) for number, ids in self.taken if number > after]
        return Recalled(
            frozenset(i for _, ids in newer for i in ids), max((number for number, _ in newer), default=after)
        )


def live(folder: Path, sinks: Sequence[Silent], lines: list[bytes], seed: int) -> bool:
    """Run a life of the process; return whether it came to its end."""
    commits = Commits(StoreSettings(folder, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=20))
    sources = Sources(Lines(lines, np.random.default_rng(seed)), None)
    try:
        with Life(commits, JOB, INITIAL, sources, Outlets(tuple(sinks), None)) as life:
            life.read_all(lambda: True)
            life.end()
    except Crash:
        return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_who_dies_between_two_sinks_leaves_nobody_short(seed: int, tmp_path: Path) -> None:
    chance, lines = Random(seed), disordered(list(day()), LATENESS_MS, seed)
    sinks = [Telling(), Silent(), Telling(), Silent(), Telling()]
    folder = tmp_path / "job"
    for life in range(4):
        dying = sinks[chance.randrange(len(sinks))]
        dying.dies_in, dying.is_first_lost = chance.randrange(3, 12), chance.random() < 0.5
        if live(folder, sinks, lines, seed * 10 + life):
            break
        dying.dies_in = 1 << 30
        shutil.rmtree(folder / "store")  # it goes back to its newest checkpoint
    live(folder, sinks, lines, seed * 10 + 9)
    expected_counts = Counter(orjson.loads(line)["alert_id"] for line in expected(list(day()), GIVEN, tmp_path))
    for sink in sinks:
        assert set(sink.ids()) == set(expected_counts), "nothing is missing"
        if isinstance(sink, Telling):
            assert sink.ids() == expected_counts, "and nothing came twice"


def table(*ids: str) -> pa.Table:
    return pa.table({"alert_id": list(ids)})


def test_ids_that_a_commit_stores_are_those_of_each_sink() -> None:
    sent, store, batch = RecalledIds({"a": {"x", "y"}, "b": {"x"}}, is_new=True), MemoryStore(), WriteBatch()
    sent.save(batch)
    store.write(batch)
    assert not sent.is_new
    assert RecalledIds.stored(store, ["b"]).ids == {"a": {"x", "y"}, "b": {"x"}}
    assert RecalledIds.stored(MemoryStore(), ["a"]).ids == {}


def test_ids_that_an_earlier_build_has_stored() -> None:
    """Early builds stored ids that all sinks had. Later builds also counted how many of the first sinks had an id."""
    store, batch = MemoryStore(), WriteBatch()
    batch.put(SENT, b'["x"]')
    store.write(batch)
    assert RecalledIds.stored(store, ["a", "b"]).ids == {"a": {"x"}, "b": {"x"}}
    batch.put(SENT, b'{"sinks": 3, "counts": {"all": 3, "some": 1}}')
    store.write(batch)
    assert RecalledIds.stored(store, ["a", "b", "c"]).ids == {"a": {"all", "some"}, "b": {"all"}, "c": {"all"}}
    assert RecalledIds.stored(store, ["a", "b"]).ids == {"a": {"all"}, "b": {"all"}}


def test_each_sink_gets_the_alerts_that_it_lacks() -> None:
    sent, alerts = RecalledIds({"a": {"x", "y"}, "b": {"x"}}), table("x", "y", "z")
    lacking = {name: sent.lacking(name, alerts)["alert_id"].to_pylist() for name in ("a", "b", "c")}
    assert lacking == {"a": ["z"], "b": ["y", "z"], "c": ["x", "y", "z"]}
    sent.settle("a", alerts)
    assert sent.ids == {"a": set(), "b": {"x"}}
    assert sent.is_new

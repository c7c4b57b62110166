"""A seed → an hour of a job of `cep run` with faults in it, its alerts, and the alarms that rang.

    step by step: records come ─▶ faults begin or end ─▶ the job works, or a new process of it starts
                      ─▶ it checks its surroundings (runners/watch.py) ─▶ its metrics are scraped (alarms.py)

The job is the real one: runner, engine, commits, changelog, store on disk, rulebook, watch. world.py simulates brokers,
sinks and clocks. A `Life` has the runner, engine, commits and store of one process, from its start to its end. A
`Follower` reads the changelog into a folder of its own while its process waits for its turn. The alerts must equal the
replay of all events that no dead letter names, each once.
Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson

from cep.base.errors import CepError, SinkAwayError, SinkError, SourceError, StoreError
from cep.base.text import utc_text
from cep.model.rule import Changes, HeartbeatRecord, parse_control
from cep.rulebook.ledger import hash_of
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import STORE_PART, StoreSettings, followed_folder
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Listener, Pace, Runner
from cep.runners.observe import Observed
from cep.runners.patience import Patience
from cep.runners.watch import Watch, Watched
from cep.sources.kafka import KafkaSettings
from cep.state.checkpoints import LISTS_FOLDER
from cep.step.job import Job
from tests.faults.alarms import Alarms
from tests.faults.world import TOPIC, Brokers, Clock, Control, Link, Partitions, Receiver, StateTopic
from tests.runners.embedded.cases import MINUTE_MS, deployment, expected, morning, suppressing
from tests.runners.embedded.outside import Crash, Still
from tests.runners.spark.live_cases import time_ms

RULES = suppressing()
GIVEN = deployment(RULES)
INITIAL = tuple(record.to_json() for record in RULES)
LATENESS_MS, AHEAD_MS = 15_000, MINUTE_MS
JOB = Job(GIVEN.schema, GIVEN.key_domains, 4, 1, LATENESS_MS, idle_ms=MINUTE_MS, ahead_ms=AHEAD_MS)
STATE = "state"


def _settings(folder: Path) -> StoreSettings:
    return StoreSettings(folder, kept_count=2, cache_bytes=8 << 20, checkpoint_ms=3_600_000)


def _changelog(link: Link, folder: Path) -> Changelog:
    return Changelog(STATE, KafkaSettings("simulated"), link, job=folder.name)


class Follower:
    """A standby."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.folder = folder
        self.link = Link(simulation.receiver, simulation.state, simulation.clock)
        self.changelog = _changelog(self.link, folder)
        partial = followed_folder(folder)
        self._beside = partial / LISTS_FOLDER
        self._store = _settings(folder).open(partial / STORE_PART)

    def follow(self) -> None:
        """Read on to the end of the changelog."""
        self.changelog.follow(self._store, self._beside)

    def close(self) -> None:
        self._store.close()


class Life:
    """One process of the job; `follower` is its state as a standby, if it was one."""

    def __init__(self, simulation: Simulation, folder: Path, follower: Follower | None = None) -> None:
        chance = simulation.chance
        self.observed = Observed(300_000)
        self.patience = Patience(threading.Event(), self.observed.away, 0.002)
        if follower is None:
            self.link = Link(simulation.receiver, simulation.state, simulation.clock)
            changelog = _changelog(self.link, folder)
        else:
            self.link, changelog = follower.link, follower.changelog
        has_changelog = simulation.has_changelog
        self.commits = Commits(_settings(folder), simulation.on_step, changelog=changelog if has_changelog else None)
        self.engine = Engine(JOB, INITIAL, self.commits.store, Workers(1))
        order = chance.choice((sorted, lambda numbers: sorted(numbers, reverse=True)))
        source = Partitions(simulation.brokers, order, chance.choice((10, 50)))
        sources = Sources(source, Control(simulation.brokers))
        outlets = Outlets(
            (self.link,), simulation.letters, None, self.observed.sending, patience=self.patience,
        )  # fmt: skip

        def report(batch: Any) -> None:
            self.observed.finished(batch.batch_id, batch.totals, self.engine.watermark_ms)
            self.observed.positions = source.positions()

        def idle() -> None:
            self.observed.idle()
            self.observed.positions = source.positions()

        self.runner = Runner(
            self.engine, sources, outlets, self.commits, Pace(), Listener(report, idle), simulation.clock.job_ms
        )
        self.watch = Watch(Watched(KafkaSettings("simulated"), TOPIC, TOPIC), self.observed, 5_000)

    def begin(self) -> None:
        self.patience.stop.set()
        self.runner.start()
        self.patience.stop.clear()
        self.observed.begin()
        self.observed.finished(self.commits.batch_id - 1, self.commits.totals)

    def close(self) -> None:
        self.patience.stop.set()
        self.engine.close()
        self.commits.close()


DAY_MS = 86_400_000
STEP_MS, DELAY_MS = 20_000, 10_000  # records reach the brokers within DELAY_MS, in any order
FIRST, EVENTS, QUICKER = 20, 900, 5  # so many payments within forty minutes; a quarter of an hour is for the rest
STEPS_MAX = 2_000
HALF = 0.5
REFUSED_MS = 7 * MINUTE_MS  # how long operators do not notice a job that refuses a topic created again
# Fault → the alarms of which one must ring, if it lasts; empty for a harmless fault that needs no operator.
FAULTS: dict[str, tuple[str, ...]] = {
    "two publishers": ("CepChangeRefused",),
    "burst": (),
    "outage of brokers": ('CepPartInTrouble{part="brokers"}',),
    "outage of the sink": ('CepPartInTrouble{part="sinks"}',),
    "old heartbeat": (),
    "heartbeat of tomorrow": ("CepChangeRefused",),
    "heartbeat before a backlog": (),
    "partition added": (),
    "topic recreated": ("CepJobGone",),
    "standby takes over": (),
    "killed": (),
    "down for ten minutes": ("CepJobGone",),
    "disk full": ("CepJobGone",),
    "clock ahead": (),
    "clock behind": ("CepEventsAhead",),
    "event of tomorrow": ("CepEventsAhead",),
    "late events": ("CepEventsLate", "CepEventsAhead"),  # the latter with a clock that is a day behind
    "unreadable records": ("CepRecordsUnreadable",),
}
GONE = "CepJobGone"
SEEN_WITHIN = 20  # minutes after the end of a fault
LASTING = 4  # minutes from which an outage must have rung


@dataclass
class Outcome:
    """The outcome of a seed. `begun_ms` has the begin of each fault and its length in minutes."""

    seed: int
    problem: str = ""
    begun_ms: dict[str, tuple[int, int]] = field(default_factory=dict)
    rung: dict[str, list[int]] = field(default_factory=dict)
    refused_ms: int = 0  # when the sink first refused alerts; an outage without alerts is harmless
    lives: int = 0
    totals: Counter[str] = field(default_factory=Counter)

    def rang(self, fault: str) -> dict[str, int]:
        """Return the alarms that report a fault, and after how many minutes; 0 for an alarm that rang before the fault.

        If the job was gone during the fault, CepJobGone reports it: counters that rise during a gap show no increase.
        """
        begun_ms, minutes = self.begun_ms[fault]
        ends_ms = begun_ms + (minutes + SEEN_WITHIN) * MINUTE_MS
        after: dict[str, int] = {}
        for alarm in (*FAULTS[fault], GONE):
            times = [rung_ms for rung_ms in self.rung.get(alarm, ()) if begun_ms <= rung_ms <= ends_ms]
            if times and not (alarm == GONE and after):
                after[alarm] = (times[0] - begun_ms) // MINUTE_MS
        return after


@dataclass
class Letters(Still):
    """Dead letters by the number of their commit."""

    taken: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        self.taken[batch_id] = list(dead_letters)

    def ids(self) -> set[str]:
        """Return the ids of the events that were set aside."""
        letters = [orjson.loads(line) for lines in self.taken.values() for line in lines]
        return {letter["event_id"] for letter in letters if "event_id" in letter}


class Simulation:
    """One seed. `run` simulates the hour."""

    def __init__(self, seed: int, folder: Path, faults: Sequence[str] | None = None) -> None:
        chance = self.chance = Random(seed)
        self.folder, self.outcome = folder, Outcome(seed)
        lines = quicker(morning()[FIRST : FIRST + EVENTS])  # the first ones are months older
        begin_ms = time_ms(lines[0]) // MINUTE_MS * MINUTE_MS
        self.end_ms = time_ms(lines[-1])
        self.clock = Clock(begin_ms)
        self.brokers = Brokers([[] for _ in range(chance.randrange(1, 4))])
        self.receiver, self.letters, self.state = Receiver(), Letters(), StateTopic()
        self.alarms = Alarms()
        self.lines = lines
        minutes = (self.end_ms - begin_ms) // MINUTE_MS
        chosen = faults or chance.sample(sorted(FAULTS), chance.randrange(1, 4))
        self.plan = sorted((chance.randrange(5, minutes - 12), name, chance.randrange(2, 9)) for name in chosen)
        self.has_changelog = "standby takes over" in chosen or chance.random() < HALF
        # The time at which each record reaches the brokers, and its partition.
        self.coming = sorted(
            (time_ms(line) + int(chance.random() * DELAY_MS), chance.randrange(4), line) for line in lines
        )
        self.sent: list[tuple[int, bytes]] = []
        self.is_held = False  # while True, records do not reach the brokers; then all come at once
        self.crash_in: int | None = None
        self.is_full = False
        self.down_until_ms = 0
        self.life: Life | None = None
        self.observed: Observed | None = None  # of the living process, which may wait for the sink in its start
        self.folders = [folder / "one" / "job", folder / "two" / "job"]  # the first belongs to the working process
        self.follower: Follower | None = None
        self.takes_over: Follower | None = None
        self.outdated: Life | None = None  # it does not know that another process has taken over
        self.created_again_ms = 0  # the time since when each started process has seen that and ended
        self.ends: list[tuple[int, str]] = []
        self.begin_ms = begin_ms
        self.was_a_day_ahead = False

    # ---------------------------------------------------------------------------------------------------------- faults

    def begin(self, name: str, minutes: int) -> None:
        clock, brokers, now_ms = self.clock, self.brokers, self.clock.now_ms
        self.outcome.begun_ms[name] = (now_ms, minutes)
        self.ends.append((now_ms + minutes * MINUTE_MS, name))
        if name == "outage of brokers":
            brokers.are_away = True
        elif name in ("burst", "heartbeat before a backlog"):
            self.is_held = True
        elif name == "outage of the sink":
            self.receiver.loses_answers = self.chance.random() < HALF
            self.receiver.is_away.set()
        elif name == "partition added":
            brokers.partitions.append([])
        elif name == "topic recreated":
            brokers.partitions, brokers.topic_id = [[] for _ in brokers.partitions], "second"
        elif name == "standby takes over":
            self._take_over(has_followed=self.chance.random() < HALF)
        elif name == "killed":
            self.crash_in = self.chance.randrange(1, 40)
        elif name == "down for ten minutes":
            self._end_life()
            self.down_until_ms = now_ms + 10 * MINUTE_MS
        elif name == "disk full":
            self.is_full = True
        elif name == "clock ahead":
            clock.wrong_ms = self.chance.choice((3, 300, 86_400)) * 1_000
            self.was_a_day_ahead = clock.wrong_ms >= DAY_MS
        elif name == "clock behind":
            clock.wrong_ms = -self.chance.choice((1_200, 86_400)) * 1_000
        else:
            self._send(name, now_ms)

    def _send(self, name: str, now_ms: int) -> None:
        brokers, chance = self.brokers, self.chance
        if name == "two publishers":
            base = next(record for record in RULES if record.id == "often_short")
            changes = Changes(version=1, hash=hash_of(base))
            for suppress in ("1 h", "3 h"):
                fields = {"version": 2, "suppress": suppress, "changes": changes, "effective_at": utc_text(now_ms)}
                brokers.control.append(base.model_copy(update=fields).to_json())
        elif name == "old heartbeat":
            self._heartbeat(now_ms - 30 * MINUTE_MS)
        elif name == "heartbeat of tomorrow":
            self._heartbeat(now_ms + DAY_MS)
        elif name == "event of tomorrow":
            self._event(now_ms + DAY_MS, "tomorrow")
        elif name == "late events":
            for number in range(5):
                self._event(now_ms - 60 * MINUTE_MS, f"late{number}")
        elif name == "unreadable records":
            for _ in range(5):
                brokers.partitions[chance.randrange(len(brokers.partitions))].append(b"{")

    def _heartbeat(self, at_ms: int) -> None:
        self.brokers.control.append(HeartbeatRecord(event_time=utc_text(at_ms)).to_json())

    def _event(self, at_ms: int, name: str) -> None:
        event = {**orjson.loads(self.lines[0]), "tx_id": f"{name}-{at_ms}", "event_time": utc_text(at_ms)}
        self.lines.append(orjson.dumps(event))
        self.coming.append((self.clock.now_ms, 0, self.lines[-1]))
        self.coming.sort()

    def end(self, name: str) -> None:
        if name == "outage of brokers":
            self.brokers.are_away = False
        elif name in ("burst", "heartbeat before a backlog"):
            self.is_held = False
            self._arrive()
            if name == "heartbeat before a backlog":
                self._heartbeat(self.clock.now_ms - LATENESS_MS)
        elif name == "outage of the sink":
            self.receiver.is_away.clear()
        elif name.startswith("clock"):
            self.clock.wrong_ms = 0
        elif name == "disk full":
            self.is_full = False
        elif name == "topic recreated":
            self._begin_anew()
        elif name == "standby takes over" and self.chance.random() < HALF:
            self._take_over(has_followed=False)  # back to the first one, whose store is older

    def _take_over(self, *, has_followed: bool) -> None:
        """Let the working process end, or only seem to end, and let the other one begin."""
        if self.life is not None and self.outdated is None and self.chance.random() < HALF:
            self.outdated, self.life, self.observed = self.life, None, None
        self._end_life()
        self.folders.reverse()
        if self.follower is not None and not has_followed:
            self._end_follower()
        self.takes_over, self.follower = self.follower, None

    def _begin_anew(self) -> None:
        """Follow the advice in the refusal of a topic that was created again: send its records again, for a new job."""
        if not self.created_again_ms or self.clock.now_ms < self.created_again_ms + REFUSED_MS:
            self.ends.append((self.clock.now_ms + MINUTE_MS, "topic recreated"))
            return
        self._end_life()
        self._end_follower()
        self.folders = [folder.parents[1] / "anew" / folder.parent.name / "job" for folder in self.folders]
        self.receiver.taken.clear()
        self.letters.taken.clear()
        self.state.clear()
        self.brokers.partitions = [[] for _ in self.brokers.partitions]
        for number, line in self.sent:
            self.brokers.partitions[number % len(self.brokers.partitions)].append(line)

    # ---------------------------------------------------------------------------------------------------- minutes

    def _arrive(self) -> None:
        """Send the due records to the brokers; records that cannot be sent now are sent later."""
        while self.coming and self.coming[0][0] <= self.clock.now_ms and not (self.is_held or self.brokers.are_away):
            _, number, line = self.coming.pop(0)
            self.sent.append((number, line))
            self.brokers.partitions[number % len(self.brokers.partitions)].append(line)

    def run(self) -> Outcome:
        """Simulate the hour, continue until all records and alerts are through, and compare."""
        with ExitStack() as patched:
            shim = SimpleNamespace(time=self.clock.time, monotonic=self.clock.monotonic)
            for module in ("observe", "watch"):
                patched.enter_context(patch(f"cep.runners.{module}.time", shim))
            patched.enter_context(patch("cep.runners.watch.ask_brokers", lambda *_: self.brokers.ends()))
            patched.enter_context(patch("cep.runners.watch.latest_offsets", lambda *_: {TOPIC: self.brokers.ends()}))
            for name, stand_in in self.state.stand_ins().items():
                patched.enter_context(patch(f"cep.runners.embedded.changelog.{name}", stand_in))
            try:
                self._run()
            finally:
                self._end_life()
                self._end_follower()
        self.outcome.rung = self.alarms.rung
        self.outcome.problem = self._compare() or self._silent()
        return self.outcome

    def _run(self) -> None:
        for _ in range(STEPS_MAX):
            now_ms = self.clock.now_ms
            for fault in [fault for fault in self.plan if self.begin_ms + fault[0] * MINUTE_MS <= now_ms]:
                self.plan.remove(fault)
                self.begin(fault[1], fault[2])
            for end in [end for end in self.ends if end[0] <= now_ms]:
                self.ends.remove(end)
                self.end(end[1])
            self._arrive()
            self._work()
            self._follow()
            self.alarms.scrape(now_ms, None if self.observed is None else self.observed.collect())
            self.clock.now_ms += STEP_MS
            if not (self.coming or self.plan or self.ends) and now_ms > self.end_ms + 15 * MINUTE_MS:
                break
        # The day is over: the clock has passed all records, and a heartbeat closes all open windows.
        self.clock.now_ms += 3 * DAY_MS
        self._heartbeat(self.clock.now_ms - DAY_MS)
        for _ in range(20):
            self._work()
        assert self.life is not None
        self.life.runner.finish()
        self.outcome.totals = self.life.commits.totals

    def _work(self) -> None:
        """Let the job work for a minute; start it again if it has ended and need not be down."""
        if self.life is None and self.clock.now_ms < self.down_until_ms:
            return
        try:
            if self.life is None:
                self._start_life()
                self.created_again_ms = 0  # it exists, and waits for brokers that are away
            assert self.life is not None
            for _ in range(self.chance.randrange(2, 8)):
                self.life.runner.cycle(0.0)
            if not self.receiver.is_away.is_set():
                self.life.commits.finish(wait=True)
                self.life.runner.commit()  # sends alerts that waited for these: a real job does so some ms later
                self.life.commits.finish(wait=True)
            self.life.watch.look()
        except (Crash, CepError) as error:
            observed = self.observed
            self._end_life()
            if isinstance(error, SinkAwayError):  # it waits with alerts that an earlier process has left to send
                self.observed, self.created_again_ms = observed, 0
            elif "make room" in str(error):
                self.down_until_ms = self.clock.now_ms + 10 * MINUTE_MS
            elif isinstance(error, SourceError) and "created again" in str(error):
                self.created_again_ms = self.created_again_ms or self.clock.now_ms
            elif not isinstance(error, Crash):
                raise
        if self.receiver.refused and not self.outcome.refused_ms:
            self.outcome.refused_ms = self.clock.now_ms

    def _start_life(self) -> None:
        """Start a process in the first folder; the other one follows. Check that an outdated one is fenced off."""
        takes_over, self.takes_over = self.takes_over, None
        if takes_over is not None:
            takes_over.close()
        self.life = Life(self, self.folders[0], takes_over)
        self.observed = self.life.observed
        self.life.begin()
        self.outcome.lives += 1
        outdated, self.outdated = self.outdated, None
        if outdated is not None:
            outdated.patience.stop.set()
            try:
                outdated.runner.finish()
            except SinkError:
                outdated.close()
            else:
                raise AssertionError("a process went on though another one has taken over")

    def _follow(self) -> None:
        """Let the standby read on."""
        if self.has_changelog and self.follower is None and self.outdated is None:
            self.follower = Follower(self, self.folders[1])
        if self.follower is not None:
            self.follower.follow()

    def _end_follower(self) -> None:
        if self.follower is not None:
            self.follower.close()
            shutil.rmtree(followed_folder(self.follower.folder))
        self.follower = None

    def _end_life(self) -> None:
        if self.life is not None:
            self.life.close()
        self.life = self.observed = None

    def on_step(self, step: str) -> None:
        """Act before a step of the commit protocol, in any thread."""
        if self.is_full and step in ("2", "3"):
            raise StoreError("the disk is full; make room on the disk")
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crash_in = None
                raise Crash(step)

    def _compare(self) -> str:
        aside = self.letters.ids()
        history = [line for line in self.lines if orjson.loads(line)["tx_id"] not in aside]
        changed = deployment([*RULES, *map(_record, self.brokers.control)])
        expected_alerts, alerts = sorted(expected(history, changed, self.folder)), self.receiver.lines()
        if expected_alerts != alerts:
            lost, more = Counter(expected_alerts) - Counter(alerts), Counter(alerts) - Counter(expected_alerts)
            return f"{lost.total()} alerts are missing, {more.total()} are too many, of {len(expected_alerts)}"
        late = {name for name in aside if not name.startswith(("late", "tomorrow"))}
        is_wrong = late and not {"clock behind", "clock ahead"} & self.outcome.begun_ms.keys()
        return f"{len(late)} events were set aside that should count" if is_wrong else ""

    def _silent(self) -> str:
        """Name a fault that lasted without an alarm."""
        for name, (began_ms, minutes) in self.outcome.begun_ms.items():
            begun_ms = self.outcome.refused_ms if name == "outage of the sink" else began_ms
            lasts = began_ms + (minutes - LASTING) * MINUTE_MS >= begun_ms > 0 or not name.startswith("outage")
            was_ahead = any("ahead" in key for key in self.outcome.totals)
            if name == "clock behind" and not was_ahead:
                continue  # events did not come in that time
            if name == "event of tomorrow" and self.was_a_day_ahead and not was_ahead:
                continue  # that clock saw it as an event of today
            if FAULTS[name] and lasts and not self.outcome.rang(name):
                return f"{name} rang nothing"
        return ""


def quicker(lines: Sequence[bytes]) -> list[bytes]:
    """Return the payments with shorter gaps, so that a payment of one partition does not wait long for the next."""
    events = [orjson.loads(line) for line in lines]
    begin_ms = time_ms(lines[0])
    for line, event in zip(lines, events, strict=True):
        event["event_time"] = utc_text(begin_ms + (time_ms(line) - begin_ms) // QUICKER)
    return [orjson.dumps(event) for event in events]


def _record(data: bytes) -> Any:
    return parse_control(data)[0]


_MEMORY = Path("/dev/shm")  # the files need not survive, so they need no disk


def run(seed: int) -> Outcome:
    """Run one seed; an exception becomes its problem."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        simulation = Simulation(seed, Path(name))
        try:
            return simulation.run()
        except Exception:  # noqa: BLE001 a campaign goes on
            simulation.outcome.problem = traceback.format_exc(limit=-3)
            return simulation.outcome


def table(outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    listed = list(outcomes)
    for fault, alarms in FAULTS.items():
        having = [outcome for outcome in listed if fault in outcome.begun_ms]
        rang: dict[str, list[int]] = {}
        for outcome in having if alarms else ():
            for alarm, minutes in outcome.rang(fault).items():
                rang.setdefault(alarm, []).append(minutes)
        shown = "; ".join(
            f"{alarm} in {len(minutes)}, after {statistics.median(minutes):.0f} ({max(minutes):.0f})"
            for alarm, minutes in rang.items()
        )
        rows.append((fault, str(len(having)), shown or "-"))
    return rows

"""`python -m tests.faults.real`: faults by seeds on real brokers, `cep run` or `cep live`, compared with the replay.

    python -m tests.faults.real --runner run --seeds 60 [--first 0] [--keep FOLDER]

A seed draws one or two faults and when they begin, within eighteen seconds of payments, or thirty. With `cep run` each
seed is a job of its own; with `cep live` all are on one job, whose start takes long, and the faults come seed by seed.
Each sink must have the alerts of the replay of all events that were not set aside, each once; a topic that is created
again must be refused. The command prints for each fault the number of its seeds, the alarms that rang after its begin,
and after how many seconds: minutes of the alert rules are seconds here, and the job checks its surroundings every five.
It ends with 1 if a seed went wrong.
Tested by: tests/faults/test_real.py
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cep.model.rule import Changes
from cep.rulebook.files import read_rules
from cep.rulebook.ledger import hash_of
from tests.bench.peer_data import show
from tests.faults.real_job import LATENESS_S, RealJob, now_ms
from tests.real_kafka import RealKafka
from tests.real_postgres import IS_THERE, RealPostgres
from tests.small_disk import SmallDisk, small_disk

SECONDS, RATE = 18.0, 30
SCRAPE_S = 0.5
SINK_LASTS_S = 24.0  # a job calls a delivery slow after fifteen seconds, and checks every five
LASTS_S = 12.0  # so long that a check every five seconds sees it, and an alarm that waits for a second rings
DISK_MB = 2_200  # more than the free space that a job requires
DAY_MS = 86_400_000
# Fault → the alarms that may report it, and whether one must; a harmless fault needs no alarm.
FAULTS: dict[str, tuple[tuple[str, ...], bool]] = {
    "two publishers": (("CepChangeRefused",), True),
    "burst": ((), False),
    "outage of brokers": (('CepPartInTrouble{part="brokers"}',), True),
    "outage of the sink": (('CepPartInTrouble{part="sinks"}', "CepJobGone", "CepProcessDown"), True),
    "old heartbeat": ((), False),
    "heartbeat of tomorrow": (("CepChangeRefused",), True),
    "event of tomorrow": (("CepEventsAhead",), True),
    "late events": (("CepEventsLate",), False),  # rings if a thousandth of the events is late for five seconds
    "partition added": ((), False),
    "topic recreated": (("CepJobGone", "CepProcessDown"), True),
    "disk full": (
        ('CepPartInTrouble{part="disk"}', "CepDiskFull", "CepJobGone", "CepProcessDown", "CepRestartsOften"),
        True,
    ),
    "killed": (("CepJobGone", "CepProcessDown"), False),
    "standby takes over": (("CepJobGone", "CepProcessDown", "CepNobodyWorks"), False),
}
OF_RUN = ("standby takes over",)  # the other runner has no standby


@dataclass
class Outcome:
    """The outcome of a seed. `after_s` has the seconds by fault and alarm."""

    seed: int
    faults: list[str]
    problem: str = ""
    alerts: int = 0
    after_s: dict[str, dict[str, float]] = field(default_factory=dict)
    took_over_s: float | None = None


@dataclass
class Trial:
    """A job, and one seed's faults on it."""

    job: RealJob
    disk: SmallDisk | None
    outcome: Outcome
    begun_ms: dict[str, int] = field(default_factory=dict)
    ends: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def run(self, chance: Random) -> None:
        """Send payments while the faults come and go; then let the job settle. Raises: AssertionError."""
        job, outcome = self.job, self.outcome
        plan = sorted((chance.uniform(2, 5), name) for name in outcome.faults if name != "topic recreated")
        begun_s, sent, scraped_s = time.monotonic(), 0, 0.0
        while (passed_s := time.monotonic() - begun_s) < max([SECONDS, *(at_s + SCRAPE_S for at_s, _ in self.ends)]):
            while plan and plan[0][0] <= passed_s:
                self.begin(plan.pop(0)[1], passed_s)
            for end in [end for end in self.ends if end[0] <= passed_s]:
                self.ends.remove(end)
                end[1]()
            while sent < passed_s * RATE:
                job.payment()
                sent += 1
            if passed_s - scraped_s > SCRAPE_S:
                scraped_s = passed_s
                job.scrape()
                job.look_after()
            time.sleep(0.01)
        for _, finish in self.ends:
            finish()
        job.settle()

    def begin(self, name: str, passed_s: float) -> None:
        """Let a fault begin."""
        job = self.job
        self.begun_ms[name] = now_ms()
        if name == "two publishers":
            self._publish_twice()
        elif name == "burst":
            job.is_held = True
            self.ends.append((passed_s + LASTS_S, lambda: setattr(job, "is_held", False)))
        elif name == "outage of brokers":
            job.kafka.stop()
            self.ends.append((passed_s + LASTS_S, job.kafka.start))
        elif name == "outage of the sink" and job.postgres is not None:
            job.postgres.stop()
            self.ends.append((passed_s + SINK_LASTS_S, job.postgres.start))
        elif name == "old heartbeat":
            job.heartbeat(now_ms() - 60_000)
        elif name == "heartbeat of tomorrow":
            job.heartbeat(now_ms() + DAY_MS)
        elif name in ("event of tomorrow", "late events"):
            job.odd_payments(DAY_MS if name == "event of tomorrow" else -10 * int(LATENESS_S * 1_000))
        elif name == "partition added":
            if job.kafka.is_stopped:  # a partition cannot be added now
                self.ends.append((max(at_s for at_s, _ in self.ends), job.add_partition))
            else:
                job.add_partition()
        elif name == "disk full" and self.disk is not None:
            self.disk.fill(0)
            self.ends.append((passed_s + LASTS_S, self.disk.free))
        elif name in ("killed", "standby takes over"):
            job.kill()

    def _publish_twice(self) -> None:
        """Publish two different changes of the same version."""
        job = self.job
        base = next(record for record in read_rules(job.folder / "rules")[0] if record.id == "never")
        changes = Changes(version=1, hash=hash_of(base))
        for severity in ("high", "critical"):
            record = base.model_copy(update={"version": 2, "severity": severity, "changes": changes})
            job.send("rules", record.to_json())

    def refuse(self) -> None:
        """Create the topic of payments again. Errors: AssertionError if the job goes on."""
        job = self.job
        job.expects_refusal = True
        self.begun_ms["topic recreated"] = now_ms()
        job.kafka.create_again(job.topics["payments"], job.partitions)
        until_s = time.monotonic() + 60
        while any(member.is_alive and member.said("started") for member in job.members):
            assert time.monotonic() < until_s, "the job goes on with a topic that was created again"
            job.scrape()
            time.sleep(SCRAPE_S)
        logs = [member.log.read_text() for member in job.members if not member.is_alive]
        assert any("created again" in text for text in logs), logs[-1][-1_000:]
        for _ in range(16):
            job.scrape()
            time.sleep(SCRAPE_S)

    def judge(self) -> None:
        """Compare the alerts with the replay."""
        job, outcome = self.job, self.outcome
        expected = Counter(job.replayed())
        outcome.alerts = expected.total()
        for sink, ids in job.ids().items():
            lost, more = expected - Counter(ids), Counter(ids) - expected
            if lost or more:
                outcome.problem += f"{sink}: {lost.total()} missing, {more.total()} too many, of {expected.total()}; "
        if "late events" not in outcome.faults and (count := job.set_aside()):
            outcome.problem += f"{count} payments were set aside that should count; "

    def note_alarms(self) -> None:
        """Note the alarms that rang after the begin of each fault; a missing alarm that must ring is a problem."""
        for name, begun_ms in self.begun_ms.items():
            alarms, must_ring = FAULTS[name]
            rung = self.job.alarms.rung
            first = {
                alarm: next((rung_ms for rung_ms in rung.get(alarm, ()) if rung_ms >= begun_ms), None)
                for alarm in alarms
            }
            after = {alarm: (rung_ms - begun_ms) / 1_000 for alarm, rung_ms in first.items() if rung_ms is not None}
            self.outcome.after_s[name] = after
            if must_ring and not after:
                self.outcome.problem += f"{name} rang nothing; "


def chosen(chance: Random, runner: str, *, has_disk: bool) -> list[str]:
    """Draw the faults of a seed."""
    names = [name for name in FAULTS if runner == "run" or name not in OF_RUN]
    if not IS_THERE:
        names.remove("outage of the sink")
    if not has_disk:
        names.remove("disk full")
    if runner == "live":
        names.remove("topic recreated")  # all seeds share one job
    return chance.sample(names, chance.randrange(1, 3))


def run_each(seeds: range, kafka: RealKafka, postgres: RealPostgres | None, folder: Path) -> Iterator[Outcome]:
    """Run a job of `cep run` for each seed."""
    for seed in seeds:
        chance, place = Random(seed), folder / str(seed)
        place.mkdir()
        outcome = Outcome(seed, chosen(chance, "run", has_disk=True))
        with ExitStack() as stack:
            disk = None
            if "disk full" in outcome.faults:
                disk = stack.enter_context(small_disk(place / "disk", DISK_MB))
            job = RealJob(place, kafka, postgres, "run", chance, place / "job" if disk is None else disk.folder)
            stack.callback(job.close)
            trial = Trial(job, disk, outcome)
            try:
                job.wait_until("started", job.start())
                if "standby takes over" in outcome.faults:
                    job.wait_until("standby_ready", job.start("two"))
                trial.run(chance)
                if "topic recreated" in outcome.faults:
                    trial.refuse()
                else:
                    job.stop()
                trial.judge()
                trial.note_alarms()
            except Exception:  # noqa: BLE001 a campaign goes on
                outcome.problem = traceback.format_exc(limit=-3)
                if kafka.is_stopped:
                    kafka.start()
        yield outcome


def run_all(seeds: range, kafka: RealKafka, postgres: RealPostgres | None, folder: Path) -> Iterator[Outcome]:
    """Run one job of `cep live` through all seeds."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", DISK_MB))
        job = RealJob(folder, kafka, postgres, "live", Random(seeds.start), disk.folder)
        stack.callback(job.close)
        job.wait_until("started", job.start())
        for seed in seeds:
            chance = Random(seed)
            trial = Trial(job, disk, Outcome(seed, chosen(chance, "live", has_disk=disk.is_mounted)))
            try:
                trial.run(chance)
                trial.judge()
                trial.note_alarms()
            except Exception:  # noqa: BLE001 a campaign goes on
                trial.outcome.problem = traceback.format_exc(limit=-3)
                if kafka.is_stopped:
                    kafka.start()
            yield trial.outcome


def table(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each fault."""
    rows: list[tuple[str, ...]] = []
    for fault in FAULTS:
        having = [outcome for outcome in outcomes if fault in outcome.faults]
        after: dict[str, list[float]] = {}
        for outcome in having:
            for alarm, seconds in outcome.after_s.get(fault, {}).items():
                after.setdefault(alarm, []).append(seconds)
        shown = "; ".join(
            f"{alarm} in {len(seconds)}, after {statistics.median(seconds):.0f} ({max(seconds):.0f})"
            for alarm, seconds in after.items()
        )
        rows.append((fault, str(len(having)), shown or "-"))
    return rows


def main() -> None:
    """Run, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", choices=("run", "live"), default="run")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="an empty folder for all that is written, which stays")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the processes that it has started end with it
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cep-faults-")))
        kafka = stack.enter_context(RealKafka())
        postgres = RealPostgres() if IS_THERE else None
        if postgres is not None:
            stack.callback(postgres.close)
        seeds = range(options.first, options.first + options.seeds)
        run = run_each if options.runner == "run" else run_all
        for outcome in run(seeds, kafka, postgres, folder):
            outcomes.append(outcome)
            print(
                f"seed {outcome.seed}: {', '.join(outcome.faults)}: {outcome.alerts} alerts, "
                f"{outcome.problem or 'right'}", flush=True,
            )  # fmt: skip
    title = f"{options.seeds} seeds of cep {options.runner}"
    show(title, ("fault", "seeds", "alarms that rang, after seconds: median (most)"), table(outcomes))
    wrong = [outcome.seed for outcome in outcomes if outcome.problem]
    print(f"wrong: {wrong or 'none'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

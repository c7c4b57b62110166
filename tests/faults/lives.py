"""Processes of a simulated job: a working one, and a standby; both over the world of one simulation.

    Life        runner, engine, commits and store of one process, from its start to its end
    Follower    the changelog, read by a process that waits for its turn, into a folder of its own

Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import PART, StoreSettings, followed_folder
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Listener, Pace, Runner
from cep.runners.observe import Observed
from cep.runners.patience import Patience
from cep.runners.watch import Watch, Watched
from cep.sources.kafka import KafkaSettings
from cep.state.checkpoints import BESIDE
from cep.step.job import Job
from tests.faults.world import TOPIC, Control, Link, Partitions
from tests.runners.embedded.cases import MINUTE_MS, deployment, suppressing

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation

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
        self._beside = partial / BESIDE
        self._store = _settings(folder).open(partial / PART)

    def follow(self) -> None:
        """Read on to the end of the changelog."""
        self.changelog.follow(self._store, self._beside)

    def close(self) -> None:
        """End, or leave the store to the process that takes over."""
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
        """Continue from the last commit. Raises: SinkAwayError instead of waiting, as time stands still here."""
        self.patience.stop.set()
        self.runner.start()
        self.patience.stop.clear()
        self.observed.begin()
        self.observed.finished(self.commits.batch_id - 1, self.commits.totals)

    def close(self) -> None:
        """Release everything."""
        self.patience.stop.set()
        self.engine.close()
        self.commits.close()

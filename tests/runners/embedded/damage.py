"""A job that was cut off halfway, with a checkpoint somewhat older than its store, to be damaged and started again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from cep.base.errors import StateCorruptError
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.sinks.files import FileSink
from cep.step.job import Job
from tests.runners.embedded.cases import MINUTE_MS, deployment, morning, suppressing
from tests.runners.embedded.test_simulation import Replayable
from tests.runners.spark.live_cases import END, disordered

SEED = 1
LATENESS_MS = 5 * MINUTE_MS
BUSY = """
pattern busy by card_id {
  seq    one
  where  one: transaction  amount > 20.00 and count(transaction over 1 h) > 3
}
"""
_OTHERS = suppressing()
_BUSY = {"id": "busy", "pattern": "busy", "source": _OTHERS[-1].source + BUSY, "suppress": None, "escalate": None}
RULES = [*_OTHERS, _OTHERS[-1].model_copy(update=_BUSY)]
GIVEN = deployment(RULES)
assert not GIVEN.rulebook.ledger.refusals, "all rules are in force"
INITIAL = tuple(record.to_json() for record in RULES)
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8, 2, LATENESS_MS, dedup_ms=2 * LATENESS_MS, ahead_ms=None)


@cache
def lines() -> tuple[bytes, ...]:
    """Return the input of the job."""
    return tuple(disordered(list(morning()), LATENESS_MS, SEED))


@dataclass(frozen=True)
class Halfway:
    """The places where a job is cut off: a checkpoint after one share of its lines, and an end after another."""

    checkpoint: float = 0.3
    end: float = 0.6


def live(folder: Path, cut_off: Halfway | None = None) -> None:
    """Run one life of the job in the folder, to the end of its lines or until it is cut off.

    A life that is cut off leaves the disk as a dead process does.

    Raises: CepError.
    """
    settings = StoreSettings(folder / "job", "rocksdb", kept_count=2, cache_bytes=8 << 20, checkpoint_ms=3_600_000)
    outlets = Outlets((FileSink(folder / "alerts"),), None)
    source = Replayable(list(lines()), Random(SEED))
    commits = Commits(settings)
    engine = Engine(JOB, INITIAL, commits.store, Workers(1, page_bytes_max=50_000), commits.lists)
    try:
        runner = Runner(engine, Sources(source, None), outlets, commits, Pace())
        runner.start()
        while not source.ended and (cut_off is None or source.at < cut_off.end * len(lines())):
            before = source.at
            runner.cycle(0.0)
            if cut_off is not None and before < cut_off.checkpoint * len(lines()) <= source.at:
                commits.checkpoint(engine)
            commits.finish(wait=True)
        if cut_off is not None:
            shutil.copytree(folder, folder.with_name(folder.name + "-left"))
            return
        commits.take(engine.step([], (END,), {}))
        runner.finish()
    except StateCorruptError:
        commits.distrust()
        raise
    finally:
        engine.close()
        commits.close()


def cut_off(folder: Path, halfway: Halfway) -> Path:
    """Return the folder of a job that was cut off."""
    live(folder, halfway)
    return folder.with_name(folder.name + "-left")


def alerts(folder: Path) -> list[bytes]:
    """Return all sent alerts of the job."""
    return [line for path in sorted((folder / "alerts").iterdir()) for line in path.read_bytes().splitlines()]

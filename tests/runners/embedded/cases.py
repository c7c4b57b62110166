"""A simulated day of payments, a job over it, and the expected alerts, from the replay."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from cep.columnar.decode import Decoded, decode_json
from cep.model.rule import ControlRecord, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine
from cep.runners.output import Replayed
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.store import WriteBatch
from cep.step.job import Job
from tests.runners.spark.live_cases import payments, rules, time_ms

MINUTE_MS = 60_000


@cache
def day(seed: int = 3) -> tuple[bytes, ...]:
    """Return the payments of a small day, in event-time order."""
    return tuple(payments(seed))


@cache
def morning(seed: int = 3) -> tuple[bytes, ...]:
    """Return the first payments of the day."""
    return day(seed)[:1_500]


def suppressing() -> list[UpsertRecord]:
    """Return all rules of this repository, and three that fire on many payments; one of them escalates."""
    rules_by_id = rules()
    base = rules_by_id["small_then_large"]
    source = (
        f"{base.source}\npattern often by card_id {{\n  seq    one\n  where  one: transaction  amount > 90.00\n"
        "  emit   amount = one.amount\n}\n"
    )
    often = base.model_copy(update={"pattern": "often", "source": source, "params": {}, "message": "{key}"})
    times = {"often_short": "2 h", "often_long": "2 d"}
    more = often.model_copy(update={"id": "often_more", "suppress": "2 d", "escalate": "amount"})
    return [
        *rules_by_id.values(),
        *(often.model_copy(update={"id": id_, "suppress": ms}) for id_, ms in times.items()),
        more,
    ]


def deployment(records: Iterable[ControlRecord] | None = None) -> Deployment:
    """Deploy all rules of this repository, or the given records."""
    return deploy(rules().values() if records is None else records)


def expected(lines: Sequence[bytes], deployment_: Deployment, folder: Path) -> list[bytes]:
    """Return the sent alerts of the replay of these lines, as JSON."""
    path = folder / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    # The live jobs of the tests get a watermark at the end of time, and so does the replay.
    job = Job(deployment_.schema, deployment_.key_domains, to_the_end=True)
    alerts = embedded.replay(job, deployment_.rulebook, read_pieces(path, job.schema), 1).alerts
    return list(json_lines(suppress_alerts(alerts, Policies.of(deployment_.rulebook), {}).alerts))


def replayed_at(path: Path, records: Iterable[ControlRecord], workers: int = 2) -> Replayed:
    """Return the replay of the events at a path with rules that must all be deployed."""
    deployed = deployment(records)
    assert deployed.set_aside == (), deployed.set_aside
    job = Job(deployed.schema, deployed.key_domains)
    return embedded.replay(job, deployed.rulebook, read_pieces(path, job.schema), workers)


def decoded(job: Job, lines: Sequence[bytes]) -> list[Decoded]:
    return [decode_json(job.schema, pa.array(lines, pa.large_binary()))] if lines else []


def cut(lines: Sequence[bytes], pieces: int, seed: int) -> list[list[bytes]]:
    """Cut the lines into this many pieces of random sizes."""
    bounds = np.sort(np.random.default_rng(seed).integers(0, len(lines) + 1, pieces - 1)).tolist()
    return [list(lines[a:b]) for a, b in zip([0, *bounds], [*bounds, len(lines)], strict=True)]


def latest_ms(lines: Sequence[bytes]) -> int:
    """Return the largest event time."""
    return max(time_ms(line) for line in lines)


def save(engine: Engine, commit: int) -> None:
    """Write the changes into the engine's store, as a commit does."""
    batch = WriteBatch()
    engine.save(batch, commit)
    engine.store.write(batch)

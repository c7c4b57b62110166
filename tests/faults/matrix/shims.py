"""Stand-ins for clocks, threads, clients and servers in the modules of a job, for as long as a block runs.

The modules keep their code; only the names through which they reach the outside are replaced.
Tested by: tests/faults/test_faults.py
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import fsspec

from cep.sources import kafka as kafka_sources
from tests.faults.matrix import virtual_time as virtual
from tests.faults.matrix.virtual_kafka import Admin, Reader, Writer
from tests.faults.matrix.virtual_parts import Bucket, DiskStore

_TIMES = (
    "cep.runners.observe", "cep.runners.watch", "cep.runners.patience", "cep.runners.assembly",
    "cep.runners.control_topic", "cep.runners.embedded.changelog", "cep.runners.embedded.commit",
    "cep.runners.embedded.copies", "cep.runners.embedded.deliveries",
    "cep.runners.embedded.kafka", "cep.runners.embedded.queues", "cep.runners.embedded.outlets",
    "cep.runners.embedded.reports", "cep.runners.embedded.run", "cep.runners.embedded.job",
    "cep.runners.spark.kafka", "cep.runners.spark.sink_queue", "cep.sinks.webhook", "cep.sources.kafka",
    "cep.sources.live.kafka",
)  # fmt: skip
_MONOTONICS = (
    "cep.sinks.kafka", "cep.base.kafka", "cep.rulebook.kafka",
    "cep.runners.spark.live_output",
)  # fmt: skip
_THREADS = (
    "cep.runners.embedded.kafka", "cep.runners.embedded.run", "cep.runners.patience", "cep.runners.watch",
    "cep.sinks.kafka", "cep.sources.live.kafka", "cep.runners.embedded.outlets",
    "cep.runners.spark.sink_queue", "cep.runners.spark.live_output",
)  # fmt: skip
_EXECUTORS = (
    "cep.runners.embedded.queues",
    "cep.runners.embedded.commit",
    "cep.state.checkpoints",
)
_READERS = (
    "cep.sources.kafka", "cep.sources.live.kafka", "cep.sinks.kafka", "cep.runners.embedded.kafka",
)  # fmt: skip
_DECODERS = ("cep.runners.embedded.job.decode", "cep.runners.spark.kafka_events.decode")
_WRITERS = ("cep.sinks.kafka", "cep.rulebook.kafka")
_ADMINS = ("cep.sources.kafka", "cep.rulebook.kafka", "cep.base.kafka")


def stand_ins(world: Any) -> dict[str, Any]:
    """Return what stands in for which name. `world()` is the world of the cell that runs."""

    def decode(*given: Any) -> Any:
        """Decode with the registry of the cell that runs."""
        return world().registry.decode(*given)

    names: dict[str, Any] = {f"{module}.time": virtual.TIME for module in _TIMES}
    names |= {f"{module}.monotonic": virtual.monotonic for module in _MONOTONICS}
    names |= {f"{module}.threading": virtual.THREADING for module in _THREADS}
    names |= {f"{module}.ThreadPoolExecutor": virtual.VirtualExecutor for module in _EXECUTORS}
    names |= {f"{module}.Consumer": Reader for module in _READERS}
    names |= {f"{module}.Producer": Writer for module in _WRITERS}
    names |= {f"{module}.AdminClient": Admin for module in _ADMINS}
    webhook = SimpleNamespace(
        post=lambda _url, content, **_: world().webhook.answer(content), close=lambda: None
    )  # fmt: skip
    return names | {
        "cep.base.kafka.sleep": virtual.sleep,
        "cep.rulebook.kafka.sleep": virtual.sleep,
        "cep.runners.spark.live_output.sleep": virtual.sleep,
        "cep.runners.spark.live_output.perf_counter": virtual.monotonic,
        "cep.runners.embedded.commit.wait": virtual.wait,
        "cep.sinks.kafka.Future": virtual.VirtualFuture,
        "httpx2.Client": lambda **_: webhook,
        "psycopg.connect": lambda *_, **__: world().database.connect(),
        "cep.runners.embedded.opening.RocksStore": DiskStore,
        "cep.runners.watch.shutil": SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=world().disk.free_bytes)),
        **dict.fromkeys(_DECODERS, decode),
        "cep.runners.watch.answers": lambda *_: not world().registry.is_away,
        "cep.runners.assembly.served": lambda *given, **_: world().serve(given[1]),
        "cep.runners.assembly.Stopping": lambda report, _: world().stopping(report),
        "cep.runners.embedded.job.Commits": lambda *given, **named: world().commits(*given, **named),
        "cep.cli.live.sys": SimpleNamespace(stderr=_Stderr(world)),
        "cep.runners.spark_job.open_session": lambda *_: SimpleNamespace(stop=lambda: None),
        "cep.runners.spark_job.start_live": lambda _, settings, output: world().query(settings, output),
        "cep.runners.embedded.job.compiled_ahead": lambda _: nullcontext(),
        "cep.runners.embedded.job.shorten_pauses": lambda: None,
        "cep.cli.run.sys": SimpleNamespace(stderr=_Stderr(world)),
        "cep.runners.embedded.job.Warming": lambda: SimpleNamespace(close=lambda: None),
    }


class _Stderr:
    """The standard error of the process whose task runs."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def write(self, text: str) -> None:
        self._world().said(text)

    def flush(self) -> None:
        pass


@contextmanager
def simulated(world: Any) -> Iterator[None]:
    """Put the stand-ins in place."""
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    with ExitStack() as stack:
        for name, stand_in in stand_ins(world).items():
            stack.enter_context(patch(name, stand_in))
        yield


def forget_clients() -> None:
    """Forget the clients of the cell before."""
    kafka_sources._CONSUMERS = kafka_sources._IdleConsumers()
    kafka_sources._ADMINS = kafka_sources._Admins()

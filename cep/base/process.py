"""What a process needs of Python and of its machine: garbage collection, processors, closing, optional packages.

Tested by: tests/base/test_collection.py, tests/base/test_extras.py
"""

import gc
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from cep.base.errors import UsageError

_MANY = 50_000  # objects; to look at fewer takes less than a few milliseconds


@contextmanager
def paused() -> Iterator[None]:
    """Stop Python's cyclic garbage collector in the block. Memory is still freed by reference counts.

    A syntax tree is a hundred thousand objects without a cycle. While it grows, the collector walks all of them again
    and again: a third of the time of a check.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _count_new_objects_as_old()  # so that the collector does not walk them soon
            gc.enable()


def _count_new_objects_as_old() -> None:
    """Let many new objects count as old, by freezing and unfreezing them: only a full collection walks them then."""
    if gc.get_count()[0] > _MANY and gc.get_freeze_count() == 0:  # objects that are frozen for good stay so
        gc.freeze()
        gc.unfreeze()


def processors_count() -> int:
    """Return how many processors this process may use; 1 if this is unknown."""
    if hasattr(os, "sched_getaffinity"):  # Linux; macOS binds no process
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Closing(ABC):
    """A base class whose objects close themselves at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release all open resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


# By import name. `pyproject.toml` has the packages of each extra.
EXTRAS = {
    **dict.fromkeys(("pyspark", "py4j", "pandas"), "spark"),
    **dict.fromkeys(
        ("confluent_kafka", "fastavro", "authlib", "attr", "attrs", "cachetools", "certifi", "httpx2", "google"),
        "kafka",
    ),
    "psycopg": "postgres",
    "s3fs": "s3",
    **dict.fromkeys(("pygls", "lsprotocol"), "editor"),
    **dict.fromkeys(("jinja2", "vl_convert"), "charts"),
    "opentelemetry": "otel",
    "deltalake": "lake",
}


def missing_extra(error: ModuleNotFoundError) -> UsageError | None:
    """Return the extra to install for a missing package; None if it belongs to no extra, which is a bug."""
    package = (error.name or "").split(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return UsageError(
        f"this needs the package {package}, which is not installed: pip install 'cep[{extra}]', or 'cep[all]' for all "
        "that cep can do"
    )

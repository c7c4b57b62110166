"""A second process compiles the kernel that carries runs, while this process reads, decodes and compiles the rest.

    python -m cep.runners.ahead KERNEL …

This kernel is half of the compile time of a first match. Both processes share the cache: a process that needs a kernel
waits if the other one compiles it (kernels/compiler.py).
Tested by: tests/runners/test_compiling.py
"""

import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cep.base.process import processors_count
from cep.columnar.batch import empty_batch
from cep.engine.advance import MATCHERS, compile_matcher, matcher_of
from cep.kernels.own_numba import event
from cep.lang.load import load_text
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program

_EVENT = "event e { id id  event_time time  k string  n int }\n"
# For each kernel of MATCHERS, in their order, a pattern whose runs it carries.
_PATTERNS = (
    "pattern p() by k { seq x -> y within 1 min where x: e n > 1  y: e n > 2 }",
    "pattern p() by k { seq x -> !y within 1 min where x: e n > 1  y: e n > 2 }",
)


@contextmanager
def compiled_ahead(kernels: Iterable[Any]) -> Iterator[None]:
    """Compile the missing ones of these `kernels` (of MATCHERS) in a second process while the block runs, if there is a
    processor for it. They get into the cache on disk, where the block waits for them if it needs them."""
    names = [kernel.__name__ for kernel in dict.fromkeys(kernels) if not _is_compiled(kernel)]
    process = _start_process(names) if names and processors_count() > 1 else None
    if process is None:
        yield
        return
    threading.Thread(target=_announce_compiling, args=(process,), name="cep-ahead", daemon=True).start()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def carriers(programs: Iterable[Program]) -> list[Any]:
    """Return the kernels that carry the runs of these programs."""
    return list(dict.fromkeys(map(matcher_of, programs)))


def _start_process(names: list[str]) -> subprocess.Popen[bytes] | None:
    # -P: nothing is imported from the folder in which the caller stands.
    words = [sys.executable, "-P", "-m", "cep.runners.ahead", *names]
    silent = subprocess.DEVNULL
    try:
        return subprocess.Popen(words, stdin=silent, stdout=silent, stderr=silent)  # noqa: S603 no shell, our arguments
    except OSError:
        return None


def _announce_compiling(process: subprocess.Popen[bytes]) -> None:
    """Let the second process count as compiling in this process, for the line of compiling.py."""
    with event.trigger_event("numba:compile"):
        process.wait()


def _is_compiled(kernel: Any) -> bool:
    """Return True if this process has the kernel, or the disk. Where nothing is compiled it is a plain function."""
    if getattr(kernel, "signatures", True):
        return True
    return any(Path(kernel.stats.cache_path).glob(f"*.{kernel.__name__}-*.nbi"))


def compile_one(name: str) -> None:
    """Compile one of MATCHERS by its name."""
    (number,) = (number for number, kernel in enumerate(MATCHERS) if kernel.__name__ == name)
    checked = load_text(_EVENT + _PATTERNS[number])
    (pattern,) = checked.patterns.values()
    program = compile_rules(checked.schema, pattern.key, (DeployedRule("ahead", 1, 1, "ahead", pattern),))
    assert matcher_of(program) is MATCHERS[number], "the pattern is for this kernel"
    compile_matcher(program, empty_batch(checked.schema))


if __name__ == "__main__":
    for each in sys.argv[1:]:
        compile_one(each)

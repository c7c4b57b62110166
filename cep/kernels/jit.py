"""Options for compiling kernels, and the place of the compiled code. No other module sets them.

numba's disk cache notices a change in the file of a kernel but not in files with its helpers or constants. So the name
of the cache folder contains a hash over all kernel sources: any change starts a new folder.
Tested by: tests/kernels/test_compiler.py
"""

import atexit
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from cep.base.files import is_ours
from cep.kernels.compiler import Compiler, PartCompiler, SharedCache
from cep.kernels.own_numba import numba


def _cache_folder() -> Path:
    """Return the folder for compiled kernels: in CEP_KERNEL_CACHE, else in the user's cache, else temporary.

    It contains machine code that is run, so a folder to which others may write is not used.
    """
    digest = hashlib.sha256(f"{numba.__version__}-{platform.python_version()}-{platform.machine()}".encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(str(source.relative_to(Path(__file__).parent)).encode())
        digest.update(source.read_bytes())
    root = os.environ.get("CEP_KERNEL_CACHE") or os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root else Path.home() / ".cache"
    folder = base / "cep" / f"kernels-{digest.hexdigest()[:16]}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if is_ours(folder) and os.access(folder, os.W_OK):
        return folder
    path = Path(tempfile.mkdtemp(prefix="cep-kernels-"))
    atexit.register(_remove, path, os.getpid())
    os.environ["CEP_KERNEL_CACHE"] = str(path)  # for processes that this one starts
    sys.stderr.write(
        f"{folder} cannot be written, or others may write to it, so kernels are compiled anew, for a minute at each "
        "start; name a folder of your own in CEP_KERNEL_CACHE\n"
    )
    path /= folder.relative_to(base)
    path.mkdir(parents=True)
    return path


def _remove(folder: Path, process: int) -> None:
    """Remove the folder of a process when that process ends, not when one that it has forked does."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


# The module-level attribute is how numba documents it; its type hints do not know it.
numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])
# Untyped, because the type hints of njit leave out _nrt.
_NJIT: Any = numba.njit
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False, "no_cfunc_wrapper": True}


def _compiled(function: F, **options: Any) -> F:
    """Return what Python calls: compiled at the first call and kept on disk. Other kernels get it as a part."""
    entry = _NJIT(**_OPTIONS, **options, pipeline_class=Compiler)(function)
    if entry is not function:  # which it is where nothing is compiled
        entry._cache = SharedCache(function)  # type: ignore[no-untyped-call] # noqa: SLF001 numba offers its own only
        part = _NJIT(**_OPTIONS, **options, no_cpython_wrapper=True, pipeline_class=PartCompiler)(function)
        entry.get_call_template, entry.get_overload = part.get_call_template, part.get_overload
    return cast("F", entry)


def kernel(function: F) -> F:
    """Compile a function of arrays and records: cached on disk, without the GIL, division by zero as in IEEE."""
    return _compiled(function)


def bare(function: F) -> F:
    """Like `kernel`, for functions that allocate nothing: arrays are plain pointers, without reference counts.

    A matcher step passes many small functions a dozen arrays; counting references to them cost 50 times the matching.
    """
    return _compiled(function, _nrt=False)


def inlined(function: F) -> F:
    """Like `bare`, copied into its callers: for the few steps that are taken for every run and event.

    A call passes each array of a record as seven numbers, which can take longer than the step. LLVM copies the code, so
    that a step is read and typed once, however many callers it has.
    """
    return _compiled(function, _nrt=False, forceinline=True)


def copied(function: F) -> F:
    """Return a `bare` function as an `inlined` one: for one caller of many, which takes the step most of all."""
    python = getattr(function, "py_func", function)  # it is itself where nothing is compiled
    return inlined(cast("F", python))

# mypy: disable-error-code="no-untyped-call,misc"
# numba has no types.
"""Changes to numba's compiler and cache for our kernels.

A kernel that another kernel calls is compiled as a part of it. By default numba generates machine code for it alone,
then again inside each of its direct and indirect callers: half of the compile time. So a kernel has two dispatchers
(jit.py): one for calls from Python, and one for other kernels.

    from Python   entry ─▶ types, LLVM code, with all its parts: optimised, machine code ─▶ cache on disk
    from kernels  part  ─▶ types, LLVM code ─▶ into its callers

Tested by: tests/kernels/test_compiler.py
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from cep.base.process import paused
from cep.kernels.own_numba import FunctionCache, codegen, numba_compiler

_WAIT_S, _LOOK_S = 120.0, 0.02  # for a kernel that another process compiles, and between two checks


class SharedCache(FunctionCache):
    """numba's disk cache of a kernel. One process compiles the kernel; other processes wait and read it then."""

    _claim: int | None = None  # an open file, locked while this process compiles the kernel

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Read the compiled kernel for a signature. Return None if this process must compile it.

        Python's garbage collector is paused, because reading the first kernel loads numba's runtime.
        """
        with paused():
            loaded = super().load_overload(signature, context)
        if loaded is None and self._claim is None:  # wait while another process compiles it, then look again
            self._claim = claimed(Path(self.cache_path) / f"{self._impl.filename_base}.lock")
            loaded = super().load_overload(signature, context)
            if loaded is not None:  # otherwise the lock is kept until this process has saved the kernel
                self._release()
        return loaded

    def save_overload(self, signature: Any, compiled: Any) -> None:
        try:
            super().save_overload(signature, compiled)
        finally:
            self._release()

    def _release(self) -> None:
        if self._claim is not None:
            fcntl.flock(self._claim, fcntl.LOCK_UN)  # a forked process may have the file open too
            os.close(self._claim)
            self._claim = None


def claimed(path: Path) -> int | None:
    """Lock a file and return its descriptor; None if the file cannot be created.

    Wait for another process that holds the lock, up to _WAIT_S, because it may be stopped. After this time, and without
    locks in the file system, return the file without a lock: then two processes may compile the same kernel.
    """
    until = time.monotonic() + _WAIT_S
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_LOOK_S)
                continue
        except OSError:  # a file system without locks
            pass
        return file


class PartLibrary(codegen.JITCodeLibrary):
    """The LLVM code of a part, a kernel that other kernels call. Callers copy it: it needs no machine code itself."""

    def _optimize_final_module(self) -> None:
        """Do nothing: each function is already simplified."""

    def _finalize_final_module(self) -> None:
        """Create only the variables, because numba sets them after each compilation. Callers copy the code."""
        self._finalize_dynamic_globals()
        names = [variable.name for variable in self._final_module.global_variables if "NumbaEnv" in variable.name]
        empty = str(self._codegen._create_empty_module(f"{self.name}.variables"))  # noqa: SLF001 numba's own library does
        variables = "".join(f"@{name} = common global i64 0\n" for name in names)
        self._variables = llvm.parse_assembly(f"{empty}\n{variables}")
        self._codegen._add_module(self._variables)  # noqa: SLF001 the same
        self._finalize_specific()  # numba's last step: it links and loads the module
        self._finalized = True


class _Flags(numba_compiler.Flags):
    """Immutable flags of a compilation, hashed once.

    numba uses the flags as a key for each call of one of its functions, and hashed and compared forty values each time:
    a tenth of the compile time.
    """

    @cached_property
    def _hash(self) -> int:
        return hash(super().__hash__())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    def copy(self) -> _Flags:
        """Return the flags themselves, because they are immutable."""
        return self


_FLAGS: dict[_Flags, _Flags] = {}


class Compiler(numba_compiler.Compiler):
    """numba's compiler. Equal flags of compilations are one object, so that they are hashed only once (see _Flags).

    Python's garbage collector is paused, because it would traverse all new objects of numba repeatedly.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        flags = _Flags(self.state.flags)
        self.state.flags = _FLAGS.setdefault(flags, flags)  # the equal flags of an earlier compilation, if any

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        with paused():
            return super().compile_extra(function)


class PartCompiler(Compiler):
    """A compiler for parts."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        self.state.library = PartLibrary(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)

# mypy: disable-error-code="no-untyped-call,misc"
# numba has no types.
"""numba's compiler and cache, in what they do otherwise for our kernels.

A kernel that another one calls is compiled as a part of it. By itself numba optimises it and makes machine code of it
alone, then again inside each caller, and inside each caller of those: half the time of compiling. So a kernel has two
dispatchers (jit.py): the one that Python calls, and the one that other kernels find in its place.

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
from numba.core import codegen
from numba.core import compiler as numba_compiler
from numba.core.caching import FunctionCache

from cep.base.collection import paused

_WAIT_S, _LOOK_S = 120.0, 0.02  # for a kernel that another process compiles, and between two looks


class SharedCache(FunctionCache):
    """numba's cache of a kernel on disk. One process at a time compiles the kernel; others wait, and read it then."""

    _claim: int | None = None  # an open file, locked while this process compiles the kernel

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Read the kernel for a signature. Where there is none, return None once no other process is at it.

        The first kernel that is read brings numba's runtime with it, and Python's collector rests meanwhile.
        """
        with paused():
            loaded = super().load_overload(signature, context)
        if loaded is None and self._claim is None:
            self._claim = claimed(Path(self.cache_path) / f"{self._impl.filename_base}.lock")
            loaded = super().load_overload(signature, context)
            if loaded is not None:
                self._release()
        return loaded

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write the kernel for a signature."""
        try:
            super().save_overload(signature, compiled)
        finally:
            self._release()

    def _release(self) -> None:
        if self._claim is not None:
            fcntl.flock(self._claim, fcntl.LOCK_UN)  # a process that this one has forked may have the file open too
            os.close(self._claim)
            self._claim = None


def claimed(path: Path) -> int | None:
    """Open and lock a file. Wait for another process that has it locked, but not for ever: that one may be stopped.

    Returns: the open file; None where there are no locks.
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
    """The code of a part: its callers link it, optimise it and turn it into machine code."""

    def _optimize_final_module(self) -> None:
        """Nothing: simplified function by function it is already."""

    def _finalize_final_module(self) -> None:
        """Hand the engine no code, but the variables that numba sets for each function it has compiled."""
        self._finalize_dynamic_globals()
        names = [variable.name for variable in self._final_module.global_variables if "NumbaEnv" in variable.name]
        empty = str(self._codegen._create_empty_module(f"{self.name}.variables"))  # noqa: SLF001 numba's own library does
        variables = "".join(f"@{name} = common global i64 0\n" for name in names)
        self._variables = llvm.parse_assembly(f"{empty}\n{variables}")
        self._codegen._add_module(self._variables)  # noqa: SLF001 the same
        self._finalize_specific()
        self._finalized = True


class _Flags(numba_compiler.Flags):
    """The flags of a compilation, which nothing changes.

    numba looks up each call of a function of its own by them, and hashed and compared forty values each time: a tenth
    of the time of compiling.
    """

    @cached_property
    def _hash(self) -> int:
        return hash(super().__hash__())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    def copy(self) -> _Flags:
        """Return the flags themselves, for nothing changes them."""
        return self


_FLAGS: dict[_Flags, _Flags] = {}


class Compiler(numba_compiler.Compiler):
    """numba's compiler, with one object for flags that are equal.

    Python's collector of garbage rests meanwhile: it would walk through all that numba makes, again and again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        flags = _Flags(self.state.flags)
        self.state.flags = _FLAGS.setdefault(flags, flags)

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile a Python function."""
        with paused():
            return super().compile_extra(function)


class PartCompiler(Compiler):
    """The same, into a library for parts."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile a Python function as a part."""
        self.state.library = PartLibrary(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)

"""Frozen dataclasses that are created as fast as mutable ones.

Creating a frozen dataclass takes three times as long, because each field is set past the guard. A syntax tree has a
hundred thousand of them. So only mypy enforces the guard.
Tested by: tests/base/test_values.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["field_values", "valueclass"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as valueclass
else:

    def valueclass(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        """Make a class a dataclass that is equal, hashed, shown and pickled like a frozen one."""
        return lambda cls: _unguarded(dataclass(frozen=frozen, slots=slots)(cls))


def _unguarded(cls: type[T]) -> type[T]:
    """Let a frozen dataclass set its fields like a mutable one. It must not have a `__post_init__`."""
    specs = [(f.name, f.type, field(default=f.default, default_factory=f.default_factory)) for f in fields(cls)]  # type: ignore[arg-type]
    cls.__init__ = make_dataclass(cls.__name__, specs).__init__  # type: ignore[misc, method-assign]
    del cls.__setattr__, cls.__delattr__
    return cls


def field_values(value: Any) -> tuple[Any, ...]:
    """Return the values of a dataclass in the order of its fields.

    A class that caches its hash is rebuilt from them in another process, where texts have other hashes.
    """
    return tuple(getattr(value, f.name) for f in fields(value))

"""Dataclasses that nobody changes, made as quickly as those that anybody may.

To make a frozen dataclass takes three times as long as another one, because each field is set past the guard. A syntax
tree is a hundred thousand of them. So the guard is there for mypy alone.
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
    """Let a frozen dataclass set its fields as another one does. It has no `__post_init__`."""
    given = [(f.name, f.type, field(default=f.default, default_factory=f.default_factory)) for f in fields(cls)]  # type: ignore[arg-type]
    cls.__init__ = make_dataclass(cls.__name__, given).__init__  # type: ignore[misc, method-assign]
    del cls.__setattr__, cls.__delattr__
    return cls


def field_values(value: Any) -> tuple[Any, ...]:
    """Return the values of a dataclass in the order of its fields.

    With them a class that remembers its hash is made anew in another process, where texts have other hashes.
    """
    return tuple(getattr(value, f.name) for f in fields(value))

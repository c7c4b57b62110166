"""Frozen dataclasses that are created as fast as mutable ones.

A frozen dataclass sets each field past its guard, and a syntax tree has a hundred thousand dataclasses. So these
classes are mutable dataclasses with the hash of frozen ones, and only mypy enforces the guard. With the guard, 400
patterns take 1.15 times as long to load, bind and compile, and `cep check` of the library takes 1.0 times as long.
Tested by: tests/base/test_values.py
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

__all__ = ["field_values", "valueclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as valueclass
else:

    def valueclass(*, frozen: bool, slots: bool) -> Any:
        """Make a class a dataclass that is equal, hashed and shown like a frozen one."""
        return dataclass(unsafe_hash=frozen, slots=slots)


def field_values(value: Any) -> tuple[Any, ...]:
    """Return the values of a dataclass in the order of its fields.

    A class that caches its hash is rebuilt from them in another process, where texts have other hashes.
    """
    return tuple(getattr(value, f.name) for f in fields(value))

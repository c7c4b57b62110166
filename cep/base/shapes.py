"""A value out of a JSON document → the same value, if it is of the type that was written there.

Tested by: tests/base/test_values.py
"""

from __future__ import annotations

from types import UnionType
from typing import Any


def of_type(name: str, value: Any, type_: type | UnionType) -> Any:
    """Return the value if it is of the type. Raises: TypeError with the name and the value."""
    if not isinstance(value, type_):
        raise TypeError(f"{name} is {value!r}, not {getattr(type_, '__name__', type_)}")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return the texts of a JSON list. Raises: TypeError for another value, or for items that are not texts."""
    return tuple(of_type(name, text, str) for text in of_type(name, value, list))

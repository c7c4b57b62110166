"""A class of values is like a frozen dataclass, except for its guard; a value of another type is refused by name."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from cep.base.schema import valueclass
from cep.base.text import of_type, texts


@valueclass(frozen=True, slots=True)
class Quick:
    number: int
    text: str | None = None
    names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guarded:
    number: int
    text: str | None = None
    names: dict[str, int] = field(default_factory=dict)


@valueclass(frozen=True, slots=True)
class Pair:
    first: int
    second: tuple[int, ...] = ()


def test_it_is_shown_and_described_like_a_frozen_one() -> None:
    assert repr(Quick(1)) == repr(Guarded(1)).replace("Guarded", "Quick")
    assert is_dataclass(Quick)
    assert [(f.name, f.type, f.default) for f in fields(Quick)] == [
        (f.name, f.type, f.default) for f in fields(Guarded)
    ]
    assert Quick.__slots__ == Guarded.__slots__


def test_it_is_equal_and_hashed_by_its_fields() -> None:
    assert Pair(1, (2,)) == Pair(first=1, second=(2,))
    assert Pair(1) != Pair(2)
    assert hash(Pair(1, (2,))) == hash((1, (2,)))
    assert replace(Pair(1), second=(3,)) == Pair(1, (3,))


def test_a_default_that_is_made_is_made_for_each() -> None:
    assert Quick(1).names is not Quick(2).names


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_pickled(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(Quick(1, "a", {"b": 2}), protocol)) == Quick(1, "a", {"b": 2})
    assert copy(Pair(1, (2,))) == Pair(1, (2,))


def test_its_fields_are_set_without_a_guard() -> None:
    """Only mypy refuses it: a guard is what makes frozen dataclasses slow."""
    assert "__setattr__" not in vars(Quick)
    assert "__setattr__" in vars(Guarded)


def test_values_of_the_type_are_returned() -> None:
    assert of_type("base", 3, int) == 3
    assert texts("keys", ["a", "b"]) == ("a", "b")


@pytest.mark.parametrize("value", ["a", None, {"a": 1}, [1], [["a"]]])
def test_another_type_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="keys is"):
        texts("keys", value)
    with pytest.raises(TypeError, match="base is"):
        of_type("base", value, int)

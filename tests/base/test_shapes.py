"""A value of another type is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from cep.base.shapes import of_type, texts


def test_values_of_the_type_are_returned() -> None:
    assert of_type("base", 3, int) == 3
    assert texts("keys", ["a", "b"]) == ("a", "b")


@pytest.mark.parametrize("value", ["a", None, {"a": 1}, [1], [["a"]]])
def test_another_type_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="keys is"):
        texts("keys", value)
    with pytest.raises(TypeError, match="base is"):
        of_type("base", value, int)

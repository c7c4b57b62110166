"""A resource is closed at the end of a `with`, after an error too, and the error is raised."""

from __future__ import annotations

import pytest

from cep.base.closing import Closing


class Door(Closing):
    is_open = True

    def close(self) -> None:
        self.is_open = False


def test_the_end_of_a_block_closes() -> None:
    with Door() as door:
        assert door.is_open
    assert not door.is_open


def test_an_error_closes_and_goes_on() -> None:
    door = Door()
    with pytest.raises(KeyError), door:
        raise KeyError
    assert not door.is_open

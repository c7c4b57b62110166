"""The collector is paused inside the block. After it, the collector is in the same state as before."""

from __future__ import annotations

import gc

import pytest

from cep.base.collection import paused

_MANY = 60_000


def test_inside_and_after() -> None:
    assert gc.isenabled()
    with paused(), paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_after_an_error() -> None:
    with pytest.raises(KeyError), paused():
        raise KeyError
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(("frozen", "count", "is_aged"), [(0, _MANY, True), (0, 10, False), (7, _MANY, False)])
def test_many_new_objects_are_old_afterwards(
    monkeypatch: pytest.MonkeyPatch, frozen: int, count: int, is_aged: bool
) -> None:
    """Objects that were frozen for good stay frozen, as the objects of these tests are."""
    thawed: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "unfreeze", lambda: thawed.append(1))
    with paused():
        new = [[1] for _ in range(count)]
    assert len(new) == count
    assert bool(thawed) == is_aged

"""Resources of a process: its collector, its processors, and objects that are closed at the end of a block."""

import gc
import os

import pytest

from cep.base.process import Closing, paused, processors_count

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


def test_what_the_process_may_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert processors_count() == 3


def test_where_nobody_binds_a_process_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert processors_count() == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors_count() == 1

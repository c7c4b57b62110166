"""Typed handles: what ages when, what a read refreshes, what is returned past its time. Each in both layouts."""

from __future__ import annotations

import pytest

from cep.base.errors import LimitError
from cep.base.limits import LIST_ELEMENTS_MAX
from cep.state.cells import Place
from cep.state.descriptors import Cleanup, StateKind, Ttl, TtlTime
from cep.state.memory import MemoryStore
from cep.state.states import States
from tests.state.declared import ManualClock, at, declare, opened, row

PLACE = at(1)
TTL_MS = 100


def states(clock: ManualClock, kind: StateKind, ttl: Ttl | None) -> States:
    return opened(MemoryStore(), clock, declare(kind, ttl))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture(params=Cleanup)
def cleanup(request: pytest.FixtureRequest) -> Cleanup:
    found: Cleanup = request.param
    return found


@pytest.mark.parametrize("time", TtlTime)
def test_a_value_lives_as_long_as_declared_and_no_longer(clock: ManualClock, cleanup: Cleanup, time: TtlTime) -> None:
    value = states(clock, StateKind.VALUE, Ttl(TTL_MS, time, cleanup=cleanup)).value("s")
    value.put(PLACE, row(1))
    clock.move(TTL_MS - 1)
    assert value.get(PLACE) == row(1), "reading does not end a life"
    clock.move(1)
    assert value.get(PLACE) is None
    value.put(PLACE, row(2))
    assert value.get(PLACE) == row(2)


@pytest.mark.parametrize("refresh", [False, True])
def test_a_read_refreshes_if_it_is_declared_so(clock: ManualClock, cleanup: Cleanup, refresh: bool) -> None:
    ttl = Ttl(TTL_MS, TtlTime.EVENT, refresh_on_read=refresh, cleanup=cleanup)
    value = states(clock, StateKind.VALUE, ttl).value("s")
    value.put(PLACE, row(1))
    for _ in range(5):
        clock.move(TTL_MS - 1)
        found = value.get(PLACE)
    assert found == (row(1) if refresh else None)
    clock.move(TTL_MS)
    assert value.get(PLACE) is None


@pytest.mark.parametrize("refresh", [False, True])
def test_entries_of_a_map_age_one_by_one(clock: ManualClock, cleanup: Cleanup, refresh: bool) -> None:
    seen = states(clock, StateKind.MAP, Ttl(TTL_MS, TtlTime.EVENT, refresh, cleanup=cleanup)).map("s")
    seen.put(PLACE, "old", row(1))
    clock.move(60)
    seen.put(PLACE, "new", row(2))
    assert seen.items(PLACE) == {"new": row(2), "old": row(1)}
    clock.move(60)
    assert seen.items(PLACE) == ({"new": row(2), "old": row(1)} if refresh else {"new": row(2)})
    clock.move(99)
    assert (seen.get(PLACE, "old") is not None) == refresh


@pytest.mark.parametrize("refresh", [False, True])
def test_elements_of_a_list_age_one_by_one(clock: ManualClock, cleanup: Cleanup, refresh: bool) -> None:
    rows = states(clock, StateKind.LIST, Ttl(TTL_MS, TtlTime.EVENT, refresh, cleanup=cleanup)).list("s")
    rows.append(PLACE, row(1), row(2))
    clock.move(60)
    rows.append(PLACE, row(3))
    assert rows.get(PLACE) == [row(1), row(2), row(3)]
    clock.move(60)
    assert rows.get(PLACE) == ([row(1), row(2), row(3)] if refresh else [row(3)])
    clock.move(200)
    assert rows.get(PLACE) == []


def test_what_a_read_of_a_list_refreshes_is_not_what_had_expired(clock: ManualClock) -> None:
    rows = states(clock, StateKind.LIST, Ttl(TTL_MS, TtlTime.EVENT, True, return_expired=True)).list("s")
    rows.append(PLACE, row(1))
    clock.move(60)
    # An append is no read: the first element goes on ageing.
    rows.append(PLACE, row(2))
    clock.move(60)
    assert rows.get(PLACE) == [row(1), row(2)], "returned, though the first is expired"
    rows.append(PLACE, row(3))
    assert rows.get(PLACE) == [row(2), row(3)], "an append drops what is expired"


def test_expired_ones_are_returned_until_cleaned_if_declared_so(clock: ManualClock) -> None:
    owner = states(clock, StateKind.VALUE, Ttl(TTL_MS, TtlTime.PROCESSING, return_expired=True))
    value = owner.value("s")
    value.put(PLACE, row(1))
    clock.move(5 * TTL_MS)
    assert value.get(PLACE) == row(1)
    assert owner.clean() == 1
    assert value.get(PLACE) is None


def test_reducing_and_aggregating_start_anew_after_their_time(clock: ManualClock, cleanup: Cleanup) -> None:
    ttl = Ttl(TTL_MS, TtlTime.EVENT, cleanup=cleanup)
    largest = states(clock, StateKind.REDUCING, ttl).reducing("s", lambda a, b: a if a["n"] > b["n"] else b)
    total = states(clock, StateKind.AGGREGATING, ttl).aggregating(
        "s", lambda: {"n": 0}, lambda kept, given: {"n": kept["n"] + given}, lambda kept: kept["n"] * 10
    )
    assert (largest.get(PLACE), total.get(PLACE)) == (None, None)
    for number in (3, 7, 5):
        largest.add(PLACE, row(number))
        total.add(PLACE, number)
    assert (largest.get(PLACE), total.get(PLACE)) == (row(7), 150)
    clock.move(TTL_MS)
    largest.add(PLACE, row(1))
    total.add(PLACE, 1)
    assert (largest.get(PLACE), total.get(PLACE)) == (row(1), 10)


def test_places_do_not_mix(clock: ManualClock, cleanup: Cleanup) -> None:
    seen = states(clock, StateKind.MAP, Ttl(TTL_MS, TtlTime.EVENT, cleanup=cleanup)).map("s")
    places = [Place(g, k, n) for g in (0, 2) for k in (b"", b"k", b"k\x00") for n in (b"", b"\x01")]
    for number, place in enumerate(places):
        seen.put(place, "e", row(number))
    seen.clear(places[4])
    seen.remove(places[5], "e")
    found = [seen.items(place) for place in places]
    assert found == [{} if number in (4, 5) else {"e": row(number)} for number in range(len(places))]


def test_a_list_has_a_limit(clock: ManualClock) -> None:
    rows = states(clock, StateKind.LIST, None).list("s")
    rows.append(PLACE, *[row(2)] * LIST_ELEMENTS_MAX)
    with pytest.raises(LimitError, match="elements of list s"):
        rows.append(PLACE, row(1))
    assert len(rows.get(PLACE)) == LIST_ELEMENTS_MAX

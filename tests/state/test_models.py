"""Declared state against a plain dictionary with times: random operations, clocks, clean-ups and restarts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from cep.state.cells import Place
from cep.state.descriptors import Cleanup, StateKind, Ttl, TtlTime
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksSettings, RocksStore
from cep.state.states import States
from cep.state.store import DurableStore
from tests.state.declared import ManualClock, at, declare, opened, row

TTL_MS = 40
TTLS = st.builds(Ttl, st.just(TTL_MS), st.sampled_from(TtlTime), st.booleans(), st.booleans())
PLACES = st.sampled_from([at(0), at(1), at(7)])
ENTRIES = st.sampled_from(["", "a", "ab", "\x00"])
# Around the edges of a bucket (10 ms), of a life, and past everything.
STEPS_MS = st.sampled_from([1, 5, 9, 10, 11, 15, 25, 30, 31, 35, 38, 39, TTL_MS, TTL_MS + 1, 3 * TTL_MS])


@dataclass
class Held:
    """What may be read: `values` are the possible ones (an expired one may have been combined with, or cleaned up)."""

    values: list[Any] = field(default_factory=list)
    stamp_ms: int = 0


class Model(RuleBasedStateMachine):
    """What all kinds share: the clock, clean-ups, restarts."""

    kind: StateKind
    cleanup: Cleanup | None = None
    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_000_000)
        self.folder = Path(tempfile.mkdtemp(prefix="cep-model-"))
        self.copies = 0
        self.store: DurableStore = self._open(self.folder / "0")
        self.held: dict[Any, Held] = {}
        self.numbers = iter(range(1_000_000))

    def _open(self, path: Path) -> DurableStore:
        if self.on_disk:
            return RocksStore(path, RocksSettings(wal=False))
        return MemoryStore.open(path) if path.exists() else MemoryStore()

    @initialize(ttl=TTLS)
    def declare(self, ttl: Ttl) -> None:
        self.ttl = None if self.cleanup is None else replace(ttl, cleanup=self.cleanup)
        self.states: States = opened(self.store, self.clock, declare(self.kind, self.ttl))
        self.begin()

    def begin(self) -> None:
        """Get the handle."""

    @rule(by_ms=STEPS_MS)
    def time_passes(self, by_ms: int) -> None:
        self.clock.move(by_ms)

    @rule()
    def clean(self) -> None:
        self.states.clean()

    @rule()
    def restart(self) -> None:
        self.copies += 1
        path = self.folder / str(self.copies)
        self.store.checkpoint(path)
        self.store.close()
        self.store = self._open(path)
        self.states = opened(self.store, self.clock, declare(self.kind, self.ttl))
        self.begin()

    def is_expired(self, stamp_ms: int) -> bool:
        return self.ttl is not None and stamp_ms <= self.clock.now_ms - TTL_MS

    def expect(self, where: Any, found: Any) -> None:
        """`found` was read there."""
        held = self.held.get(where)
        if held is None:
            assert found is None
            return
        if self.is_expired(held.stamp_ms):
            assert self.ttl is not None
            if found is None:
                del self.held[where]
            else:
                assert self.ttl.return_expired
                assert found in held.values
                held.values = [found]
            return
        assert found in held.values
        held.values = [found]
        if self.ttl is not None and self.ttl.refresh_on_read:
            held.stamp_ms = self.clock.now_ms

    def wrote(self, where: Any, *values: Any) -> None:
        self.held[where] = Held(list(values), self.clock.now_ms)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


class ValueModel(Model):
    kind = StateKind.VALUE

    def begin(self) -> None:
        self.handle = self.states.value("s")

    @rule(place=PLACES)
    def put(self, place: Place) -> None:
        value = row(next(self.numbers))
        self.handle.put(place, value)
        self.wrote(place, value)

    @rule(place=PLACES)
    def get(self, place: Place) -> None:
        self.expect(place, self.handle.get(place))

    @rule(place=PLACES)
    def clear(self, place: Place) -> None:
        self.handle.clear(place)
        self.held.pop(place, None)


class MapModel(Model):
    kind = StateKind.MAP

    def begin(self) -> None:
        self.handle = self.states.map("s")

    @rule(place=PLACES, entry=ENTRIES)
    def put(self, place: Place, entry: str) -> None:
        value = row(next(self.numbers))
        self.handle.put(place, entry, value)
        self.wrote((place, entry), value)

    @rule(place=PLACES, entry=ENTRIES)
    def get(self, place: Place, entry: str) -> None:
        self.expect((place, entry), self.handle.get(place, entry))

    @rule(place=PLACES, entry=ENTRIES)
    def remove(self, place: Place, entry: str) -> None:
        self.handle.remove(place, entry)
        self.held.pop((place, entry), None)

    @rule(place=PLACES)
    def items(self, place: Place) -> None:
        found = self.handle.items(place)
        assert list(found) == sorted(found)
        for entry in ("", "a", "ab", "\x00"):
            self.expect((place, entry), found.get(entry))

    @rule(place=PLACES)
    def clear(self, place: Place) -> None:
        self.handle.clear(place)
        self.held = {where: held for where, held in self.held.items() if where[0] != place}


class ReducingModel(Model):
    kind = StateKind.REDUCING

    def begin(self) -> None:
        self.add_to, self.read = self._handle()

    def _handle(self) -> tuple[Callable[[Place, int], None], Callable[[Place], Any]]:
        handle = self.states.reducing("s", lambda kept, added: {"n": kept["n"] + added["n"], "note": None})
        return lambda place, n: handle.add(place, {"n": n}), lambda place: (handle.get(place) or {"n": None})["n"]

    @rule(place=PLACES, number=st.integers(0, 100))
    def add(self, place: Place, number: int) -> None:
        held = self.held.get(place)
        kept: list[int] = []
        is_fresh = True
        if held is not None and not self.is_expired(held.stamp_ms):
            kept, is_fresh = held.values, False
        elif held is not None and self.ttl is not None and self.ttl.return_expired:
            kept = held.values  # combined with, or cleaned up before
        self.add_to(place, number)
        self.wrote(place, *(value + number for value in kept), *([number] if is_fresh else []))

    @rule(place=PLACES)
    def get(self, place: Place) -> None:
        self.expect(place, self.read(place))


class AggregatingModel(ReducingModel):
    kind = StateKind.AGGREGATING

    def _handle(self) -> tuple[Callable[[Place, int], None], Callable[[Place], Any]]:
        handle = self.states.aggregating(
            "s", lambda: {"n": 0}, lambda kept, given: {"n": kept["n"] + int(given)}, lambda kept: f"sum {kept['n']}"
        )

        def read(place: Place) -> Any:
            found = handle.get(place)
            return None if found is None else int(found.removeprefix("sum "))

        return lambda place, n: handle.add(place, str(n)), read


class ListModel(Model):
    kind = StateKind.LIST

    def begin(self) -> None:
        self.handle = self.states.list("s")
        self.lists: dict[Place, list[Held]] = getattr(self, "lists", {})

    @rule(place=PLACES, count=st.integers(1, 3))
    def append(self, place: Place, count: int) -> None:
        added = [row(next(self.numbers)) for _ in range(count)]
        self.handle.append(place, *added)
        self.lists.setdefault(place, []).extend(Held([one], self.clock.now_ms) for one in added)

    @rule(place=PLACES, count=st.integers(0, 2))
    def replace(self, place: Place, count: int) -> None:
        fresh = [row(next(self.numbers)) for _ in range(count)]
        self.handle.replace(place, fresh)
        self.lists[place] = [Held([one], self.clock.now_ms) for one in fresh]

    @rule(place=PLACES)
    def get(self, place: Place) -> None:
        found = self.handle.get(place)
        held = self.lists.get(place, [])
        alive = [one for one in held if not self.is_expired(one.stamp_ms)]
        if self.ttl is None or not self.ttl.return_expired:
            assert found == [one.values[0] for one in alive]
        else:
            assert found == [one.values[0] for one in held if one.values[0] in found], "in their order, nothing else"
            assert all(one.values[0] in found for one in alive)
            self.lists[place] = [one for one in held if one.values[0] in found]
        if self.ttl is not None and self.ttl.refresh_on_read:
            for one in alive:
                one.stamp_ms = self.clock.now_ms

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.lists)))
        self.handle.clear(place)
        del self.lists[place]


MODELS: tuple[type[Model], ...] = (ValueModel, MapModel, ReducingModel, AggregatingModel, ListModel)


CLEANUPS: tuple[Cleanup | None, ...] = (None, *Cleanup)


def variant(model: type[Model], cleanup: Cleanup | None, on_disk: bool) -> type[Model]:
    return type(f"{model.__name__}{cleanup}", (model,), {"cleanup": cleanup, "on_disk": on_disk})


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind.value)
def test_in_memory(model: type[Model], cleanup: Cleanup | None) -> None:
    run = settings(max_examples=12, stateful_step_count=30)
    run_state_machine_as_test(variant(model, cleanup, on_disk=False), settings=run)


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("cleanup", [Cleanup.ACCESS, Cleanup.COMPACTION])
@pytest.mark.parametrize("model", [ValueModel, MapModel], ids=lambda model: model.kind.value)
def test_on_disk(model: type[Model], cleanup: Cleanup) -> None:
    run = settings(max_examples=3, stateful_step_count=25)
    run_state_machine_as_test(variant(model, cleanup, on_disk=True), settings=run)


@pytest.mark.slow
@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind.value)
def test_at_length(model: type[Model], cleanup: Cleanup | None) -> None:
    run = settings(max_examples=100, stateful_step_count=50)
    run_state_machine_as_test(variant(model, cleanup, on_disk=False), settings=run)

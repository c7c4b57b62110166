"""What the tests of declared state share."""

from __future__ import annotations

from cep.base.schema import Field, Kind, Type
from cep.state.cells import Clock, Place
from cep.state.descriptors import Descriptor, StateKind, Ttl, TtlTime
from cep.state.states import States
from cep.state.store import KeyedStore

GROUPS = range(3)
FIELDS = (Field("n", Type(Kind.INT)), Field("note", Type(Kind.STRING, nullable=True)))


class ManualClock:
    """Both times in one number that a test moves."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.clock = Clock(lambda: self.now_ms)
        self.clock.advance(now_ms)

    def move(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.clock.advance(self.now_ms)


def declare(kind: StateKind, ttl: Ttl | None = None, name: str = "s") -> Descriptor:
    return Descriptor(name, kind, FIELDS, ttl)


def row(number: int) -> dict[str, object]:
    return {"n": number, "note": f"number {number}" if number % 2 else None}


def at(number: int) -> Place:
    """Places in all groups, some that differ in the namespace only."""
    return Place(number % 3, b"k%d" % (number // 3 % 2), b"a" if number > 5 else b"")


def opened(store: KeyedStore, clock: ManualClock, *declared: Descriptor) -> States:
    return States(store, clock.clock, declared, groups=GROUPS)


PROCESSING = TtlTime.PROCESSING

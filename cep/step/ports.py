"""The ports of a micro-batch: everything that it needs from a runner.

    Ports ─── rules, programs                 the rulebooks of the job, and their compiled programs
      │
      └ spread ─▶ LevelPorts, one or several, each for some key groups at one level
                    ├ parts ─▶ seen      ids of earlier events                    step 4
                    │          waiting   events that are not due                  step 6
                    └ pages ─▶ runs, one for each key domain                      step 7
                                └ histories   the histories of the same keys

A runner decides where these are and in what form: arrays in memory over a store, or bytes in Spark's state. A
`LevelPorts` has one key group in Spark, all of a worker in the embedded runner. `number` is always the index of the key
domain in `Job.domains`.
Tested by: tests/step/contract.py, which runs over memory, RocksDB and Spark's state
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import EventBatch
from cep.engine.keyed_state import KeyedState
from cep.histories.store import Histories
from cep.nfa.program import Program
from cep.step.rules import JobRules, Programs

Events = Mapping[int, Sequence[EventBatch]]  # by number of the key domain; joined when they are needed in one piece
T = TypeVar("T")


class SeenIds(Protocol):
    """The port to the event ids that a runner keeps, by number of the key domain and time bucket (duplicates.py)."""

    def secrets(self, number: int, bucket: int, keys: pa.Array) -> NDArray[np.uint64]:
        """Return the secrets that hash the ids of keys: uint64[N, 2], or [1, 2] for all. A new bucket draws one."""

    def take(self, number: int, bucket: int, ids: NDArray[np.uint64], keys: pa.Array) -> NDArray[np.uint8]:
        """Judge ids, uint64[2, N] by arrival, and store new ones. Return NEW, SAME or OTHER (kernels/groups.py)."""

    def forget(self, oldest: int) -> None:
        """Drop the buckets before `oldest`, which are never read again."""


class WaitingEvents(Protocol):
    """The events that the watermark has not passed, by number of the key domain."""

    def release(self, number: int, fresh: EventBatch | None, due_ms: int) -> EventBatch | None:
        """Add new events; remove and return the events before `due_ms`, or None.

        A micro-batch in event-time order calls it once for every key domain, with or without events. `due_ms` never
        decreases.
        """


class DomainHistories(Protocol):
    """The stored histories (past events) of a key domain (keys made of the same fields) in some key groups, as a micro-
    batch reaches them. A slot is the number of a page: the histories of a few keys."""

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """Return the slot of each key's histories: int64[N]. Runs have pages of their own, with other slots."""

    def expired(self, watermark_ms: int) -> list[int]:
        """Return the slots whose histories have all expired at the watermark, so that they can be removed."""

    def read(self, slot: int) -> Histories:
        """Return the histories of a slot; an absent slot has empty ones. Raises: StateError."""

    def write(self, slot: int, histories: Histories, expiry_ms: int) -> None:
        """Replace the histories that were read. All of them have expired at `expiry_ms`."""

    def remove(self, slot: int) -> None:
        """Forget the histories of a slot, if there are any."""


class DomainPages(Protocol):
    """The port to the pages (stored runs of a few keys each) of a key domain (keys made of the same fields) in some key
    groups. A slot is the number of a page among them."""

    @property
    def histories(self) -> DomainHistories:
        """The histories of the same keys."""

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """Return the slot of each key's page: int64[N]."""

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        """Return the slots of these keys and the slots that are due at the watermark, ascending, each once."""

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, Counter[str]]:
        """Read the pages of these slots as one keyed state of `program`, None without a page. Raises: StateError.

        If another program wrote them, return also the changes of the counters of runs, which it dropped or divided.
        """

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        """Write runs back to the pages of these slots; an empty page is removed."""

    def drop(self) -> int:
        """Remove all pages and return the number of their runs. Raises: StateError."""


class ArrivalPorts(Protocol):
    """The ports that decide which events of some key groups are matched now."""

    @property
    def seen(self) -> SeenIds:
        """The ids of events that came before."""

    @property
    def waiting(self) -> WaitingEvents:
        """The events that are not due."""


class LevelPorts(Protocol):
    """The port to the keyed state of some key groups at one level. Arrivals may have several parts; pages have one."""

    @property
    def parts(self) -> Sequence[ArrivalPorts]:
        """The arrivals of each part of the key groups."""

    @property
    def pages(self) -> Sequence[DomainPages]:
        """The pages by number of the key domain, of all parts."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Some key groups at one level, with the events of each of their parts."""

    ports: LevelPorts
    events: Sequence[Events]


class Ports(Protocol):
    """The interface through which a micro-batch reaches its runner: rules, programs, key groups, and levels, whose
    rules read events that rules of lower levels produce."""

    @property
    def rules(self) -> JobRules:
        """The job and where its rulebooks are."""

    @property
    def programs(self) -> Programs:
        """The compiled rulebooks of this process."""

    @property
    def levels(self) -> range:
        """The levels that are matched here: all, or some, if each query of Spark matches some levels (a stage)."""

    def spread(self, level: int, events: Events, due_ms: int, work: Callable[[Portion], T]) -> Iterable[T]:
        """Divide the events of a level among its key groups and call `work` for each portion, perhaps at the same time.

        Events before `due_ms` may be matched; for the others, earlier ones may still come. Results are in the groups'
        order."""

"""A running job → a look at its surroundings every few seconds, from a thread of its own.

    brokers   do they answer?                          → part `brokers`
    registry  does the registry of schemas answer?     → part `registry`
    events    how many records of each partition wait? → lag; part `events`: some wait, and none is read
    sinks     how long does a delivery take?           → part `sinks`
    disk      how much is free?                        → part `disk`, and a gauge

The job itself cannot report these things. If its brokers are unreachable it waits, which looks like a quiet stream.
Tested by: tests/runners/test_observe.py
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from cep.base.errors import CepError
from cep.base.limits import DISK_FREE_BYTES_MIN
from cep.base.text import utc_text
from cep.runners.observe import BROKERS, DISK, EVENTS, REGISTRY, Observed
from cep.sources.kafka import KafkaSettings, ask_brokers, latest_offsets
from cep.sources.offsets import by_lane
from cep.sources.registry.kafka import answers

_REGISTRY_S = 3  # for its answer; with WATCH_MS, less than ten seconds
_FIRST_S = 0.5  # between two looks until the job has caught up: so soon is the lag known


@dataclass(frozen=True, slots=True)
class Watched:
    """The services around a job that are checked: brokers (by any `topic`), a registry, the disk of the job's `folder`.

    `first_positions` returns where the job begins to read its topic `events`, by partition, until the job has reported
    its positions. `registry` are the settings of the client of the registry of schemas, if the job has one.
    """

    kafka: KafkaSettings | None = None
    topic: str | None = None
    events: str | None = None
    folder: Path | None = None
    first_positions: Callable[[], Mapping[str, int]] = dict
    registry: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class Watch:
    """A thread that looks for as long as the block runs."""

    def __init__(self, watched: Watched, observed: Observed, every_ms: int) -> None:
        kafka = watched.kafka
        self._watched = replace(watched, kafka=None if kafka is None else replace(kafka, wait_ms=every_ms))
        self._observed = observed
        self._every_s = every_ms / 1_000
        self._ended = threading.Event()
        self._positions: object = None
        self._moved_s = time.monotonic()
        self._silent_since: dict[str, str] = {}  # by part that does not answer
        self._first_ends: tuple[float, int] | None = None  # when the ends were first known, and their sum

    def __enter__(self) -> Self:
        # A daemon: at the job's end it may be waiting for brokers that are away.
        threading.Thread(target=self._work, name="cep-watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.is_set():
            self.look()
            has_caught_up = self._watched.events is None or self._observed.has_caught_up
            self._ended.wait(self._every_s if has_caught_up else min(self._every_s, _FIRST_S))

    def look(self) -> None:
        """Look once at everything."""
        self._look_at_brokers()
        self._look_at_registry()
        self._look_at_events()
        if not self._ended.is_set():
            self._observed.look_at_sinks()
        self._look_at_disk()

    def _note(self, part: str, trouble: str | None, detail: str = "") -> None:
        if not self._ended.is_set():
            self._observed.note(part, trouble, detail)

    def _look_at_brokers(self) -> None:
        kafka, topic = self._watched.kafka, self._watched.topic
        if kafka is None or topic is None:
            return
        detail = None
        try:
            ask_brokers(kafka, topic)
        except CepError as error:
            detail = str(error)
        self._note_answer(BROKERS, detail)

    def _look_at_registry(self) -> None:
        registry = self._watched.registry
        if not registry:
            return
        detail = f"{dict(registry).get('url')} gives no answer, or refuses access; records of new schemas wait for it"
        self._note_answer(REGISTRY, None if answers(registry, _REGISTRY_S) else detail)

    def _note_answer(self, part: str, detail: str | None) -> None:
        """Note since when a part does not answer, and why; or that it does, for None."""
        if detail is None:
            self._silent_since.pop(part, None)
            self._note(part, None)
        else:
            since = self._silent_since.setdefault(part, utc_text(int(time.time() * 1_000)))
            self._note(part, f"no answer since {since}", detail)

    def _look_at_events(self) -> None:
        """Report how many records of each lane (partition) wait, and at what rate new ones arrive. Note a trouble,
        or its end (None): some records wait, and for too long none of them was read."""
        kafka, topic, positions = self._watched.kafka, self._watched.events, self._observed.positions
        if kafka is None or topic is None or BROKERS in self._silent_since:  # which do not answer
            return
        try:
            positions = positions or self._watched.first_positions()  # until the job reports some
            if not positions:
                return
            ends = by_lane(latest_offsets(kafka, [topic]))
        except CepError as error:
            self._note(EVENTS, "the topic gives no offsets", str(error))
            return
        lags = {lane: max(0, end - positions.get(lane, 0)) for lane, end in ends.items()}
        now_s, waiting = time.monotonic(), sum(lags.values())
        self._first_ends = self._first_ends or (now_s, sum(ends.values()))  # at the first look
        first_s, first_total = self._first_ends
        observed_s, arrived = now_s - first_s, sum(ends.values()) - first_total
        self._observed.lagging(lags, arrived / observed_s if observed_s > 0 else 0.0)
        if not waiting or positions != self._positions:  # all is read, or some was read
            self._positions, self._moved_s = positions, now_s
        still_s = now_s - self._moved_s
        is_stuck = still_s * 1_000 >= self._observed.stalled_ms
        self._note(EVENTS, f"{waiting:,} records wait, and none was read for {still_s:.0f} s" if is_stuck else None)

    def _look_at_disk(self) -> None:
        folder = self._watched.folder
        if folder is None:
            return
        try:
            free_bytes = shutil.disk_usage(folder).free
        except FileNotFoundError:  # before the job has made it, or once it is gone
            return
        except OSError as error:
            self._note(DISK, "the disk of the checkpoint folder gives no answer", str(error))
            return
        self._observed.measured({"disk_free_bytes": free_bytes}, {})
        is_full = free_bytes < DISK_FREE_BYTES_MIN
        self._note(DISK, f"{free_bytes >> 20} MB are left for the checkpoint folder" if is_full else None)

"""The partitions of a topic, read as records arrive → chunks of JSON values.

Partitions are assigned, never subscribed to: the offsets in the checkpoint decide, and a process that matches a part of
the keys reads all partitions. Offsets that are gone are an error, never a silent jump. A partition that the topic gets
later is read from its start. A topic that was deleted and created again has another id, and is refused: offsets of the
old one would skip records of the new one.
Tested by: tests/sources/test_live_kafka.py
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cep.base.errors import SourceError, SourceGoneError
from cep.base.kafka import DAMAGED_CODES, END_CODE, GONE_CODES, is_away, is_temporary, reader_options
from cep.sources import kafka as topics
from cep.sources.live.base import Chunk, Positions
from cep.sources.offsets import refuse_new_topics
from cep.sources.registry.form import with_headers

_DEFAULTS = {"fetch.wait.max.ms": "10", "queued.min.messages": "100000"}
_RECORDS_MAX = 1_000_000  # that the client takes for a request
_FIXED = {"isolation.level": "read_committed"}
_SEARCH_S = 30.0  # between two searches for new partitions, and for another topic of the same name
_SEARCH_WAIT_MS = 2_000  # for the brokers' answer; a job goes on without, and searches again
_STUCK_S = 30.0  # records wait so long, and none of their partition is read: the client has stopped
_POLLS_MIN = 20  # polls in that time that got all there was: fewer say nothing about a partition without records


class TopicSource:
    """The partitions of a topic. A lane is named `topic[partition]`; positions are next offsets."""

    def __init__(
        self, settings: topics.KafkaSettings, topic: str, starting: str = "earliest", ending: str | None = None,
        headers: tuple[str, ...] = (), *, accepts_gap: bool = False,
    ) -> None:  # fmt: skip
        """Begin at `starting` without positions, and end at `ending` (both as in kafka.offsets_of). `headers` become
        members of the records, which are JSON then. `accepts_gap`: `seek` passes over records that were deleted before
        they were read."""
        self._accepts_gap = accepts_gap
        self.gaps: dict[str, tuple[int, int]] = {}  # by lane: the offsets [first, end) of deleted records
        self._headers = headers
        self._settings = settings
        self._topic = topic
        self._starting = starting
        self._ending_text = ending
        self._ending: dict[int, int] | None = None  # by partition, the offset at which the source ends; None: no end
        self._has_more_after: dict[int, bool] = {}  # True if records exist after the ending
        self._finished: set[int] = set()  # the partitions that were read to their ending
        self._next: dict[int, int] = {}  # the offset that is read next
        self._ids: dict[str, str] = {}  # of the topic, by its name; empty for brokers that give none.
        self._is_at_end: dict[int, bool] = {}  # True if the client has reported the end of the partition.
        self._last_search_s = 0.0  # when new partitions were last searched for
        self._paused: set[int] = set()  # the partitions that `hold` has paused
        self._last_ends: dict[int, int] = {}  # the end offset at the last query
        # To find a stuck client: at an earlier query, the offsets with waiting records.
        self._waiting_offsets: dict[int, int] = {}
        self._waiting_since_s = time.monotonic()  # the time of that query
        self._complete_polls = 0  # polls since then that returned fewer records than requested, so all there were
        self._consumer = self._client()

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return the new records of all partitions, one chunk per partition."""
        if not self._next:
            self.seek({})
        elif time.monotonic() - self._last_search_s > _SEARCH_S:
            self._find_partitions()
        try:
            # The client waits until it has the requested number, so request one record, then the present ones.
            first = self._consumer.consume(1, wait_s)
            messages = first + self._consumer.consume(min(records_max, _RECORDS_MAX) - 1, 0.0) if first else first
        except KafkaException as error:
            if is_away(error):
                return []
            raise SourceError(f"reading {self._topic} from {self._settings.bootstrap_servers}: {error}") from error
        self._complete_polls += len(messages) < records_max  # the client gave all it had; counted to find a stuck one
        values: dict[int, list[bytes | None]] = {}
        for message in messages:
            partition = message.partition()
            assert partition is not None
            if partition in self._paused:
                continue  # the record was on its way when `hold` paused its partition
            notice = message.error()  # an error, or the end of the partition
            if notice is not None:
                self._handle_notice(notice, message)
                continue
            if self._stop_at_ending(partition, message.offset() or 0):
                continue  # the source ends before this record
            value = message.value()
            if self._headers:
                value = with_headers(value, message.headers(), self._headers)
            values.setdefault(partition, []).append(value)
            self._next[partition] = (message.offset() or 0) + 1
            self._is_at_end[partition] = False
            self._stop_at_ending(partition, self._next[partition])  # it may have been the last record before the ending
        return [
            Chunk(self._lane(p), pa.array(records, pa.large_binary()), partition=p)
            for p, records in sorted(values.items())
        ]

    def positions(self) -> Positions:
        return {self._lane(partition): offset for partition, offset in self._next.items()}

    def ids(self) -> dict[str, str]:
        return dict(self._ids)

    def expect(self, ids: Mapping[str, str]) -> None:
        self._ids = {topic: topic_id for topic, topic_id in ids.items() if topic == self._topic}

    def seek(self, positions: Mapping[str, int]) -> None:
        """Continue at these next offsets, by lane (`topic[partition]`). Raises: SourceError for a topic that is
        unreadable, was replaced, or has deleted records that were not read (a gap)."""
        ids = topics.topic_ids(self._settings, [self._topic])  # first: if the topic is replaced later, its id differs
        if not ids:  # old brokers have none; others give them after the next request
            topics.latest_offsets(self._settings, [self._topic])
            ids = topics.topic_ids(self._settings, [self._topic])
        self._check_ids(ids)
        starting = "earliest" if positions else self._starting
        begins = topics.offsets_of(self._settings, [self._topic], starting, "earliest")[self._topic]
        if self._ending_text is not None:
            self._ending = topics.offsets_of(self._settings, [self._topic], self._ending_text, "latest")[self._topic]
            last = topics.latest_offsets(self._settings, [self._topic])[self._topic]
            self._has_more_after = {p: last.get(p, 0) > end for p, end in self._ending.items()}
        offsets = {p: positions.get(self._lane(p), offset) for p, offset in begins.items()}
        self.gaps = {
            self._lane(p): (offset, begins[p]) for p, offset in offsets.items() if positions and offset < begins[p]
        }
        if self.gaps and not self._accepts_gap:
            raise _gap_error(self.gaps)
        self._next = {p: max(offset, begins[p]) if positions else offset for p, offset in offsets.items()}
        self._is_at_end = dict.fromkeys(self._next, False)
        self._paused = set()
        self._last_search_s = time.monotonic()
        self._consumer.assign(self._places(self._next))
        for partition, offset in self._next.items():
            self._stop_at_ending(partition, offset)

    def look(self) -> None:
        if not self._next:
            self.seek({})
        ends = self._find_partitions()
        self._last_ends = topics.latest_offsets(self._settings, [self._topic])[self._topic] if ends is None else ends

    def hold(self, lanes: Collection[str]) -> None:
        """Take partitions from the client, and give them back where they were left."""
        partitions = {p for p in self._next if self._lane(p) in lanes and p not in self._finished}
        to_unassign, given_back = partitions - self._paused, self._paused - partitions
        if to_unassign:
            self._consumer.incremental_unassign([TopicPartition(self._topic, p) for p in to_unassign])
        if given_back:
            self._is_at_end |= dict.fromkeys(given_back, False)
            self._consumer.incremental_assign(self._places(given_back))
        self._paused = partitions

    @property
    def ended(self) -> bool:
        """True if every partition has been read to its ending; False without partitions."""
        return self._ending is not None and bool(self._next) and len(self._finished) == len(self._next)

    def behind(self) -> dict[str, bool]:
        """Return for each partition, by the name of its lane, True if it has more records: the client has not reported
        its end, or `look` has seen a later end. In a partition that was read to the source's ending (the offset where
        reading stops), only records after the ending count."""
        behind: dict[str, bool] = {}
        for partition, offset in self._next.items():
            is_behind = not self._is_at_end[partition]
            if partition in self._finished:  # read to the ending
                is_behind = self._has_more_after.get(partition, True)
            elif is_behind:
                ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
                is_behind = ends is None or ends[1] < 0 or ends[1] > offset  # ends: first and end; -1: unknown
            if partition not in self._finished:
                is_behind = is_behind or offset < self._last_ends.get(partition, 0)
            behind[self._lane(partition)] = is_behind
        return behind

    def close(self) -> None:
        self._consumer.close()

    def _client(self) -> Consumer:
        client_options = dict(self._settings.client_options)
        return Consumer(reader_options(self._settings.bootstrap_servers, client_options, _DEFAULTS, _FIXED))

    def _places(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, self._next[partition]) for partition in partitions]

    def _lane(self, partition: int) -> str:
        return f"{self._topic}[{partition}]"

    def _stop_at_ending(self, partition: int, offset: int) -> bool:
        """Stop reading a partition if the source ends at or before this offset of it. Return True then."""
        if self._ending is None or offset < self._ending.get(partition, 0):
            return False
        if partition not in self._finished:
            self._finished.add(partition)
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
        return True

    def _check_ids(self, ids: Mapping[str, str]) -> None:
        """Raise SourceError for another id than before; remember new ones. Brokers may give none now."""
        refuse_new_topics(self._ids, ids)
        self._ids |= ids

    def _find_partitions(self) -> dict[int, int] | None:
        """Find new partitions of the topic, and read them too. Return the end of every partition, or None if the
        brokers do not answer. Raises: SourceError if the topic was replaced."""
        self._last_search_s = time.monotonic()
        settings = replace(self._settings, wait_ms=_SEARCH_WAIT_MS)
        try:
            earliest = topics.earliest_offsets(settings, [self._topic])[self._topic]
            latest, ids = topics.latest_offsets_and_ids(settings, [self._topic])
        except SourceError:  # the brokers are away for now, or the topic is gone: then `poll` raises the error
            return None
        self._check_ids(ids)
        new = {p: offset for p, offset in earliest.items() if p not in self._next}
        if new:
            self._next |= new
            self._is_at_end |= dict.fromkeys(new, False)
            self._consumer.incremental_assign(self._places(new))
            for partition, offset in new.items():
                self._stop_at_ending(partition, offset)  # a source with an ending does not read new partitions
        ends = latest[self._topic]
        self._replace_stuck_client(ends)
        return ends

    def _replace_stuck_client(self, ends: Mapping[int, int]) -> None:
        """Replace the client if it has silently stopped reading, as it may when brokers come back. The sign of it: many
        polls got all there was, and a partition with waiting records has the same offset as at the last query."""
        now_s = time.monotonic()
        if now_s - self._waiting_since_s < _STUCK_S:
            return
        partitions = self._next.keys() - self._paused - self._finished
        waiting = {p: self._next[p] for p in partitions if self._next[p] < ends.get(p, 0)}
        has_stuck_partition = any(self._waiting_offsets.get(p) == offset for p, offset in waiting.items())
        is_stuck = self._complete_polls >= _POLLS_MIN and has_stuck_partition
        self._waiting_offsets, self._waiting_since_s, self._complete_polls = waiting, now_s, 0
        if is_stuck:
            # A stuck client may also be slow to close.
            threading.Thread(target=self._consumer.close, name="cep-close", daemon=True).start()
            self._consumer, self._waiting_offsets = self._client(), {}
            self._consumer.assign(self._places(partitions))

    def _handle_notice(self, error: KafkaError, message: Message) -> None:
        """Handle an error or the end of a partition in place of a record. Raises: SourceError unless the fault is
        temporary."""
        partition = message.partition() or 0
        if error.code() == END_CODE:
            self._next[partition] = max(self._next[partition], message.offset() or 0)
            self._is_at_end[partition] = True
            self._stop_at_ending(partition, self._next[partition])
            return
        place = self._lane(partition)
        if error.code() in GONE_CODES:
            raise SourceGoneError(
                f"{place}: offset {self._next[partition]} is gone: its record was deleted before it was read, or the "
                "topic was created again; start the job again, which says what is missing and what you can do"
            )
        if error.code() in DAMAGED_CODES:
            raise topics.damaged(place, self._next[partition], error)
        if error.fatal() or (error.code() > 0 and not is_temporary(error)):
            raise SourceError(f"reading {place} from {self._settings.bootstrap_servers}: {error.str()}")


def _gap_error(gaps: Mapping[str, tuple[int, int]]) -> SourceGoneError:
    shown = ", ".join(f"{lane} offsets {first}..{end}" for lane, (first, end) in sorted(gaps.items()))
    return SourceGoneError(
        f"records are gone that the job has not read: {shown}; their topic has deleted them. Give the topic a longer "
        "retention. To go on without these records, start `cep run` once with --accept-gap: alerts that may lack "
        "events then have `history_from`. Or start with a new checkpoint"
    )

"""Decoded records, control records and event times of one micro-batch → alerts, on several threads. No I/O, no clock.

    records ─▶ route (step)      ─┬─▶ share 0: key groups 0 … 63    ─┐
    control records ─▶ rulebook ──┼─▶ share 1: key groups 64 … 127  ─┼─▶ alerts, sorted
    event times ─▶ watermark ─────┘                                   ─┘

All shares use one rulebook and one watermark. They run in parallel and meet at the end of each micro-batch, so all
keyed state then belongs to one moment. Patterns that read the events that other patterns produce run level by level in
the same micro-batch, and each level has its own shares.

The store has the last alert of each rule that suppresses, by key (rulebook/suppression.py), so that a commit writes
only the changes. A key may be longer than a store key, so the store key has its digest:

    | FFFF | "" | "fired for" | rule | digest of the key |  →  of the last alert:
                                                    event time i64, ~for how long i64, severity i64, value f64, key

Builds up to 0.2.0 wrote "for how long" without the complement, and no severity and value.
Tested by: tests/runners/embedded/test_engine.py, tests/runners/embedded/test_stored_parts.py.
"""

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError, UsageError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import TEXT, EventBatch
from cep.columnar.decode import Decoded, KeyDomain, key_groups
from cep.engine.alerts import sorted_together
from cep.engine.keyed_state import divide
from cep.lists.store import ListStore
from cep.nfa.program import Program
from cep.rulebook import suppression
from cep.rulebook.audit import writes_audit
from cep.rulebook.saved import rulebook_bytes
from cep.runners.embedded.pages import PAGES_MAX, Shapes
from cep.runners.embedded.seen import ADDED_SEEN
from cep.runners.embedded.shares import ADDED_DEADLINES, PageSettings, Shares
from cep.runners.embedded.waiting import ADDED_WAITING
from cep.runners.handover.group_entries import entries_of, state_of
from cep.runners.handover.warm_start import WarmStart, check_fits, states_by_domain
from cep.state.past import StoredPage, encode_page
from cep.state.store import STORE_GROUP, DurableStore, KeyedStore, WriteBatch, prefix_range, split_key, store_key
from cep.step.dead_letters import bounded_equals, event_dead_letters, evicted_dead_letters, under_rules
from cep.step.event_time import (
    NO_CLOCK,
    PartitionTime,
    TimesRead,
    next_look_ms,
    times_from_json,
    times_json,
    too_far_ahead,
)
from cep.step.job import Job, add_counts, nonzero
from cep.step.level import LastEvent
from cep.step.marks import joined_marks
from cep.step.rules import JobRules, NamedRulebook, head_values, restore_rulebook, rulebook_of, with_gap
from cep.step.step import MicroBatch, Progress, filter_alerts, step
from cep.step.validate import ValidEvents, validate_events

FIRED = b"fired for"
_FIRED_TIMES, _VALUES = struct.Struct("<qq"), struct.Struct("<qqqd")
_DIGEST_BYTES = 16


class StoredLastAlerts(suppression.LastAlerts):
    """The last alert of each rule that suppresses, by rule and key, stored with each `save`."""

    def save(self, batch: WriteBatch) -> None:
        """Add the changes since the last call."""
        for rule_and_key in self.changed():
            last_alert = self.last.get(rule_and_key)
            if last_alert is None:
                batch.delete(_fired_key(*rule_and_key))
            else:
                fired_ms, suppress_ms, severity_rank, measure = last_alert  # measure: for `escalate`
                # `~` makes a number negative, to mark this form. Builds up to 0.2.0 wrote only two, without `~`.
                value = _VALUES.pack(fired_ms, ~suppress_ms, severity_rank, measure)
                batch.put(_fired_key(*rule_and_key), value + rule_and_key[1].encode())

    def restore(self, store: KeyedStore) -> None:
        """Restore the entries of the store, as unchanged ones. Raises: StateCorruptError."""
        fired: suppression.Fired = {}
        try:
            for raw, data in store.scan(prefix_range(STORE_GROUP, b"", FIRED)):
                last_alert, size = _unpack_last_alert(data)
                fired[split_key(raw).name.decode(), data[size:].decode()] = last_alert
            self.put(fired)
            self.changed()  # forgets that they are new
        except (struct.error, TypeError, ValueError) as error:
            raise StateCorruptError(f"who was alerted cannot be read ({error!r}); restore a checkpoint") from error


def _unpack_last_alert(data: bytes) -> tuple[suppression.LastAlert, int]:
    """Return the last alert of an entry, and how many bytes it takes. Raises: struct.error."""
    time_ms, for_ms = _FIRED_TIMES.unpack_from(data)
    if for_ms >= 0:
        return (time_ms, for_ms, suppression.UNKNOWN_SEVERITY, suppression.NO_MEASURE), _FIRED_TIMES.size
    _, _, rank, value = _VALUES.unpack_from(data)
    return (time_ms, ~for_ms, rank, value), _VALUES.size


def _fired_key(rule_id: str, key: str) -> bytes:
    digest = blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
    return store_key(STORE_GROUP, b"", FIRED, rule_id.encode(), digest)


# Pages of a new store for each page that the job asks for; and of a store of an earlier build, which does not say.
PAGES_FACTOR, _EARLIER_PAGES_FACTOR = 2_048, 256
_COMMIT_AND_SHARE = struct.Struct(">QH")  # of an entry that a commit adds: its number, and the number of the share
_CHANGES = (ADDED_DEADLINES, ADDED_SEEN, ADDED_WAITING)
# The entries that commits have added are merged by key group above this size, and above several times the whole.
_CHANGES_BYTES_MIN, _CHANGES_FACTOR = 4 << 20, 2


@dataclass(frozen=True, slots=True)
class Workers:
    """The division of matching: threads, the key groups of this process, bytes of pages in memory (None: all)."""

    count: int = 2
    first_group: int = 0
    end_group: int | None = None
    page_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """The outcome of a micro-batch: alerts in their order, dead letters (JSON), counters by name."""

    alerts: pa.Table
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]


class Engine:
    """The job's rulebook, watermark and keyed state. `initial` are the control records that it begins with."""

    def __init__(
        self, job: Job, initial: tuple[bytes, ...], store: DurableStore, workers: Workers,
        lists: ListStore | None = None,
    ) -> None:  # fmt: skip
        """Begin without keyed state. `initial`: control records of first rules. `lists`: a store; None: in memory."""
        end = job.groups_count if workers.end_group is None else workers.end_group
        assert 0 <= workers.first_group < end <= job.groups_count, "key groups of this process"
        self.job = job
        self.store = store
        self.groups = range(workers.first_group, end)
        if job.levels_count > 1 and len(self.groups) < job.groups_count:
            raise UsageError(
                "patterns read what other patterns produce, and that may belong to any key: run the job in one process"
            )
        count = min(workers.count, len(self.groups))
        bytes_max = workers.page_bytes_max
        each_max = None if bytes_max is None else bytes_max // (count * len(job.domains))  # of a thread and domain
        paging = PageSettings(min(PAGES_MAX, job.pages_count * PAGES_FACTOR), each_max)  # a page has a few keys
        self._rules = JobRules(job, initial, job_lists=lists)
        self._shapes = Shapes(store)  # the layouts of stored pages
        self._shares = Shares(self._rules, self.groups, store, self._shapes, paging, count)
        self._progress = Progress(rulebook_of(self._rules, ""))
        self._last_alerts = StoredLastAlerts()
        self._saved_rulebook: object = None  # the rulebook in the store
        self._whole_state_bytes = 0  # bytes of the last `save_whole`
        self._changes_bytes = 0  # that commits have added since

    @property
    def rulebook(self) -> NamedRulebook:
        """The rules in force, and the digest that names them."""
        return self._progress.rulebook

    @property
    def watermark_ms(self) -> int:
        """The event time that every partition has passed."""
        return self._progress.watermark_ms

    def audit_head(self) -> dict[str, Any] | None:
        """Return the head of the job's audit, signed; None if the job writes none. Raises: UsageError."""
        rulebook = self.rulebook.rulebook
        return head_values(rulebook.trail.head) if writes_audit(rulebook) else None

    def step(
        self, parts: Sequence[Decoded], controls: tuple[bytes, ...], times: Mapping[str, Sequence[Any]],
        now_ms: int = NO_CLOCK, *, is_end: bool = False,
    ) -> Stepped:  # fmt: skip
        """Process one micro-batch (step/step.py). `times`: how far each partition has been read (PartitionTime).

        `is_end`: the job ends here, and waits for no partition. Raises: StateError, StoreError, which end the engine.
        """
        # Step 1: validate.
        valid = [validate_events(self.job, decoded, now_ms) for decoded in parts]
        first_ms = min((part.first_ms for part in valid), default=TIME_MS_MAX)  # of the earliest event
        # Steps 2 to 8: apply control records, move the watermark, drop repeats and late events, match by level.
        partitions = {name: PartitionTime.from_json(time) for name, time in times.items()}
        read = TimesRead(partitions, first_ms, now_ms, is_end)
        outcome = step(self._progress, self._shares, MicroBatch(_events_by_domain(valid), controls, read))
        self._progress = outcome.progress
        dead_letters = [letter for part in valid for letter in part.dead_letters]
        dead_letters += event_dead_letters(outcome.events_aside) + evicted_dead_letters(outcome.evicted)
        counters = outcome.counters
        if dead_letters:
            rulebook = outcome.in_force.rulebook.rulebook
            bounded = bounded_equals(dead_letters, counters)  # a few of many equal ones; counts the others
            dead_letters = under_rules(bounded, rulebook.epoch, rulebook.content_hash)
        # Step 9: suppress alerts, by the last alert of a rule and key.
        alerts = sorted_together(outcome.alerts)
        marks = joined_marks(part.marks for part in valid)  # keys of events with unreadable values
        sent = filter_alerts(alerts, outcome.in_force.policies, self._last_alerts, self.watermark_ms, marks)
        for more in (*(part.counters for part in valid), outcome.rule_counters, sent.counters):
            add_counts(counters, more)
        return Stepped(sent.alerts, (*outcome.refused, *dead_letters, *sent.suppressed), nonzero(counters))

    def accept_gaps(self, gaps: Mapping[str, tuple[int, int]], now_ms: int) -> Stepped:
        """Go on without the records of these offsets [first, end), by partition, which the topic has no more.

        A missing record may have any key and type, and an event time up to the clock `now_ms`. So alerts whose first
        event or windows are before that time have it in `history_from`.
        """
        until_ms = now_ms + (self.job.ahead_ms or 0) + 1
        rulebook, lines = with_gap(self._rules, self.rulebook, gaps, until_ms)
        self._progress = replace(self._progress, rulebook=rulebook, gap_ms=max(self._progress.gap_ms, until_ms))
        counters = Counter({"records_gone": sum(end - first for first, end in gaps.values())})
        return Stepped(sorted_together([]), tuple(lines), counters)

    def keep_lanes(self, lanes: Collection[str]) -> None:
        """Forget how far others were read if they have unread records: nobody reads these, so none waits for them."""
        times = {lane: time for lane, time in self._progress.times.items() if lane in lanes or not time.is_behind}
        self._progress = replace(self._progress, times=times)

    def too_far_ahead(self) -> frozenset[str]:
        """Return the partitions of which to read no more until the others have been read as far."""
        return too_far_ahead(self._progress.times, self.job.read_ahead_ms)

    def next_look_ms(self, now_ms: int) -> int:
        """Return the clock at which the watermark may move though nothing is read; TIME_MS_MAX if it will not."""
        return next_look_ms(self._progress.times, self.job.idle_ms, now_ms)

    def pages_of_key(self, key: str) -> tuple[list[StoredPage], Sequence[Mapping[KeyDomain, Program]]]:
        """Find the pages (stored runs of a few keys) that may have runs of a key, and the programs of each level."""
        keys = pa.array([key], TEXT)
        group = int(key_groups(keys, self.job.groups_count)[0])
        levels = self._programs()
        stored: list[StoredPage] = []
        for level, share in self._shares.with_group(group):  # share: the state of one thread's key groups
            for domain, pages in zip(self.job.domains, share.pages, strict=True):
                program = levels[level].get(domain)  # None: no rule has these key fields
                page, _ = (None, 0) if program is None else pages.take(pages.slots(keys), program)
                if page is not None:
                    stored.append(StoredPage(group, domain, encode_page(page)))
        return stored, levels

    def close(self) -> None:
        """End the threads."""
        self._shares.close()

    def _programs(self) -> Sequence[Mapping[KeyDomain, Program]]:
        return self._shares.programs.in_force(self.rulebook, self.job).programs

    def begin(self, warm: WarmStart) -> Counter[str]:
        """Begin with a replay's state, divided by thread. Return its runs by rule. Raises: UsageError, StateError."""
        runs: Counter[str] = Counter()
        check_fits(warm.about, self.job)
        self._last_alerts.put(suppression.fired_from_json(warm.about.memory))  # for suppression
        self._progress = replace(self._progress, since_ms=warm.about.since_ms, watermark_ms=warm.about.until_ms - 1)
        for level, programs in enumerate(self._programs()):
            shares = self._shares.by_level[level]  # of each thread: the state of its key groups
            for domain_number, whole in states_by_domain(warm, self.job, level, programs):
                program = programs[self.job.domains[domain_number]]
                for owner, part in divide(whole, self._shares.owners, program.row_registers):
                    if owner >= 0:  # the number of a share; -1: keys of another process
                        runs += shares[owner].begin(domain_number, part, program)
        return runs

    @property
    def loads_count(self) -> int:
        """Return how many pages were read from the store."""
        return sum(share.loads_count for share in self._shares.all)

    @property
    def changed_bytes(self) -> int:
        """The bytes of the pages that the next `save` writes."""
        return sum(share.changed_bytes for share in self._shares.all)

    @property
    def page_bytes(self) -> int:
        """The bytes of the pages that are in memory."""
        return sum(share.page_bytes for share in self._shares.all)

    @property
    def memory_bytes(self) -> Counter[str]:
        """The bytes of keyed state in memory, by part: pages, their index, the past, event ids."""
        parts = Counter[str]()
        for share in self._shares.all:
            parts.update(share.memory_bytes)
        parts["event_ids"] = sum(shares[0].seen.nbytes for shares in self._shares.by_level if shares)
        return parts

    def save(self, batch: WriteBatch, commit: int) -> None:
        """Add all that has changed since the last commit. Commits are numbered upwards. Raises: StoreError."""
        shares = self._shares.all
        if self._changes_bytes > max(_CHANGES_BYTES_MIN, _CHANGES_FACTOR * self._whole_state_bytes):
            self.save_whole(batch)
            return
        for number, share in enumerate(shares):
            self._changes_bytes += share.save_changes(batch, _COMMIT_AND_SHARE.pack(commit, number))
        self._save_rest(batch)

    def forget_changes(self) -> None:
        """Forget the changes that a commit would write, in a job that makes none: their number grows with the keys."""
        self._last_alerts.changed()
        for share in self._shares.all:
            share.waiting.forget_changes()

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all changes, and the state outside pages by key group, so that no earlier commit is needed."""
        before = len(batch)
        for namespace in _CHANGES:
            batch.delete_range(prefix_range(STORE_GROUP, b"", namespace))
        for share in self._shares.all:
            share.save_whole(batch)
        self._changes_bytes = 0
        self._whole_state_bytes = sum(len(value) for _, _, value in batch.changes[before:])
        self._save_rest(batch)

    def _save_rest(self, batch: WriteBatch) -> None:
        self._shapes.save(batch)
        batch.put(_TIMES, orjson.dumps({**self._progress_json(), "pages": self._shares.paging.pages_count}))
        if self._saved_rulebook is not self.rulebook:
            batch.put(_engine_key(b"rulebook"), rulebook_bytes(self.rulebook.rulebook))
            self._saved_rulebook = self.rulebook
        self._last_alerts.save(batch)

    def restore(self) -> None:
        """Restore the engine's state from the store. Raises: StateError."""
        stored_values = {name: self.store.get(_engine_key(name)) or b"" for name in (b"times", b"rulebook")}
        try:
            progress = orjson.loads(stored_values[b"times"])
        except ValueError as error:
            raise StateCorruptError(f"the store does not describe a job ({error!r}); restore a checkpoint") from error
        # A page has the state of a few keys. An earlier build did not store how many pages a key group has.
        pages_count = progress.get("pages", min(PAGES_MAX, self.job.pages_count * _EARLIER_PAGES_FACTOR))
        if not isinstance(pages_count, int) or not 1 <= pages_count <= PAGES_MAX:
            raise StateCorruptError(f"the store has {pages_count!r} pages a key group; restore a checkpoint")
        if pages_count != self._shares.paging.pages_count:
            self._shares.create_empty(replace(self._shares.paging, pages_count=pages_count))
        self._restore_progress({**progress, "rulebook": stored_values[b"rulebook"].decode()})
        self._saved_rulebook = self.rulebook
        self._last_alerts.restore(self.store)
        lists = self.rulebook.rulebook.lists
        lists.store.keep_only(lists.names())  # removes lists that the rulebook does not have
        for share in self._shares.all:  # one for each thread's key groups and level (order of rules)
            share.restore(self.store)

    def _restore_progress(self, saved_progress: Mapping[str, Any]) -> None:
        """Take over rules, watermark and times of partitions from a commit or savepoint. Raises: StateCorruptError."""
        try:
            self._progress = Progress(
                restore_rulebook(self._rules, saved_progress["rulebook"].encode()),
                int(saved_progress["watermark_ms"]),
                times_from_json(saved_progress["times"]),
                # All events from `since_ms` on were read, but events from before `gap_ms` may be missing. An earlier
                # build did not store the following four values.
                since_ms=int(saved_progress.get("since_ms", TIME_MS_MIN)),
                heartbeat_ms=int(saved_progress.get("heartbeat_ms", TIME_MS_MIN)),
                last_event=LastEvent.from_json(saved_progress.get("last_event")),
                gap_ms=int(saved_progress.get("gap_ms", TIME_MS_MIN)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateCorruptError(f"there is no job described ({error!r}); restore a checkpoint") from error

    def shared_progress(self) -> dict[str, Any]:
        """Return the progress that all key groups share, for a savepoint."""
        return {
            "rulebook": rulebook_bytes(self.rulebook.rulebook).decode(),
            "held_memory": suppression.fired_json(self._last_alerts.last),
            **self._progress_json(),
        }

    def _progress_json(self) -> dict[str, Any]:
        progress = self._progress
        return {
            "watermark_ms": progress.watermark_ms,
            "since_ms": progress.since_ms,
            "gap_ms": progress.gap_ms,
            "heartbeat_ms": progress.heartbeat_ms,
            "last_event": LastEvent.to_json(progress.last_event),
            "times": times_json(progress.times),
        }

    def entries_of(self, group: int) -> list[tuple[bytes, bytes]]:
        """Turn a key group into entries of a savepoint (group_entries.py), in the order of their keys."""
        entries: list[tuple[bytes, bytes]] = []
        levels = self._programs()
        for level, share in self._shares.with_group(group):
            entries += entries_of(self.job, level, group, share.state_of(group, levels[level]))
        return sorted(entries)

    def begin_from_savepoint(
        self, saved_progress: Mapping[str, Any], entries: Callable[[int], Iterable[tuple[bytes, bytes]]]
    ) -> tuple[int, Counter[str]]:
        """Begin with a savepoint: `saved_progress` (rules, watermark, last alerts) and the `entries` of each key group.

        Pages (runs) go to the store now, the rest with `save_whole`. Returns: the count of entries, and the runs as
        counters. Raises: StateError.
        """
        self._restore_progress(saved_progress)
        self._last_alerts.put(suppression.fired_from_json(saved_progress["held_memory"]))  # for suppression
        entries_count, runs = 0, Counter[str]()
        levels = self._programs()  # the compiled rules of each level (order of rules)
        for group in self.groups:
            group_entries = list(entries(group))
            entries_count += len(group_entries)
            batch = WriteBatch()
            for level, share in self._shares.with_group(group):  # the share of the thread that has the group
                runs += share.load_group(group, state_of(self.job, level, group_entries), levels[level])
                share.save_pages(batch)
            self.store.write(batch)
        return entries_count, runs


def stored_rulebook(store: DurableStore) -> bytes:
    """Read the rulebook in force from a store. Raises: StateCorruptError."""
    data = store.get(_engine_key(b"rulebook"))
    if data is None:
        raise StateCorruptError("the store holds no rulebook; restore a checkpoint")
    return data


def _engine_key(name: bytes) -> bytes:
    return store_key(STORE_GROUP, b"", b"engine", name)


_TIMES = _engine_key(b"times")


def _events_by_domain(valid: Sequence[ValidEvents]) -> dict[int, list[EventBatch]]:
    events: dict[int, list[EventBatch]] = {}
    for part in valid:
        for number, batch in enumerate(part.batches):
            if len(batch):
                events.setdefault(number, []).append(batch)
    return events

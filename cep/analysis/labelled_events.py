"""Labels and the events of a history → which events are of which fraud, as known on a date.

A fraud is an episode, or a label that stands for itself. It counts if it was reported by the date. Labels of a column
have no episodes: events of one key with short gaps between them are one fraud (`Episodes`).

An event that is younger than `maturity_ms` may still be reported, so it counts for neither side: otherwise frauds that
are reported early would count, and honest events of the same time not. A label belongs to a record: the events that
several views make of one record are one event here.
Tested by: tests/analysis/test_labels.py, tests/analysis/test_backtest.py
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.history import Events
from cep.analysis.labels import KEY, Labels
from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import TEXT
from cep.columnar.decode import KeyDomain, key_text
from cep.columnar.texts import encoded, rows_among
from cep.columnar.tokens import tokens_of_key
from cep.lang.show import show_duration

# This share of the frauds with a report date came within the time after which an event counts as mature.
_REPORTED_SHARE = 0.95
_SEPARATOR = "\x1f"  # between the fields of a key, and in the name of a label without an episode: no text has it


@dataclass(frozen=True, slots=True)
class LabelledEvents:
    """The N events of a history with the F frauds known at `as_of_ms`, and which events are old enough to count.
    Shapes: `fraud` int32[N] is the number of the event's fraud, -1 for none; `is_mature` bool[N]: the event is so old
    (`maturity_ms`) that a report of its fraud would be here. `kind`, `amount`, `first_ms` and `last_ms` are by fraud.
    `money` float64[N] is the event's part of its fraud's amount. `record` int64[N] is the number of the input record of
    which the event was made: several events may be one record. `unmatched_count` labels belong to no event,
    `later_count` were reported after `as_of_ms`, `immature_count` records of frauds are not old enough."""

    fraud: NDArray[np.int32]
    is_mature: NDArray[np.bool_]
    kind: tuple[str, ...]
    amount: NDArray[np.float64]
    first_ms: NDArray[np.int64]
    last_ms: NDArray[np.int64]
    as_of_ms: int
    maturity_ms: int
    unmatched_count: int
    later_count: int
    immature_count: int
    money: NDArray[np.float64]
    record: NDArray[np.int64]

    @property
    def frauds_count(self) -> int:
        return len(self.kind)

    def records_count(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> int:
        """Count the records of these events. Cost: one pass, no sort."""
        has_row = np.zeros(len(self.record), np.bool_)
        has_row[self.record[rows]] = True
        return int(has_row.sum())

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Return the labels of these events, which may be any number of times among them; the frauds stay."""
        fraud, is_mature = self.fraud[rows], self.is_mature[rows]
        return replace(self, fraud=fraud, is_mature=is_mature, money=self.money[rows], record=self.record[rows])


@dataclass(frozen=True, slots=True)
class Episodes:
    """How the labels of a column become frauds: labelled events of one key at most `gap_ms` apart are one fraud."""

    domain: KeyDomain
    gap_ms: int

    @property
    def text(self) -> str:
        return f"labelled events of a {' and '.join(self.domain)} at most {show_duration(self.gap_ms)} apart"


def key_field(labels: Labels, domains: tuple[KeyDomain, ...]) -> str | None:
    """Return the field that the labels are of; None for labels of events. Raises: UsageError if `key` may be any."""
    if labels.field != KEY:
        return labels.field
    if len(domains) == 1 and len(domains[0]) == 1:
        return domains[0][0]
    shown = "; ".join(", ".join(domain) for domain in domains)
    raise UsageError(f"the labels have a column {KEY}, and the rules have these keys: {shown}; name it by its field")


def label_events(
    events: Events, labels: Labels, field: str | None, amount: str | None,
    as_of_ms: int | None = None, maturity_ms: int | None = None, episodes: Episodes | None = None,
) -> LabelledEvents:  # fmt: skip
    """Assign each event to its fraud. `field` is the key field that labels name, None if they name events; `amount` is
    the field of an event's money. An event counts if it is mature: `maturity_ms` older than `as_of_ms`, so that a fraud
    would have been reported. Without `as_of_ms` all present labels count."""
    record = _records(events, labels)  # an input record may be several events
    label_of, event_of = _label_event_pairs(events, labels, field, record)  # of each pair of a label and its event
    unmatched_count = len(labels.keys) - len(np.unique(label_of))
    last_ms = int(events.time_ms.max(initial=TIME_MS_MIN))
    if as_of_ms is None:
        as_of_ms = max(last_ms, int(labels.reported_ms.max(initial=TIME_MS_MIN)))
    is_reported = (labels.reported_ms <= as_of_ms)[label_of] & (events.time_ms[event_of] <= as_of_ms)
    label_of, event_of = label_of[is_reported], event_of[is_reported]
    is_bad = labels.is_fraud[label_of]
    if maturity_ms is None:
        maturity_ms = _usual_delay_ms(events, labels, label_of[is_bad], event_of[is_bad])
    is_mature = events.time_ms <= as_of_ms - maturity_ms
    immature_count = len(np.unique(record[event_of[is_bad & ~is_mature[event_of]]]))
    is_bad &= is_mature[event_of]
    label_of, event_of = label_of[is_bad], event_of[is_bad]
    kinds, numbers = _episodes(labels, label_of)  # labels of one episode are one fraud
    if episodes is not None:
        numbers, first = _episodes_by_key(events, event_of, episodes)
        kinds = tuple(labels.kind.take(pa.array(label_of[first])).fill_null("").to_pylist())
    fraud = np.full(len(events), -1, np.int32)
    fraud[event_of[::-1]] = numbers[::-1]  # the first label of an event counts
    money = _amounts(events, labels, amount, label_of, numbers, fraud, record)
    with_events, dense = np.unique(fraud[fraud >= 0], return_inverse=True)
    fraud[fraud >= 0] = dense
    sums = np.bincount(fraud[fraud >= 0], weights=money[fraud >= 0], minlength=len(with_events))
    rows, count = np.flatnonzero(fraud >= 0), len(with_events)
    first_ms, last_fraud_ms = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first_ms, fraud[rows], events.time_ms[rows])
    np.maximum.at(last_fraud_ms, fraud[rows], events.time_ms[rows])
    return LabelledEvents(
        fraud, is_mature, tuple(kinds[index] for index in with_events), sums.astype(np.float64), first_ms,
        last_fraud_ms, as_of_ms, maturity_ms, unmatched_count, int((labels.reported_ms > as_of_ms).sum()),
        immature_count, money, record,
    )  # fmt: skip


def _record_ids(event_ids: pa.Array, views: tuple[str, ...]) -> pa.Array:
    """Return the ids of records for the ids of their events, which end in the name of a view."""
    return pc.replace_substring_regex(event_ids.cast(TEXT), pattern=f"#({'|'.join(views)})$", replacement="")


def _records(events: Events, labels: Labels) -> NDArray[np.int64]:
    """Return the number of each event's record: int64[N]. Without views each event is a record."""
    if not labels.views:
        return np.arange(len(events))
    return np.asarray(encoded(_record_ids(events.event_id, labels.views)).indices).astype(np.int64)


def _label_event_pairs(
    events: Events, labels: Labels, field: str | None, record: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the events of each label. Return P pairs by label: numbers of labels and rows of events, int64[P] each. With
    a `field`, a label names a value of this key field. Otherwise it names an event, or an input record that views (ways
    to read it) turn into several events, and is for all of them. `record` int64[N] numbers each event's record."""
    if field is None and labels.views:  # a label is for all events of its record
        first_rows = np.unique(record, return_index=True)[1]
        record_ids = _record_ids(events.event_id.take(pa.array(first_rows)), labels.views)  # without the view
        label_records = rows_among(_record_ids(labels.keys, labels.views), record_ids)
        order = np.argsort(record, kind="stable")
        low = np.searchsorted(record[order], label_records)
        high = np.searchsorted(record[order], label_records, side="right")
        counts = np.where(label_records >= 0, high - low, 0)
        index_in_record = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(counts)), counts), order[np.repeat(low, counts) + index_in_record]
    if field is None:
        rows = events.rows_of(labels.keys)
        has_event = np.flatnonzero(rows >= 0)
        return has_event, rows[has_event]
    variants = _written_keys(events, labels.keys, field)  # several if the field's values are stored as tokens
    pairs = [_pairs_of_key_labels(events, labels, field, keys) for keys in variants]
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _written_keys(events: Events, keys: pa.Array, field: str) -> list[pa.Array]:
    """Return the keys as events have them: protected fields as tokens, of each of the job's keys."""
    if field not in dict(events.schema.protected):
        return [keys]
    variants = [tokens_of_key(events.schema, (field,), (key,)) for key in keys.to_pylist()]
    count = max((len(variant) for variant in variants), default=0)
    return [
        pa.array([variant[min(index, len(variant) - 1)][0] for variant in variants], TEXT) for index in range(count)
    ]


def _pairs_of_key_labels(
    events: Events, labels: Labels, field: str, keys: pa.Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find for each label the events of its key in its interval. Return pairs: numbers of labels, rows of events."""
    column = encoded(key_text(events.columns[field], events.schema.columns()[field]))
    code = np.asarray(column.indices.fill_null(-1)).astype(np.int64)  # of each event's key, -1 for none
    key_codes = rows_among(keys.cast(TEXT), column.dictionary)
    first_ms = int(events.time_ms.min(initial=TIME_MS_MAX)) if len(events) else 0
    span = int(events.time_ms.max(initial=TIME_MS_MIN)) - first_ms + 2 if len(events) else 2
    key_and_time = (code + 1) * span + (events.time_ms - first_ms)  # each key has its own stretch of `span` ms
    order = np.argsort(key_and_time, kind="stable")
    from_ms, to_ms = (  # in the stretch of a key; its last ms is after all events
        np.clip(time_ms, first_ms, first_ms + span - 1) - first_ms for time_ms in (labels.from_ms, labels.to_ms)
    )
    low = np.searchsorted(key_and_time[order], (key_codes + 1) * span + from_ms)
    high = np.searchsorted(key_and_time[order], (key_codes + 1) * span + to_ms, side="right")
    reaches = (key_codes >= 0) & (labels.to_ms >= first_ms)  # a known key, and no end before all events
    counts = np.where(reaches, np.maximum(high - low, 0), 0)
    label_of = np.repeat(np.arange(len(counts)), counts)
    index_in_label = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return label_of, order[np.repeat(low, counts) + index_in_label]


def _usual_delay_ms(events: Events, labels: Labels, label_of: np.ndarray, event_of: np.ndarray) -> int:
    """Return the time within which nearly all frauds with a date were reported; 0 if none has one."""
    dated = labels.reported_ms[label_of] != TIME_MS_MIN
    if not dated.any():
        return 0
    delays = np.sort(labels.reported_ms[label_of[dated]] - events.time_ms[event_of[dated]])
    return max(0, int(delays[int(np.ceil(_REPORTED_SHARE * len(delays))) - 1]))


def _episodes(labels: Labels, label_of: np.ndarray) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the kinds of the frauds of these labels, in the order of the labels, and the number of each label's."""
    numbers_text = pa.array(np.arange(len(labels.keys))).cast(TEXT)
    alone = pc.binary_join_element_wise(numbers_text, pa.scalar(_SEPARATOR, TEXT), pa.scalar("", TEXT))
    name = pc.coalesce(labels.episode, alone).take(pa.array(label_of))
    numbers = np.asarray(encoded(name).indices).astype(np.int32)
    _, first = np.unique(numbers, return_index=True)
    kinds = labels.kind.take(pa.array(label_of[first])).fill_null("").to_pylist()
    return tuple(kinds), numbers


def _episodes_by_key(
    events: Events, event_of: NDArray[np.int64], episodes: Episodes
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Group fraud events of a key with short gaps between them into frauds; one without a key is a fraud by itself.
    Return the number of the fraud of each event in `event_of` (rows), and the index of each fraud's first event."""
    key_columns = [events.columns[name].take(pa.array(event_of)).cast(TEXT) for name in episodes.domain]
    key = pc.binary_join_element_wise(*key_columns, pa.scalar(_SEPARATOR, TEXT))
    code = np.asarray(encoded(key.fill_null("")).indices).astype(np.int64)
    time_ms = events.time_ms[event_of]
    order = np.lexsort((time_ms, code))
    is_first = np.ones(len(order), np.bool_)  # of a fraud: at another key, or after a long gap
    is_first[1:] = (code[order][1:] != code[order][:-1]) | (np.diff(time_ms[order]) > episodes.gap_ms)
    is_first |= np.asarray(pc.is_null(key))[order]
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.cumsum(is_first) - 1
    return numbers, order[is_first]


def _amounts(
    events: Events, labels: Labels, amount: str | None, label_of: np.ndarray, fraud_of: np.ndarray, fraud: np.ndarray,
    record: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """Compute the money of each fraud event, float64[N], 0 for other events. If labels of a fraud have an amount, its
    events share it in proportion to their own amounts, or equally if these are 0; otherwise each has its own amount.
    A labelled event has `label_of` and `fraud_of`; each event has its `fraud`, -1 for none, and its input `record`."""
    frauds_count = int(fraud_of.max(initial=-1)) + 1
    label_money = np.zeros(frauds_count)  # of each fraud: the sum of the amounts of its labels
    used_labels = np.unique(label_of)
    fraud_of_label = np.zeros(len(labels.keys), np.int64)
    fraud_of_label[label_of] = fraud_of
    np.add.at(label_money, fraud_of_label[used_labels], np.nan_to_num(labels.amount[used_labels]))
    label_has_amount = np.zeros(frauds_count, np.bool_)  # of each fraud: True if one of its labels has an amount
    label_has_amount[fraud_of_label[used_labels[~np.isnan(labels.amount[used_labels])]]] = True
    money = np.zeros(len(events))
    rows = np.flatnonzero(fraud >= 0)
    rows = rows[np.unique(record[rows], return_index=True)[1]]  # the first event of each record has its money
    if amount is not None:
        money[rows] = np.nan_to_num(events.numbers(amount)[rows])
    own_money = np.bincount(fraud[rows], weights=money[rows], minlength=frauds_count)
    events_counts = np.bincount(fraud[rows], minlength=frauds_count)
    row_frauds = fraud[rows]
    equal_money, share = (  # of each event: money if all get the same; its share of the fraud's own money
        label_money[row_frauds] / events_counts[row_frauds],
        money[rows] / np.where(own_money[row_frauds] == 0, 1, own_money[row_frauds]),
    )
    money[rows] = np.where(
        label_has_amount[row_frauds],
        np.where(own_money[row_frauds] == 0, equal_money, label_money[row_frauds] * share),
        money[rows],
    )
    return money

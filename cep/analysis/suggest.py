"""A history and labels → patterns that find frauds in time that was not mined, as text with tests.

1. The first 70 % of the time are mined (mine.py): all keys with frauds, and others as far as there is room.
2. The sequences become text, with their limits as parameters, and are replayed over the whole history.
3. The rest of the time, after a gap, is cut in two. Patterns that are precise enough on its first half are proposed,
   with tests from the data. The figures are from the second half, which does not influence the choice.

Tested by: tests/analysis/test_suggest.py
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.analysis.backtest import DAY_MS, Ratio, judge, ratio
from cep.analysis.conditions import KeyRows, field_conditions, leave_out_useless, past_conditions, time_conditions
from cep.analysis.history import Events, replay_history
from cep.analysis.labelled_events import LabelledEvents
from cep.analysis.mine import EventSample, Mined, mine
from cep.analysis.sides import JOIN, live_rules, needed_sides, sides_of, with_circles
from cep.analysis.suggested_text import declarations, pattern_text, tests_text
from cep.base.errors import UsageError
from cep.base.limits import SUGGEST_EVENTS_MAX, SUGGEST_STEPS_MAX
from cep.base.schema import NO_KEY_KINDS, Kind, Schema
from cep.base.terminal import Terminal
from cep.columnar.batch import TEXT
from cep.columnar.mapping import check_zone
from cep.columnar.order import arranged_rows
from cep.columnar.texts import encoded
from cep.lang.field_names import Role, role_of
from cep.lang.load import load_text
from cep.rulebook.deploy import deploy
from cep.sources.pieces import Pieces

WINDOWS_MS = (10 * 60_000, 60 * 60_000, 6 * 3_600_000, DAY_MS, 3 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS)
_WINDOW_SHARE = 5  # windows of more than a fifth of the time leave no later time to judge them on.
MINED = 0.7  # of the time
_VALUES_MIN = 30  # different values of a field whose equality binds two steps
_COMPARED_MAX = 4  # such fields, the first ones
_TRIED = 2  # times as many sequences are mined as are wanted: some do not stand the rest of the time


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request for suggestions: the most steps of a sequence, the most patterns, and the least precision. Fields of
    `exclude` are not read; fields of `use` are read even if the default leaves them out. `zone` is the time zone of
    hours and weekdays. New patterns are named suggested_N, with N from `last_number` + 1. `label_fields` have the
    labels, so no condition may read them."""

    steps: int = 3
    count: int = 5
    precision: float = 0.8
    exclude: tuple[str, ...] = ()
    use: tuple[str, ...] = ()
    zone: str = "UTC"
    last_number: int = 0
    label_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MinedData:
    """The mined events and keys, up to `until_ms`, out of `all_events` in that time. `left_out` has the reason for each
    field that no condition may read."""

    key: str
    events: int
    all_events: int
    keys: int
    frauds: int
    from_ms: int
    until_ms: int
    fields: tuple[str, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A mined pattern that is not proposed, the reason, and its precision on the time that chooses."""

    text: str
    reason: str
    chosen_for: Ratio


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A pattern as text with its tests, and its figures. The time has three parts: patterns are mined from the first
    one, chosen by the second one, and measured on the last one. `mined_score` is the F score on the first part, and
    `chosen_for` is the precision on the second part. All other figures are of the last part: `new` counts its frauds
    that no existing rule finds, None without rules."""

    name: str
    text: str
    alerts: int
    precision: Ratio
    recall: Ratio
    chosen_for: Ratio
    mined_score: float
    new: int | None


@dataclass(frozen=True, slots=True)
class Suggested:
    """The suggestions, best first, and the text of a pattern file that has them all with the event types.

    `rejected` come most precise first. `producers` are patterns of the text that only make events for the suggestions.
    """

    suggestions: tuple[Suggestion, ...]
    rejected: tuple[Rejected, ...]
    data: MinedData
    text: str
    tried: int
    held_out_days: float
    held_out_frauds: int
    producers: tuple[str, ...] = ()


def fields_of(schema: Schema) -> tuple[str, ...]:
    """Return the fields that a suggestion may ask for: all but ids and times."""
    fixed = {name for e in schema.event_types for name in (e.id_field, *e.times)}
    return tuple(name for name in schema.columns() if name not in fixed)


def left_out_fields(schema: Schema, key: str, request: Wanted) -> dict[str, str]:
    """Return the fields that conditions cannot read, each with the reason. Raises: UsageError for an unknown field."""
    fields = fields_of(schema)
    for flag, names in (("--exclude", request.exclude), ("--use", request.use)):
        unknown = next((name for name in names if name not in fields), None)
        if unknown is not None:
            raise UsageError(f"{flag} {unknown} is no field that can be mined; these are: {', '.join(fields)}")
    types, reasons = schema.columns(), dict[str, str]()
    parts = [part.strip() for part in key.split(JOIN)]
    if excluded_parts := [part for part in parts if part in request.exclude]:
        raise UsageError(f"--exclude {excluded_parts[0]} is a field of the key, by which events are divided")
    for name in fields:
        role = role_of(name)
        if name in request.exclude:
            reasons[name] = "excluded"
        elif name in parts:
            continue
        elif types[name].protected:
            reasons[name] = "protected"
        elif name in request.use:
            continue
        elif name in request.label_fields:
            reasons[name] = "the column of the labels"
        elif role in (Role.LABEL, Role.SENSITIVE, Role.COORDINATE):
            reasons[name] = role.value
    return reasons


def check_wanted(request: Wanted) -> None:
    """Refuse numbers of steps and patterns, a precision, or a zone, that nothing can have. Raises: UsageError."""
    if not 1 <= request.steps <= SUGGEST_STEPS_MAX or request.count < 1 or not 0 < request.precision <= 1:
        raise UsageError(f"a sequence has 1 to {SUGGEST_STEPS_MAX} steps; ask for 1 pattern or more, and a precision "
                         "above 0 and up to 1, like 0.8")  # fmt: skip
    check_zone(request.zone)


def suggest(
    events: Events, labelled: LabelledEvents, pieces_of: Callable[[Schema], Pieces], key: str, request: Wanted,
    present: np.ndarray | None = None, labelled_at: Callable[[int], LabelledEvents] | None = None,
    report: Callable[[int, int], None] = lambda *_: None,
) -> Suggested:  # fmt: skip
    """Mine, replay and choose. `present` bool[F] are the frauds that present rules find. `labelled_at` returns the
    events with the frauds known at a time: at the end of the first part, for mining. A `key` such as `payer+payee` is a
    value in either field; circles of money are found if the paying field comes first. `report(count, total)` is told
    how many sequences have been searched. Raises: UsageError for a key that the events have not, or without frauds."""
    parts = key_fields(key, events.columns, events.schema)
    left_out = left_out_fields(events.schema, key, request)
    read = {name: column for name, column in events.columns.items() if name not in left_out}
    times = events.time_ms[events.time_ms <= labelled.as_of_ms]
    first = int(times.min(initial=labelled.as_of_ms))
    last = int(times.max(initial=first))
    cut_ms = int(first + MINED * (last - first))
    events, head = replace(events, columns=read), declarations(events.schema)
    known_labelled = labelled if labelled_at is None else labelled_at(cut_ms - 1)
    plain = sides_of(events, known_labelled, parts) if len(parts) > 1 else None
    sides = None if plain is None else with_circles(plain, (events, known_labelled, pieces_of), parts, head)
    one_key = key if sides is None else sides.key
    mined_events, mined_labelled = (events, known_labelled) if sides is None else (sides.events, sides.labelled)
    source_head, head = head, head if sides is None else f"{head}\n\n{sides.text}"
    producers = () if sides is None else sides.producers
    sample, rows = sample_events(mined_events, mined_labelled, one_key, cut_ms, request.zone)
    if not sample.open_frauds.any():
        raise UsageError(
            f"no fraud with a {key} is known in the first part of the time: there is nothing to learn from"
        )
    data = MinedData(
        key, len(rows), int((mined_events.time_ms < cut_ms).sum()), len(np.unique(sample.key_start)),
        int(sample.open_frauds.sum()), first, cut_ms, tuple(name for name in read if name != key), left_out,
    )  # fmt: skip
    windows = [each for each in WINDOWS_MS if each * _WINDOW_SHARE <= last - first] or list(WINDOWS_MS[:1])
    mined = mine(sample, windows, request.steps, _TRIED * request.count, report)
    begin_ms = cut_ms + max((each.window_ms for each in mined if len(each.steps) > 1), default=0)
    middle_ms = begin_ms + (last + 1 - begin_ms) // 2
    names = [f"suggested_{request.last_number + number}" for number in range(1, len(mined) + 1)]
    texts = [pattern_text(name, each, sample, one_key) for name, each in zip(names, mined, strict=True)]
    named = dict(zip(names, texts, strict=True))
    figures = _replay_candidates(head, producers, named, pieces_of, labelled, (begin_ms, middle_ms))
    candidates = [Candidate(*each) for each in zip(names, mined, texts, figures, strict=True)]
    frauds = (labelled.first_ms >= begin_ms) & (labelled.first_ms < middle_ms)
    later = (labelled.first_ms >= max(begin_ms, middle_ms)) & (labelled.first_ms <= labelled.as_of_ms)

    def tests_of(each: Candidate) -> str:
        return tests_text(each.name, f"{head}\n\n{each.text}", (each.mined, sample, rows), mined_events, one_key)

    chosen, rejected = _choose(candidates, frauds, request, tests_of)
    suggestions = tuple(_suggestion(each, tests, later, present) for each, tests in chosen)
    if plain is not None and sides is not None:
        needed = needed_sides(plain, sides, [each.text for each in suggestions])
        head, producers = f"{source_head}\n\n{needed.text}", needed.producers
    text = "\n\n".join([head, *(each.text for each in suggestions)]) + "\n" if chosen else ""
    checked = load_text(text, "suggested") if text else None
    assert checked is None or checked.ok, "what is written can be read"
    days = max(0, last - middle_ms) / DAY_MS
    return Suggested(suggestions, rejected, data, text, len(mined), days, int(later.sum()), producers)


def key_fields(key: str, names: Collection[str], schema: Schema) -> list[str]:
    """Return the fields of a key such as `card_id` or `payer+payee`. Raises: UsageError if one cannot be a key."""
    parts = [part.strip() for part in key.split(JOIN)]
    for part in parts:
        if part not in names:
            raise UsageError(f"--key {part} is no field of the events; these are: {', '.join(sorted(names))}")
        type_ = schema.columns()[part]
        if type_.kind in NO_KEY_KINDS:
            raise UsageError(f"--key {part}: a key cannot be of type {type_}; use an id, a text, a number or an enum")
    return parts


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mined sequence as a pattern. `figures`: its precision on the time that chooses and on the time that reports,
    and the frauds that it finds, bool[F]."""

    name: str
    mined: Mined
    text: str
    figures: tuple[Ratio, Ratio, np.ndarray]


def _choose(
    candidates: Sequence[Candidate], frauds: np.ndarray, request: Wanted, tests_of: Callable[[Candidate], str]
) -> tuple[list[tuple[Candidate, str]], tuple[Rejected, ...]]:
    """Choose candidates to propose, with their tests. Return them, and the others with the reasons against them. The
    time of the history has parts to mine, to choose and to report; `frauds` bool[F] begin in the part to choose."""
    chosen: list[tuple[Candidate, str]] = []
    rejected: list[Rejected] = []
    covered = np.zeros(len(frauds), np.bool_)
    for each in sorted(candidates, key=lambda each: -int((each.figures[-1] & frauds).sum())):  # frauds found
        choosing_precision, _, finds = each.figures  # without the precision on the time to report
        tests = ""
        reason = _reason_against(choosing_precision, finds & frauds, covered, request)
        if not reason:
            tests = tests_of(each)  # with few events: none pass if a longer past of the key decides
            reason = "" if tests else "no three tests of the mined events pass: the past of its key decides"
        if reason:
            rejected.append(Rejected(each.text, reason, choosing_precision))
        else:
            covered |= finds & frauds
            chosen.append((each, tests))
        if len(chosen) == request.count:
            break
    rejected.sort(key=lambda each: -(each.chosen_for.value or 0.0))
    return chosen, tuple(rejected)


def _reason_against(precision: Ratio, found_frauds: np.ndarray, covered: np.ndarray, request: Wanted) -> str:
    """Return the reason against a candidate, or "": too few right alerts in the validation time, or no new fraud."""
    if not precision.whole:
        return "it has no alert on the time that chooses"
    if precision.part < request.precision * precision.whole:
        return (
            f"{precision.part} of its {precision.whole} alerts on the time that chooses are right, a precision "
            f"below {request.precision}"
        )
    if not found_frauds.any():
        return "it finds no fraud that begins in the time that chooses"
    return "" if (found_frauds & ~covered).any() else "the suggestions find its frauds already"


def _suggestion(each: Candidate, tests: str, later: np.ndarray, present: np.ndarray | None) -> Suggestion:
    choosing, reporting, finds = each.figures
    return Suggestion(
        each.name, f"{each.text}\n{tests}", reporting.whole, reporting,
        ratio(int((finds & later).sum()), int(later.sum())), choosing, each.mined.score,
        None if present is None else int((finds & later & ~present).sum()),
    )  # fmt: skip


def sample_events(
    events: Events, labelled: LabelledEvents, key: str, cut_ms: int, zone: str = "UTC"
) -> tuple[EventSample, np.ndarray]:
    """Sample the events to mine before `cut_ms`: whole keys, the ones with a fraud first. Return the sample and its
    rows. Steps of a sequence may be linked by equal values of a field in `same`, or similar amounts in `near`."""
    key_column = encoded(events.columns[key].cast(pa.large_string()))
    key_code = np.asarray(key_column.indices.fill_null(-1)).astype(np.int64)
    is_early = (events.time_ms < cut_ms) & (key_code >= 0)
    key_has_fraud = np.zeros(len(key_column.dictionary) + 1, np.bool_)  # the last one: events without a key
    key_has_fraud[key_code[is_early & (labelled.fraud >= 0)]] = True
    is_of_fraud_key = is_early & key_has_fraud[key_code]
    is_fraud_sample, fraud_weight = _sample_keys(is_of_fraud_key, key_code, SUGGEST_EVENTS_MAX * 3 // 4)
    is_of_other_key = is_early & ~is_of_fraud_key
    is_other_sample, weight = _sample_keys(is_of_other_key, key_code, SUGGEST_EVENTS_MAX - int(is_fraud_sample.sum()))
    rows = np.flatnonzero(is_fraud_sample | is_other_sample)
    rows = rows[arranged_rows(events.batch(rows), key_code[rows].astype(np.int32), len(key_column.dictionary))]
    sampled_key_codes = key_code[rows]
    weights = np.where(is_fraud_sample[rows], 1.0, weight / fraud_weight)  # events that a row stands for, relatively
    fraud = labelled.fraud[rows].astype(np.int64)
    open_frauds = np.zeros(labelled.frauds_count, np.bool_)  # the frauds of the sample: none is found yet
    open_frauds[fraud[fraud >= 0]] = True
    key_starts, times = np.searchsorted(sampled_key_codes, sampled_key_codes), events.time_ms[rows]
    is_fraud = fraud >= 0
    conditions = leave_out_useless([
        *field_conditions(events, rows, is_fraud, key), *time_conditions(events, rows, is_fraud, zone),
        *past_conditions(events, KeyRows(rows, key_starts, times), is_fraud),
    ])  # fmt: skip
    same = {name: _with_value(events.columns[name], rows, key_starts) for name in _compared(events, rows, key)}
    of_type = events.event_type[rows]
    has_fraud_type = np.isin(of_type, of_type[fraud >= 0])
    types = events.schema.columns()
    amounts = [name for name in events.columns if role_of(name) is Role.MONEY and name in types]
    near = {name: events.numbers(name)[rows] for name in amounts if types[name].is_number}
    return EventSample(key_starts, times, fraud, has_fraud_type, weights, conditions, open_frauds, same, near), rows


def _compared(events: Events, rows: np.ndarray, key: str) -> list[str]:
    """Return the fields with so many values that two equal ones on a key say something."""
    fields = {field.name: field for each in events.schema.event_types for field in each.fields}
    return [
        name for name, column in events.columns.items()
        if name in fields and name != key and not fields[name].type.protected
        and fields[name].type.kind in (Kind.STRING, Kind.DECIMAL, Kind.INT)
        and _codes(column.take(pa.array(rows)).drop_null()).max(initial=-1) >= _VALUES_MIN
    ][:_COMPARED_MAX]  # fmt: skip


def _with_value(column: pa.Array, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return a number for each key with each value; -1 for events without a value."""
    code = _codes(column.take(pa.array(rows)))
    _, number = np.unique(starts * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return np.where(code >= 0, number, -1).astype(np.int64)


def _codes(column: pa.Array) -> np.ndarray:
    """Give each different value a number, int64[N], -1 for a null. Senders choose values, so no plain hash is safe."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(encoded(column.cast(TEXT)).indices.fill_null(-1)).astype(np.int64)
    _, code = np.unique(np.asarray(column.fill_null(0)), return_inverse=True)
    return np.where(np.asarray(pc.is_null(column)), -1, code).astype(np.int64)


def _sample_keys(mask: np.ndarray, code: np.ndarray, room: int) -> tuple[np.ndarray, float]:
    """Leave out whole keys until there is room. Return the rest, and the number of events that each represents."""
    share = max(1, -(-int(mask.sum()) // max(1, room)))
    stays = mask & (code % share == 0)
    return stays, float(mask.sum()) / int(stays.sum()) if stays.any() else 1.0


def _replay_candidates(
    head: str, producers: Sequence[str], texts: Mapping[str, str], pieces_of: Callable[[Schema], Pieces],
    labelled: LabelledEvents, edges_ms: tuple[int, int],
) -> list[tuple[Ratio, Ratio, np.ndarray]]:  # fmt: skip
    """Replay candidate patterns, `texts` by name. Return for each its precision in two periods, and the frauds that it
    finds: bool[F]. `edges_ms` are the begin of the first period, which chooses patterns, and of the second one, which
    is reported. The text `head` declares the event types; its patterns `producers` make events that candidates read."""
    if not texts:
        return []
    source = "\n\n".join([head, *texts.values()])
    deployment = deploy(live_rules(source, (*producers, *texts)))
    assert not deployment.set_aside, deployment.set_aside  # no rule was refused
    history = replay_history(deployment, pieces_of, columns=(), cores=2, console=Terminal(quiet=True))
    judged = judge(history, labelled)
    begin_ms, middle_ms = edges_ms
    outcome = []
    for name in texts:
        number = judged.names.index(name)
        mature = (judged.rule == number) & ~judged.is_immature & (judged.detected_ms >= begin_ms)
        periods = (mature & (judged.detected_ms < middle_ms), mature & (judged.detected_ms >= middle_ms))
        choosing_precision, reporting_precision = (
            ratio(int((each & judged.is_right).sum()), int(each.sum())) for each in periods
        )
        outcome.append((choosing_precision, reporting_precision, judged.has_detected[number]))
    return outcome

"""The events of some keys, read again → the progress of frauds in each rule, and examples with their events.

    frauds ─▶ their keys ─▶ events of these keys ─▶ one trace per key and rule ─▶ the furthest run
                                                                              ─▶ the conditions that did not hold

A sample of the frauds is traced, evenly over all of them, because a trace is plain Python: fewer for more rules, and
for keys with many events. The engine decides which frauds are found, not the trace. Values of protected fields never
appear: not even their tokens.
Tested by: tests/analysis/test_report.py
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.analysis.measure import Measured
from cep.base.errors import LimitError
from cep.base.limits import REPORT_EVENTS_WALKED_MAX, REPORT_FRAUDS_WALKED_MAX
from cep.base.schema import Schema
from cep.base.secrets import hide_tokens
from cep.base.terminal import Show, ignore_progress
from cep.columnar.batch import EventBatch, concat_batches, empty_batch
from cep.columnar.decode import KEY_SEPARATOR, KeyDomain, route
from cep.columnar.texts import rows_among
from cep.lang.show import show_expr, show_time, show_value
from cep.nfa.deployed import DeployedRule
from cep.sources.pieces import Pieces
from cep.testing.events import traced_events
from cep.testing.explain import Explainer
from cep.testing.journal import Miss, Run, Trace, parts_of
from cep.testing.trace import Interval, trace_key

MATCH, NO_RUN = "match", "no run began"
_SEVERAL = "more than one condition"


@dataclass(frozen=True, slots=True)
class Ending:
    """How far a rule came on a fraud. `step` is the last step of its furthest run: a variable, MATCH or NO_RUN.
    `stopped` is the failed condition of the next step, with its variable; `story` shows it with values."""

    fraud: int
    rule: str
    step: str
    depth: int
    stopped: str
    story: tuple[str, ...]


@dataclass(slots=True)
class Funnel:
    """How far frauds came in the pattern of a rule: counts by step, and by the condition that stopped them. `steps` go
    from NO_RUN to MATCH. `walked` frauds were traced; `skipped` would have taken too many steps."""

    rule: str
    steps: dict[str, int]
    stopped: dict[str, int] = field(default_factory=dict)
    walked: int = 0
    skipped: int = 0
    reason: str = ""


def sampled(count: int, most: int) -> list[int]:
    """Return at most so many numbers below `count`, evenly over them."""
    return sorted({int(number) for number in np.linspace(0, count - 1, min(count, most))}) if count else []


def key_batches(
    pieces_of: Callable[[Schema], Pieces], schema: Schema, keys: Mapping[KeyDomain, Iterable[str]]
) -> dict[KeyDomain, EventBatch]:
    """Read all events of some keys, by key domain. Cost: the history is decoded once more."""
    key_arrays = {domain: pa.array(sorted(set(domain_keys)), pa.large_string()) for domain, domain_keys in keys.items()}
    parts: dict[KeyDomain, list[EventBatch]] = {domain: [empty_batch(schema)] for domain in key_arrays}
    for piece in pieces_of(schema).pieces:
        decoded = piece.decode()
        for domain, domain_keys in key_arrays.items():
            batch, _ = route(decoded, domain, schema.columns())
            rows = rows_among(batch.key, domain_keys) >= 0
            if rows.any():
                parts[domain].append(batch.take(rows))
    return {domain: concat_batches(batches) for domain, batches in parts.items()}


def keys_of_events(measured: Measured, rows: np.ndarray, domain: KeyDomain) -> list[str | None]:
    """Return the key of each of these events in a domain; None without one."""
    events = measured.history.events
    if not set(domain) <= events.columns.keys():
        return [None] * len(rows)
    decoded = events.taken(rows)
    batch, _ = route(decoded, domain, events.schema.columns())
    by_id = dict(zip(batch.event_id.to_pylist(), batch.key.to_pylist(), strict=True))
    return [by_id.get(event_id) for event_id in decoded.event_id.to_pylist()]


def first_events(measured: Measured) -> np.ndarray:
    """Return the row of the first event of each fraud."""
    fraud, time_ms = measured.labelled.fraud, measured.history.events.time_ms
    rows = np.flatnonzero(fraud >= 0)
    order = rows[np.lexsort((time_ms[rows], fraud[rows]))]
    _, first = np.unique(fraud[order], return_index=True)
    return order[first]


def trace_frauds(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], progress: Show = ignore_progress
) -> tuple[list[Funnel], list[Ending]]:
    """Trace a sample of the frauds through every rule. Return a funnel per rule, which counts how many frauds came as
    far as each step, and an ending per rule and fraud: where and why the fraud's furthest run stopped."""
    deployment = measured.history.deployment
    rules = sorted(deployment.rulebook.deployed(), key=lambda rule: (rule.rule_id, rule.version))
    frauds = sampled(measured.labelled.frauds_count, REPORT_FRAUDS_WALKED_MAX)
    first = first_events(measured)[frauds]
    keys = {rule.pattern.key: keys_of_events(measured, first, rule.pattern.key) for rule in rules}
    keys_by_domain = {domain: [key for key in domain_keys if key is not None] for domain, domain_keys in keys.items()}
    batches = key_batches(pieces_of, deployment.schema, keys_by_domain)
    funnels, endings = [], []
    for number, rule in enumerate(rules):
        progress("walking frauds", number, len(rules))
        domain = rule.pattern.key
        chosen, batch, skipped = _choose_frauds(keys[domain], batches[domain], REPORT_EVENTS_WALKED_MAX // len(rules))
        frauds_by_key: dict[str, list[int]] = {}
        for index in chosen:
            key = keys[domain][index]
            if key is not None:
                frauds_by_key.setdefault(key, []).append(frauds[index])
        funnel, ends = _trace_rule(measured, rule, batch, frauds_by_key)
        funnel.skipped += skipped
        funnels.append(funnel)
        endings += ends
    return funnels, endings


def _choose_frauds(
    keys: Sequence[str | None], batch: EventBatch, events_max: int
) -> tuple[list[int], EventBatch, int]:  # fmt: skip
    """Choose as many frauds as possible, evenly, so that the events of their keys stay below a limit. Return the chosen
    indexes of `keys`, the events, and the number of frauds whose key alone exceeds the limit."""
    counts = {each["values"]: each["counts"] for each in pc.value_counts(batch.key).to_pylist()}
    small_indexes = [index for index, key in enumerate(keys) if counts.get(key, 0) <= events_max]
    wanted_count = len(small_indexes)
    while True:
        chosen = [small_indexes[index] for index in sampled(len(small_indexes), wanted_count)]
        chosen_keys = {key for index in chosen if (key := keys[index]) is not None}
        events = sum(counts.get(key, 0) for key in chosen_keys)
        if events <= events_max:
            break
        wanted_count = max(1, min(wanted_count - 1, wanted_count * events_max // events))
    rows = np.asarray(pc.is_in(batch.key, value_set=pa.array(sorted(chosen_keys), batch.key.type)))
    return chosen, batch if rows.all() else batch.take(rows), len(keys) - len(small_indexes)


def _trace_rule(
    measured: Measured, rule: DeployedRule, batch: EventBatch, frauds_by_key: Mapping[str, list[int]]
) -> tuple[Funnel, list[Ending]]:
    """Trace frauds through one rule, by the events of their keys in `batch`. Return the funnel, which counts the frauds
    by the last step that they reached and by the condition that stopped them, and the ending of each fraud."""
    deployment, pattern = measured.history.deployment, rule.pattern
    names = dict.fromkeys((NO_RUN, *(variable.name for variable in pattern.variables), MATCH))
    funnel, endings = Funnel(rule.rule_id, dict.fromkeys(names, 0)), list[Ending]()
    if any(e.derived for e in deployment.schema.event_types if e.name in pattern.event_types):
        funnel.reason = "it reads events that other patterns produce, which no file has; cep why-not answers"
        return funnel, endings
    lists = deployment.rulebook.lists.timelines()
    by_key = traced_events(deployment.schema, pattern, batch, None, lists)
    fraud_of = _fraud_of_ids(measured)
    for key, frauds in sorted(frauds_by_key.items()):
        try:
            trace = trace_key(
                pattern, by_key.get(key, ()), Interval(rule.from_ms, rule.starts_until_ms, rule.until_ms),
                measured.history.replayed.watermark_ms,
            )  # fmt: skip
        except LimitError:  # the key's trace takes too many steps
            funnel.skipped += len(frauds)
            continue
        for fraud in frauds:
            rows = {event.row for event in trace.events if fraud_of.get(event.event_id) == fraud}
            ending = _find_ending(trace, rule.rule_id, fraud, rows)
            funnel.walked += 1
            funnel.steps[ending.step] += 1
            if ending.stopped:
                funnel.stopped[ending.stopped] = funnel.stopped.get(ending.stopped, 0) + 1
            endings.append(ending)
    return funnel, endings


def _fraud_of_ids(measured: Measured) -> dict[str, int]:
    rows = np.flatnonzero(measured.labelled.fraud >= 0)
    ids = measured.history.events.event_id.take(pa.array(rows)).to_pylist()
    return dict(zip(ids, measured.labelled.fraud[rows].tolist(), strict=True))


def _find_ending(trace: Trace, rule_id: str, fraud: int, rows: set[int]) -> Ending:
    """Return how far a fraud came in a rule, and why no further. The furthest run with an event of it (`rows`) counts:
    a match, otherwise the run at the latest step with the most events. The depth grows by step, and is 0 without a run.
    A miss is an event that failed conditions of the next step; the nearest miss failed the fewest."""
    runs = [run for start in trace.start.children for run in start.descendants() if rows & set(run.rows())]
    positions = trace.automaton.positions
    if not runs:  # `trace.start` waits for the first step
        misses = [miss for row in sorted(rows) for run, miss in trace.misses.get(row, ()) if run is trace.start]
        nearest = min(misses, key=lambda miss: len(miss.failed), default=None)
        lines = [] if nearest is None else Explainer(trace, show_time).miss(trace.start, nearest)
        stopped = _stopped(trace, trace.start, nearest)
        return Ending(fraud, rule_id, step=NO_RUN, depth=0, stopped=stopped, story=tuple(lines))
    run = max(runs, key=lambda each: (_is_match(trace, each), each.position, each.length, bool(each.misses), -each.row))
    if _is_match(trace, run):
        return Ending(fraud, rule_id, step=MATCH, depth=len(positions) + 1, stopped="", story=())
    story = Explainer(trace, show_time).story(run)
    last_misses = [run.misses[wait] for wait in run.opened if wait in run.misses]  # the miss at each awaited step
    nearest = min(last_misses, key=lambda miss: (miss.row not in rows, len(miss.failed)), default=None)
    stopped = _stopped(trace, run, nearest) or (run.closings[0].why.value if run.closings else "nothing more came")
    name = positions[run.position].variable
    story_lines = (story.reached, *story.reasons)
    return Ending(fraud, rule_id, step=name, depth=run.position + 1, stopped=stopped, story=story_lines)


def _is_match(trace: Trace, run: Run) -> bool:
    return any(trace.matches[n].is_match and trace.matches[n].dropped_by is None for n in run.matches)


def _stopped(trace: Trace, run: Run, miss: Miss | None) -> str:
    """Name the condition that an event did not meet, with its variable; one name where there were several."""
    if miss is None or not miss.failed:
        return ""
    wait = trace.automaton.positions[run.position].waits[miss.wait]
    assert wait.target is not None, "only a wait that takes can miss"
    variable = trace.automaton.positions[wait.target].variable
    if len(miss.failed) > 1:
        return f"{variable}: {_SEVERAL}"
    where = next(v.where for v in trace.pattern.variables if v.name == variable)
    return f"{variable}: {show_expr(parts_of(where)[miss.failed[0]])}"


HIDDEN = "•••"
_SHOWN = 10
_EVENTS_MAX = 14  # of a timeline: the bound ones first, then those nearest to them


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a timeline. `variable` is its variable in an alert, `is_fraud` its label."""

    time: str
    event_id: str
    event_type: str
    variable: str
    is_fraud: bool
    fields: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """An alert or a missed fraud: a description in a line, further notes, and the events of its key."""

    title: str
    notes: tuple[str, ...]
    lines: tuple[Line, ...]


def alert_timelines(measured: Measured, pieces_of: Callable[[Schema], Pieces]) -> list[Timeline]:
    """Return time lines of some alerts: half of them right, half others (wrong or too recent to judge), if possible."""
    judged, history = measured.judged, measured.history
    right = np.flatnonzero(judged.is_right)
    others = np.flatnonzero(~judged.is_right)
    half = _SHOWN // 2
    right_max, others_max = max(half, _SHOWN - len(others)), max(half, _SHOWN - len(right))
    chosen = [*(right[sampled(len(right), right_max)]), *(others[sampled(len(others), others_max)])][:_SHOWN]
    rows = history.replayed.alerts.take(pa.array(judged.row[chosen], pa.int64())).to_pylist()
    domain_of = {rule.rule_id: rule.pattern.key for rule in history.deployment.rulebook.deployed()}
    batches = _batches(measured, pieces_of, [(domain_of[row["rule_id"]], row["key"]) for row in rows])
    frauds = _fraud_of_ids(measured)
    timelines = []
    for alert, row in zip(chosen, rows, strict=True):
        domain = domain_of[row["rule_id"]]
        bound = {event["event_id"]: event["variable"] for event in row["events"]}
        verdict = "right" if judged.is_right[alert] else "immature" if judged.is_immature[alert] else "wrong"
        key = shown_key(row["key"], domain, measured.history.events.schema)
        title = f"{verdict}: {row['rule_id']} for {key} at {str(row['detected_at'])[:19]}"
        batch = batches[domain, row["key"]]
        timelines.append(
            Timeline(title, (), _timeline(measured, batch, bound, frauds, row["detected_at"].timestamp() * 1_000))
        )
    return timelines


def missed_timelines(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], endings: Sequence[Ending]
) -> list[Timeline]:
    """Return the time lines of the largest frauds that no rule finds, each with the rule that came furthest. An ending
    tells for one rule and fraud how far the furthest run came (`depth`, 0 without a run) and why it ended (`story`)."""
    labelled = measured.labelled
    is_found = measured.judged.has_detected.any(axis=0)
    missed = np.flatnonzero(~is_found) if labelled.frauds_count else np.empty(0, np.int64)
    furthest: dict[int, Ending] = {}  # by fraud: the end of the rule that came closest to a match
    for ending in endings:
        if ending.fraud not in furthest or ending.depth > furthest[ending.fraud].depth:
            furthest[ending.fraud] = ending
    walked = [fraud for fraud in missed.tolist() if fraud in furthest]  # only a sample of the frauds was traced
    chosen = sorted(walked, key=lambda fraud: (-labelled.amount[fraud], fraud))[:_SHOWN]
    rows = first_events(measured)[chosen] if chosen else np.empty(0, np.int64)
    domain_of = {rule.rule_id: rule.pattern.key for rule in measured.history.deployment.rulebook.deployed()}
    domain_keys = []
    for fraud, row in zip(chosen, rows, strict=True):
        domain = domain_of[furthest[fraud].rule]
        (key,) = keys_of_events(measured, np.array([row]), domain)
        domain_keys.append((domain, key or ""))  # without a key: no events to show
    batches = _batches(measured, pieces_of, domain_keys)  # the events of these keys, read again to be shown
    frauds = _fraud_of_ids(measured)
    timelines = []
    for fraud, domain_key in zip(chosen, domain_keys, strict=True):
        ending = furthest[fraud]
        kind = labelled.kind[fraud]
        shown = shown_key(domain_key[1], domain_key[0], measured.history.events.schema)
        money = f", {labelled.amount[fraud]:,.2f}" if labelled.amount[fraud] else ""
        title = f"missed: {shown} at {show_time(int(labelled.first_ms[fraud]))}{money}{f', {kind}' if kind else ''}"
        head = f"{ending.rule} came furthest" if ending.depth else f"{ending.rule} began no run"
        notes = (head, *(hide_tokens(line) for line in ending.story))
        timelines.append(
            Timeline(title, notes, _timeline(measured, batches[domain_key], {}, frauds, int(labelled.first_ms[fraud])))
        )
    return timelines


def _batches(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], domain_keys: Sequence[tuple[KeyDomain, str]]
) -> dict[tuple[KeyDomain, str], EventBatch]:
    """Read the events of some keys, by (domain, key)."""
    keys = {domain: [key for other, key in domain_keys if other == domain] for domain, _ in domain_keys}
    read = key_batches(pieces_of, measured.history.deployment.schema, keys) if keys else {}
    return {
        (domain, key): read[domain].take(np.asarray(pc.equal(read[domain].key, key))) for domain, key in domain_keys
    }


def _timeline(
    measured: Measured, batch: EventBatch, bound: Mapping[str, str], fraud_ids: Collection[str], at_ms: float
) -> tuple[Line, ...]:
    """Return lines by time for the events in `bound` (variable by event id), and the events nearest to `at_ms`."""
    schema = measured.history.deployment.schema
    ids = batch.event_id.to_pylist()
    distances = [(ids[row] not in bound, abs(int(batch.time_ms[row]) - at_ms), ids[row]) for row in range(len(batch))]
    rows = sorted(range(len(batch)), key=lambda row: distances[row])[:_EVENTS_MAX]
    rows.sort(key=lambda row: (int(batch.time_ms[row]), ids[row]))
    return tuple(
        Line(
            show_time(int(batch.time_ms[row])),
            ids[row],
            schema.event_types[int(batch.event_type[row])].name,
            bound.get(ids[row], ""),
            ids[row] in fraud_ids,
            _fields(schema, batch, row),
        )
        for row in rows
    )


def _fields(schema: Schema, batch: EventBatch, row: int) -> str:
    """Write the values of an event, without protected fields."""
    event_type = schema.event_types[int(batch.event_type[row])]
    parts = []
    for each in event_type.fields:
        if each.name in (event_type.id_field, event_type.time_field) or each.name not in batch.columns:
            continue
        value: Any = batch.columns[each.name][row].as_py()
        if value is not None:
            parts.append(f"{each.name} {HIDDEN if each.type.protected else show_value(value, each.type)}")
    return ", ".join(parts)


def shown_key(key: str, domain: KeyDomain, schema: Schema) -> str:
    """Return a key with the names of its fields, protected ones hidden."""
    protected = dict(schema.protected)
    parts = key.split(KEY_SEPARATOR)
    return ", ".join(
        f"{name} {HIDDEN if name in protected else part}" for name, part in zip(domain, parts, strict=False)
    )

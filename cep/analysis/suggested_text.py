"""A mined sequence → the text of a pattern, with its limits as parameters, and three tests of it from the data.

Tested by: tests/analysis/test_suggest.py
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from cep.analysis.conditions import Condition
from cep.analysis.history import Events
from cep.analysis.mine import Chains, EventSample, Mined
from cep.base.schema import Kind, Schema, Type
from cep.functions.calendar import of_times
from cep.lang.load import load_text
from cep.lang.show import show_duration, show_value
from cep.testing.harness import START_MS, Outcome, run_checked

_FRAUDS_LOOKED_AT = 200
_FRAUDS_TRIED = 8  # as tests
_NONE = "expect none"
_HOUR_MS = 3_600_000
_WEEK_HOURS = 7 * 24
Values = Mapping[str, str]
TestEvent = tuple[int, str, Values]  # time in ms, event type, fields as they are written
_Candidate = tuple[str, list[TestEvent], str]


def declarations(schema: Schema) -> str:
    """Return the event types as a pattern file declares them."""
    blocks = []
    for event_type in schema.event_types:
        if event_type.derived:
            continue
        width = max(len(field.name) for field in event_type.fields)
        lines = [f"  {field.name:<{width}}  {field.type}" for field in event_type.fields]
        blocks.append("\n".join([f"event {event_type.name} {{", *lines, "}"]))
    return "\n\n".join(blocks)


def pattern_text(name: str, mined: Mined, sample: EventSample, key: str) -> str:
    """Write a mined sequence as a pattern with the steps `s1`, `s2` and so on. A step has numbers of conditions, and ~n
    for link n to the step before: an equal or near value, or an absent event (`n2` before `s2`)."""
    conditions = sample.conditions
    params, wheres, sequence = list[str](), [], []
    for place, step in enumerate(mined.steps, start=1):
        texts = [
            _condition(place, conditions[number], params) for number in step if number >= 0 and conditions[number].field
        ]
        for link in (sample.links[~number] for number in step if number < 0):
            if link.same:
                texts.append(f"{link.same} == s{place - 1}.{link.same}")
            elif link.near:
                before = f"s{place - 1}.{link.near}"
                texts.append(f"{link.near} between 0.9 * {before} and {before}")
            else:
                absent = conditions[link.absent]
                sequence.append(f"!n{place}")
                wheres.append(f"n{place}: {absent.event_type}  {absent.text(absent.limit)}".rstrip())
        first = next(conditions[number] for number in step if number >= 0)
        sequence.append(f"s{place}")
        wheres.append(f"s{place}: {first.event_type}  {' and '.join(texts)}".rstrip())
    window = f"  within {show_duration(mined.window_ms)}" if len(mined.steps) > 1 else ""
    return "\n".join([
        "## Suggested from labelled events; give it a name, and say why it is fraud.",
        f"pattern {name}({', '.join(params)})" if params else f"pattern {name}",
        f"  by {key}",
        "{",
        f"  seq    {' -> '.join(sequence)}{window}",
        "  where  " + "\n         ".join(wheres),
        f"  skip   to last s{len(mined.steps)}" if len(mined.steps) > 1 else "  skip   past last",
        "}",
    ])  # fmt: skip


def _condition(place: int, condition: Condition, params: list[str]) -> str:
    """Return a condition, and put its limit among the parameters."""
    if not condition.has_param:
        return condition.text(condition.limit)
    param = f"s{place}_{condition.param}"
    params.append(f"{param}: {condition.kind} = {condition.limit}")
    return condition.text(param)


def key_label(type_: Type) -> str:
    """Return a label of a key in tests: a name for texts, and a value for a key of any other type."""
    values = {Kind.INT: "1", Kind.DECIMAL: "1", Kind.BOOL: "true"}
    return type_.symbols[0] if type_.kind is Kind.ENUM else values.get(type_.kind, "k1")


def tests_text(
    name: str, text: str, search_result: tuple[Mined, EventSample, NDArray[np.int64]], events: Events, key: str
) -> str:  # fmt: skip
    """Write three tests for a suggested pattern: a fraud fires, an honest event does not, a changed fraud does not.
    `text` is the pattern with the event types. `search_result` is the mined sequence, the sample of the events, and the
    rows of the sample in `events`. A test has few events of a key, and without its other events the result may differ.
    Several tests of each kind are run for this reason, and the first that passes is used; "" if a kind has none."""
    label = key_label(events.schema.columns()[key])
    kinds = _candidates(search_result, events, label)
    mined, sample, _ = search_result  # a step is a tuple of numbers: of conditions, or negative ones of links
    start_of_test = _test_starts([sample.conditions[number] for step in mined.steps for number in step if number >= 0])
    blocks = [  # a test has a temporary name: the number of its kind, and its number in the kind
        _test((name, label, start_of_test), f"{index} {number}", test_events, expected)
        for index, kind in enumerate(kinds) for number, (_, test_events, expected) in enumerate(kind)
    ]  # fmt: skip
    suite = run_checked(load_text("\n".join([text, *blocks]), "suggested"))
    passed = {each.test.name for each in suite.tested if each.outcome is Outcome.PASSED}
    chosen = []
    for index, kind in enumerate(kinds):
        passing_test = next((each for number, each in enumerate(kind) if f"{index} {number}" in passed), None)
        if passing_test is None:
            return ""
        chosen.append(_test((name, label, start_of_test), *passing_test))
    return "\n".join(chosen)


def _candidates(
    search_result: tuple[Mined, EventSample, NDArray[np.int64]], events: Events, label: str
) -> list[list[_Candidate]]:
    """Return frauds, honest events, and near misses: some of each, as title, events and expectation."""
    mined, sample, rows = search_result
    chains = sample.chain(mined.steps, mined.window_ms)
    ends = chains[-1]
    conditions = [sample.conditions[number] for step in mined.steps for number in step if number >= 0]
    absent = [sample.links[~number] for step in mined.steps for number in step if number < 0]
    fields = {field for condition in conditions for field in condition.fields}
    fields |= {name for link in absent for name in (link.same, link.near) if name}
    fields |= {field for link in absent if link.absent >= 0 for field in sample.conditions[link.absent].fields}

    def written(some: Sequence[int]) -> list[TestEvent]:
        return [(int(sample.time_ms[row]), *_written(events, int(rows[row]), fields)) for row in some]

    start = _test_starts(conditions)
    fires, misses = list[_Candidate](), list[_Candidate]()
    for chain, past in _frauds(sample, chains, max(condition.past_ms for condition in conditions)):
        match_time = show_duration(int(sample.time_ms[chain[-1]]) - start(int(sample.time_ms[past[0]])))
        fires.append(("a fraud of the data", written(past), f"expect match on {label} at {match_time}"))
        if len(chain) > 1:
            last = written(chain)[-1]
            late = [*written(chain)[:-1], (last[0] + mined.window_ms, *last[1:])]
            misses += [("the fraud without its first event", written(chain[1:]), _NONE), ("too late", late, _NONE)]
        elif len(past) > 1:
            misses.append(("the fraud without its past", written(chain), _NONE))
        last_conditions = [sample.conditions[number] for number in mined.steps[-1] if number >= 0]
        misses += [
            (title, [*written(past)[:-1], near], _NONE)
            for title, near in _near_misses(written(chain)[-1], last_conditions, events.schema)
        ]  # fmt: skip
    if any(condition.op == "<=" and condition.past_ms for condition in conditions) and fires:
        chain = _frauds(sample, chains, 0)[0][0]
        other = next((row for row in np.setdiff1d(np.flatnonzero(sample.fraud < 0), ends).tolist()), None)
        if other is not None:
            before = (int(sample.time_ms[chain[0]]) - _HOUR_MS, *written([other])[0][1:])
            misses.append(("soon after another event", [before, *written(chain)], _NONE))
    others = np.setdiff1d(np.flatnonzero(sample.fraud < 0), ends)
    like_last = others[sample.holds(mined.steps[-1])[others]]
    honest = [("an honest event of the data", written([int(row)]), _NONE) for row in (*like_last[:1], *others[:1])]
    return [fires, honest, misses]


def _frauds(sample: EventSample, chains: Chains, past_ms: int) -> list[tuple[list[int], list[int]]]:
    """Return the rows of some frauds, each with all that its key did from where its past begins; the shortest first."""
    is_fraud = (sample.frauds_of(chains) >= 0).any(axis=0)
    frauds = []
    for chain in chains[:, is_fraud][:, :_FRAUDS_LOOKED_AT].T.tolist():
        start = int(sample.key_start[chain[-1]])
        times = sample.time_ms[start : chain[-1]]
        begin = int(np.searchsorted(times, sample.time_ms[chain[-1]] - past_ms, side="right")) + start
        frauds.append((chain, list(range(min(chain[0], begin), chain[-1] + 1)) if past_ms else chain))
    frauds.sort(key=lambda each: (len(each[1]), each[1]))
    return frauds[:_FRAUDS_TRIED]


def _written(events: Events, row: int, names: set[str]) -> tuple[str, Values]:
    """Return the type of an event, and the values of these fields as a test writes them."""
    event_type = events.schema.event_types[int(events.event_type[row])]
    values = {}
    for field in event_type.fields:
        if field.name in names:
            value = events.columns[field.name][row].as_py()
            if value is not None:
                values[field.name] = show_value(value, field.type)
    return event_type.name, values


def _test_starts(conditions: Sequence[Condition]) -> Callable[[int], int]:
    """Return a function from the time of a test's first event to the test's start. A test's times are relative to its
    start, and it runs as if it started at START_MS, a Monday midnight. Conditions on the hour or the weekday stay true
    if the start is the Monday midnight before the first event."""
    timed = next((condition for condition in conditions if condition.is_of_time), None)
    if timed is None:
        return lambda first_ms: first_ms
    zone = timed.left.split('"')[1]  # of the text hour(event_time, "Europe/Madrid")

    def start(first_ms: int) -> int:
        day, start_day = (int(each) for each in of_times("weekday", zone, np.array([first_ms, START_MS])))
        hour, start_hour = (int(each) for each in of_times("hour", zone, np.array([first_ms, START_MS])))
        hours_later = ((day - start_day) * 24 + hour - start_hour) % _WEEK_HOURS  # since START_MS's hour of the week
        return first_ms - hours_later * _HOUR_MS - first_ms % _HOUR_MS  # the last term: back to a full hour

    return start


def _near_misses(event: TestEvent, conditions: Sequence[Condition], schema: Schema) -> Iterator[tuple[str, TestEvent]]:
    """Change an event so that it just misses one of these conditions, such as `amount >= 500`. Yield for each condition
    a description of the change and the changed event, for a test in which the pattern must not match."""
    at_ms, name, values = event
    for condition in conditions:
        if condition.has_param and not condition.past_ms:  # a limit of the event's own field, not of the key's past
            limit = Decimal(condition.limit)
            unit = (  # how far beyond the limit: 1 in the last digit of the limit, or more than 1 % for a float
                abs(limit) / 100 + 1 if "float" in condition.kind else Decimal(1).scaleb(int(limit.as_tuple().exponent))
            )
            value = limit - unit if condition.op == ">=" else limit + unit  # otherwise it is "<="
            yield "just outside of a limit", (at_ms, name, {**values, condition.field: f"{value:f}"})
        elif condition.is_of_time:
            half_a_period = 12 if condition.field == "hour" else _WEEK_HOURS // 2  # of a day, or of a week
            yield "at another time", (at_ms + half_a_period * _HOUR_MS, name, values)
        elif condition.op == "==":
            other = _other_value(schema.columns()[condition.field], condition.limit)
            yield "another value", (at_ms, name, {**values, condition.field: other})


def _other_value(type_: Type, value: str) -> str:
    if type_.kind is Kind.ENUM:
        symbols = [show_value(code, type_) for code in range(len(type_.symbols))]
        return next((symbol for symbol in symbols if symbol != value), value)
    return ("false" if value == "true" else "true") if type_.kind is Kind.BOOL else '"another"'


def _test(
    name_label_start: tuple[str, str, Callable[[int], int]], title: str, test_events: Sequence[TestEvent], expected: str
) -> str:
    """Write a test of a pattern whose events are all of one key, with this label; `start` says when it begins."""
    name, label, start = name_label_start
    first_ms = start(test_events[0][0])
    lines = []
    for at_ms, event_type, values in test_events:
        fields = " ".join(f"{field}={value}" for field, value in values.items())
        lines.append(f"  {label}: {show_duration(at_ms - first_ms)}  {event_type} {fields}".rstrip())
    return "\n".join([f'test "{title}" of {name} {{', *lines, f"  {expected}", "}"])

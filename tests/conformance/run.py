"""A scenario's pattern text + its events → the engine's answer.

Events reach the engine as they would in a job: late ones are dropped, the others wait for the watermark that passes
them, and the stream's end closes every window.
Tested by: tests/conformance/test_conformance.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema
from cep.columnar.batch import TEXT, EventBatch, arrow_type, data_columns
from cep.engine.advance import Matches, advance
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic
from cep.lang.ir import PatternIR, Skip, SkipKind
from cep.lang.load import load_text
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.positions import CompileError
from cep.nfa.program import Program
from tests.conformance.scenario import Answer, Bindings, Scenario, ScenarioEvent, bindings_of
from tests.conformance.structure import ID, KEY, PATTERN, STAMP, Names, PatternText

_END_MS = TIME_MS_MAX
# Event ids are compared by length, then by bytes: with one length they sort in order of arrival.
_ID_DIGITS = 9
_LIMITS = ("RUNS_PER_KEY_MAX", "NODES_PER_KEY_MAX", "MATCHES_PER_EVENT_MAX", "WAYS_PER_EVENT_MAX")
_NO_LIMIT = 100_000  # more than any scenario with an answer of the library needs


class RefusedError(Exception):
    """The language refuses the pattern; the message is the first reason, `code` the code of the mistake if any."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Subject:
    """A scenario's pattern, checked, its text, and the schema of its events."""

    text: str
    pattern: PatternIR
    schema: Schema
    names: Names

    def without_skip(self) -> Subject:
        """Return the same pattern without a skip strategy."""
        return replace(self, pattern=replace(self.pattern, skip=Skip(SkipKind.NONE)))


def check_pattern(written: PatternText) -> Subject:
    """Check a pattern's text. Raises: RefusedError."""
    pattern, schema = _checked(written.text)
    return Subject(written.text, pattern, schema, written.names)


# A comparison uses one pattern several times, and checking and compiling it is most of the work.
@lru_cache(maxsize=4)
def _checked(text: str) -> tuple[PatternIR, Schema]:
    checked = load_text(text, "scenario.cep")
    if not checked.ok:
        raise _refused([d for d in checked.diagnostics if d.is_error])
    bound, diagnostics = bind(checked.patterns[PATTERN], {})
    if bound is None:
        raise _refused(diagnostics)
    return bound, checked.schema


@lru_cache(maxsize=4)
def _compiled(text: str, skip: Skip) -> Program:
    pattern, schema = _checked(text)
    try:
        return compile_rules(schema, (KEY,), (DeployedRule(PATTERN, 1, 0, "", replace(pattern, skip=skip)),))
    except CompileError as error:
        raise RefusedError(str(error)) from error


def _refused(diagnostics: Sequence[Diagnostic]) -> RefusedError:
    first = diagnostics[0]
    return RefusedError(f"{first.code} {first.message}", first.code)


def answer(subject: Subject, scenario: Scenario) -> Answer:
    """Return the engine's answer. Raises: RefusedError if the pattern is over a limit of the automaton."""
    program = _compiled(subject.text, subject.pattern.skip)
    matches: set[tuple[Bindings, int]] = set()
    timeouts: set[tuple[Bindings, int]] = set()
    keyed_state = None
    for events, watermark_ms in deliveries(scenario):
        batch = _batch(subject, events)
        advanced = advance(program, keyed_state, batch, watermark_ms)
        keyed_state = advanced.keyed_state
        for bindings, detected_ms, completed, timed_out in _found(subject, program, advanced.matches, scenario):
            if completed:
                matches.add((bindings, detected_ms))
            if timed_out:
                timeouts.add((bindings, detected_ms))
    return Answer(frozenset(matches), frozenset(timeouts))


@contextmanager
def without_limits() -> Iterator[None]:
    """Compile rules that keep all runs and matches, like the library and the oracle.

    A comparison is about the meaning of a pattern, and fifteen events have more than ten thousand combinations.
    """
    with ExitStack() as patched:
        for name in _LIMITS:
            patched.enter_context(patch(f"cep.nfa.rule_tables.{name}", _NO_LIMIT))
        yield


def answer_without_limits(subject: Subject, scenario: Scenario) -> Answer:
    """Return the engine's answer without its limit on the matches of one event."""
    _compiled.cache_clear()
    with without_limits():
        result = answer(subject, scenario)
    _compiled.cache_clear()
    return result


# ------------------------------------------------------------------------------------------------------- events

Arrived = tuple[int, ScenarioEvent]


def deliveries(scenario: Scenario) -> Iterator[tuple[list[Arrived], int]]:
    """Yield events with their places in the order of arrival, sorted by time, and the watermark that releases them."""
    waiting: list[Arrived] = []
    watermark_ms = -_END_MS
    schedule = sorted(scenario.watermarks, key=lambda pair: pair[0])
    for place, event in enumerate(scenario.events):
        while schedule and schedule[0][0] <= place:
            watermark_ms = max(watermark_ms, schedule.pop(0)[1])
            yield _released(waiting, watermark_ms), watermark_ms
        if event.time_ms > watermark_ms:
            waiting.append((place, event))
    for _, last_ms in schedule:
        watermark_ms = max(watermark_ms, last_ms)
        yield _released(waiting, watermark_ms), watermark_ms
    yield _released(waiting, _END_MS), _END_MS


def _released(waiting: list[Arrived], watermark_ms: int) -> list[Arrived]:
    """Remove the events up to the watermark from the waiting ones and return them."""
    released = [arrived for arrived in waiting if arrived[1].time_ms <= watermark_ms]
    waiting[:] = [arrived for arrived in waiting if arrived[1].time_ms > watermark_ms]
    return sorted(released, key=lambda arrived: (arrived[1].time_ms, arrived[0]))


def _batch(subject: Subject, events: Sequence[Arrived]) -> EventBatch:
    ids = pa.array([f"{place:0{_ID_DIGITS}}" for place, _ in events], TEXT)
    keys = pa.array([event.key for _, event in events], TEXT)
    times = np.array([event.time_ms for _, event in events], np.int64)
    known_columns = {ID: ids, KEY: keys, STAMP: pa.array(times.astype(np.float64))}
    written = {field: name for name, field in subject.names.fields.items()}
    columns = {
        field: known_columns[field]
        if field in known_columns
        else pa.array([event.values.get(written[field]) for _, event in events], arrow_type(type_))
        for field, type_ in data_columns(subject.schema).items()
    }
    return EventBatch(keys, ids, np.zeros(len(events), np.int16), times, columns)


# ------------------------------------------------------------------------------------------------------ answers


def _found(
    subject: Subject, program: Program, matches: Matches, scenario: Scenario
) -> Iterator[tuple[Bindings, int, bool, bool]]:
    stage_of = subject.names.stage_of()
    stages = [stage_of[variable] for variable in program.rules[0].variables]
    places = [int(text) for text in matches.event_id.to_pylist()]
    for row in range(len(matches)):
        bound: dict[str, list[int]] = {}
        for place in range(matches.offsets[row], matches.offsets[row + 1]):
            bound.setdefault(stages[matches.variable[place]], []).append(scenario.events[places[place]].id)
        completed, timed_out = bool(matches.completed[row]), bool(matches.timed_out[row])
        yield bindings_of(bound), int(matches.detected_ms[row]), completed, timed_out

"""A rule that comes to a running job → since when the job has kept what its histories ask for.

    other rules, retain     ├──── kept ────────────────────────────▶
    the new rule                        ├── its own, from its start on ──▶

A replay of the same rulebook sees all events, a live job only what somebody had it keep. Where nobody did, what a
history asks for is known from the start of the rule on, and alerts whose windows reach back further say so. What is
said is never too early: a condition that is only written otherwise than another rule's counts as another one.
Tested by: tests/rulebook/test_known_past.py, tests/runners/test_later_rules.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cep.base.limits import EVENT_TIME_MS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.lang.ir import Binary, Call, CurrentField, Expr, History, PatternIR
from cep.lang.show import show_expr
from cep.lang.walk import histories, nodes
from cep.model.rule import utc_text
from cep.nfa.histories import is_approximate, is_foldable, is_single, pane_ms, span_ms
from cep.rulebook.outcome import PastReport


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a history asks for: the events for which all `conditions` hold, for `span_ms`, and these `columns`.

    `identity` is the same for equal histories. Of what one event decides only that event is kept, and of approximate
    functions none (`keeps_events`). The window of those may reach back by a pane of `pane_ms` further than its length.
    `folds`: of a key with too many of them the older ones are folded, for this history and those with its identity.
    """

    identity: str
    event_type: str
    span_ms: int
    keeps_events: bool
    conditions: frozenset[str]
    columns: frozenset[str]
    pane_ms: int = 0
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A rule of the same key domain and level. `known_ms` and `busy_ms` are those of DeployedRule."""

    wanted: tuple[Wanted, ...]
    known_ms: tuple[int, ...]
    busy_ms: tuple[int, ...] = ()

    @property
    def placed_ms(self) -> int:
        """Since when the key domain has had a rule, as far as this one knows."""
        return self.known_ms[0] if self.known_ms else TIME_MS_MIN

    def each(self) -> Iterator[tuple[Wanted, int]]:
        """What each history asks for, and since when that is kept."""
        known = self.known_ms[1:] or (TIME_MS_MIN,) * len(self.wanted)
        return zip(self.wanted, known, strict=True)


def wanted_of(pattern: PatternIR) -> tuple[Wanted, ...]:
    """What each of its histories asks for, in the order of `walk.histories`."""
    return tuple(_wanted(history) for history in histories(pattern))


@lru_cache(4_096)
def _wanted(history: History) -> Wanted:
    conditions = {repr(part) for part in _conjuncts(history.where)}
    conditions |= {f"{name} is not null" for name in history.by}
    argument = history.argument
    if argument is not None and argument.type.nullable and history.fn not in ("first", "last"):
        name = argument.field if isinstance(argument, CurrentField) else repr(argument)
        conditions.add(f"{name} is not null")
    columns = set(history.by)
    for node in nodes((history.argument, history.where)):
        if isinstance(node, CurrentField):
            columns.add(node.field)
        elif isinstance(node, Call) and node.fn == "in_list":
            columns.add(repr(node))  # what lists said is kept with the event, for those that asked
    rounded_ms = pane_ms(history) if is_approximate(history) else 0
    return Wanted(
        identity=repr(replace(history, percent=None) if rounded_ms else history),
        event_type=history.event_type,
        span_ms=span_ms(history) + rounded_ms,
        keeps_events=not (rounded_ms or is_single(history)),
        conditions=frozenset(conditions),
        columns=frozenset(columns),
        pane_ms=rounded_ms,
        folds=is_foldable(history),
    )


def _conjuncts(where: Expr | None) -> Iterator[Expr]:
    if isinstance(where, Binary) and where.op == "and":
        yield from _conjuncts(where.left)
        yield from _conjuncts(where.right)
    elif where is not None:
        yield where


def known_since(
    wanted: Sequence[Wanted], from_ms: int, neighbours: Sequence[Neighbour], schema: Schema
) -> tuple[int, ...]:
    """`DeployedRule.known_ms` of a rule that starts at `from_ms` in a job that has matched events already."""
    placed_ms = min([from_ms, *(neighbour.placed_ms for neighbour in neighbours)])
    there = [pair for neighbour in neighbours for pair in neighbour.each()]
    since = ((min(from_ms, _since(one, there, placed_ms, schema)), one.pane_ms) for one in wanted)
    found = (placed_ms, *(at if at == TIME_MS_MIN else at + rounded_ms for at, rounded_ms in since))
    return () if max(found) == TIME_MS_MIN else found


def busy_since(wanted: Sequence[Wanted], from_ms: int, neighbours: Sequence[Neighbour]) -> tuple[int, ...]:
    """`DeployedRule.busy_ms` of such a rule. What was folded of a busy key is there for equal histories alone, so that
    of others nothing is sure but what has come since the start."""
    there: dict[str, int] = {}
    for neighbour in neighbours:
        busy_ms = neighbour.busy_ms or (TIME_MS_MIN,) * len(neighbour.wanted)
        for other, at_ms in zip(neighbour.wanted, busy_ms, strict=True):
            there[other.identity] = min(at_ms, there.get(other.identity, TIME_MS_MAX))
    found = tuple(min(from_ms, there.get(one.identity, from_ms)) if one.folds else TIME_MS_MIN for one in wanted)
    return () if max(found, default=TIME_MS_MIN) == TIME_MS_MIN else found


def _since(one: Wanted, there: Sequence[tuple[Wanted, int]], placed_ms: int, schema: Schema) -> int:
    same = [since for other, since in there if other.identity == one.identity]
    if same:
        return min(same)
    event_type = schema.event_type(one.event_type)
    retained_ms = event_type.retain_ms if event_type is not None else None
    rows = [since for other, since in there if _holds(other, one)]
    if retained_ms is not None and retained_ms >= one.span_ms:
        rows.append(placed_ms)
    since = min(rows, default=TIME_MS_MAX)
    retained = {field.name for field in event_type.fields} if event_type is not None and retained_ms else set()
    for column in one.columns:
        read = [at for other, at in there if column in other.columns]
        since = max(since, min([*read, *([placed_ms] if column in retained else [])], default=TIME_MS_MAX))
    return since


def _holds(other: Wanted, one: Wanted) -> bool:
    """Whether all events that one asks for are kept for the other."""
    if not other.keeps_events or other.event_type != one.event_type:
        return False
    return other.span_ms >= one.span_ms and other.conditions <= one.conditions


def past_of(pattern: PatternIR, known_ms: Sequence[int]) -> tuple[PastReport, ...]:
    """Of each history that looks back further than is kept, since when that is."""
    found: dict[PastReport, None] = {}
    for history, since_ms in zip(histories(pattern), known_ms[1:], strict=False):
        if since_ms > TIME_MS_MIN:
            whole_ms = since_ms + span_ms(history) - 1
            is_ever = history.window is not None and whole_ms <= EVENT_TIME_MS_MAX
            found[PastReport(show_expr(history), history.event_type, since_ms, whole_ms if is_ever else None)] = None
    return tuple(found)


def past_in_words(past: PastReport) -> str:
    """From when on the values of a history are whole, and what would have made them so before."""
    start = f"the events of {past.history} are kept from {utc_text(past.from_ms)} on"
    if past.whole_ms is None:
        return f"{start}; what was before is not known"
    return (
        f"{start}, its windows are whole from {utc_text(past.whole_ms)}; a long enough `retain` in event type "
        f"{past.event_type}, and a rule by this key, would have kept them"
    )

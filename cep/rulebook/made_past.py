"""Rules in force → since when each knows what was *not* produced of the derived events that it asks for.

    a rule that produces           ├── from_ms ─────────────────────▶
    reaches back      │◀── its windows ──┤ ◀─ within ─┤ ◀─ the reader's window ─┤
                      ▲ before since_ms: some may lack                          a match of the reader

That a derived event is not there says something only where every rule that produces it would have produced it: each
that starts matches when the reader's match is detected, from its own start on, in the part that follows a pause from
the end of the pause on. Its matches begin up to its `within` before what they become, and its histories reach back from
there to what is kept of them (known_past.py), and to the job's first event; what it reads of derived events lacks what
those lack. So a reader's match that looks at derived events of some time on asks for events further back: for all of
them to be known the latest of these times has to lie before.

It follows from the rules in force when the match is detected, never from what comes later or has been forgotten since.
What is said is never too early: a new version of a rule counts as one that begins anew, and one without a `within`,
unless it binds but one event, reaches back for ever. As with histories without a window, for ever is not told of the
job's first event.
A match whose derived events are all bound one by one is found whatever else there is; those say themselves what they
lack (engine/produced.py). Where the reader has an absence, a repetition, a neighbour that comes directly after, a
window in events, a time-out or a history of derived events, what is not there counts. Which of several matches a `skip`
chooses is not asked.
Tested by: tests/rulebook/test_made_past.py, tests/runners/test_made_past.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cep.base.limits import MADE_PASTS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.lang.ir import (
    ONCE,
    AlternativeNode,
    AnyOrderNode,
    History,
    HistoryWindow,
    Inner,
    Link,
    Node,
    PatternIR,
    Quantifier,
    SequenceNode,
    VarNode,
)
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule, MadePast

# Windows one behind the other; None: back for ever.
Windows = tuple[HistoryWindow, ...] | None


def with_made_past(rules: Sequence[DeployedRule], schema: Schema) -> list[DeployedRule]:
    """The rules in their order, each with `made`. Of thousands in which none produces anything it costs nothing."""
    makers: dict[str, list[DeployedRule]] = {}
    for rule in rules:
        if rule.pattern.produces is not None and rule.status == "live":  # a shadow rule produces nothing
            makers.setdefault(rule.pattern.produces, []).append(rule)
    if not makers:
        return list(rules)
    pasts = _Pasts(makers, schema)
    return [replace(rule, made=made) if (made := pasts.of_reader(rule.pattern)) else rule for rule in rules]


@dataclass(slots=True)
class _Pasts:
    """What there is to say of each derived event type, of events of one time."""

    makers: dict[str, list[DeployedRule]]
    schema: Schema
    _known: dict[str, tuple[MadePast, ...]]

    def __init__(self, makers: dict[str, list[DeployedRule]], schema: Schema) -> None:
        self.makers, self.schema, self._known = makers, schema, {}

    def of_reader(self, pattern: PatternIR) -> tuple[MadePast, ...]:
        """From the first event of its matches on."""
        found = list(self._of_histories(pattern, ()))
        for name in asked_types(pattern, frozenset(self.makers)):
            found += self._of_type(name)
        return _fewest(found)

    def _of_type(self, name: str) -> tuple[MadePast, ...]:
        if name not in self._known:
            self._known[name] = ()  # rules that feed each other in a circle are matched at one level, which reads none
            self._known[name] = _fewest(past for rule in self.makers.get(name, ()) for past in self._of_maker(rule))
        return self._known[name]

    def _of_maker(self, rule: DeployedRule) -> Iterator[MadePast]:
        """From the time of an event on that it produces."""
        pattern, span = rule.pattern, longest(rule.pattern)
        found = [_past(span or (), None), _past(span, rule.from_ms)]
        kept_ms = rule.known_ms[1:] or (TIME_MS_MIN,) * sum(1 for _ in histories(pattern))
        for history, since_ms in zip(histories(pattern), kept_ms, strict=True):
            back = _behind(span, _window(history))
            found += [_past(back, since_ms), _past(_of_first_event(span, _window(history)), None)]
        found += self._of_histories(pattern, span)
        found += [_further(span, past) for name in pattern.event_types for past in self._of_type(name)]
        for past in found:
            from_ms, until_ms = max(past.from_ms, rule.from_ms), min(past.until_ms, rule.starts_until_ms)
            if from_ms < until_ms and past.since_ms != TIME_MS_MIN:
                yield replace(past, from_ms=from_ms, until_ms=until_ms)

    def _of_histories(self, pattern: PatternIR, span: Windows) -> Iterator[MadePast]:
        """Of the derived events that its histories count, from a span back on."""
        for history in histories(pattern):
            for name in self._types(history):
                for past in self._of_type(name):
                    yield _further(span, _further(_window(history), past))

    def _types(self, history: History) -> list[str]:
        if history.event_type:
            return [history.event_type] if history.event_type in self.makers else []
        types = [self.schema.event_type(name) for name in self.makers]  # any that has the fields
        return [e.name for e in types if e is not None and all(e.field(name) is not None for name in history.by)]


def longest(pattern: PatternIR) -> Windows:
    """How far back from when it is detected a match of the pattern begins at most."""
    if isinstance(pattern.within_ms, int):
        return (HistoryWindow(pattern.within_ms + 1, None),)  # an absence is certain at first + within
    return () if _binds_one(pattern.structure) else None


def _binds_one(node: Node) -> bool:
    if isinstance(node, AlternativeNode):
        return all(_binds_one(option) for option in node.options)
    if isinstance(node, AnyOrderNode) or node.quantifier.max_count != 1:
        return False
    return isinstance(node, VarNode) or (
        len(node.steps) == 1 and not node.steps[0].negated and _binds_one(node.steps[0].node)
    )


def asked_types(pattern: PatternIR, derived: frozenset[str]) -> list[str]:
    """The derived event types of which what is not there counts: absent, or fewer than there might be."""
    read = [name for name in pattern.event_types if name in derived]
    if not read or pattern.within_events is not None or pattern.timeout_measures is not None:
        return read
    names, is_strict = _asked(pattern.structure)
    return (
        read if is_strict else [t for t in read if any(v.event_type == t for v in pattern.variables if v.name in names)]
    )


def _asked(node: Node) -> tuple[set[str], bool]:
    """The variables of which those count that are not there, and whether any event does that comes between."""
    if isinstance(node, VarNode):
        is_strict = node.quantifier.inner is Inner.STRICT or node.quantifier.until is not None
        return ({node.variable} if _is_open(node.quantifier) else set()), is_strict
    if isinstance(node, AlternativeNode | AnyOrderNode):
        parts = [_asked(part) for part in (node.options if isinstance(node, AlternativeNode) else node.items)]
        return {name for names, _ in parts for name in names}, any(strict for _, strict in parts)
    parts = [_asked(step.node) for step in node.steps]
    found = {name for names, _ in parts for name in names}
    found |= {name for step in node.steps if step.negated for name in _names(step.node)}
    if _is_open(node.quantifier):
        found |= _names(node)
    stops = node.quantifier.until is not None
    # The link of the first step is that of the repetitions.
    links = [step.link for step in node.steps[0 if node.quantifier != ONCE else 1 :]]
    return found, stops or Link.NEXT in links or any(strict for _, strict in parts)


def _is_open(quantifier: Quantifier) -> bool:
    """Whether it takes as many as there are, or none."""
    return quantifier.min_count != quantifier.max_count


def _names(node: Node) -> set[str]:
    if isinstance(node, VarNode):
        return {node.variable}
    if isinstance(node, SequenceNode):
        return {name for step in node.steps for name in _names(step.node)}
    parts = node.options if isinstance(node, AlternativeNode) else node.items
    return {name for part in parts for name in _names(part)}


def _past(windows: Windows, since_ms: int | None) -> MadePast:
    return MadePast(windows, since_ms, TIME_MS_MIN, TIME_MS_MAX)


def _window(history: History) -> Windows:
    return None if history.window is None else (replace(history.window, previous=False),)


def _of_first_event(span: Windows, window: Windows) -> Windows:
    """What is told of the job's first event: how far it reaches back but for what does so for ever."""
    return _behind(span or (), window or ())


def _further(windows: Windows, past: MadePast) -> MadePast:
    """The same for what reaches back by these windows first."""
    if past.since_ms is None:
        return replace(past, windows=_of_first_event(windows, past.windows))
    return replace(past, windows=_behind(windows, past.windows))


def _behind(one: Windows, other: Windows) -> Windows:
    """The windows of both, one behind the other; two lengths of time are one."""
    if one is None or other is None:
        return None
    if one and other and isinstance(one[-1].ms, int) and isinstance(other[0].ms, int):
        return (*one[:-1], HistoryWindow(one[-1].ms + other[0].ms - 1, None), *other[1:])
    return (*one, *other)


def _fewest(pasts: Iterable[MadePast]) -> tuple[MadePast, ...]:
    """Those that say something which no other one says."""
    found: dict[tuple[int | None, int, int], dict[Windows, None]] = {}
    for past in pasts:
        if past.windows != () or past.since_ms is not None:
            _add(found.setdefault((past.since_ms, past.from_ms, past.until_ms), {}), past.windows)
    if sum(map(len, found.values())) > MADE_PASTS_MAX:
        found = _roughly(found)
    return tuple(MadePast(windows, *at) for at, own in found.items() for windows in own)


def _add(own: dict[Windows, None], windows: Windows) -> None:
    """Add windows to others with the same claim, of which the longer one of two lengths of time is enough."""
    if windows is None or None in own:
        own.clear()
        own[None] = None
        return
    lengths = [other for other in own if other is not None and _length(other) is not None]
    if _length(windows) is None or not lengths:
        own[windows] = None
    elif (_length(windows) or 0) > (_length(lengths[0]) or 0):
        del own[lengths[0]]
        own[windows] = None


def _length(windows: tuple[HistoryWindow, ...]) -> int | None:
    """How long windows are that are no units of the calendar."""
    if not windows:
        return 1
    return windows[0].ms if len(windows) == 1 and isinstance(windows[0].ms, int) else None


def _roughly(
    found: dict[tuple[int | None, int, int], dict[Windows, None]],
) -> dict[tuple[int | None, int, int], dict[Windows, None]]:
    """Fewer that say the same or more: as if all began with the first and ended with the last of them."""
    from_ms, until_ms = min(at[1] for at in found), max(at[2] for at in found)
    fewer: dict[tuple[int | None, int, int], dict[Windows, None]] = {}
    for (since_ms, _, _), own in found.items():
        if since_ms is None:
            for windows in own:
                _add(fewer.setdefault((None, from_ms, until_ms), {}), windows)
    latest_ms = max((at[0] for at in found if at[0] is not None), default=TIME_MS_MIN)
    if latest_ms > TIME_MS_MIN:
        fewer[latest_ms, from_ms, until_ms] = {None: None}
    return fewer

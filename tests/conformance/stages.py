"""Questions of the known differences about the stages of a scenario: their place, their words, possible events.

Tested by: tests/conformance/test_conformance.py
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from tests.conformance.scenario import Json

_COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that is not a group.

    `later` are the stages that may be bound after it, including itself if it repeats; `step_ms` is its step time and
    `window_ms` the window of the whole.
    """

    name: str
    given: Json
    depth: int
    in_loop: bool
    negated: bool
    later: frozenset[str]
    step_ms: int
    window_ms: int

    def before(self, name: str) -> bool:
        """Whether the named stage may be bound after this one."""
        return name in self.later


def flatten(stages: Sequence[Json], within: Mapping[str, Json] | None) -> Iterator[Stage]:
    """Yield the stages in the order of the text."""
    placed = list(_placed(stages, 0, ()))
    windows = [s["within"]["ms"] for s in stages if s.get("within", {}).get("type") == "first_last"]
    windows += [within["ms"]] if within and within["type"] == "first_last" else []
    window_ms = min((w for w in windows if w > 0), default=0)
    for number, (stage, loops) in enumerate(placed):
        names = [str(s["name"]) for s, _ in placed]
        around = {n for s, other in placed if set(other) & set(loops) for n in [str(s["name"])]}
        itself = {names[number]} if is_loop(stage) else set()
        step_ms = stage["within"]["ms"] if stage.get("within", {}).get("type") == "prev_curr" else 0
        if within and within["type"] == "prev_curr" and number == len(placed) - 1:
            step_ms = within["ms"]
        if stage is stages[-1] and is_loop(stage):
            step_ms = 0  # the library ignores it there
        yield Stage(
            names[number],
            stage,
            len(loops),
            any(is_loop(group) for group in _groups(stages, str(stage["name"]))),
            is_negated(stage),
            frozenset(names[number + 1 :]) | around | itself,
            step_ms,
            window_ms,
        )


def _placed(stages: Sequence[Json], depth: int, loops: tuple[int, ...]) -> Iterator[tuple[Json, tuple[int, ...]]]:
    for stage in stages:
        if "group" in stage:
            yield from _placed(stage["group"], depth + 1, (*loops, id(stage)) if is_loop(stage) else loops)
        else:
            yield stage, loops


def _groups(stages: Sequence[Json], name: str) -> list[Json]:
    for stage in stages:
        if "group" in stage:
            inner = _groups(stage["group"], name)
            if inner or any(str(s.get("name")) == name for s in stage["group"]):
                return [stage, *inner]
    return []


def is_loop(stage: Json) -> bool:
    high = stage.get("times", (1, 1))[1]
    return high is None or high > 1


def is_bounded_greedy(stage: Json) -> bool:
    """Whether a stage takes as many events as it can, up to a number."""
    low, high = stage.get("times", (1, 1))
    return bool(stage.get("greedy")) and high is not None and low != high


def may_be_empty(stage: Json) -> bool:
    """Whether a stage can match without an event."""
    if may_be_left_out(stage):
        return True
    return "group" in stage and all(is_negated(s) or may_be_empty(s) for s in stage["group"])


def begins_with_group(stages: Sequence[Json], *, first: bool = True) -> bool:
    """Whether a group that begins with a group may have an event before it."""
    for number, stage in enumerate(stages):
        if "group" in stage:
            is_first = first and number == 0
            if "group" in stage["group"][0] and (not is_first or is_loop(stage)):
                return True
            if begins_with_group(stage["group"], first=is_first):
                return True
    return False


@dataclass(frozen=True, slots=True)
class _Around:
    """The surroundings of stages: whether they are in a group, an optional one, or before a part that may be empty."""

    in_group: bool = False
    optional: bool = False
    before_nothing: bool = False


def greed_is_lost(stages: Sequence[Json], around: _Around = _Around()) -> bool:
    """Whether a greedy loop stands where the library treats its greed otherwise.

    These places are: before a part that may be empty, at the end of a group that repeats, in an optional group, before
    a `notNext`, optional after an absence, or with a stop event.
    """
    for number, stage in enumerate(stages):
        follower = stages[number + 1] if number + 1 < len(stages) else None
        behind = next((s for s in stages[number + 1 :] if not is_negated(s)), None)
        opens = around.before_nothing
        if behind is not None:
            opens = may_be_empty(behind) or ("group" in behind and _opens_empty(behind))
        if stage.get("greedy") and stage.get("times", (1, 1)) != [1, 1]:
            optional = bool(stage.get("optional"))
            link = follower.get("link") if follower is not None else ""
            stops = "until" in stage and (around.in_group or follower is not None)
            behind_absence = optional and number > 0 and is_negated(stages[number - 1])
            if opens or stops or behind_absence or link == "notNext" or around.optional:
                return True
        if "group" in stage:
            inside = _Around(True, around.optional or may_be_empty(stage), opens or is_loop(stage))
            if greed_is_lost(stage["group"], inside):
                return True
    return False


def absences_in_a_row(stages: Sequence[Json]) -> bool:
    both = (is_negated(a) and is_negated(b) for a, b in pairwise(stages))
    return any(both) or any("group" in stage and absences_in_a_row(stage["group"]) for stage in stages)


def loop_before_absence(stages: Sequence[Json], *, of_any: bool, left_out: bool = False) -> bool:
    """Whether an absence follows a loop with a maximum.

    A loop of two and more counts too if it begins a group that may be left out (`left_out`: these stages are such a
    group's). With `of_any`, a group or a loop of every combination counts instead.
    """
    for place, (before, behind) in enumerate(pairwise(stages)):
        is_any = "group" in before or before.get("inner") == "combinations"
        has_end = is_loop(before) and before["times"][1] is not None
        begins = left_out and place == 0 and is_loop(before) and before["times"][0] > 1
        if is_negated(behind) and (is_any if of_any else has_end or begins):
            return True
    groups = (stage for stage in stages if "group" in stage)
    return any(loop_before_absence(g["group"], of_any=of_any, left_out=may_be_left_out(g)) for g in groups)


def absence_before_loop(stages: Sequence[Json]) -> bool:
    """Whether a loop with a maximum follows an absence."""
    pairs = (is_negated(a) and is_loop(b) and b["times"][1] is not None for a, b in pairwise(stages))
    return any(pairs) or any("group" in stage and absence_before_loop(stage["group"]) for stage in stages)


def groups_behind_absence(stages: Sequence[Json]) -> Iterator[Json]:
    """Yield the groups that may begin empty or be left out, and that may come next after an absence."""
    waits = False
    for stage in stages:
        if "group" in stage:
            if waits and (may_be_empty(stage) or _opens_empty(stage)):
                yield stage
            yield from groups_behind_absence(stage["group"])
        waits = is_negated(stage) or (waits and may_be_empty(stage))


def _opens_empty(group: Json) -> bool:
    """Whether a group may leave out its first stage, or begins with a group that may."""
    first = group["group"][0]
    return may_be_empty(first) or ("group" in first and _opens_empty(first))


def may_be_left_out(stage: Json) -> bool:
    """Whether the stage's own quantifier allows zero events."""
    return bool(stage.get("optional")) or stage.get("times", (1, 1))[0] == 0


def directly_after_round(stages: Sequence[Json], *, behind_round: bool = False) -> bool:
    """Whether a stage may come directly after a group that repeats; `behind_round`: such a group is right before."""
    for stage in stages:
        if behind_round and stage.get("link") in ("next", "notNext"):
            return True
        if "group" in stage:
            again = is_loop(stage) and stage.get("inner") == "consecutive" and _ends_on_round(stage["group"])
            if again or directly_after_round(stage["group"], behind_round=behind_round):
                return True
        repeats = "group" in stage and (is_loop(stage) or _ends_on_round(stage["group"]))
        behind_round = repeats or (behind_round and (is_negated(stage) or may_be_empty(stage)))
    return False


def stop_behind_round(stages: Sequence[Json], *, behind_round: bool = False) -> bool:
    """Whether a group with a stop event may come right after a group that repeats."""
    for stage in stages:
        stops = behind_round and "until" in stage and "group" in stage
        if stops or stop_behind_round(stage.get("group", ()), behind_round=behind_round):
            return True
        repeats = "group" in stage and (is_loop(stage) or _ends_on_round(stage["group"]))
        behind_round = repeats or (behind_round and (is_negated(stage) or may_be_empty(stage)))
    return False


def neighbours(stages: Sequence[Json]) -> frozenset[tuple[str, str]]:
    """Return the pairs of stages in which a run may wait for the second right after the first."""
    return _row_of(stages).pairs


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence of stages: the names that may be bound first and last, and the neighbours among them."""

    first: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    pairs: frozenset[tuple[str, str]] = frozenset()


def _row_of(stages: Sequence[Json]) -> _Row:
    row, opens = _Row(), True
    for stage in stages:
        if is_negated(stage):
            continue
        name = frozenset({str(stage.get("name"))})
        inner = _row_of(stage["group"]) if "group" in stage else _Row(name, name)
        again = frozenset(product(inner.last, inner.first)) if is_loop(stage) else frozenset()
        row = _Row(
            row.first | inner.first if opens else row.first,
            inner.last | row.last if may_be_empty(stage) else inner.last,
            row.pairs | inner.pairs | again | frozenset(product(row.last, inner.first)),
        )
        opens = opens and may_be_empty(stage)
    return row


def greed_behind_round(
    stages: Sequence[Json], rounds: frozenset[str] = frozenset()
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the greedy loops that may be left out right after a group with another round, and the names in that group.

    `rounds` are the names in such a group right before these stages. A round that may begin empty, or that must come
    directly after the last one, does not count. The first stages of a group follow the last stages of its previous
    round.
    """
    for stage in stages:
        if "group" in stage:
            again = is_loop(stage) and stage.get("inner") != "consecutive"
            yield from greed_behind_round(stage["group"], rounds | (_names_at_end(stage["group"]) if again else set()))
        elif rounds and stage.get("greedy") and may_be_empty(stage):
            yield str(stage["name"]), rounds
        rounds = _names_of_round(stage) | (rounds if is_negated(stage) or may_be_empty(stage) else frozenset())


def _names_of_round(stage: Json) -> frozenset[str]:
    """Return the names in a stage that is, or ends in, a group that may have another round or go on."""
    if "group" not in stage:
        return frozenset()
    low, high = stage.get("times", (1, 1))
    if low != high and is_loop(stage) and stage.get("inner") != "consecutive" and not _opens_empty(stage):
        return frozenset(_names_in(stage["group"]))
    return _names_at_end(stage["group"])


def _names_at_end(stages: Sequence[Json]) -> frozenset[str]:
    """Return the names in groups at the end of the stages that may go on."""
    names: frozenset[str] = frozenset()
    for inner in reversed(stages):
        names |= _names_of_round(inner)
        if not (is_negated(inner) or may_be_empty(inner)):
            break
    return names


def _names_in(stages: Sequence[Json]) -> Iterator[str]:
    for stage in stages:
        yield from _names_in(stage["group"]) if "group" in stage else [str(stage["name"])]


def _ends_on_round(stages: Sequence[Json]) -> bool:
    """Whether a group that repeats may be the last of the stages."""
    for stage in reversed(stages):
        if "group" in stage and (is_loop(stage) or _ends_on_round(stage["group"])):
            return True
        if not (is_negated(stage) or may_be_empty(stage)):
            return False
    return False


def is_negated(stage: Json) -> bool:
    return str(stage.get("link", "")).startswith("not")


def groups_in(stages: Sequence[Json]) -> Iterator[Json]:
    """Yield every group, at any depth."""
    for stage in stages:
        if "group" in stage:
            yield stage
            yield from groups_in(stage["group"])


def ends_on_absence(stages: Sequence[Json]) -> bool:
    """Whether an absence may be the last of the stages, or of a group among them."""
    for stage in reversed(stages):
        if is_negated(stage):
            return True
        if not may_be_empty(stage):
            break
    return any("group" in stage and ends_on_absence(stage["group"]) for stage in stages)


def may_fit(condition: Json, values: Mapping[str, Json]) -> bool:
    """Whether an event may satisfy a condition; a part that depends on bound events may be true or false."""
    return _truth(condition, values) is not False


def _truth(raw: Json, values: Mapping[str, Json]) -> bool | None:
    if raw is True or raw is False:
        return bool(raw)
    for word, ends in (("and", False), ("or", True)):
        if word in raw:
            truths = [_truth(one, values) for one in raw[word]]
            return ends if ends in truths else None if None in truths else not ends
    if "not" in raw:
        inner = _truth(raw["not"], values)
        return None if inner is None else not inner
    left = raw["l"]
    if not (isinstance(left, dict) and isinstance(left.get("f"), str) and "agg" not in left):
        return None
    value, right = values.get(left["f"]), raw["r"]
    if raw["op"] == "in":
        return bool(value in right)
    if isinstance(right, dict):
        return None
    if value is None or right is None:
        return False
    if raw["op"] in ("contains", "startswith"):
        text = str(value)
        return str(right) in text if raw["op"] == "contains" else text.startswith(str(right))
    if isinstance(value, str) is not isinstance(right, str):
        return bool(raw["op"] == "!=")
    return bool(_COMPARE[raw["op"]](value, right))

"""Events of keys in order, and the fraud events among them → sequences of conditions that distinguish frauds.

A sequence is grown backwards: first a condition on the last event of a fraud, then on earlier events of its key. At
each length the best few are kept (a beam), as in CN2 (Clark and Niblett 1989). Then conditions are added to the steps,
or exchanged for others on the same field, as long as the sequence improves. In the end each condition, link and step
goes without which it is nearly as good. The frauds that it finds are removed, and the search starts again for the
others.

    rows of one key   … a … a … b …     chain (a -> b), ends at b
                              └ the latest a before b: it leaves the most room for earlier steps

A chain binds a row for each step. As in a backtest it is right if one of them is a fraud event, and it finds the frauds
of all of them, but not a fraud that is a day old at its end. An earlier fraud does not count either if the last event
has a type that frauds never have: a report comes after each fraud, and would find them all, too late. For half of the
sequences only the last event may be the fraud: they must find the fraud itself, not its neighbours.
Tested by: tests/analysis/test_suggest.py
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cep.analysis.conditions import Condition
from cep.kernels.chains import count_chains, fill_frauds, latest_before, prepended_rows
from cep.kernels.records import MinedEvents

Step = tuple[int, ...]  # numbers of conditions that all hold; a negative number ~n is link n, to the step before
Rows = NDArray[np.int64]
Chains = NDArray[np.int64]  # [steps, C]: the rows that each chain binds, by step: where it begins comes first
_Scored = tuple[float, tuple[Step, ...], Chains]  # with the score first
_NO_ROWS = np.empty(0, np.int32)
_BEAM_SIZE = 25
_LAST_STEPS_MAX = 60  # last steps that a search begins with
# Precision counts twice as much as recall, because an alert costs an analyst's time. If events before the end may be
# the fraud, both count the same, so that an analyst can choose.
_BETA2 = {False: 0.25, True: 1.0}  # by `fraud_at_any_step`
_CHANGES_MAX = 12
_STEP_CONDITIONS_MAX = 3
_REFINED_MAX = 4  # sequences of a length that are changed, each with another first step.
_NEARLY_EQUAL = 0.99  # of the score, without a condition that has no effect
_LONGER_SCORE_FACTOR = 1.02  # A longer sequence has to be so many times as good.
_ABSENT_MAX = 20  # conditions that may be asked to be absent between two steps
_FOUND_WITHIN_MS = 86_400_000  # A fraud counts as found if the chain ends less than this later.


@dataclass(frozen=True, slots=True)
class Link:
    """A bond to the step before: an equal value of the field `same`, no event that meets `absent` between them, or an
    amount in the field `near` that is equal or up to a tenth less."""

    same: str = ""
    absent: int = -1
    near: str = ""


@dataclass(frozen=True, slots=True)
class Mined:
    """A mined sequence: steps in order, within a time, and their quality on the mined events."""

    steps: tuple[Step, ...]
    window_ms: int
    score: float


@dataclass(slots=True)
class EventSample:
    """The N events to mine, by key and time, their labels, and the conditions that the steps of a sequence may use.
    Shapes: key_start int64[N] is the first row of the event's key; time_ms int64[N]; fraud int64[N], -1 for none;
    has_fraud_type bool[N] are events whose type occurs in frauds; weight float64[N] is the number of events that a row
    represents. `open_frauds` bool[F] are still to be found: by any event that a sequence binds (`fraud_at_any_step`),
    or only by its last. `same` numbers the pairs of key and value of a field, int64[N], -1 without a value. `near` has
    the values of fields of amounts, float64[N], NaN without a value."""

    key_start: NDArray[np.int64]
    time_ms: NDArray[np.int64]
    fraud: NDArray[np.int64]
    has_fraud_type: NDArray[np.bool_]
    weight: NDArray[np.float64]
    conditions: Sequence[Condition]
    open_frauds: NDArray[np.bool_]
    same: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    near: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    fraud_at_any_step: bool = True
    _before: dict[tuple[Step, str], NDArray[np.int32]] = field(default_factory=dict)
    _orders: dict[str, tuple[Rows, Rows]] = field(default_factory=dict)
    _events: MinedEvents = field(init=False)

    def __post_init__(self) -> None:
        """List the links that may tie a step to the step before: an equal value, a near amount, or an absence: no
        event between them meets a condition on the type or on one value. `_orders` has two arrays for each field in
        `same`: the rows sorted by value, and for each the index at which its value begins, or `len(group)` if it has
        none (group -1). For the field "" these are all rows, by key and time, and the index at which a key begins."""
        self._events = MinedEvents(self.time_ms, self.fraud, self.has_fraud_type, self.weight)
        self._orders[""] = np.arange(len(self.time_ms)), self.key_start
        for name, group in self.same.items():
            order = np.argsort(group, kind="stable")
            begin = np.searchsorted(group[order], group[order])
            self._orders[name] = order, np.where(group[order] >= 0, begin, len(group))
        absences = [number for number, each in enumerate(self.conditions) if not each.past_ms and each.op in ("", "==")]
        self.links = [Link(same=name) for name in self.same] + [Link(near=name) for name in self.near]
        self.links += [Link(absent=number) for number in absences[:_ABSENT_MAX]]

    def holds(self, step: Step) -> NDArray[np.bool_]:
        """bool[N]: the events that meet all conditions of a step."""
        each_holds = [self.conditions[number].holds for number in step if number >= 0]
        mask: NDArray[np.bool_] = np.logical_and.reduce(each_holds)
        return mask

    def before(self, step: Step, same: str = "") -> NDArray[np.int32]:
        """Find for each event the latest earlier event of its key that meets the step: its row, -1 for none. With
        `same` only earlier events with an equal value of that field count."""
        numbers = tuple(number for number in step if number >= 0)
        earlier = self._before.get((numbers, same))
        if earlier is None:
            earlier = np.empty(len(self.time_ms), np.int32)
            latest_before(self.holds(numbers), *self._orders[same], earlier)
            if len(numbers) == 1:  # of steps with more conditions there are too many to be remembered
                self._before[numbers, same] = earlier
        return earlier

    def chain(self, steps: Sequence[Step], window_ms: int) -> Chains:
        """Return the chains of a sequence, by the row at which they end."""
        chains: Chains = np.flatnonzero(self.holds(steps[-1]))[None, :]
        for step, later in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
            chains = self.prepended(step, later, chains, window_ms)
        return chains

    def prepended(self, step: Step, later: Step, chains: Chains, window_ms: int) -> Chains:
        """Put a step in front of each chain (the rows that a sequence binds, one per step): the latest earlier event in
        the window that meets the step's conditions and the links of `later`, the chains' first step. Leave out chains
        without one. A link ties two steps by an equal value, a near amount, or an event that must be absent between."""
        links = [self.links[~number] for number in later if number < 0]  # a step has ~n for link n
        earlier_rows = self.before(step, next((link.same for link in links if link.same), ""))
        absent = [self.before((link.absent,)) for link in links if link.absent >= 0]  # not to lie between
        latest_absent = np.maximum.reduce(absent) if len(absent) > 1 else absent[0] if absent else _NO_ROWS
        longer: Chains = prepended_rows(chains, earlier_rows, latest_absent, self.time_ms, window_ms)
        for amounts in (self.near[link.near] for link in links if link.near):  # equal, or up to a tenth less
            earlier_values, later_values = amounts[longer[0]], amounts[longer[1]]  # of the first two steps
            longer = longer[:, (later_values <= earlier_values) & (10 * later_values >= 9 * earlier_values)]
        return longer

    def frauds_of(self, chains: Chains) -> NDArray[np.int64]:
        """int64[steps, C]: the number of the fraud that each chain finds by each of its rows, -1 for none."""
        frauds = np.empty_like(chains)
        fill_frauds(chains, self._events, self.fraud_at_any_step, _FOUND_WITHIN_MS, frauds)
        return frauds

    def score(self, chains: Chains) -> float:
        """Return F0.5 of a sequence with these chains, over the frauds still open; F1 with `fraud_at_any_step`."""
        any_step = self.fraud_at_any_step
        hits, right, wrong = count_chains(chains, self._events, any_step, _FOUND_WITHIN_MS, self.open_frauds)
        if not hits:
            return 0.0
        precision, recall = right / (right + wrong), hits / int(self.open_frauds.sum())
        beta2 = _BETA2[any_step]
        return (1 + beta2) * precision * recall / (beta2 * precision + recall)


def mine(
    sample: EventSample, windows_ms: Sequence[int], steps_max: int, count: int,
    report: Callable[[int, int], None] = lambda *_: None,
) -> list[Mined]:  # fmt: skip
    """Search the sampled events of keys for sequences of steps that end with a fraud event, then for sequences with a
    fraud event at any step: at most `count` in all, without repeats. `sample.open_frauds` are the frauds to find.
    `report(count, total)` is called with the number of sequences that have been searched."""
    to_find = sample.open_frauds
    any_step_values = (False, True) if steps_max > 1 else (True,)  # a sequence of one step ends at its only step
    mined: dict[tuple[tuple[Step, ...], int], Mined] = {}
    count_per_search = -(-count // len(any_step_values))
    for search_number, fraud_at_any_step in enumerate(any_step_values):
        sample.fraud_at_any_step, sample.open_frauds = fraud_at_any_step, to_find.copy()
        for number, each in enumerate(_search(sample, windows_ms, steps_max, count_per_search)):
            mined.setdefault((each.steps, each.window_ms), each)
            report(search_number * count_per_search + number + 1, len(any_step_values) * count_per_search)
        report((search_number + 1) * count_per_search, len(any_step_values) * count_per_search)
    return list(mined.values())


def _search(sample: EventSample, windows_ms: Sequence[int], steps_max: int, count: int) -> Iterator[Mined]:
    """Yield at most `count` sequences. Each is the best one for the frauds that the ones before it leave open. A longer
    sequence must score better by a factor than a shorter one."""
    for _ in range(count):
        if not sample.open_frauds.any():
            return
        best = Mined((), 0, 0.0)
        for candidate in _candidates(sample, windows_ms, steps_max):
            refined = _refine(sample, candidate)
            if refined.score > best.score * (_LONGER_SCORE_FACTOR if len(refined.steps) > len(best.steps) else 1.0):
                best = refined
        if best.score <= 0:
            return
        best = _simplify(sample, best)
        fraud = sample.frauds_of(sample.chain(best.steps, best.window_ms))
        hits = fraud[fraud >= 0]
        if not sample.open_frauds[hits].any():
            return
        sample.open_frauds[hits] = False
        yield best


def _candidates(sample: EventSample, windows_ms: Sequence[int], steps_max: int) -> Iterator[Mined]:
    """Yield the best sequences of each length over all windows, the shortest first. Several of each length are needed:
    any may be the best one after it is refined. A sequence grows from its last step backwards; its chains are the rows
    that it binds. The first search has no conditions on the past, because they could crowd out all others."""
    numbers_without_past = [number for number, condition in enumerate(sample.conditions) if not condition.past_ms]
    for numbers in (numbers_without_past, list(range(len(sample.conditions)))):
        single_steps = ((step, sample.chain((step,), 0)) for step in _last_steps(sample, numbers))
        last = _keep_best([(sample.score(chains), (step,), chains) for step, chains in single_steps], _LAST_STEPS_MAX)
        by_window = [_grow_by_length(sample, window, steps_max, last) for window in windows_ms]
        for index in range(max(len(each) for each in by_window)):  # the length, less 1
            same_length = [
                each for window_results in by_window if len(window_results) > index for each in window_results[index]
            ]
            best_by_first_step: dict[Step, Mined] = {}
            for each in sorted(same_length, key=lambda each: -each.score):
                best_by_first_step.setdefault(each.steps[0], each)  # the best one comes first
            yield from list(best_by_first_step.values())[:_REFINED_MAX]


def _grow_by_length(sample: EventSample, window_ms: int, steps_max: int, beam: list[_Scored]) -> list[list[Mined]]:
    """Grow sequences backwards from these last steps. Each round puts a step of one condition in front, with or without
    links (equal or near values), and keeps the best sequences as the next beam. Return the best ones by length. A step
    is a tuple of numbers: n for condition n, ~n for link n to the step before. A chain is a sequence's bound rows."""
    if not beam:
        return []
    best = [[Mined(steps, window_ms, score) for score, steps, _ in beam]]
    for _ in range(steps_max - 1):
        longer: list[_Scored] = []
        for _, steps, chains in beam:
            for condition, links in _earlier_steps(sample):
                linked_first = (*steps[0], *links)  # a link is part of the later step
                longer_chains = sample.prepended((condition,), linked_first, chains, window_ms)
                longer_score = sample.score(longer_chains)
                if longer_score > 0:  # it finds a fraud
                    longer.append((longer_score, ((condition,), linked_first, *steps[1:]), longer_chains))
        beam = _keep_best(longer, _BEAM_SIZE)
        if not beam:
            break
        best.append([Mined(steps, window_ms, score) for score, steps, _ in beam])
        best[-1] += [  # each also with an event that must be absent
            Mined(steps, window_ms, sample.score(sample.chain(steps, window_ms)))
            for _, plain_steps, _ in beam for steps in _with_absence(sample, plain_steps)
        ]  # fmt: skip
    return best


def _with_absence(sample: EventSample, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequence with one thing more that must not be between its first two steps."""
    for number, link in enumerate(sample.links):
        if link.absent >= 0:
            yield (steps[0], (*steps[1], ~number), *steps[2:])


def _earlier_steps(sample: EventSample) -> Iterator[tuple[int, Step]]:
    """Yield each condition that a step may begin with, alone, and the broad ones bound by equal values, too."""
    same = [~number for number, link in enumerate(sample.links) if link.same or link.near]
    for number, condition in enumerate(sample.conditions):
        if not condition.past_ms:
            yield number, ()
            if condition.op in ("", "=="):
                yield from ((number, (link,)) for link in same)


def _keep_best(beam: list[_Scored], size: int) -> list[_Scored]:
    return sorted(beam, key=lambda each: (-each[0], each[1]))[:size]


def _last_steps(sample: EventSample, numbers: Sequence[int]) -> Iterator[Step]:
    """Yield single conditions, then pairs of the best of them."""
    singles = sorted(numbers, key=lambda number: (-sample.score(sample.chain(((number,),), 0)), number))
    yield from ((number,) for number in singles)
    few = singles[:_BEAM_SIZE]
    for first in few:
        for second in few:
            if first < second and _go_together(sample.conditions, (first, second)):
                yield (first, second)


def _go_together(conditions: Sequence[Condition], step: Step) -> bool:
    """Return True for conditions on the same event type, each about another side of a field."""
    step_conditions = [conditions[number] for number in step if number >= 0]
    sides = {(condition.field, condition.op) for condition in step_conditions}
    is_one_type = len({condition.event_type for condition in step_conditions}) == 1
    return (
        is_one_type
        and len(sides) == len(step_conditions)
        and (len(step_conditions) == 1 or all(condition.field for condition in step_conditions))
    )


def _refine(sample: EventSample, mined: Mined) -> Mined:
    """Improve a sequence: make the best change of one step, as long as the score of its chains (bound rows) grows."""
    best = mined
    for _ in range(_CHANGES_MAX):
        chains = sample.chain(best.steps, best.window_ms)  # a stricter last step only filters these
        changed = max(
            (Mined(steps, best.window_ms, sample.score(_narrowed(sample, (best, chains), steps)))
             for steps in _neighbours(sample, best.steps)),
            key=lambda each: each.score, default=best,
        )  # fmt: skip
        if changed.score <= best.score * 1.001:  # not worth another round
            break
        best = changed
    return best


def _simplify(sample: EventSample, mined: Mined) -> Mined:
    """Simplify a sequence: leave out each condition, link (bond of a step to the one before) and step without which it
    scores nearly as well on the sample of labelled events."""
    score_min = mined.score * _NEARLY_EQUAL
    while True:
        simpler = max(
            (Mined(steps, mined.window_ms, sample.score(sample.chain(steps, mined.window_ms)))
             for steps in _simpler(sample, mined.steps)),
            key=lambda each: each.score, default=mined,
        )  # fmt: skip
        if simpler is mined or simpler.score < score_min:
            return mined
        mined = simpler


def _simpler(sample: EventSample, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequences with one step (not the last), condition or link less. A step has the numbers of its
    conditions, and negative ones for links to the step before. If its only condition goes, its event type stays."""
    type_numbers = {each.event_type: number for number, each in enumerate(sample.conditions) if not each.field}
    for index, step in enumerate(steps):
        if index + 1 < len(steps):  # the next step loses its links, which tie it to the removed step
            following = tuple(number for number in steps[index + 1] if number >= 0)
            yield (*steps[:index], following, *steps[index + 2 :])
        for removed in step:
            remaining = tuple(number for number in step if number != removed)
            if removed >= 0 and all(number < 0 for number in remaining):
                type_alone = type_numbers.get(sample.conditions[removed].event_type)
                if type_alone is None or type_alone == removed:  # nothing is left to lose
                    continue
                remaining = tuple(sorted((*remaining, type_alone)))
            yield (*steps[:index], remaining, *steps[index + 1 :])


def _narrowed(sample: EventSample, wide_and_chains: tuple[Mined, Chains], steps: tuple[Step, ...]) -> Chains:
    """Return the chains of a sequence. Filters the wide one's chains if only the last step is stricter."""
    wide, chains = wide_and_chains
    more = {*steps[-1]} - {*wide.steps[-1]}
    if steps[:-1] != wide.steps[:-1] or {*wide.steps[-1]} - {*steps[-1]} or any(number < 0 for number in more):
        return sample.chain(steps, wide.window_ms)
    return chains[:, np.logical_and.reduce([sample.conditions[number].holds[chains[-1]] for number in more])]


def _neighbours(sample: EventSample, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequences with one condition or link more or less, or with another limit of the same field. A step has
    numbers: n for condition n, and ~n for link n, such as an equal value in the step before."""
    conditions = sample.conditions
    for place, step in enumerate(steps):
        numbers = [number for number in step if number >= 0]
        changes: list[Step] = [
            tuple(number for number in step if number != removed) for removed in step if removed < 0 or len(numbers) > 1
        ]  # fmt: skip
        if place and len(step) == len(numbers):  # a step before, and no link yet
            changes += [(*step, ~number) for number in range(len(sample.links))]
        for number, condition in enumerate(conditions):
            if number in step or (condition.past_ms and place + 1 < len(steps)):  # only the last step reads the past
                continue
            if len(numbers) < _STEP_CONDITIONS_MAX:
                changes.append((*step, number))
            changes += [
                (*(other for other in step if other != replaced), number)
                for replaced in numbers
                if (conditions[replaced].field, conditions[replaced].op) == (condition.field, condition.op)
            ]
        for change in dict.fromkeys(tuple(sorted(each)) for each in changes):
            if _go_together(conditions, change):
                yield (*steps[:place], change, *steps[place + 1 :])

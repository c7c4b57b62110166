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

from cep.analysis.atoms import Atom
from cep.kernels.chains import count_chains, fill_frauds, latest_before, prepended_rows
from cep.kernels.records import MinedEvents

Step = tuple[int, ...]  # numbers of atoms that all hold; ~n is link n, to the step before
Rows = NDArray[np.int64]
Chains = NDArray[np.int64]  # [steps, C]: the rows that each chain binds, by step: where it begins comes first
_Grown = tuple[float, tuple[Step, ...], Chains]  # with the score first
_NOTHING = np.empty(0, np.int32)
_BEAM = 25
_ENDS = 60  # last steps that a search begins with
# Precision counts twice as much as recall, because an alert costs an analyst's time. If events before the end may be
# the fraud, both count the same, so that an analyst can choose.
_BETA2 = {False: 0.25, True: 1.0}
_ROUNDS_MAX = 12
_ATOMS_IN_STEP = 3
_REFINED = 4  # sequences of a length that are changed, each with another first step.
_NEARLY_EQUAL = 0.99  # of the score, without a condition that has no effect
_LONGER = 1.02  # A longer sequence has to be so many times as good.
_ABSENT_MAX = 20  # conditions that may be asked to be absent between two steps
_SOON_MS = 86_400_000  # A fraud counts as found if the chain ends less than this later.


@dataclass(frozen=True, slots=True)
class Link:
    """A bond to the step before: an equal value of the field `same`, no event that meets `absent` between them, or an
    amount in the field `near` that is equal or up to a tenth less."""

    same: str = ""
    absent: int = -1
    near: str = ""


@dataclass(frozen=True, slots=True)
class Mined:
    """Steps in order, within a time, and their quality on the mined events."""

    steps: tuple[Step, ...]
    window_ms: int
    score: float


@dataclass(slots=True)
class Ground:
    """The N mined events, by key and time, and their atoms.

    Shapes: key_start int64[N] is the first row of the event's key; time_ms int64[N]; fraud int64[N], -1 for none;
    may_be_fraud bool[N] are the events of a type that frauds have; weight float64[N] is the number of events that a row
    represents. `open_frauds` bool[F] are still to be found; with `by_any` by any row of a chain, otherwise by its end.
    `same` numbers the pairs of key and value of a field, int64[N], -1 without a value. `near` has the values of fields
    of amounts, float64[N], NaN without a value.
    """

    key_start: NDArray[np.int64]
    time_ms: NDArray[np.int64]
    fraud: NDArray[np.int64]
    may_be_fraud: NDArray[np.bool_]
    weight: NDArray[np.float64]
    atoms: Sequence[Atom]
    open_frauds: NDArray[np.bool_]
    same: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    near: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    by_any: bool = True
    _before: dict[tuple[Step, str], NDArray[np.int32]] = field(default_factory=dict)
    _orders: dict[str, tuple[Rows, Rows]] = field(default_factory=dict)
    _events: MinedEvents = field(init=False)

    def __post_init__(self) -> None:
        """List the links that a search may take, and sort the rows by each field that is compared.

        `_orders` has the sorted rows and, for each place in them, the place where its value begins: past the end
        without a value. For the field "" it has all rows in order, and where their keys begin.
        """
        self._events = MinedEvents(self.time_ms, self.fraud, self.may_be_fraud, self.weight)
        self._orders[""] = np.arange(len(self.time_ms)), self.key_start
        for name, group in self.same.items():
            order = np.argsort(group, kind="stable")
            begin = np.searchsorted(group[order], group[order])
            self._orders[name] = order, np.where(group[order] >= 0, begin, len(group))
        plain = [number for number, atom in enumerate(self.atoms) if not atom.past_ms and atom.op in ("", "==")]
        self.links = [Link(same=name) for name in self.same] + [Link(near=name) for name in self.near]
        self.links += [Link(absent=number) for number in plain[:_ABSENT_MAX]]

    def holds(self, step: Step) -> NDArray[np.bool_]:
        """bool[N]: the events that meet all conditions of a step."""
        mask: NDArray[np.bool_] = np.logical_and.reduce([self.atoms[number].holds for number in step if number >= 0])
        return mask

    def before(self, step: Step, same: str = "") -> NDArray[np.int32]:
        """Find for each event the latest earlier event of its key that meets the step: its row, -1 for none. With
        `same` only earlier events with an equal value of that field count."""
        conditions = tuple(number for number in step if number >= 0)
        earlier = self._before.get((conditions, same))
        if earlier is None:
            earlier = np.empty(len(self.time_ms), np.int32)
            latest_before(self.holds(conditions), *self._orders[same], earlier)
            if len(conditions) == 1:  # of steps with more conditions there are too many to be remembered
                self._before[conditions, same] = earlier
        return earlier

    def chain(self, steps: Sequence[Step], window_ms: int) -> Chains:
        """Return the chains of a sequence, by the row at which they end."""
        chains: Chains = np.flatnonzero(self.holds(steps[-1]))[None, :]
        for step, later in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
            chains = self.prepended(step, later, chains, window_ms)
        return chains

    def prepended(self, step: Step, later: Step, chains: Chains, window_ms: int) -> Chains:
        """Put a step in front of each chain: the latest event that meets it, in the window and with the links of
        `later`, the first step of the chains. Return the chains that have one."""
        links = [self.links[~number] for number in later if number < 0]
        earlier = self.before(step, next((link.same for link in links if link.same), ""))
        absent = [self.before((link.absent,)) for link in links if link.absent >= 0]
        latest_absent = np.maximum.reduce(absent) if len(absent) > 1 else absent[0] if absent else _NOTHING
        longer: Chains = prepended_rows(chains, earlier, latest_absent, self.time_ms, window_ms)
        for values in (self.near[link.near] for link in links if link.near):
            earlier_values, later_values = values[longer[0]], values[longer[1]]
            longer = longer[:, (later_values <= earlier_values) & (10 * later_values >= 9 * earlier_values)]
        return longer

    def frauds_of(self, chains: Chains) -> NDArray[np.int64]:
        """int64[steps, C]: the number of the fraud that each chain finds by each of its rows, -1 for none."""
        frauds = np.empty_like(chains)
        fill_frauds(chains, self._events, self.by_any, _SOON_MS, frauds)
        return frauds

    def score(self, chains: Chains) -> float:
        """Return F0.5 of a sequence with these chains, over the frauds that are still open; or F1 with `by_any`."""
        hits, right, wrong = count_chains(chains, self._events, self.by_any, _SOON_MS, self.open_frauds)
        if not hits:
            return 0.0
        precision, recall = right / (right + wrong), hits / int(self.open_frauds.sum())
        beta2 = _BETA2[self.by_any]
        return (1 + beta2) * precision * recall / (beta2 * precision + recall)


def mine(
    ground: Ground, windows_ms: Sequence[int], steps_max: int, count: int,
    report: Callable[[int, int], None] = lambda *_: None,
) -> list[Mined]:  # fmt: skip
    """Search sequences of steps among the events of `ground` that end with a fraud, then sequences with a fraud at any
    step: at most `count` in all, without repeats.

    `report(count, total)` is called with the number of sequences that have been searched.
    """
    to_find = ground.open_frauds
    by_any_values = (False, True) if steps_max > 1 else (True,)  # a sequence of one step ends at its only step
    mined: dict[tuple[tuple[Step, ...], int], Mined] = {}
    count_per_search = -(-count // len(by_any_values))
    for search_number, by_any in enumerate(by_any_values):
        ground.by_any, ground.open_frauds = by_any, to_find.copy()
        for number, each in enumerate(_mined(ground, windows_ms, steps_max, count_per_search)):
            mined.setdefault((each.steps, each.window_ms), each)
            report(search_number * count_per_search + number + 1, len(by_any_values) * count_per_search)
        report((search_number + 1) * count_per_search, len(by_any_values) * count_per_search)
    return list(mined.values())


def _mined(ground: Ground, windows_ms: Sequence[int], steps_max: int, count: int) -> Iterator[Mined]:
    """Yield at most `count` sequences. Each finds frauds that the sequences before it do not find."""
    for _ in range(count):
        if not ground.open_frauds.any():
            return
        best = Mined((), 0, 0.0)
        for candidate in _candidates(ground, windows_ms, steps_max):
            refined = _refined(ground, candidate)
            if refined.score > best.score * (_LONGER if len(refined.steps) > len(best.steps) else 1.0):
                best = refined
        if best.score <= 0:
            return
        best = _simplified(ground, best)
        fraud = ground.frauds_of(ground.chain(best.steps, best.window_ms))
        hits = fraud[fraud >= 0]
        if not ground.open_frauds[hits].any():
            return
        ground.open_frauds[hits] = False
        yield best


def _candidates(ground: Ground, windows_ms: Sequence[int], steps_max: int) -> Iterator[Mined]:
    """Yield the best sequences of each length over all windows, the shortest first, to be refined: several of each,
    because the best one after a change need not be the best before.

    The first search is without conditions on the past, the second one with them.
    """
    timeless_atoms = [number for number, atom in enumerate(ground.atoms) if not atom.past_ms]
    for numbers in (timeless_atoms, list(range(len(ground.atoms)))):
        single_steps = ((step, ground.chain((step,), 0)) for step in _last_steps(ground, numbers))
        last = _widest([(ground.score(chains), (step,), chains) for step, chains in single_steps], _ENDS)
        by_window = [_by_length(ground, window, steps_max, last) for window in windows_ms]
        for index in range(max(len(each) for each in by_window)):
            same_length = [
                each for window_results in by_window if len(window_results) > index for each in window_results[index]
            ]
            first_steps: dict[Step, Mined] = {}
            for each in sorted(same_length, key=lambda each: -each.score):
                first_steps.setdefault(each.steps[0], each)
            yield from list(first_steps.values())[:_REFINED]


def _by_length(ground: Ground, window_ms: int, steps_max: int, beam: list[_Grown]) -> list[list[Mined]]:
    """Grow sequences backwards by beam search from these last steps. Return the best sequences of each length."""
    if not beam:
        return []
    best = [[Mined(steps, window_ms, score) for score, steps, _ in beam]]
    for _ in range(steps_max - 1):
        longer: list[_Grown] = []
        for _, steps, chains in beam:
            for number, links in _earlier_steps(ground):
                first = (*steps[0], *links)
                longer_chains = ground.prepended((number,), first, chains, window_ms)
                value = ground.score(longer_chains)
                if value > 0:
                    longer.append((value, ((number,), first, *steps[1:]), longer_chains))
        beam = _widest(longer, _BEAM)
        if not beam:
            break
        best.append([Mined(steps, window_ms, score) for score, steps, _ in beam])
        best[-1] += [
            Mined(steps, window_ms, ground.score(ground.chain(steps, window_ms)))
            for _, plain_steps, _ in beam for steps in _with_absence(ground, plain_steps)
        ]  # fmt: skip
    return best


def _with_absence(ground: Ground, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequence with one thing more that must not be between its first two steps."""
    for number, link in enumerate(ground.links):
        if link.absent >= 0:
            yield (steps[0], (*steps[1], ~number), *steps[2:])


def _earlier_steps(ground: Ground) -> Iterator[tuple[int, Step]]:
    """Yield each condition that a step may begin with, alone, and the broad ones bound by equal values, too."""
    same = [~number for number, link in enumerate(ground.links) if link.same or link.near]
    for number, atom in enumerate(ground.atoms):
        if not atom.past_ms:
            yield number, ()
            if atom.op in ("", "=="):
                yield from ((number, (link,)) for link in same)


def _widest(beam: list[_Grown], size: int) -> list[_Grown]:
    return sorted(beam, key=lambda each: (-each[0], each[1]))[:size]


def _last_steps(ground: Ground, numbers: Sequence[int]) -> Iterator[Step]:
    """Yield single conditions, then pairs of the best of them."""
    singles = sorted(numbers, key=lambda number: (-ground.score(ground.chain(((number,),), 0)), number))
    yield from ((number,) for number in singles)
    few = singles[:_BEAM]
    for first in few:
        for second in few:
            if first < second and _go_together(ground.atoms, (first, second)):
                yield (first, second)


def _go_together(atoms: Sequence[Atom], step: Step) -> bool:
    """Return True for conditions on the same event type, each about another side of a field."""
    step_atoms = [atoms[number] for number in step if number >= 0]
    sides = {(atom.field, atom.op) for atom in step_atoms}
    is_one_type = len({atom.event_type for atom in step_atoms}) == 1
    return (
        is_one_type
        and len(sides) == len(step_atoms)
        and (len(step_atoms) == 1 or all(atom.field for atom in step_atoms))
    )


def _refined(ground: Ground, mined: Mined) -> Mined:
    """Improve a sequence: change one condition of one step at a time, as long as the score grows."""
    best = mined
    for _ in range(_ROUNDS_MAX):
        chains = ground.chain(best.steps, best.window_ms)
        changed = max(
            (Mined(steps, best.window_ms, ground.score(_narrowed(ground, (best, chains), steps)))
             for steps in _neighbours(ground, best.steps)),
            key=lambda each: each.score, default=best,
        )  # fmt: skip
        if changed.score <= best.score * 1.001:
            break
        best = changed
    return best


def _simplified(ground: Ground, mined: Mined) -> Mined:
    """Simplify a sequence: leave out each condition, link and step without which it is nearly as good."""
    score_min = mined.score * _NEARLY_EQUAL
    while True:
        simpler = max(
            (Mined(steps, mined.window_ms, ground.score(ground.chain(steps, mined.window_ms)))
             for steps in _simpler(ground, mined.steps)),
            key=lambda each: each.score, default=mined,
        )  # fmt: skip
        if simpler is mined or simpler.score < score_min:
            return mined
        mined = simpler


def _simpler(ground: Ground, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequences with one step, condition or link less. A step without conditions only asks for its type."""
    type_atoms = {atom.event_type: number for number, atom in enumerate(ground.atoms) if not atom.field}
    for place, step in enumerate(steps):
        if place + 1 < len(steps):  # a link is a bond to the step before, which another step would become
            following = tuple(number for number in steps[place + 1] if number >= 0)
            yield (*steps[:place], following, *steps[place + 2 :])
        for removed in step:
            remaining = tuple(number for number in step if number != removed)
            if removed >= 0 and all(number < 0 for number in remaining):
                type_alone = type_atoms.get(ground.atoms[removed].event_type)
                if type_alone is None or type_alone == removed:
                    continue
                remaining = tuple(sorted((*remaining, type_alone)))
            yield (*steps[:place], remaining, *steps[place + 1 :])


def _narrowed(ground: Ground, wide_and_chains: tuple[Mined, Chains], steps: tuple[Step, ...]) -> Chains:
    """Return the chains of a sequence. Filters the wide one's chains if only the last step is stricter."""
    wide, chains = wide_and_chains
    more = {*steps[-1]} - {*wide.steps[-1]}
    if steps[:-1] != wide.steps[:-1] or {*wide.steps[-1]} - {*steps[-1]} or any(number < 0 for number in more):
        return ground.chain(steps, wide.window_ms)
    return chains[:, np.logical_and.reduce([ground.atoms[number].holds[chains[-1]] for number in more])]


def _neighbours(ground: Ground, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequences with one condition or link more or less, or with another limit of the same field."""
    atoms = ground.atoms
    for place, step in enumerate(steps):
        conditions = [number for number in step if number >= 0]
        changes: list[Step] = [
            tuple(number for number in step if number != out) for out in step if out < 0 or len(conditions) > 1
        ]  # fmt: skip
        if place and len(step) == len(conditions):
            changes += [(*step, ~number) for number in range(len(ground.links))]
        for number, atom in enumerate(atoms):
            if number in step or (atom.past_ms and place + 1 < len(steps)):
                continue
            if len(conditions) < _ATOMS_IN_STEP:
                changes.append((*step, number))
            changes += [
                (*(other for other in step if other != out), number)
                for out in conditions
                if (atoms[out].field, atoms[out].op) == (atom.field, atom.op)
            ]
        for change in dict.fromkeys(tuple(sorted(each)) for each in changes):
            if _go_together(atoms, change):
                yield (*steps[:place], change, *steps[place + 1 :])

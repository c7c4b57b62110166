"""Events of keys in their order, and which are of frauds → sequences of conditions that frauds have and others lack.

A sequence is grown backwards: first what the last event of a fraud is like, then what came before it on its key. At
each length the best few are kept (a beam), as in CN2 (Clark and Niblett 1989). Then conditions are added to the steps,
or exchanged for others on the same field, as long as the sequence gets better. The frauds that it finds are done with,
and the search begins anew for the others.

    rows of one key   … a … a … b …     chain (a -> b), ends at b
                              └ the latest a before b: it leaves the most room for what comes before

Tested by: tests/analysis/test_suggest.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cep.analysis.atoms import Atom

Step = tuple[int, ...]  # numbers of atoms that all hold
# The score of a sequence, its steps, the rows at which it ends, and those at which it begins.
_Grown = tuple[float, tuple[Step, ...], NDArray[np.int64], NDArray[np.int64]]
_BEAM = 25
_ENDS = 60  # last steps that a search begins with
_BETA2 = 0.25  # precision counts twice as much as recall: an alert costs somebody's time
_ROUNDS_MAX = 12
_ATOMS_IN_STEP = 3


@dataclass(frozen=True, slots=True)
class Mined:
    """Steps in their order, within a time, and how good it is on what it was mined from."""

    steps: tuple[Step, ...]
    window_ms: int
    score: float


@dataclass(slots=True)
class Ground:
    """The events N that are mined, by key and time, and their atoms.

    Shapes: key_start int64[N] is the first row of the event's key; time_ms int64[N]; fraud int64[N], -1 for none;
    weight float64[N] says for how many events a row stands. `open_frauds` bool[F] are those still to be found.
    """

    key_start: NDArray[np.int64]
    time_ms: NDArray[np.int64]
    fraud: NDArray[np.int64]
    weight: NDArray[np.float64]
    atoms: Sequence[Atom]
    open_frauds: NDArray[np.bool_]
    _before: dict[Step, NDArray[np.int64]] = field(default_factory=dict)

    def holds(self, step: Step) -> NDArray[np.bool_]:
        """bool[N]: the events that meet all conditions of a step."""
        mask: NDArray[np.bool_] = np.logical_and.reduce([self.atoms[at].holds for at in step])
        return mask

    def before(self, step: Step) -> NDArray[np.int64]:
        """int64[N]: the row of the latest earlier event of the key that meets the step, -1 for none."""
        earlier = self._before.get(step)
        if earlier is None:
            rows = np.where(self.holds(step), np.arange(len(self.time_ms)), -1)
            latest = np.concatenate([[-1], np.maximum.accumulate(rows)[:-1]])
            earlier = np.where(latest >= self.key_start, latest, -1)
            if len(step) == 1:  # of steps with more conditions there are too many to be remembered
                self._before[step] = earlier
        return earlier

    def chain(self, steps: Sequence[Step], window_ms: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows at which the sequence ends, and those at which it began."""
        ends = np.flatnonzero(self.holds(steps[-1]))
        starts = ends
        for step in reversed(steps[:-1]):
            ends, starts = self.prepended(step, ends, starts, window_ms)
        return ends, starts

    def prepended(
        self, step: Step, ends: NDArray[np.int64], starts: NDArray[np.int64], window_ms: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ends that have the step before their starts, within the window, and where it was."""
        earlier = self.before(step)[starts]
        inside = earlier >= 0
        inside[inside] = self.time_ms[ends[inside]] - self.time_ms[earlier[inside]] < window_ms
        return ends[inside], earlier[inside]

    def score(self, ends: NDArray[np.int64]) -> float:
        """Return F0.5 of a sequence with these ends, over the frauds that are still open."""
        fraud = self.fraud[ends]
        hits = fraud[fraud >= 0]
        hits = hits[self.open_frauds[hits]]
        if not len(hits):
            return 0.0
        wrong = float(self.weight[ends[fraud < 0]].sum())
        precision = len(hits) / (len(hits) + wrong)
        recall = len(np.unique(hits)) / max(1, int(self.open_frauds.sum()))
        return (1 + _BETA2) * precision * recall / (_BETA2 * precision + recall)


def mine(ground: Ground, windows_ms: Sequence[int], steps_max: int, count: int) -> list[Mined]:
    """Return at most so many sequences, each for frauds that those before it do not find."""
    mined: list[Mined] = []
    while len(mined) < count and ground.open_frauds.any():
        best = max((_best(ground, window, steps_max) for window in windows_ms), key=lambda each: each.score)
        best = _refined(ground, best)
        ends, _ = ground.chain(best.steps, best.window_ms)
        hits = ground.fraud[ends][ground.fraud[ends] >= 0]
        if best.score <= 0 or not ground.open_frauds[hits].any():
            break
        mined.append(best)
        ground.open_frauds[hits] = False
    return mined


def _best(ground: Ground, window_ms: int, steps_max: int) -> Mined:
    """Return the best sequence of a beam search. A longer one has to be better to be taken."""
    beam: list[_Grown] = []
    for step in _last_steps(ground):
        ends = np.flatnonzero(ground.holds(step))
        beam.append((ground.score(ends), (step,), ends, ends))
    beam = _widest(beam, _ENDS)
    best = beam[0]
    for _ in range(steps_max - 1):
        longer: list[_Grown] = []
        for _, steps, ends, starts in beam:
            for number in range(len(ground.atoms)):
                later, earlier = ground.prepended((number,), ends, starts, window_ms)
                value = ground.score(later)
                if value > 0:
                    longer.append((value, ((number,), *steps), later, earlier))
        beam = _widest(longer, _BEAM)
        if not beam:
            break
        if beam[0][0] > best[0] * 1.02:
            best = beam[0]
    return Mined(best[1], window_ms, best[0])


def _widest(beam: list[_Grown], size: int) -> list[_Grown]:
    return sorted(beam, key=lambda each: (-each[0], each[1]))[:size]


def _last_steps(ground: Ground) -> Iterator[Step]:
    """Yield single conditions, then pairs of the best of them."""
    singles = sorted(
        range(len(ground.atoms)), key=lambda at: (-ground.score(np.flatnonzero(ground.atoms[at].holds)), at)
    )
    yield from ((at,) for at in singles)
    few = singles[:_BEAM]
    for first in few:
        for second in few:
            if first < second and _go_together(ground.atoms, (first, second)):
                yield (first, second)


def _go_together(atoms: Sequence[Atom], step: Step) -> bool:
    """Return True for conditions on the same event type, each about another side of a field."""
    sides = {(atoms[at].field, atoms[at].op) for at in step}
    is_one_type = len({atoms[at].event_type for at in step}) == 1
    return is_one_type and len(sides) == len(step) and (len(step) == 1 or all(atoms[at].field for at in step))


def _refined(ground: Ground, given: Mined) -> Mined:
    """Change one condition of one step at a time, as long as the score grows."""
    best = given
    for _ in range(_ROUNDS_MAX):
        changed = max(
            (Mined(steps, best.window_ms, ground.score(ground.chain(steps, best.window_ms)[0]))
             for steps in _neighbours(ground.atoms, best.steps)),
            key=lambda each: each.score, default=best,
        )  # fmt: skip
        if changed.score <= best.score * 1.001:
            break
        best = changed
    return best


def _neighbours(atoms: Sequence[Atom], steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the sequences with one condition more, one less, or another one of the same field."""
    for place, step in enumerate(steps):
        changes: list[Step] = [tuple(at for at in step if at != out) for out in step if len(step) > 1]
        for number, atom in enumerate(atoms):
            if number in step:
                continue
            if len(step) < _ATOMS_IN_STEP:
                changes.append(tuple(sorted((*step, number))))
            changes += [
                tuple(sorted((*(other for other in step if other != out), number)))
                for out in step
                if (atoms[out].field, atoms[out].op) == (atom.field, atom.op)
            ]
        for change in dict.fromkeys(changes):
            if _go_together(atoms, change):
                yield (*steps[:place], change, *steps[place + 1 :])

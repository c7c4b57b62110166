"""The arrays that the matcher fills, enlarged when they are full; and counts of numbers that exceeded 64 bits.

Tested by: tests/engine/test_advance.py, tests/engine/test_overflows.py.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cep.columnar.texts import table_key
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.kernels.records import RuleScratch, RunOutput, Work
from cep.lang.walk import histories
from cep.nfa.columns import identity_of
from cep.nfa.program import Program

_WORK_ROWS = 256
_ROOM_MIN, _ROOM_MAX = 1_024, 1 << 20
# Runs and nodes that an event may add before the arrays are enlarged. Memory that is never written costs nothing.
_ROWS_PER_EVENT = 4


class Outputs:
    """Growing output arrays, shared by the rules of one call."""

    def __init__(
        self, program: Program, present_runs: Int64, nodes_before: Int64, events_count: int, keys_count: int = 0
    ) -> None:
        """Allocate the arrays of a call: room for the open runs and new ones, and a copy of the nodes (bound events).

        Shapes: present_runs int64[n, width], nodes_before int64[m, NODE_WIDTH]. `enlarge` doubles a full array."""
        width = program.width
        room = min(max(_ROOM_MIN, _ROWS_PER_EVENT * events_count), _ROOM_MAX)
        nodes = np.empty((len(nodes_before) + room, y.NODE_WIDTH), np.int64)
        nodes[: len(nodes_before)] = nodes_before
        self.work = Work(
            runs=np.empty((_WORK_ROWS, width), np.int64),
            nodes=nodes,
            matches=np.empty((_ROOM_MIN, y.MATCH_HEADER + program.measures_max), np.int64),
            registers=np.zeros(2 * program.machine_size, np.int64),  # a value and a null flag each
            counters=np.zeros(y.COUNTERS, np.int64),
            table_key=table_key(),  # a secret for hashes
        )
        self.scratch = RuleScratch(
            queue=np.empty(events_count, np.int32),  # rows of the events that a rule may react to
            stream_count=np.empty(keys_count, np.int32),  # events of each key so far, for rules that count positions
            picked=np.empty(_WORK_ROWS, np.int64),  # rows of work.runs
            stack=np.empty((_WORK_ROWS, 3), np.int64),
            counters_before=np.empty(y.COUNTERS, np.int64),
            marks=np.empty(0, np.int64),  # a flag of each node, for keys with many nodes only
        )
        runs_max = len(present_runs) + room
        cursor = np.zeros(y.CURSOR_WIDTH, np.int64)  # where the matcher goes on, and the number of rows in use
        cursor[y.CURSOR_NODES] = cursor[y.CURSOR_OLD_NODES] = len(nodes_before)
        self.runs = RunOutput(
            runs=np.empty((runs_max, width), np.int64),
            keys=np.empty(runs_max, np.int32),
            rules=np.empty(runs_max, np.int32),
            counters=np.zeros((y.COUNTERS, len(program.rules)), np.int64),
            cursor=cursor,
        )

    @property
    def matches(self) -> Int64:
        """The matches that have been written: int64[M, MATCH_HEADER + measures]."""
        return self.work.matches[: self.runs.cursor[y.CURSOR_MATCHES]]

    def enlarge(self, full: int) -> None:
        """Double the array that is full (`full` is a FULL_ code), so that the matcher can go on where it stopped."""
        work, runs, cursor = self.work, self.runs, self.runs.cursor
        if full == y.FULL_RUNS:  # the runs of one key: the matcher begins the key again, so nothing is copied
            rows_count = 2 * len(work.runs)
            self.work = work._replace(runs=np.empty((rows_count, work.runs.shape[1]), np.int64))
            self.scratch = self.scratch._replace(picked=np.empty(rows_count, np.int64))
        elif full == y.FULL_NODES:
            self.work = work._replace(nodes=_doubled(work.nodes, cursor[y.CURSOR_NODES]))
        elif full == y.FULL_STACK:  # scratch memory, not copied either
            self.scratch = self.scratch._replace(stack=np.empty((2 * len(self.scratch.stack), 3), np.int64))
        elif full == y.FULL_MARKS:  # a flag for each node: there are more nodes now
            self.scratch = self.scratch._replace(marks=np.zeros(len(work.nodes), np.int64))
        elif full == y.FULL_MATCHES:
            self.work = work._replace(matches=_doubled(work.matches, cursor[y.CURSOR_MATCHES]))
        else:
            used = cursor[y.CURSOR_OUT]
            self.runs = runs._replace(
                runs=_doubled(runs.runs, used), keys=_doubled(runs.keys, used), rules=_doubled(runs.rules, used)
            )


def _doubled(array: np.ndarray, used: int) -> np.ndarray:
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


def cut(array: np.ndarray, count: int) -> np.ndarray:
    """Return the first rows of an array without other views, and free the rest of its memory."""
    array.resize((count, *array.shape[1:]), refcheck=False)
    return array


def count_by_rule(program: Program, name: str, counts: Int64, counters: Counter[str]) -> None:
    """Add counts to a counter of each rule and version. Shape: counts int64[R]."""
    for number in counts.nonzero()[0].tolist():
        deployed = program.rules[number].deployed
        counters[f"{name}[{deployed.rule_id}@{deployed.version}]"] += counts.item(number)


@dataclass(frozen=True, slots=True)
class Overflows:
    """Counts of the numbers that exceeded 64 bits before the matcher ran.

    Shapes: instructions int64[I] of the vector code, entries int64[E] of the index. `by_history`: by its identity."""

    instructions: Int64
    entries: Int64
    by_history: Mapping[str, int]


def count_overflows(program: Program, overflows: Overflows, of_runs: Int64, counters: Counter[str]) -> None:
    """Count overflows in total, and by rule and version. Shapes: of_runs int64[R], of the matcher by rule.

    An overflow in a condition or history (aggregate of past events) counts for each rule that uses it, so the sum over
    the rules may exceed the total."""
    arrays = overflows.instructions, overflows.entries, of_runs
    if not (any(map(np.count_nonzero, arrays)) or any(overflows.by_history.values())):  # almost always
        return
    counters["arithmetic_overflows"] += sum(int(each.sum()) for each in arrays) + sum(overflows.by_history.values())
    of_predicates = np.zeros(program.predicates.count, np.int64)
    of_derived = [0] * len(program.vector.derived_registers)  # derived columns: expressions of one event
    if overflows.instructions.any():  # in the code of conditions and of derived columns
        of_evaluated, of_derived = program.vector.sums_by_result(overflows.instructions)
        of_predicates[program.predicates.evaluated] += np.array(of_evaluated, np.int64)
    # An index entry finds a condition by one comparison. Only the rest of the condition is computed, and may overflow.
    np.add.at(of_predicates, program.predicates.entries[:, y.INDEX_PREDICATE], overflows.entries)
    counts = of_runs.copy()
    for number, rule in enumerate(program.rules):
        counts[number] += of_predicates[sorted(set(_predicates(program, number)))].sum()
        counts[number] += sum(of_derived[column - program.derived_first] for column in set(_derived(program, number)))
        if overflows.by_history:
            names = {identity_of(past) for past in histories(rule.deployed.pattern)}
            counts[number] += sum(overflows.by_history.get(name, 0) for name in names)
    count_by_rule(program, "rule_overflows", counts, counters)


def _predicates(program: Program, number: int) -> Iterator[int]:
    """Yield the predicates of a rule's waits and guards."""
    image = program.image
    for nfa_state in _states(program, number):
        for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
            guards = range(image[wait + y.W_GUARDS], image[wait + y.W_GUARDS_END], y.GUARD_WIDTH)
            for place in (wait + y.W_PREDICATE, *(guard + y.G_PREDICATE for guard in guards)):
                if image[place] >= 0:
                    yield int(image[place])


def _derived(program: Program, number: int) -> Iterator[int]:
    """Yield the derived columns that a rule's actions read."""
    image = program.image
    for nfa_state in _states(program, number):
        actions = range(image[nfa_state + y.S_ACTIONS], image[nfa_state + y.S_ACTIONS_END], y.ACTION_WIDTH)
        for action in actions:
            is_count = image[action + y.A_KIND] in (y.ACT_COUNT, y.ACT_LAST, y.ACT_FIRST, y.ACT_PREVIOUS)
            if not is_count and image[action + y.A_COLUMN] >= program.derived_first:
                yield int(image[action + y.A_COLUMN])


def _states(program: Program, number: int) -> range:
    row, first = program.rules[number].row, int(program.image[y.HEADER_STATES])
    start, end = (first + int(row[word]) * y.STATE_WIDTH for word in (y.R_START_STATE, y.R_END_STATE))
    return range(start, end, y.STATE_WIDTH)

"""The compiled form of all rules of one key domain: immutable arrays, and the names of their numbers.

NFA states are numbered rule by rule, so a stored run (rule, its own NFA state, its registers) has a place in any
program that still has the rule.
Tested by: tests/nfa/test_compile.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

from cep.base.schema import Schema, field_values
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.records import Program as Tables
from cep.lists.store import Lists
from cep.nfa.code import VectorProgram
from cep.nfa.columns import Column
from cep.nfa.deployed import DeployedRule, RuleIdentity
from cep.nfa.histories import HistoryPlan
from cep.nfa.piece import Piece, RuleFacts
from cep.nfa.predicates import PredicatePlan
from cep.nfa.prefixes import Place, SharedStart


@dataclass(frozen=True, slots=True, eq=False)
class RuleProgram(RuleFacts):
    """One rule in a program, and its facts. `row` is its row for kernels (layout.RULE_WIDTH words).

    It is equal only to itself (`eq=False`), so it can be the key of a cache although it has an array.
    """

    deployed: DeployedRule
    row: Int64

    @property
    def identity(self) -> RuleIdentity:
        return self.deployed.identity

    @property
    def first_state(self) -> int:
        return int(self.row[y.R_START_STATE])

    @property
    def states_count(self) -> int:
        return int(self.row[y.R_END_STATE] - self.row[y.R_START_STATE])


class RulePrograms(Sequence[RuleProgram]):
    """The rules of a program, created on demand, because few of thousands of rules react to a micro-batch."""

    def __init__(self, rules: Sequence[DeployedRule], pieces: Sequence[Piece], rows: Int64) -> None:
        """Shapes: rows int64[rules, RULE_WIDTH], a row of numbers for each rule, which kernels read."""
        self._rules, self._pieces, self.rows = tuple(rules), pieces, rows
        self._created: dict[int, RuleProgram] = {}

    @cached_property
    def numbers_by_identity(self) -> dict[RuleIdentity, int]:
        """The number of each rule by its identity in this build, and by its identity in builds before 0.3."""
        return {identity: rule_number for rule_number, rule in enumerate(self._rules) for identity in rule.identities}

    def __len__(self) -> int:
        return len(self._rules)

    @overload
    def __getitem__(self, number: int) -> RuleProgram: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[RuleProgram]: ...
    def __getitem__(self, number: int | slice) -> RuleProgram | Sequence[RuleProgram]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        if number < 0 or number >= len(self):
            raise IndexError(f"rule {number} of {len(self)}")
        if number not in self._created:
            values = (*field_values(self._pieces[number].facts), self._rules[number], self.rows[number])
            self._created[number] = RuleProgram(*values)
        return self._created[number]


@dataclass(frozen=True)
class Program:
    """The rules of one key domain. `image` is the compiled form (kernels/layout.py); `width` is the width of a run row.

    `places` are (identity, first NFA state, number of states) of each rule, followed by each prefix that rules share
    (`shared`), which follows the rules in keyed state; `row_registers` has a row for each of both. The first columns
    are layout.COLUMNS_FIXED. Rule n reacts to the predicates relevance[relevance_first[n] : relevance_first[n + 1]],
    without the predicates of a shared prefix; -1 is all events. prefixes[prefix_first[n] : prefix_first[n + 1]] is its
    longest prefix, shared or not. `streams` uint8[streams, event types] mark the event types in which rules count
    positions. `handovers` are (event time, rule, rule that owns its runs from then on), by time. `compared` are the
    rules with a version in shadow, for which the cost of each version is counted. `lists` are its rules' present lists.
    """

    schema: Schema
    key_fields: tuple[str, ...]
    rules: RulePrograms
    places: tuple[Place, ...]
    columns: tuple[Column, ...]
    histories: HistoryPlan | None
    image: Int64
    vector: VectorProgram
    predicates: PredicatePlan
    relevance_first: Int32
    relevance: Int32
    prefix_first: Int64
    prefixes: Int32
    streams: UInt8
    text_constants: tuple[tuple[int, str], ...]
    start_runs: Int64
    row_registers: UInt8
    width: int
    machine_size: int
    measures_max: int
    shared: tuple[SharedStart, ...]
    fingerprint: str
    handovers: tuple[tuple[int, int, int], ...] = ()
    compared: tuple[int, ...] = ()
    lists: Lists = field(default_factory=dict)

    @property
    def columns_read(self) -> tuple[str, ...]:
        """Return the columns of an EventBatch that matching reads."""
        read = [c.name for c in self.columns[y.COLUMNS_FIXED :] if c.is_field]
        past = [] if self.histories is None else [c.name for c in self.histories.stored_columns if c.is_field]
        return tuple(dict.fromkeys((*read, *past)))

    def column(self, name: str) -> int:
        """Return the number of a column, -1 if the program does not have it."""
        return self._numbers.get(name, -1)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {column.name: number for number, column in enumerate(self.columns)}

    @cached_property
    def fields(self) -> tuple[tuple[int, Column], ...]:
        """The columns that are unchanged fields of the events, with their numbers."""
        first = y.COLUMNS_FIXED
        return tuple((number, c) for number, c in enumerate(self.columns[first:], start=first) if c.is_field)

    @cached_property
    def retained(self) -> tuple[tuple[int, Column], ...]:
        """The columns that are stored with bound events, with their numbers."""
        return tuple((number, column) for number, column in enumerate(self.columns) if column.retained)

    @cached_property
    def retained_texts(self) -> tuple[int, ...]:
        return tuple(number for number, column in self.retained if column.type.is_text)

    @cached_property
    def emitted(self) -> tuple[tuple[int, Column], ...]:
        """The histories that are stored with bound events, with their numbers."""
        return tuple((number, column) for number, column in self.retained if column.is_stored_history)

    def prefix_of(self, rule: int) -> Int32:
        """Return the predicates of a rule's longest prefix (prefixes.py), in order."""
        return self.prefixes[self.prefix_first[rule] : self.prefix_first[rule + 1]]

    def first_wait(self, rule: int) -> int:
        """Return the offset in the image of the only wait of a rule's start state (prefixes.py)."""
        start = int(self.image[y.HEADER_STATES]) + self.rules[rule].first_state * y.STATE_WIDTH
        return int(self.image[start + y.S_WAITS])

    @cached_property
    def tables(self) -> Tables:
        """The program as kernels take it; created once, because a call from Python is cheaper then."""
        return Tables(self.image, self.rules.rows, self.relevance_first, self.relevance, self.streams, self.start_runs)

    @cached_property
    def is_plain(self) -> bool:
        """True if plain.py suffices for all rules (layout.R_PLAIN)."""
        return bool(self.rules.rows[:, y.R_PLAIN].all())

    @cached_property
    def derived_first(self) -> int:
        """The number of the first derived column; the number of columns if there is none."""
        return next((i for i, c in enumerate(self.columns) if c.derived), len(self.columns))

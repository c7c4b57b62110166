"""Stored pages → the keyed state of a job: its size by rule, the runs of one key in words, and the busiest keys.

The pages come from Spark's state store or from the embedded runner; one is in memory at a time. A page's bytes are
divided among its rules by their runs, because runs share bound events. Metrics count the losses to a limit by rule,
because metrics and logs may not name a key; this report names it.
Tested by: tests/report/test_report.py
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cep.base.limits import EVENT_TIME_MS_MAX, NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX
from cep.base.text import utc_text
from cep.columnar.decode import KeyDomain
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import migrate_state
from cep.kernels import layout as y  # positions in packed rows
from cep.kernels.layout import Int64
from cep.kernels.match.rules import STEP_BIT, STEP_TARGET
from cep.nfa.prefixes import shares
from cep.nfa.program import Program, RuleProgram
from cep.state.past import StoredPage, decode_page

SHARED = "(what rules share that begin alike)"


@dataclass(frozen=True, slots=True)
class RuleShare:
    """The part of a job's keyed state that belongs to one version of a rule, `size` in bytes. With `SHARED` as its id
    it belongs to several rules, and `runs` are the events that begin a run."""

    rule_id: str
    version: int
    domain: KeyDomain
    runs: int
    keys: int
    size: int


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Counts of a job's runs. `key_groups` are the groups with runs; `size` is bytes, `largest` is of one page."""

    pages: int
    key_groups: int
    keys: int
    runs: int
    size: int
    largest: int
    rules: tuple[RuleShare, ...]


@dataclass(frozen=True, slots=True)
class BoundEvent:
    """An event that a run has taken, and the variable."""

    variable: str
    event_id: str
    event_type: str
    time: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One partial match in words. `waits_for` are variables; `expires` is a time, or None for a run without a bound."""

    rule_id: str
    version: int
    domain: KeyDomain
    bound: tuple[BoundEvent, ...]
    waits_for: tuple[str, ...]
    expires: str | None


def count_runs(pages: Iterable[StoredPage]) -> RunTotals:
    """Count the runs of all pages (stored runs of some keys), in total and by rule or `SHARED`. Raises: StateError."""
    counts: Counter[tuple[KeyDomain, str, int, str]] = Counter()
    pages_count = keys = runs = size = largest = 0
    groups: set[int] = set()
    for page in pages:
        keyed_state = decode_page(page.content)  # some of its rows are not runs but notes of shared events
        pages_count, size = pages_count + 1, size + len(page.content)
        largest = max(largest, len(page.content))
        is_run = keyed_state.is_run
        keys, runs = keys + len(keyed_state.keys), runs + int(is_run.sum())
        groups.add(page.key_group)
        for number, (identity, _, _) in enumerate(keyed_state.layout.rules):
            is_of_rule = keyed_state.run_rule == number
            if not is_of_rule.any():
                continue
            rule_id, version = (SHARED, 0) if shares(identity) else identity[:2]  # 0: each rule has its version
            counts[page.domain, rule_id, version, "runs"] += int((is_of_rule & is_run).sum())
            counts[page.domain, rule_id, version, "keys"] += len(np.unique(keyed_state.run_key[is_of_rule]))
            counts[page.domain, rule_id, version, "size"] += round(len(page.content) * is_of_rule.mean())  # estimate
    ids = sorted({key[:3] for key in counts})  # (domain, rule id, version)
    rules = tuple(RuleShare(i[1], i[2], i[0], *(counts[*i, name] for name in ("runs", "keys", "size"))) for i in ids)
    return RunTotals(pages_count, len(groups), keys, runs, size, largest, rules)


def runs_of_key(
    pages: Iterable[StoredPage], key: str, programs: Sequence[Mapping[KeyDomain, Program]]
) -> Iterator[RunFacts]:
    """Yield the runs of one key in every domain (the fields of a key). Rules that begin alike share their start events.
    Such an event is stored once, and is yielded once instead of a run of each rule. `programs` are the compiled rules
    in force, by domain, for each level (rules of a later level read the events that earlier ones emit). Runs of removed
    rules are left out. Raises: StateError for an unreadable page."""
    for page in pages:  # a page has the stored state of a group of keys
        stored = decode_page(page.content)
        names = stored.keys.to_pylist()
        if key not in names:
            continue
        for program in (level[page.domain] for level in programs if page.domain in level):
            keyed_state, _ = migrate_state(stored, program)
            is_of_key = keyed_state.run_key == names.index(key)
            # A note only records that a rule has processed a shared start event.
            for run in np.flatnonzero(is_of_key & ~keyed_state.is_note).tolist():
                yield _facts(program, page.domain, keyed_state, run)


def _facts(program: Program, domain: KeyDomain, keyed_state: KeyedState, run: int) -> RunFacts:
    row = keyed_state.runs[run]
    expiry_ms = int(row[y.RUN_EXPIRY])
    expires = utc_text(expiry_ms) if 0 <= expiry_ms <= EVENT_TIME_MS_MAX else None
    number = int(keyed_state.run_rule[run])
    if number >= len(program.rules):
        return _start_facts(program, domain, keyed_state, run, expires)
    rule = program.rules[number]
    waits = tuple(dict.fromkeys(_waits(program, rule, int(row[y.RUN_STATE]), int(row[y.RUN_OPEN_WAITS]))))
    bound = tuple(_bound(program, rule, keyed_state, int(row[y.RUN_NODE])))
    return RunFacts(rule.deployed.rule_id, rule.deployed.version, domain, bound, waits, expires)


def _start_facts(
    program: Program, domain: KeyDomain, keyed_state: KeyedState, run: int, expires: str | None
) -> RunFacts:
    """Describe a start event that several rules share, because they begin with the same steps: its variable in each
    rule, and the variables for which each rule waits next. The event is stored as the row `run` of the runs. If the
    steps have several conditions, the row's ordinal has one bit for each condition: 1 if the event meets it."""
    shared = program.shared[keyed_state.run_rule[run] - len(program.rules)]  # numbered after all rules
    rules = [program.rules[number] for number in shared.rules]
    states = [int(program.image[program.first_wait(number) + y.W_TARGET]) for number in shared.rules]  # after it
    if len(shared.predicates) > 1:  # several steps: each one that the event meets leads to a state
        is_met = keyed_state.runs[run, y.RUN_ORDINAL] >> shared.steps[:, STEP_BIT] & 1 != 0
        targets = shared.steps[is_met, STEP_TARGET].tolist()
        rules = [rule for rule in rules for _ in targets]  # each rule with each of its states
        states = [rule.first_state + target for rule, target in zip(rules, targets * len(shared.rules), strict=True)]
    rule_states = list(zip(rules, states, strict=True))
    variables = dict.fromkeys(_variable(program, rule, target) for rule, target in rule_states)
    bound = _event(program, keyed_state, int(keyed_state.runs[run, y.RUN_START_ROW]), " or ".join(variables))
    all_bits = -1  # every wait of the NFA state is open
    waits = [variable for rule, target in rule_states for variable in _waits(program, rule, target, all_bits)]
    rule_ids = f"{rules[0].deployed.rule_id} and {len(shared.rules) - 1} more"
    return RunFacts(rule_ids, 0, domain, (bound,), tuple(dict.fromkeys(waits)), expires)  # 0: each has its version


def _bound(program: Program, rule: RuleProgram, keyed_state: KeyedState, node: int) -> Iterator[BoundEvent]:
    """Return the events that a run has bound, oldest first. If branches were merged, follow the first one."""
    path: list[BoundEvent] = []
    while node >= 0:
        row, nfa_state, previous = keyed_state.nodes[node].tolist()
        if row < 0:
            node = nfa_state
            continue
        path.append(_event(program, keyed_state, row, _variable(program, rule, nfa_state)))
        node = previous
    return reversed(path)


def _event(program: Program, keyed_state: KeyedState, row: int, variable: str) -> BoundEvent:
    events = keyed_state.events
    event_type = program.schema.event_types[int(events.event_type[row])].name
    return BoundEvent(variable, events.event_id[row].as_py(), event_type, utc_text(int(events.time_ms[row])))


def _waits(program: Program, rule: RuleProgram, nfa_state: int, open_waits: int) -> Iterator[str]:
    """Yield the variables that a run may take next; one may come again."""
    offset = int(program.image[y.HEADER_STATES]) + nfa_state * y.STATE_WIDTH
    first, end = program.image[offset + y.S_WAITS], program.image[offset + y.S_WAITS_END]
    for number, wait in enumerate(range(first, end, y.WAIT_WIDTH)):
        if not open_waits >> number & 1:
            continue
        is_absence = program.image[wait + y.W_KIND] in (y.WAIT_ABSENCE, y.WAIT_ABSENCE_NEXT)
        yield "the end of its window" if is_absence else _variable(program, rule, int(program.image[wait + y.W_TARGET]))


def _variable(program: Program, rule: RuleProgram, nfa_state: int) -> str:
    offset = int(program.image[y.HEADER_STATES]) + nfa_state * y.STATE_WIDTH
    name: str = rule.variables[program.image[offset + y.S_VARIABLE]]
    return name


@dataclass(frozen=True, slots=True)
class BusyKey:
    """The runs (partial matches) of one rule on one key. The runs of a key have a limit, and so have the events that
    they have taken. `fullness` is the used part of the nearer limit: at 1 the oldest runs are dropped. `bound` counts
    the taken events. An event that several runs share is counted once. The rule `SHARED` stands for several rules that
    begin alike: then `runs` counts their common start events, and `bound` is 0."""

    rule_id: str
    version: int
    domain: KeyDomain
    key: str
    runs: int
    bound: int
    fullness: float


def busiest_keys(pages: Iterable[StoredPage], count: int) -> list[BusyKey]:
    """Return the `count` pairs of rule and key that are nearest to a limit. Raises: StateError for a damaged page."""
    each = (busy for page in pages for busy in _busiest_of_page(page, count))
    return heapq.nsmallest(count, each, key=lambda busy: (-busy.fullness, busy.rule_id, busy.version, busy.key))


def _busiest_of_page(page: StoredPage, count: int) -> Iterator[BusyKey]:
    """Yield the `count` pairs of a rule and a key that are nearest to a limit, of one page (the stored state of a group
    of keys). The rule is SHARED for start events that are stored once for several rules."""
    keyed_state = decode_page(page.content)
    pair_numbers = keyed_state.run_rule.astype(np.int64) * len(keyed_state.keys) + keyed_state.run_key
    pairs, pair_of_run = np.unique(pair_numbers, return_inverse=True)  # from here on, arrays by pair
    runs = np.bincount(pair_of_run, keyed_state.is_run, len(pairs)).astype(np.int64)
    bound_counts = np.bincount(_owners_of_events(keyed_state, pair_of_run), minlength=len(pairs))  # taken events
    fullness = np.maximum(runs / RUNS_PER_KEY_MAX, bound_counts / NODES_PER_KEY_MAX)
    for number in np.argsort(-fullness, kind="stable")[:count].tolist():
        rule_number, key = divmod(int(pairs[number]), len(keyed_state.keys))
        identity = keyed_state.layout.rules[rule_number][0]
        rule_id, version = (SHARED, 0) if shares(identity) else identity[:2]
        name = keyed_state.keys[key].as_py()
        yield BusyKey(
            rule_id, version, page.domain, name, int(runs[number]), int(bound_counts[number]), float(fullness[number])
        )


def _owners_of_events(keyed_state: KeyedState, pair_of_run: Int64) -> Int64:
    """Return for each bound event (node) one owner, so that it is counted once: the number in `pair_of_run` of a rule
    and key that need it. Nodes are linked from a run's newest event to its first, and runs share older nodes."""
    owners = np.full(len(keyed_state.nodes), -1, np.int64)  # by node, -1 for none yet
    is_shared = np.array([bool(shares(identity)) for identity, _, _ in keyed_state.layout.rules], np.bool_)
    belongs = keyed_state.is_run & ~is_shared[keyed_state.run_rule]  # shared starts are without nodes
    nodes, pairs = keyed_state.runs[belongs, y.RUN_NODE], pair_of_run[belongs]
    while len(nodes):  # from the newest event of every run at once to the events before
        is_new = nodes >= 0
        is_new[is_new] = owners[nodes[is_new]] < 0
        nodes, first = np.unique(nodes[is_new], return_index=True)  # once, however many ways lead to a node
        pairs = pairs[is_new][first]
        owners[nodes] = pairs
        row, second_branches, previous_nodes = keyed_state.nodes[nodes].T
        is_join = row < 0  # such a node has two branches and no event
        nodes, pairs = (
            np.concatenate([previous_nodes, second_branches[is_join]]),
            np.concatenate([pairs, pairs[is_join]]),
        )
    return owners[(keyed_state.nodes[:, 0] >= 0) & (owners >= 0)]

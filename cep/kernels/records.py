"""Records: arrays that belong together under one name, the inputs and outputs of kernels.

numba compiles a NamedTuple of arrays as a type of its own: in compiled code a field costs as much as a plain array. A
call from Python costs about 2 µs more for thirty arrays, so callers reuse a frequently passed record.

    Program ─┐                         ┌─ matches, nodes        (Work)
    Events ──┼─ match/rules.py ────────┼─ open runs, cursor     (RunOutput)
    AllRuns ─┘   Work, RuleScratch     └─ counters              (Work)

Letters of shapes: R rules, N rows of the event table, W words of a run, P predicates, K keys. layout.py defines rows
and words. Tested by: tests/kernels/test_compiler.py, tests/engine/test_advance.py
"""

from typing import NamedTuple

from cep.kernels.layout import Bool, Float64, Int32, Int64, UInt8, UInt64


class Texts(NamedTuple):
    """Texts in one buffer: text n is data[offsets[n] : offsets[n + 1]], int64 offsets into UTF-8 bytes."""

    offsets: Int64
    data: UInt8


class MemberSet(NamedTuple):
    """A set of keys sorted by hash (text/members.py).

    Key n is data[offsets[n] : offsets[n + 1]] and has hashes uint64[N]. Bucket b: keys first[b] to first[b + 1], int64.
    """

    first: Int64
    hashes: UInt64
    offsets: Int64
    data: UInt8


class Layers(NamedTuple):
    """The three sets of a list: its base, the added keys, and the removed keys."""

    base: MemberSet
    added: MemberSet
    removed: MemberSet


class JsonColumns(NamedTuple):
    """The C columns that a reader of JSON records wants: names uint8[…] in one buffer, where the name of column c ends
    at name_ends int64[C]; kinds and scales int64[C].
    """

    names: UInt8
    name_ends: Int64
    kinds: Int64
    scales: Int64


class JsonValues(NamedTuple):
    """The values of JSON records: values int64[C + 1, N], text_ends int64[C + 1, N], is_there uint8[C + 1, N].

    For a text, `values` is its start and `text_ends` its end. The last row is for fields that are not wanted.
    """

    values: Int64
    text_ends: Int64
    is_there: UInt8


class Program(NamedTuple):
    """The compiled rules of one key domain (the rules whose events have the same key fields).

    A rule reacts to an event if one of its predicates (conditions on one event) holds. A window of n events counts the
    events of some types. These events are a stream. Shapes: image int64[words]; rules int64[R, RULE_WIDTH];
    relevance_first int32[R + 1]; relevance int32; streams uint8[streams, event types]; start_runs int64[R, W].
    """

    image: Int64  # The joined tables of all rules (layout.py).
    rules: Int64  # The words of each rule.
    relevance_first: Int32  # Rule r has the predicates relevance[relevance_first[r] : relevance_first[r + 1]].
    relevance: Int32  # The numbers of predicates; -1 holds for all events.
    streams: UInt8  # 1 for each event type of a stream.
    start_runs: Int64  # Each rule's run (partial match) before it takes an event.


class Rule(NamedTuple):
    """One rule of a program: image int64[words] of the program, words int64[RULE_WIDTH] of the rule."""

    image: Int64
    words: Int64


class Events(NamedTuple):
    """The event table: a row for each of N events, where the rows from first_row on are new.

    A key has a limit for its bound events. An event counts as 1 + its weight towards this limit. The weight is 0 unless
    its texts are long. Shapes: columns int64[C, N]; nulls uint8[C, N]; bitmaps uint64[P, words]; weights int64[N].
    """

    columns: Int64
    nulls: UInt8  # 1 for a value that is null.
    bitmaps: UInt64  # For each predicate (condition on an event) a bit of each new event, 1 if the predicate holds.
    first_row: int  # The first new row. It has bit 0.
    weights: Int64  # Empty if all weights are 0.


class Arrivals(NamedTuple):
    """New events of a batch: keys int32[N], time_ms int64[N], order int64[N, 3], id_offsets int64[N + 1], id_bytes."""

    keys: Int32  # The number of each event's key.
    time_ms: Int64
    order: Int64  # For equal times: microseconds, the user's order field, the view and partition. Empty: by row.
    id_offsets: Int64  # The id of event n is id_bytes[id_offsets[n] : id_offsets[n + 1]].
    id_bytes: UInt8  # UTF-8.


class BlockCode(NamedTuple):
    """Instructions that read one event only. evaluate.py runs each on a block of events at once.

    instructions int32[I, MACHINE_WIDTH] over `registers_count` registers; constants int64. A predicate is a condition:
    the bit of predicate predicate_numbers[p] comes from register predicate_registers[p]. A derived column is computed
    from other columns: column derived_first + d comes from register derived_registers[d].
    """

    instructions: Int32
    constants: Int64
    registers_count: int
    predicate_registers: Int32
    predicate_numbers: Int32
    derived_registers: Int32
    derived_first: int


class PredicateIndex(NamedTuple):
    """Predicates that compare one column with a constant: groups int64[G, INDEX_GROUP_WIDTH], and entries int64[E,
    INDEX_ENTRY_WIDTH] with their constants, values int64[E], ascending within each group.
    """

    groups: Int64
    entries: Int64
    values: Int64


class AllRuns(NamedTuple):
    """Open runs of all rules, by rule, then key: rows int64[n, W], keys int32[n]. Rule r begins at bounds[r], int64."""

    rows: Int64
    keys: Int32
    bounds: Int64


class RuleInput(NamedTuple):
    """The input of one rule: queue int32[Q], rows of events that it may react to, ascending; start_run int64[W], the
    run that has taken no event; rows int64[n, W] and keys int32[n], the rule's open runs, by key.
    """

    queue: Int32
    start_run: Int64
    rows: Int64
    keys: Int32


class SharedStarts(NamedTuple):
    """The S stored events of prefixes (first steps that several rules share), by prefix, key and row.

    An event of a prefix's first step is a start: it begins a run of each of these rules (engine/starts.py).
    Shapes: keys int32[S]; rows, counts, columns and weights int64[S]; bits uint64[P, words]; bounds int64.
    """

    keys: Int32  # The number of each event's key.
    rows: Int64  # The row of each event in the event table.
    counts: Int64  # How many starts there are up to each event, for the limit on runs of a key.
    columns: Int64  # Event s has bit columns[s] in each row of `bits`.
    bits: UInt64  # 1 in row p if predicate (condition) p holds for the event.
    bounds: Int64  # The events of prefix i begin at bounds[i].
    weights: Int64  # As counts, but a start with long texts counts more. Empty if each counts once.


class PrefixEvents(NamedTuple):
    """Events of a common prefix, by key and row: keys int32[S]; rows, masks and expiry int64[S].

    A mask has one bit for each condition of the prefix that holds. `expiry` is the time in ms at which the last run
    that may take the event expires.
    """

    keys: Int32
    rows: Int64
    masks: Int64
    expiry: Int64


class PrefixRuns(NamedTuple):
    """Runs of single rules within a common prefix, by key and row of the last taken event: keys int32[R]; rows,
    nfa_states (counted from the prefix's first) and expiry (ms) int64[R].
    """

    keys: Int32
    rows: Int64
    nfa_states: Int64
    expiry: Int64


class Work(NamedTuple):
    """The arrays that the matcher writes to during its work on one key of one rule.

    runs int64[*, W]: row 0 is the start run, which has taken no event; the key's runs follow. nodes int64[*,
    NODE_WIDTH]: the tree of bound events. matches int64[*, MATCH_HEADER + measures]. registers int64[2 · registers]:
    value and null flag in turn. counters int64[COUNTERS]. table_key uint64[2] is a secret for hashes, so that senders
    cannot make runs collide.
    """

    runs: Int64
    nodes: Int64
    matches: Int64
    registers: Int64
    counters: Int64
    table_key: UInt64


class NumberedTexts(NamedTuple):
    """The state of a loop that numbers the texts in N rows. Equal texts get the same number (text/texts.py).

    Shapes: places uint64[2^n]; codes int32[N]; firsts int64[N]; key uint64[2]; ahead uint64[33].
    """

    places: UInt64  # A hash table. A place has bits of a text's hash, and in its lower half the number + 1; 0 if empty.
    codes: Int32  # The number of each row's text.
    firsts: Int64  # The first row of each number.
    key: UInt64  # The secret key of the hashes.
    ahead: UInt64  # The hashes of the next 32 rows, and a word that is never read.


class Counts(NamedTuple):
    """The numbers of runs, nodes and matches of `Work` in use; full_array is the full one (FULL_*) or NOT_FULL."""

    runs: int
    nodes: int
    matches: int
    full_array: int


class RuleScratch(NamedTuple):
    """Scratch memory of the matcher. A run is a partial match, a node is an event that runs have bound.

    Shapes: queue int32[new rows]; stream_count int32[K]; picked int64[rows of Work.runs]; stack int64[*, 3];
    counters_before int64[COUNTERS]; marks int64[*].
    """

    queue: Int32  # The events that a rule may react to.
    stream_count: Int32  # How many events of each key the rule's window of n events has counted.
    picked: Int64  # The runs that an event may advance, or a heap of runs.
    stack: Int64  # The nodes to which a walk over nodes returns, or a hash table of runs.
    counters_before: Int64  # The counters before the current key.
    marks: Int64  # The last walk that has visited each node (match/room.py). Empty without a key of many nodes.


class RunOutput(NamedTuple):
    """The runs (partial matches) that stay open, and the place at which the matcher resumes after a stop.

    The matcher stops if an array is full. The caller enlarges the array and calls the matcher again.
    Shapes: runs int64[*, W]; keys and rules int32[*]; counters int64[COUNTERS, R]; cursor int64[CURSOR_WIDTH].
    """

    runs: Int64  # The words of each run (layout.py). The last rows are free.
    keys: Int32  # The number of each run's key.
    rules: Int32  # The number of each run's rule.
    counters: Int64  # How much each rule has added to each counter of `Work`.
    cursor: Int64  # The place at which the matcher resumes.


class LiveRuns(NamedTuple):
    """Runs of all rules and their nodes: runs int64[n, W], rules and keys int32[n], nodes int64[m, NODE_WIDTH]."""

    runs: Int64
    rules: Int32
    keys: Int32
    nodes: Int64


class NewNumbers(NamedTuple):
    """The new numbers of nodes int64[m], rows int64[N] and keys int32[K]; -1 for a dropped one."""

    nodes: Int64
    rows: Int64
    keys: Int32


class Remaining(NamedTuple):
    """The old numbers of the rows int64[N] and keys int64[K] that stay, and row_keys int32[N], the rows' new keys."""

    rows: Int64
    row_keys: Int32
    keys: Int64


class PartOrder(NamedTuple):
    """The rows of a state (keys, runs, nodes and events), sorted by part. Each of P parts has the rows of some keys.

    Shapes: bounds int64[4, P + 1]; keys, runs, nodes, events, key_place, node_place and event_place int64, by row.
    """

    bounds: Int64  # Where the keys, runs, nodes and events of each part begin, and where the last part ends.
    keys: Int64  # The numbers of the keys, in the sorted order.
    runs: Int64  # The rows of the runs (partial matches), in the sorted order.
    nodes: Int64  # The rows of the nodes (events that runs have bound).
    events: Int64  # The rows of the events.
    key_place: Int64  # The position of each key within its part.
    node_place: Int64  # The same for each node.
    event_place: Int64  # The same for each event.


class StateRows(NamedTuple):
    """The rows of a keyed state that are written as pages. A page is the stored bytes of a group of keys.

    Shapes: key_offsets int64[K + 1]; runs int64[n, W]; rules, keys int32[n]; row_registers uint8[rules, registers];
    nodes int64[m, NODE_WIDTH]; event_keys int32[E]; events int64[C, E] by column.
    """

    key_offsets: Int64  # of the keys' texts
    runs: Int64  # partial matches
    rules: Int32  # of each run
    keys: Int32  # of each run
    row_registers: UInt8  # 1 for a register that holds the row of an event
    nodes: Int64  # the events that runs have bound
    event_keys: Int32
    events: Int64  # column 0 is for the keys, but `event_keys` is read instead


class PageOutput(NamedTuple):
    """P written pages in a row: over int64[P] (ms, UTC), the expiry of the first run of each; data uint8[bytes]; starts
    int64[P + 1] of each page, beginning with 0; cursor int64[P], the start of each page's texts.
    """

    over: Int64
    data: UInt8
    starts: Int64
    cursor: Int64


class PageBytes(NamedTuple):
    """Pages to read, one after the other: page p is data uint8 from cursor[p], which advances, to ends[p].

    bounds int64[4, P + 1] are the offsets of each page's keys, runs, nodes and events among all.
    """

    data: UInt8
    ends: Int64
    cursor: Int64
    bounds: Int64


class ReadRows(NamedTuple):
    """The rows of all pages (stored bytes of groups of keys) that were read: runs int64[n, W], their rules and keys
    int32[n], by rule, then page; nodes int64[m, NODE_WIDTH]; event_keys int32[E]; events int64[C · E], column by
    column; nonzero_columns uint8[C] marks the columns that are not 0 everywhere; lengths int64[K] of the keys' texts.
    """

    runs: Int64  # partial matches
    rules: Int32
    keys: Int32
    nodes: Int64  # the events that runs have bound
    event_keys: Int32
    events: Int64
    nonzero_columns: UInt8
    lengths: Int64


class MinedEvents(NamedTuple):
    """N events of keys in order (`chains.py`): time_ms int64[N]; fraud int64[N], the number of a fraud or −1;
    has_fraud_type bool[N], its type occurs in frauds; weight float64[N], the number of events that it represents.
    """

    time_ms: Int64
    fraud: Int64
    has_fraud_type: Bool
    weight: Float64

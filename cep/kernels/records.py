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

    image int64[words], the joined tables of all rules (layout.py); rules int64[R, RULE_WIDTH]. Rule r reacts to events
    for which one of the predicates (conditions on one event) relevance[relevance_first[r] : relevance_first[r + 1]]
    holds, both int32; -1 stands for all events. A stream is the events that a window of n events counts: streams
    uint8[streams, event types] marks their types. start_runs int64[R, W]: each rule's run without an event.
    """

    image: Int64
    rules: Int64
    relevance_first: Int32
    relevance: Int32
    streams: UInt8
    start_runs: Int64


class Rule(NamedTuple):
    """One rule of a program: image int64[words] of the program, words int64[RULE_WIDTH] of the rule."""

    image: Int64
    words: Int64


class Events(NamedTuple):
    """The event table: columns int64[C, N] and nulls uint8[C, N], where 1 is null. Rows from first_row on are new.

    bitmaps uint64[P, words] tell for which new rows a predicate (condition on an event) holds: bit 0 is for first_row.
    weights int64[N]: towards its key's limit of bound events, an event counts once and as many more times as its weight
    says. The weight is 0 unless the event has long texts. The array is empty if all weights are 0.
    """

    columns: Int64
    nulls: UInt8
    bitmaps: UInt64
    first_row: int
    weights: Int64


class Arrivals(NamedTuple):
    """The new events of a batch: keys int32[N] are key numbers, time_ms int64[N].

    order int64[N, 3] orders events of one time: microseconds, the declared field, and the origin (view and partition);
    int64[0, 3] if only ids order them. Id n is id_bytes[id_offsets[n] : id_offsets[n + 1]], int64 offsets and UTF-8.
    """

    keys: Int32
    time_ms: Int64
    order: Int64
    id_offsets: Int64
    id_bytes: UInt8


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
    """Events that start several rules, by prefix (first steps that rules share), then key and row (engine/starts.py).

    keys int32[S], rows int64[S]; prefix i begins at bounds[i], int64. counts int64[S]: the running number of starts;
    weights int64[S]: the same, but a start with long texts counts more (int64[0] if all count once). Both are for
    limits of a key. Bit columns[s], int64[S], of bits[p], uint64[P, words], is 1 if predicate p holds for start s.
    """

    keys: Int32
    rows: Int64
    counts: Int64
    columns: Int64
    bits: UInt64
    bounds: Int64
    weights: Int64


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
    """The state while texts get numbers, equal texts the same one (text/texts.py).

    places uint64[2^n], a hash table: 0 is empty, otherwise the upper 32 bits are of the hash of a text and the lower 32
    bits are its number + 1. codes int32[N] are the numbers of rows, firsts int64[N] the first row of each number. key
    uint64[2] is the key of the hashes. ahead uint64[33]: hashes of the next rows, whose reads of memory overlap.
    """

    places: UInt64
    codes: Int32
    firsts: Int64
    key: UInt64
    ahead: UInt64


class Counts(NamedTuple):
    """The numbers of runs, nodes and matches of `Work` in use; full_array is the full one (FULL_*) or NOT_FULL."""

    runs: int
    nodes: int
    matches: int
    full_array: int


class RuleScratch(NamedTuple):
    """Scratch memory of the matcher.

    queue int32[new rows]: events that a rule may react to. stream_count int32[K]: events that its window has counted.
    picked int64[rows of Work.runs]: runs that an event may advance, or a heap of runs. stack int64[*, 3]: nodes (bound
    events) that a walk comes back to, or a hash table of runs. counters_before int64[COUNTERS]: the counters before the
    current key. marks int64[*], once a key has many nodes: the walk that has visited each (match/room.py), initially 0.
    """

    queue: Int32
    stream_count: Int32
    picked: Int64
    stack: Int64
    counters_before: Int64
    marks: Int64


class RunOutput(NamedTuple):
    """The runs that stay open, and the cursor: the matcher stops if an array is full, and resumes there after it grew.

    runs int64[*, W], each of W words (layout.py), keys and rules int32[*], with room for more rows; counters
    int64[COUNTERS, R]: the amount that each rule has added to each counter of `Work`; cursor int64[CURSOR_WIDTH].
    """

    runs: Int64
    keys: Int32
    rules: Int32
    counters: Int64
    cursor: Int64


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
    """The rows of a state, part by part: P parts, each a set of keys. A node is a bound event of a run.

    bounds int64[4, P + 1] are the offsets of each part's keys, runs, nodes and events, and the end of the last ones.
    keys, runs, nodes and events (int64, one entry per row) are the order of the rows. key_place, node_place and
    event_place int64 are the place of each row within its part.
    """

    bounds: Int64
    keys: Int64
    runs: Int64
    nodes: Int64
    events: Int64
    key_place: Int64
    node_place: Int64
    event_place: Int64


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

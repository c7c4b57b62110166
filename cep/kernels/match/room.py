"""The limits of one key: a number of runs of a rule, and a number of nodes that they have bound. The oldest runs leave.

A run is older than another if it began earlier, or in an earlier row; complete matches that wait leave last.

A run of a loop binds all its events, so n events of one key can bind n² / 2 nodes. If there may be too many nodes after
an event, the nodes on the paths of live runs are counted, each once. If they exceed the limit, the oldest runs are
evicted until half the limit is left. A node of an event with long texts counts several times, for its bytes. A count
costs O(limit) and is rare. The events of the key alone decide the evicted runs, not the split into calls.

    nodes   | older ones: other keys, former calls | of this key and call: live, matched, left over | free |
                                                   ▲ first                                          ▲ in use

Tested by: tests/kernels/test_room.py
"""

from typing import NamedTuple

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, int64
from cep.kernels.records import Counts, Rule, RuleScratch, Work

_ROW_BITS = 24  # of an age: the row of the run
_ROW = (1 << _ROW_BITS) - 1
_WAITING = 1 << 60
_OLDEST, _YOUNGEST = 1, -1  # the sign of the entries of a heap, whose first entry is the least


class KeyRoom(NamedTuple):
    """The first of a key's own nodes and matches; the numbers of nodes at which to weigh them and to drop some next."""

    first_node: int
    first_match: int
    weigh_at: int
    drop_at: int


@inlined
def key_room(rule: Rule, cursor: Int64, has_runs: bool, weights: Int64) -> KeyRoom:
    """Return the room of a new key. `has_runs`: it has runs from former calls, whose nodes are not counted yet."""
    first, limit = cursor[y.CURSOR_NODES], rule.words[y.R_NODES_MAX]
    before = limit if weights.shape[0] > 0 else cursor[y.CURSOR_OLD_NODES]
    older = min(limit, before) if has_runs else int64(0)
    return KeyRoom(first, cursor[y.CURSOR_MATCHES], first + limit - older, first + limit)


@inlined
def less_room(room: KeyRoom, weights: Int64, row: int, added: int) -> KeyRoom:
    """Return the room after `added` nodes of the event in `row`, less its weight: weights int64[rows], or int64[0]."""
    if weights.shape[0] == 0 or added == 0:
        return room
    return KeyRoom(room.first_node, room.first_match, room.weigh_at - added * weights[row], room.drop_at)


@bare
def _visit(nodes: Int64, node: int, marks: Int64, mark: int, stack: Int64, weights: Int64) -> int:
    """Mark the nodes (bound events) on all paths to `node`: write the number `mark` into marks int64[nodes].

    A node without a row is a union of two paths. Its second previous node, in NODE_STATE, waits on the stack and is
    visited later. Returns: the weight of the newly marked nodes, which is 1 for each plus the weights of their events;
    -1 if the stack, int64[*, 3], is too short.
    """
    count, top = 0, 0  # the weight; the nodes on the stack
    while True:
        while node >= 0 and marks[node] != mark:
            marks[node] = mark
            count += 1
            if weights.shape[0] > 0 and nodes[node, y.NODE_ROW] >= 0:
                count += weights[nodes[node, y.NODE_ROW]]
            if nodes[node, y.NODE_ROW] < 0:
                if top >= stack.shape[0]:
                    return -1
                stack[top, 0] = nodes[node, y.NODE_STATE]
                top += 1
            node = nodes[node, y.NODE_PREVIOUS]
        if top == 0:
            return count
        top -= 1
        node = stack[top, 0]


@inlined
def _age_and_row(runs: Int64, i: int) -> int:
    """Return a number that is smaller the older run i is; its last bits are i."""
    waiting = _WAITING if runs[i, y.RUN_OPEN_WAITS] == int64(y.HELD_BACK) else 0
    return waiting + (runs[i, y.RUN_START_ROW] << _ROW_BITS) + i


@bare
def _sink(heap: Int64, entry: int, end: int) -> None:
    """Move an entry of the heap int64[*], of which `end` are in use, below smaller ones."""
    while 2 * entry + 1 < end:
        child = 2 * entry + 1
        if child + 1 < end and heap[child + 1] < heap[child]:
            child += 1
        if heap[entry] <= heap[child]:
            return
        heap[entry], heap[child] = heap[child], heap[entry]
        entry = child


@bare
def _heap_of(runs: Int64, head: int, end: int, sign: int, heap: Int64) -> int:
    """Make a heap of the ages of live runs in rows [head, end), times `sign`; return their number."""
    count = int64(0)
    for i in range(head, end):
        if runs[i, y.RUN_OPEN_WAITS] != 0:
            heap[count] = sign * _age_and_row(runs, i)
            count += 1
    for entry in range(count // 2 - 1, -1, -1):
        _sink(heap, entry, count)
    return count


@bare
def evict_beyond(runs: Int64, head: int, end: int, limit: int, heap: Int64, counters: Int64) -> None:
    """Evict the oldest of the live runs in rows [head, end) of runs int64[*, W] until `limit` are left.

    heap int64[*] is scratch. Cost: O(rows), and O(log rows) for each evicted run.
    """
    count = _heap_of(runs, head, end, _OLDEST, heap)
    while count > limit:
        runs[heap[0] & _ROW, y.RUN_OPEN_WAITS] = 0  # an entry of the heap is a run's age and, in its last bits, row
        counters[y.COUNT_EVICTED] += 1
        count -= 1
        heap[0] = heap[count]
        _sink(heap, 0, count)


@bare
def _evict_oldest(rule: Rule, work: Work, scratch: RuleScratch, mark: int, head: int, end: int, weights: Int64) -> int:
    """Evict the oldest runs in rows [head, end) if the nodes of all weigh more than the limit; return the weight left.

    A node is a bound event; it weighs 1, or more if its event has long texts. The youngest runs stay, as many as
    weigh half the limit together, so that the next eviction is not soon. The youngest run may weigh the whole limit. A
    node with this `mark` belongs to a younger run too, and is not weighed again. Returns -1 if the stack is too short.
    """
    runs, limit, heap = work.runs, rule.words[y.R_NODES_MAX], scratch.picked
    runs_count = _heap_of(runs, head, end, _YOUNGEST, heap)  # entries: minus the age, with the row in the last bits
    count, weight_left, runs_left = int64(0), int64(0), int64(0)  # count: the weight so far
    for younger_count in range(runs_count):
        run_weight = _visit(work.nodes, runs[-heap[0] & _ROW, y.RUN_NODE], scratch.marks, mark, scratch.stack, weights)
        if run_weight < 0:
            return -1
        count += run_weight
        if count <= limit // 2 or (younger_count == 0 and count <= limit):
            weight_left, runs_left = count, younger_count + 1
        heap[0] = heap[runs_count - 1 - younger_count]  # remove the first entry, which is done
        _sink(heap, 0, runs_count - 1 - younger_count)
    if count <= limit:
        return count
    evict_beyond(runs, head, end, runs_left, heap, work.counters)
    return weight_left


@bare
def _drop_unused(
    work: Work, scratch: RuleScratch, mark: int, head: int, counts: Counts, room: KeyRoom, weights: Int64
) -> int:
    """Move the key's nodes together that a run in rows [head, counts.runs) or a match needs, and return their end.

    A node is a bound event with a link to the previous node; without a row it is a union of two paths, and NODE_STATE
    is the other node. A run without open waits is closed and needs none. Needed nodes are marked with the number
    `mark`; later marks[k] is the new number of node k. Returns -1 if the stack is too short; then no node has moved.
    """
    runs, nodes, matches, marks = work.runs, work.nodes, work.matches, scratch.marks
    first = room.first_node
    for i in range(head, counts.runs):
        is_open, node = runs[i, y.RUN_OPEN_WAITS] != 0, runs[i, y.RUN_NODE]
        if is_open and _visit(nodes, node, marks, mark, scratch.stack, weights) < 0:
            return -1
    for m in range(room.first_match, counts.matches):
        if _visit(nodes, matches[m, y.MATCH_NODE], marks, mark, scratch.stack, weights) < 0:
            return -1
    to = first
    for k in range(first, counts.nodes):
        if marks[k] == mark:
            row, state_or_other, previous = nodes[k, y.NODE_ROW], nodes[k, y.NODE_STATE], nodes[k, y.NODE_PREVIOUS]
            nodes[to, y.NODE_ROW] = row
            other_has_moved = row < 0 and state_or_other >= first
            nodes[to, y.NODE_STATE] = marks[state_or_other] if other_has_moved else state_or_other
            nodes[to, y.NODE_PREVIOUS] = marks[previous] if previous >= first else previous
            marks[k] = to  # the node's new number
            to += 1
    for i in range(head, counts.runs):
        if runs[i, y.RUN_OPEN_WAITS] != 0 and runs[i, y.RUN_NODE] >= first:
            runs[i, y.RUN_NODE] = marks[runs[i, y.RUN_NODE]]
    for m in range(room.first_match, counts.matches):
        if matches[m, y.MATCH_NODE] >= first:
            matches[m, y.MATCH_NODE] = marks[matches[m, y.MATCH_NODE]]
    return to


@bare
def limit_nodes(
    rule: Rule, work: Work, scratch: RuleScratch, cursor: Int64, head: int, counts: Counts, room: KeyRoom,
    weights: Int64,
) -> tuple[Counts, KeyRoom]:  # fmt: skip
    """Weigh the nodes of the live runs in rows [head, counts.runs); evict the oldest runs if they exceed the limit.

    A node is a bound event; weights int64[rows] are added for events with long texts. Runs may share a node: a marked
    one is not weighed again. A mark is a negative number that no other call uses, so marks are never cleared. Evicted
    runs lose their waits. Returns the counts (full_array is FULL_MARKS or FULL_STACK if one is too short), and the
    room: the numbers of nodes at which to weigh and drop next. Cost: O(nodes of the runs), sometimes O(nodes in use).
    """
    if scratch.marks.shape[0] < work.nodes.shape[0]:
        return Counts(counts.runs, counts.nodes, counts.matches, y.FULL_MARKS), room
    limit, used, drop_at = rule.words[y.R_NODES_MAX], counts.nodes, room.drop_at
    cursor[y.CURSOR_MARK] -= 1
    weight_left = _evict_oldest(rule, work, scratch, cursor[y.CURSOR_MARK], head, counts.runs, weights)
    if weight_left >= 0 and used > drop_at:  # many nodes: drop the unused ones
        cursor[y.CURSOR_MARK] -= 1
        used = _drop_unused(work, scratch, cursor[y.CURSOR_MARK], head, counts, room, weights)
        drop_at = used + (used - room.first_node) + limit  # when the key's nodes have doubled, and by the limit more
    if weight_left < 0 or used < 0:
        return Counts(counts.runs, counts.nodes, counts.matches, y.FULL_STACK), room
    room = KeyRoom(room.first_node, room.first_match, used + limit - weight_left, drop_at)  # more may exceed the limit
    return Counts(counts.runs, used, counts.matches, y.NOT_FULL), room

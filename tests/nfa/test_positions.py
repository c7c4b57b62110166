"""Structures to positions, and the ways to go on from each."""

from __future__ import annotations

import pytest

from cep.lang.ir import PatternIR, SequenceNode
from cep.nfa.positions import Automaton, StructureError, build
from tests.engine.rules import rule

WHERE = "\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c\n d: e kind == c"


def structure(text: str) -> SequenceNode:
    """Return the tree of a `seq`, with the conditions of its variables."""
    declared = "\n".join(line for line in WHERE.strip().splitlines() if f"{line.split(':')[0].split()[-1]}" in text)
    pattern: PatternIR = rule(
        f"seq {text}\n{declared if declared.startswith('where') else 'where ' + declared}"
    ).pattern
    return pattern.structure


def drawn(automaton: Automaton) -> list[str]:
    """`0: a` is a wait at position 0 for a; `!` marks a position that accepts, `·` an absence."""
    lines = []
    for position in automaton.positions:
        waits = [
            "·"
            if wait.target is None
            else automaton.positions[wait.target].variable + (wait.link.value if wait.link else "")
            for wait in position.waits
        ]
        name = position.variable or "start"
        lines.append(f"{name}{'!' if position.accepts else ''}: {' '.join(waits)}".strip())
    return lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b", ["start: a->>", "a: b,", "b!:"]),
        ("a -> b ->> c", ["start: a->>", "a: b->", "b: c->>", "c!:"]),
        ("a{2,} -> b", ["start: a->>", "a: a-> b->", "b!:"]),
        ("a -> b? -> c", ["start: a->>", "a: b-> c->", "b: c->", "c!:"]),
        ("a -> b?", ["start: a->>", "a!: b->", "b!:"]),
        ("(a | b) -> c", ["start: a->> b->>", "a: c->", "b: c->", "c!:"]),
    ],
)
def test_small_structures(text: str, expected: list[str]) -> None:
    assert drawn(build(structure(text))) == expected


def test_any_order_writes_every_order_out() -> None:
    drawing = drawn(build(structure("(a & b) -> c")))
    assert drawing == ["start: a->> b->>", "a: b->", "b: c->", "b: a->", "a: c->", "c!:"]


def test_a_group_that_repeats_is_unrolled_a_variable_is_counted() -> None:
    assert len(build(structure("a{50} -> b")).positions) == 3
    assert len(build(structure("(a -> b){5} -> c")).positions) == 12


def test_an_absence_is_a_guard_in_the_middle_and_a_wait_at_the_end() -> None:
    middle = build(structure("a -> !b -> c"))
    assert [p.variable for p in middle.positions] == ["", "a", "c"]
    (wait,) = middle.positions[1].waits
    assert {guard.variable for guard in wait.guards} == {"b"}
    end = build(structure("a -> !b within 5 min"))
    assert drawn(end) == ["start: a->>", "a: ·"]


def test_a_step_time_holds_though_its_step_is_left_out() -> None:
    """Inside a group it also holds, unless the group itself may be left out."""

    def bounds(text: str) -> dict[str, list[int | None]]:
        positions = build(structure(text)).positions
        return {positions[w.target].variable: [b.max_ms for b in w.bounds] for w in positions[1].waits if w.target}

    flat = {"b": [], "c": [5_000], "d": [5_000]}
    assert bounds("a -> b? ->[5 s] c? -> d") == flat
    assert bounds("a -> (b? ->[5 s] c?) -> d") == flat
    assert bounds("a -> ((b? ->[5 s] c?)) -> d") == flat
    assert bounds("a -> (b? ->[5 s] c?)? -> d") == {**flat, "d": []}


def test_a_structure_that_unrolls_too_far_is_refused() -> None:
    with pytest.raises(StructureError):
        build(structure("((a -> b){90} -> c){90}"))

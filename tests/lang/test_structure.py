"""The allowed structures of a pattern (messages are golden files), and the order in which variables can be bound."""

import pytest

from cep.lang.check.order import Order, order_of
from cep.lang.diagnostics import Collector
from cep.lang.ir import AlternativeNode, Link, SequenceNode, VarNode
from cep.lang.parse.file import parse
from cep.lang.syntax import PatternSyntax
from tests.lang.common import checked_pattern, pattern_codes


@pytest.mark.parametrize(
    "structure",
    [
        "a -> !b -> c",
        "a, !b",
        "a -> !b within 5 min",
        "a+ -> !b within 5 min",
        "a -> !b -> c? within 5 min",
        "(a -> !b within 5 min)",
        "(a -> !b within 5 min) -> c?",
        "(a -> !b) -> c",
        "a -> (b -> !c within 1 s){2} -> d within 1 h",
        "a -> !b -> !c -> d",
        "a{2}[5 min] -> b",
        "(a? -> b)+ -> c within 1 h",
        "((a | b) & c){2,3} -> d within 1 h",
        "a{3,3} any -> b",
        "a* until (amount > 1) -> b",
        "a -> b within 20 events",
        "a -> b within 1 h within 20 events",
        "a ->[0 s .. 1 min] b",
        "a? -> b",
        "(a -> b)? -> c",
        "a ->[5 min] !b",
        "a ->[5 min] !b -> c",
        "(a -> b{2,3} greedy)? greedy -> c",
    ],
)
def test_accepted(structure: str) -> None:
    assert pattern_codes(f"seq {structure}") == []


@pytest.mark.parametrize(
    ("structure", "codes"),
    [
        ("a -> !b", ["CEP401"]),
        ("a, !b ->[5 min] !c", ["CEP401"]),
        ("a,[5 min] !b ->[5 min] !c", []),
        ("a -> b,[5 min] !c", []),
        ("a ->[5 min] !b, !c", ["CEP401"]),
        ("a ->[5 min] !b ->[3 min] !c", []),
        ("(a -> !b)", ["CEP401"]),
        ("a -> (b -> !c)", ["CEP401"]),
        ("a -> !b -> (c -> d)?", ["CEP401"]),
        ("a -> !b within 20 events", ["CEP401"]),
        ("(a -> !b){2} -> c?", ["CEP401"]),
        ("a -> !b -> !c", ["CEP401", "CEP401"]),
        ("a -> (!b -> c) within 1 h", ["CEP410"]),
        ("a -> !(b | c) -> d", ["CEP411"]),
        ("a within 0 s", ["CEP402"]),
        ("a -> b within 0 events", ["CEP402"]),
        ("a ->[0 s] b", ["CEP402"]),
        ("a ->[0..5 min] b", ["CEP104"]),
        ("a{2}[0 s] -> b", ["CEP402"]),
        ("(a*){2} -> b within 1 h", ["CEP403"]),
        ("((a? | b)){2} -> c within 1 h", ["CEP421", "CEP403"]),
        ("a greedy -> b", ["CEP404"]),
        ("a until (amount > 1) -> b", ["CEP405"]),
        ("a{2} until (amount > 1) -> b", ["CEP405"]),
        ("a? strict -> b", ["CEP414"]),
        ("a+ strict any -> b within 1 h", ["CEP414"]),
        ("a{100001} -> b", ["CEP409"]),
        ("a{1.5} -> b", ["CEP409"]),
        ("a{n} -> b", ["CEP201"]),
        ("(a? -> b?)? within 1 h", ["CEP412"]),
        ("a -> b+", ["CEP420"]),
    ],
)
def test_refused(structure: str, codes: list[str]) -> None:
    assert sorted(pattern_codes(f"seq {structure}")) == sorted(codes)


def test_parameters_have_the_type_that_their_place_needs() -> None:
    header = "pattern p(n: int = 2, w: duration = 1 min) by card_id"
    assert pattern_codes("seq a{n,}[w] ->[w] b within w within n events", header) == []
    assert pattern_codes("seq a{w} -> b", header) == ["CEP301"]
    assert pattern_codes("seq a within n", header) == ["CEP301"]


def test_how_the_iterations_of_a_group_follow_each_other() -> None:
    for word, link in (("", Link.FOLLOWED_BY), ("strict", Link.NEXT), ("any", Link.FOLLOWED_BY_ANY)):
        node = checked_pattern(f"seq (a, b){{2}} {word} -> c").structure.steps[0].node
        assert isinstance(node, SequenceNode)
        assert [step.link for step in node.steps] == [link, Link.NEXT]


def test_a_window_inside_a_repeated_group_is_each_iteration_s_and_one_after_it_is_around_all() -> None:
    each = checked_pattern("seq (a -> b within 5 s){2} -> c").structure.steps[0].node
    assert isinstance(each, SequenceNode)
    assert (each.within_ms, each.quantifier.min_count) == (5_000, 2)
    around = checked_pattern("seq (a -> b){2} within 5 s -> c").structure.steps[0].node
    assert isinstance(around, SequenceNode)
    assert (around.within_ms, around.quantifier.min_count) == (5_000, 1)


def test_a_choice_alone_needs_no_sequence_around_it() -> None:
    steps = checked_pattern("seq (a | b) -> (c | d)+ within 1 h").structure.steps
    assert isinstance(steps[0].node, AlternativeNode)
    assert isinstance(steps[1].node, SequenceNode)
    assert isinstance(checked_pattern("seq a").structure.steps[0].node, VarNode)


def order(structure: str) -> Order:
    (declaration,) = parse(f"pattern p by k {{ seq {structure} }}", "x", Collector()).declarations
    assert isinstance(declaration, PatternSyntax)
    assert declaration.structure is not None
    return order_of(declaration.structure)


@pytest.mark.parametrize(
    ("structure", "variable", "may", "must"),
    [
        ("a -> b -> c", "c", "ab", "ab"),
        ("a -> b? -> c", "c", "ab", "a"),
        ("a -> b{0,2} -> c", "c", "ab", "a"),
        ("a -> !b -> c", "c", "a", "a"),
        ("a -> (b | c) -> d", "d", "abc", "a"),
        ("a -> (b | c) -> d", "c", "a", "a"),
        ("a -> (b & c) -> d", "d", "abc", "abc"),
        ("a -> (b & c) -> d", "b", "abc", "a"),
        ("a -> (b -> c){2} -> d", "b", "abc", "a"),
        ("a -> (b -> c){2} -> d", "d", "abc", "abc"),
        ("a -> (b -> c)? -> d", "d", "abc", "a"),
        ("a -> (b -> c)? -> d", "c", "ab", "ab"),
        ("a -> b{n,} -> c", "c", "ab", "ab"),
    ],
)
def test_before(structure: str, variable: str, may: str, must: str) -> None:
    position = order(structure).before[variable]
    assert (position.maybe, position.surely) == (frozenset(may), frozenset(must))


def test_until_sees_its_own_loop() -> None:
    result = order("a -> b+ until (x) -> c")
    (before,) = result.before_until.values()
    assert (before.maybe, before.surely) == (frozenset("ab"), frozenset("a"))


def test_the_end() -> None:
    result = order("a -> b? -> !c")
    assert (result.end.maybe, result.end.surely, result.negated) == (frozenset("ab"), frozenset("a"), frozenset("c"))

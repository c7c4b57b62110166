"""The rules of a key, with their lists, become one program, structures positions; mistakes are reported in place."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cep.base.schema import Field, Kind, Schema
from cep.lang.check.bind import bind
from cep.lang.ir import PatternIR, SequenceNode
from cep.lang.load import load_files, load_text
from cep.model.rule import UpsertRecord
from cep.nfa.compile import compilable, problems
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import asked_lists, given_lists
from cep.nfa.positions import Automaton, CompileError, build
from cep.nfa.program import Program
from cep.rulebook.deploy import deploy
from cep.rulebook.rulebook import Rulebook
from cep.step.rules import programs_by_level
from tests.engine.rules import SCHEMA, program, rule
from tests.lang.common import EVENTS, bound_pattern
from tests.lang.generate import random_file
from tests.runners.parity_cases import drawn_rule
from tests.runners.spark.live_cases import rules

PAIR = "seq a -> b within 10 min\nwhere a: e kind == a\n b: e kind == b\nemit n = b.note"


def test_the_same_rules_are_the_same_program() -> None:
    one, other = program(rule(PAIR, "r1"), rule(PAIR, "r2")), program(rule(PAIR, "r1"), rule(PAIR, "r2"))
    assert one.fingerprint == other.fingerprint
    assert np.array_equal(one.vector.code, other.vector.code)
    assert np.array_equal(one.start_runs, other.start_runs)


@pytest.mark.parametrize(
    "changed",
    [{"version": 2}, {"content_hash": "x"}, {"from_ms": 5}, {"starts_until_ms": 5}, {"until_ms": 5}, {"rule_id": "s"}],
)
def test_whatever_decides_matches_changes_the_fingerprint(changed: dict[str, object]) -> None:
    other: DeployedRule = replace(rule(PAIR), **changed)  # type: ignore[arg-type]
    assert program(rule(PAIR)).fingerprint != program(other).fingerprint


def test_rules_that_ask_the_same_share_their_conditions() -> None:
    one, many = program(rule(PAIR)), program(*(rule(PAIR, f"r{i}") for i in range(50)))
    assert len(many.vector.code) == len(one.vector.code)
    assert len(many.vector.predicate_registers) == len(one.vector.predicate_registers)


def test_only_columns_that_rules_read_are_there() -> None:
    names = {column.name: column.retained for column in program(rule(PAIR)).columns}
    assert "amount" not in names
    assert names["note"]
    assert not names["kind"]


def test_a_pattern_without_problems_and_one_that_is_too_large() -> None:
    assert problems(rule(PAIR).pattern, SCHEMA) == []
    large = rule("seq ((a -> b){90} -> c){90}\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c")
    (problem,) = problems(large.pattern, SCHEMA)
    assert "1024" in problem


def codes_and_texts(seq: str, params: str = "") -> list[tuple[str, str]]:
    """Return the codes, with the text at their places."""
    text = f"{EVENTS}\npattern p{params} by card_id {{ seq {seq} }}\npattern good by card_id {{ seq a }}"
    checked = compilable(load_text(text))
    assert "good" in checked.patterns
    assert ("p" in checked.patterns) == checked.ok
    return [(d.code, text[d.span.start : d.span.end]) for d in checked.diagnostics if d.is_error and d.span is not None]


@pytest.mark.parametrize(
    ("seq", "code", "place"),
    [
        ("a -> (b -> !c within 5 min) -> d within 1 h", "CEP424", "d"),
        ("a -> (b -> !c within 5 min) -> !d within 1 h", "CEP424", "d"),
        ("a -> (b -> !c within 5 min){2} within 1 h", "CEP424", "b"),
        ("((a -> b){90} -> c){90} within 1 h", "CEP425", "p"),
        ("a -> (b & c & d & e & f & g & h) within 1 h", "CEP425", "p"),
        ("first -> (" + " | ".join(f"v{i}" for i in range(61)) + ") within 1 h", "CEP425", "first"),
        ("(" + " | ".join(f"v{i}" for i in range(61)) + ") within 1 h", "CEP425", "p"),
        ("a -> (b{1,2} -> c){70} -> d within 1 h", "CEP425", "p"),
    ],
)
def test_what_does_not_compile(seq: str, code: str, place: str) -> None:
    assert codes_and_texts(seq) == [(code, place)]


def test_a_parameter_without_a_default_stands_for_its_least_value() -> None:
    group = "((a -> b){n} -> c){n} within 1 h"
    assert codes_and_texts(group, "(n: int)") == []
    assert codes_and_texts(group, "(n: int in 50..60)") == [("CEP425", "p")]
    assert codes_and_texts(group, "(n: int = 50)") == [("CEP425", "p")]
    many = "(n: int, d: duration, x: decimal, f: float, s: string, b: bool, e: enum(approved, declined))"
    assert codes_and_texts("a -> (b -> !c within 5 min) -> d ->[d] e within 1 h", many) == [("CEP424", "d")]


def test_random_patterns_are_refused_exactly_if_they_do_not_compile() -> None:
    patterns_count = 0
    for seed in range(40):
        checked = load_text(random_file(seed))
        after = compilable(checked)
        for name, pattern in checked.patterns.items():
            bound, _ = bind(pattern, {})
            if bound is not None:
                patterns_count += 1
                assert (name in after.patterns) == (not problems(bound, checked.schema)), seed
    assert patterns_count > 40


def nullable(schema: Schema) -> Schema:
    """Return the schema in which every field that may be nullable is."""

    def loosened(field: Field) -> Field:
        return field if field.type.kind in (Kind.ID, Kind.TIME) else replace(field, type=field.type.as_nullable())

    return Schema(tuple(replace(e, fields=tuple(map(loosened, e.fields))) for e in schema.event_types))


def programs_of_records(records: list[UpsertRecord], schema: Schema) -> list[Program]:
    book = Rulebook(schema, None)
    for record in records:
        assert book.apply(record, None).kind == "applied", record.id
    return [program for level in programs_by_level(book, schema) for program in level.values()]


def test_runs_have_the_same_shape() -> None:
    few = [rule for seed in range(12) if not deploy([rule := drawn_rule(Random(seed), f"x{seed}")]).set_aside]
    for records in (list(rules().values()), few):
        schema = deploy(records).schema
        for before, after in zip(
            programs_of_records(records, schema), programs_of_records(records, nullable(schema)), strict=True
        ):
            assert before.width == after.width
            assert np.array_equal(before.row_registers, after.row_registers)
            for one, other in zip(before.rules, after.rules, strict=True):
                assert (one.identity, one.states_count) == (other.identity, other.states_count)
                assert np.array_equal(one.row, other.row)


TEXT = """
event e { id id  event_time time  key string  hops int }
list blocked: string from "lists/blocked.csv"
list bins: prefix = ["41", "411", "41"]
list watch: int
list fixed = ["a"]
pattern p(shops: list of string = blocked, places: list of int) by key {
  seq   a
  where a: e  key in shops and key in bins and key in fixed and hops in places and not (hops in watch)
}
"""


def test_files_beside_the_pattern_and_entries_in_place(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "blocked.csv").write_text("blocked\nC-1\nC-2\nC-1\n")
    (tmp_path / "p.cep").write_text(TEXT)
    checked = load_files([tmp_path / "p.cep"])
    assert checked.ok
    lists = given_lists(checked)
    assert {key: len(given_list.content) for key, given_list in lists.lists.items()} == {
        ("blocked", "string"): 2,
        ("bins", "prefix"): 2,
    }
    assert lists.lists["blocked", "string"].repeated_count == 1
    assert [d.code for d in lists.diagnostics] == ["CEP804"]
    assert checked.lists == {"fixed": ("a",)}


def test_what_a_rule_asks() -> None:
    bound, schema = bound_pattern(TEXT, {"shops": "vips", "places": [1, 2]})
    assert asked_lists([bound]) == {("vips", "string"), ("bins", "prefix"), ("watch", "int")}
    assert problems(bound, schema) == []


def test_a_rule_that_gives_wrong_entries() -> None:
    bound, schema = bound_pattern(TEXT, {"places": [1, "x"]})
    assert problems(bound, schema) == ["CEP802 entry 2 is `x`, which is not of type int"]
    for wrong in ("Two Words", {"a": 1}, [True], list(range(1_001))):
        _, diagnostics = bind(load_text(TEXT).patterns["p"], {"places": wrong})
        assert [d.code for d in diagnostics] == ["CEP503"]


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
    nested = build(structure("c | ((a -> !b within 5 s) | d within 8 s)"))
    (wait,) = [wait for position in nested.positions for wait in position.waits if wait.target is None]
    assert [bound.max_ms for bound in wait.bounds] == [5_000, 8_000]


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
    with pytest.raises(CompileError):
        build(structure("((a -> b){90} -> c){90}"))

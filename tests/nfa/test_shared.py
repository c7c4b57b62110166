"""Rules that share their beginning, and programs that are linked from cached pieces: equal to ones from scratch."""

import random
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest

from cep.kernels import layout as y
from cep.nfa import compile as compiling
from cep.nfa.compile import Compiler, compile_piece
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from tests.engine.rules import SCHEMA, program, rule

WHERE = "where a: e kind == a\n b: e kind == b and amount > a.amount\n c: e kind == c"


def program_of(*texts: str) -> Program:
    return program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))


def relevance(compiled: Program) -> list[list[int]]:
    """Return the predicates that each rule reacts to."""
    return [part.tolist() for part in np.split(compiled.relevance, compiled.relevance_first[1:-1])]


def pair(number: int, within: str = "1 h") -> str:
    return f"seq a -> b within {within}\nwhere a: e kind == a\n b: e kind == b and amount > {number}.00"


@pytest.mark.parametrize(
    ("steps", "may"),
    [
        (f"seq a -> b -> c within 1 h\n{WHERE}", True),
        (f"seq a -> b{{2}} -> c within 1 h\n{WHERE}\nskip past last", True),
        (f"seq a ->> (b | c) within 1 h\n{WHERE}\nskip none", True),
        ("seq a{2} -> b within 1 h\nwhere a: e kind == a\n b: e kind == b", True),
        ("seq a{2,} -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nemit total = sum(a.amount)", True),
        ("seq a+ -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nemit total = sum(a.amount * 2)", False),
        ("seq a -> b -> d within 1 h\nwhere a: e kind == a\n b: e kind == b\n d: e kind == a", False),  # completes
        (f"seq a -> b -> d -> c within 1 h\n{WHERE}\n d: e kind == a and amount > a.amount", False),  # asks for more
        ("seq a -> b within 1 h\nwhere a: e kind == a\n b: e amount > a.amount", False),  # every event may fit
        (f"seq a, b -> c within 1 h\n{WHERE}", False),  # the event directly after a is decisive
        (f"seq a -> !b -> c within 1 h\n{WHERE}", False),  # an event closes the run
        (f"seq a -> b ->[5 min] c within 1 h\n{WHERE}", False),  # the step has a deadline
        (f"seq a -> b -> c within 1 h\n{WHERE}\non timeout emit late = a.amount", False),  # a deadline fires a time-out
        (f"seq a -> b -> c within 1 h\n{WHERE}\nskip past last in order", False),
        ("seq (a | b) -> c within 1 h\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c", False),  # two starts
        ("seq a -> b? within 1 h\nwhere a: e kind == a\n b: e kind == b", False),  # a start is a match
    ],
)
def test_which_rules_may(steps: str, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.prefixes.SHARED_MIN", 1)
    assert len(program_of(steps).shared) == may


def test_enough_rules_share_what_all_of_them_need() -> None:
    few, enough = program_of(pair(1), pair(2), pair(3)), program_of(pair(1), pair(2), pair(3, "2 h"), pair(4))
    assert few.shared == ()
    assert not any(r.row[y.R_SHARES] for r in few.rules)
    (start,) = enough.shared
    assert start.rules.tolist() == [0, 1, 2, 3]
    assert (start.rule_number, start.within_ms) == (4, 2 * 3_600_000)
    (predicate,) = start.predicates.tolist()
    assert all(predicate not in relevant for relevant in relevance(enough))
    assert all(predicate in program(rule(pair(number))).relevance for number in range(4))


def test_starts_lie_where_one_of_the_rules_sees_them() -> None:
    rules = [rule(pair(n), f"r{n}", from_ms=10 * n, starts_until_ms=100 + n, until_ms=200 + n) for n in range(1, 6)]
    (start,) = program(*rules).shared
    assert (start.from_ms, start.until_ms) == (10, 205)


def test_rules_that_hand_runs_over_keep_their_own_starts() -> None:
    rules = [rule(pair(n), f"r{n}") for n in range(5)]
    giver = replace(rules[0], until_ms=2_000)
    taker = replace(rules[0], version=2, content_hash="newer", from_ms=1_000, carries=1)
    (start,) = program(*rules[1:], giver, taker).shared
    assert start.rules.tolist() == [0, 1, 2, 3]


PREFIXED = WHERE.replace("c: e kind == c", 'd: e kind == b\n c: e kind == c\n z: e note == "u"')


def longest(steps: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many conditions a rule alone could share; 0 if it may not share any."""
    monkeypatch.setattr("cep.nfa.prefixes.SHARED_MIN", 1)
    used = [line for line in PREFIXED.split("\n") if line.replace("where", "").strip()[0] in steps]
    compiled = program_of(
        f"seq {steps} within 1 h\nwhere " + "\n ".join(line.replace("where ", "").strip() for line in used)
    )
    assert [len(start.predicates) for start in compiled.shared] == [len(compiled.prefix_of(0))] * len(compiled.shared)
    return len(compiled.prefix_of(0))


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ("a -> d -> c -> z", 3),
        ("a{3} -> d -> z", 2),
        ("a -> d+ -> c -> z", 1),  # any number of d would wait after one start
        ("a -> d? -> c -> z", 3),
        ("a -> (c | d) -> z", 3),
        ("(a -> d){2} -> z", 1),
        ("a+ any -> d -> z", 2),  # each event of the first condition is kept anyway
        ("a -> b -> c -> z", 1),  # b looks at the run
        ("a -> d ->> c -> z", 2),  # every c is taken, in any number
        ("a -> d -> c{2} -> z", 2),
        ("a -> c{1,3} -> z", 1),
        ("a -> d -> c?", 1),  # a d may be the last event
        ("a -> d -> c, z", 0),
    ],
)
def test_how_far_a_prefix_goes(steps: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert longest(steps, monkeypatch) == count


def test_a_condition_that_is_waited_for_elsewhere_too_ends_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.prefixes.SHARED_MIN", 1)
    where = f"{PREFIXED}\n x: e kind == c and amount > a.amount\n e: e kind == b"
    where = "\n".join(line for line in where.split("\n") if line.strip()[0] not in "bc")
    (start,) = program_of(f"seq a -> d -> x -> e -> z within 1 h\n{where}").shared
    assert len(start.predicates) == 1  # after x a run may wait for a c that was kept only because of a d


def three(number: int, second: str = "e kind == b", third: str = "e kind == c") -> str:
    return (
        f"seq a -> d -> c -> z within 1 h\nwhere a: e kind == a\n d: {second}\n c: {third}\n"
        f' z: e note == "u" and amount > {number}.00'
    )


def test_the_longest_that_enough_rules_have_is_shared() -> None:
    deep = [three(n) for n in range(5)]
    shallow = [three(n, third=f"e kind == c and amount > {n}.00") for n in range(10, 14)]
    rest = [three(n, third=f"e kind == c and amount > {n}.00", second="e kind == c") for n in range(20, 23)]
    single = [pair(n) for n in range(30, 32)]
    texts = [*deep, *shallow, *rest, *single]
    shared = {(tuple(start.rules.tolist()), len(start.predicates)) for start in program_of(*texts).shared}
    assert shared == {((0, 1, 2, 3, 4), 3), ((5, 6, 7, 8), 2), ((9, 10, 11, 12, 13), 1)}
    order = [(5 * n) % len(texts) for n in range(len(texts))]
    again = program_of(*(texts[n] for n in order)).shared
    assert {(tuple(sorted(order[n] for n in start.rules)), len(start.predicates)) for start in again} == shared
    assert [start.rules.min() for start in again] == sorted(start.rules.min() for start in again)


def test_nothing_of_a_shared_prefix_is_reacted_to_but_what_is_set_apart() -> None:
    compiled = program_of(*(three(n) for n in range(4)))
    (start,) = compiled.shared
    assert all(not set(start.predicates.tolist()) & set(relevant) for relevant in relevance(compiled))
    assert all(len(relevant) == 2 and start.undeferred_bitmap in relevant for relevant in relevance(compiled))
    assert start.undeferred_bitmap == compiled.predicates.count
    assert start.place[0][2] == "0,1,2,3/3"


def test_a_version_that_ends_shares_its_first_condition_alone() -> None:
    rules = [rule(three(n), f"r{n}") for n in range(6)]
    rules[4:] = [replace(one, starts_until_ms=1_000, until_ms=2_000) for one in rules[4:]]
    more = [rule(pair(n), f"p{n}") for n in range(2)]
    shared = {(tuple(start.rules.tolist()), len(start.predicates)) for start in program(*rules, *more).shared}
    assert shared == {((0, 1, 2, 3), 3), ((4, 5, 6, 7), 1)}


_TEXTS = (
    "seq a -> b within 10 min\nwhere a: e kind == a and amount > {n}.00\n b: e kind == b\nemit n = b.note",
    """seq a{{2,}} greedy -> b within {n} min
where a: e kind == a
 b: e amount > 2 * max(a.amount)
emit total = sum(a.amount), several = count(a)""",
    """seq a -> b -> !c within 1 h
where a: e kind == a
 b: e amount > a.amount
 c: e kind == c and amount < {n}.00
skip past last""",
    'seq a -> b within {n} events\nwhere a: e note == "x{n}"\n b: e note in ["x{n}", "y"] and amount < 3.00',
    """seq a -> b within 1 h
where a: e count(e over {n} min where amount > {n}.00) > 3
 b: e amount + {n}.00 > a.amount
on timeout emit late = a.amount""",
    """seq a -> b+ any within 5 min
where a: e lower(note) == "x{n}" or amount < 1.00
 b: e amount == a.amount
emit total = sum(b.amount * 2)""",
)


@cache
def _parsed(text: str) -> DeployedRule:
    return rule(text)


def _some_rule(rng: random.Random, number: int) -> DeployedRule:
    text = rng.choice(_TEXTS).format(n=rng.randint(1, 12))
    from_ms = rng.choice([-(10**12), 5, 1_000])
    return replace(
        _parsed(text), rule_id=f"r{number:03}", content_hash=text, from_ms=from_ms, version=rng.randint(1, 9),
        carries=rng.choice([0, 0, 1]), status=rng.choice(["live", "shadow"]),
    )  # fmt: skip


def same(one: object, other: object, path: str = "program") -> None:
    """Assert that two programs are equal, arrays by their bytes."""
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), path
    elif isinstance(one, tuple | list) or path.endswith(".rules"):
        assert len(one) == len(other), path  # type: ignore[arg-type]
        for number, (a, b) in enumerate(zip(one, other, strict=True)):  # type: ignore[call-overload]
            same(a, b, f"{path}[{number}]")
    elif is_dataclass(one) and not isinstance(one, DeployedRule):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}")
    else:
        assert one == other, path


def compiled(rules: list[DeployedRule], compiler: Compiler | None = None) -> Program:
    return (compiler or Compiler(SCHEMA)).program(("key",), rules)


@pytest.mark.parametrize("seed", range(6))
def test_after_any_changes_a_program_is_as_if_compiled_at_once(seed: int) -> None:
    rng = random.Random(seed)
    compiler = Compiler(SCHEMA)
    rules = [_some_rule(rng, number) for number in range(rng.choice([2, 12, 40]))]
    for step in range(12):
        same(compiled(rules, compiler), compiled(rules))
        match rng.choice(["change", "change", "insert", "remove", "interval", "move"]):
            case "change":
                rules[rng.randrange(len(rules))] = _some_rule(rng, rng.randrange(1_000))
            case "insert":
                rules.insert(rng.randint(0, len(rules)), _some_rule(rng, 1_000 + step))
            case "remove" if len(rules) > 1:
                del rules[rng.randrange(len(rules))]
            case "interval":
                place = rng.randrange(len(rules))
                rules[place] = replace(rules[place], starts_until_ms=2_000, until_ms=3_000)
            case _:
                rng.shuffle(rules)


def test_only_what_is_new_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    compiler = Compiler(SCHEMA)
    rules = [_some_rule(rng, number) for number in range(50)]
    compiled(rules, compiler)
    new: list[object] = []

    def counting(*arguments: object) -> object:
        new.append(arguments[0])
        return compile_piece(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("cep.nfa.compile.compile_piece", counting)
    rules[20] = rule(_TEXTS[0].format(n=77))
    compiled([replace(r, version=r.version + 1) for r in rules], compiler)
    assert new == [rules[20].pattern]


def test_what_rules_that_are_gone_have_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "SYMBOLS_MAX", 40)
    monkeypatch.setattr(compiling, "PIECES_CACHED_MAX", 5)
    rng = random.Random(2)
    compiler = Compiler(SCHEMA)
    for _ in range(30):
        rules = [_some_rule(rng, number) for number in range(6)]
        same(compiled(rules, compiler), compiled(rules))
        assert len(compiler._pieces) <= 6
        assert len(compiler._symbols) < 500


def test_no_rules_are_a_program_too() -> None:
    nothing = compiled([])
    assert (len(nothing.rules), nothing.width, nothing.predicates.count) == (0, y.RUN_HEADER, 0)
    assert nothing.places == ()

"""Expressions: their types (golden/ir/expressions.cep has the full output), their text, and walks through them."""

from decimal import Decimal

import pytest

from cep.base.schema import Kind, Type
from cep.lang.check.types import BOOL, FLOAT, INT, STRING, balanced, cast, common_number, convert_const, decimal_const
from cep.lang.ir import Binary, Cast, Const, CurrentField, Expr, History, PatternIR, Step
from cep.lang.load import load_text
from cep.lang.show import show_duration, show_expr, show_time, show_value
from cep.lang.walk import histories, nodes, nodes_of
from tests.lang.common import checked_pattern, pattern_codes
from tests.lang.dump import dump_expr
from tests.lang.generate import random_file


def where(text: str, before: str = "", header: str = "pattern p by card_id") -> str:
    """Return the condition of b in `a -> b` as a dump."""
    pattern = checked_pattern(f"seq a -> b where b: transaction {text}", header, before)
    condition = pattern.variables[1].where
    assert condition is not None
    return dump_expr(condition)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amount > 1", "(amount:decimal(2) > 100:decimal(2))"),
        ("amount > 500.000", "(amount:decimal(2) > 50000:decimal(2))"),
        ("1 < amount", "(100:decimal(2) < amount:decimal(2))"),
        ("tries > 1.5", "(<decimal(1)>tries:int > 15:decimal(1))"),
        ("amount > lat", "(<float>amount:decimal(2) > lat:float)"),
        ("amount * 1.10 > 5", "((amount:decimal(2) * 11:decimal(1)):decimal(3) > 5000:decimal(3))"),
        ("tries / 2 > 1", "((<float>tries:int / 2.0:float):float > 1.0:float)"),
        ("declined == status", "(declined#1 == status:enum)"),
        ("country is not null", "(not (is_null country:string?))"),
        ("tx_id != a.tx_id", "(tx_id:id != last(a).tx_id:id)"),
        ("tx_id == a.card_id", "(tx_id:id == last(a).card_id:string)"),
        (
            "event_time - a.event_time < 2 h",
            "((event_time:time - last(a).event_time:time):duration < 7200000:duration)",
        ),
        ("min(amount, 5) == 5", "(least(amount:decimal(2), 500:decimal(2)):decimal(2) == 500:decimal(2))"),
        ("min(a.amount) == 5", "(min(a, amount:decimal(2)):decimal(2)? == 500:decimal(2))"),
        ("count(a.country) > 1", "(count(a, country:string?):int > 1:int)"),
        ("online", "online:bool"),
        ("amount in [1, 2.5]", "(amount:decimal(2) in [100:decimal(2), 250:decimal(2)])"),
        ("tries in [1, 2.5]", "(<decimal(1)>tries:int in [10:decimal(1), 25:decimal(1)])"),
        ("tries in [1.25, 2.5]", "(<decimal(2)>tries:int in [125:decimal(2), 250:decimal(2)])"),
        ("tries in [2.5, 1.25]", "(<decimal(2)>tries:int in [250:decimal(2), 125:decimal(2)])"),
    ],
)
def test_dumps(text: str, expected: str) -> None:
    assert where(text) == expected


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("amount", ["CEP302"]),
        ("not amount", ["CEP302"]),
        ("-country == country", ["CEP301"]),
        ("online < online", ["CEP306"]),
        ("status == country", ["CEP301"]),
        ("event_time > 5", ["CEP301"]),
        ("event_time + a.event_time > event_time", ["CEP301"]),
        ("amount + country > 1", ["CEP301"]),
        ("country in [null]", ["CEP303"]),
        ("country in [1]", ["CEP301"]),
        ("tries in [9223372036854775807, 0.5]", ["CEP309"]),
        ("1 in [0.555, amount]", ["CEP309"]),
        ("country in amount", ["CEP206"]),
        ("country like device_id", ["CEP301"]),
        ('amount like "1"', ["CEP301"]),
        ("abs(country) > 1", ["CEP301"]),
        ("sqrt(country) > 1", ["CEP301"]),
        ("abs(1, 2) > 1", ["CEP307"]),
        ("distance_km(lat, lon) > 1", ["CEP307"]),
        ("least(1) > 1", ["CEP307"]),
        ('max(country, "a") == country', ["CEP301"]),
        ("first(a) == 1", ["CEP203"]),
        ("sum(a) > 1", ["CEP310"]),
        ("sum(a.country) > 1", ["CEP301"]),
        ("max(a.country) == country", ["CEP301"]),
        ("sum(first(a).amount) > 1", ["CEP310"]),
        ("count(c) > 1", ["CEP204"]),
        ("count(1) > 1", ["CEP310"]),
        ("(amount).x > 1", ["CEP204"]),
        ("a > 1", ["CEP201"]),
        ("amount > if online then country else 1", ["CEP301"]),
        ("(if online then null else null) is null", []),
        ("amont > 1 and amonut < 2", ["CEP201", "CEP201"]),
        ("status == (if online then aproved else declined)", ["CEP305"]),
        ("amount > 0.0000000000000000001", ["CEP309"]),
    ],
)
def test_mistakes(text: str, codes: list[str]) -> None:
    assert pattern_codes(f"seq a -> b where b: transaction {text}") == codes


def test_definitions_are_typed_where_they_are_used() -> None:
    before = "define small(x, y) = x < y\ndefine tiny = small(amount, 1)"
    assert where("small(amount, 2) and small(tries, 2) and tiny", before) == (
        "(((amount:decimal(2) < 200:decimal(2)) and (tries:int < 2:int)) and (amount:decimal(2) < 100:decimal(2)))"
    )


def test_definitions_are_hygienic() -> None:
    header = "pattern p(limit: decimal = 1) by card_id"
    # The argument `limit` is the pattern's; the definition's own parameter of that name is another.
    assert where("over_it(limit)", "define over_it(limit) = amount > limit", header) == (
        "(amount:decimal(2) > $limit:decimal(2))"
    )
    assert where("f(a)", "define f(b) = g(b)\ndefine g(a) = country != a.country") == (
        "(country:string? != last(a).country:string?)"
    )
    assert where("t(amount_of(a))", "define amount_of(x) = x.amount\ndefine t(x) = sum(x) > 1").startswith("(sum(a, ")
    assert pattern_codes("seq a -> b where b: transaction far()", before="define far() = lat != a.lat") == ["CEP204"]


def test_null_where_nothing_may_be_bound() -> None:
    pattern = checked_pattern(
        "seq a? -> b -> c+ where c: transaction a.amount > b.amount and c.amount > prev(c).amount"
    )
    condition = pattern.variables[2].where
    assert condition is not None
    assert dump_expr(condition) == (
        "((last(a).amount:decimal(2)? > last(b).amount:decimal(2)) and "
        "(last(c).amount:decimal(2)? > prev(c).amount:decimal(2)?))"
    )


def test_references_to_what_is_bound_later() -> None:
    assert pattern_codes("seq (a -> b){2} where a: transaction amount > b.amount") == []
    assert pattern_codes("seq (a -> b) where a: transaction amount > b.amount") == ["CEP407"]
    assert pattern_codes("seq (a | b) where a: transaction amount > b.amount") == ["CEP407"]
    assert pattern_codes("seq (a & b) where a: transaction amount > b.amount") == []
    assert pattern_codes("seq a -> !b -> c where b: transaction amount > a.amount") == []
    assert pattern_codes("seq a -> !b -> c where b: transaction amount > c.amount") == ["CEP407"]


def test_decimal_parameters_and_fields_meet_at_the_finer_scale() -> None:
    header = "pattern p(limit: decimal = 1.005) by card_id"
    assert where("amount > limit", header=header) == "(<decimal(3)>amount:decimal(2) > $limit:decimal(3))"


def decimal(scale: int) -> Type:
    return Type(Kind.DECIMAL, scale=scale)


@pytest.mark.parametrize(
    ("const", "target", "value"),
    [
        (Const(3, INT), decimal(2), 300),
        (Const(250, decimal(2)), decimal(1), 25),
        (Const(255, decimal(2)), decimal(1), None),
        (Const(300, decimal(2)), INT, None),
        (Const(10, decimal(2)), FLOAT, 0.1),
        (Const(2**62, INT), decimal(2), None),
        (Const("a", STRING), Type(Kind.ID), "a"),
        (Const("a", STRING), INT, None),
        (Const(value=True, type=BOOL), INT, None),
    ],
)
def test_constants(const: Const, target: Type, value: object) -> None:
    converted = convert_const(const, target)
    assert (converted.value if converted is not None else None) == value


def test_casts_go_one_way() -> None:
    field = CurrentField("f", decimal(2).as_nullable())
    assert cast(field, decimal(4)) == Cast(field, decimal(4).as_nullable())
    assert cast(field, decimal(1)) is None
    assert cast(field, INT) is None
    assert cast(field, decimal(2)) == field
    assert cast(CurrentField("f", FLOAT), decimal(2)) is None


def test_common_number() -> None:
    assert common_number(INT, decimal(2)) == decimal(2)
    assert common_number(decimal(4), decimal(2)) == decimal(4)
    assert common_number(decimal(4), FLOAT) == FLOAT


def test_decimal_literals() -> None:
    assert decimal_const(Decimal("2.50")) == Const(250, decimal(2))
    assert decimal_const(Decimal("0." + "1" * 19)) is None
    assert decimal_const(Decimal("9" * 19 + ".0")) is None


def test_a_long_chain_is_a_shallow_tree() -> None:
    def depth(expr: Expr) -> int:
        left, right = getattr(expr, "left", None), getattr(expr, "right", None)
        return 1 if left is None or right is None else 1 + max(depth(left), depth(right))

    assert depth(balanced("and", [CurrentField("f", BOOL)] * 1000)) == 11


@pytest.mark.parametrize(
    "text",
    [
        "amount > 5.00 and (tries == 1 or tries == 2) and online",
        "not (online and tries > 1)",
        'country is not null and country in ["KP", "IR"]',
        "amount - (amount - 1.00) > -amount",
        "if online then true else false",
        "status == approved",
        "event_time - a.event_time < 2 h",
        "event_time - a.event_time < 90 min and count(transaction over 25 h by card_id) > 2",
        r'country == "a\n\"b"',
        "count(a) > 3 and sum(a.amount) < 20.00 and first(a).amount == prev(a).amount",
        'country like "A%"',
    ],
)
def test_what_is_shown_checks_to_the_same(text: str) -> None:
    first = checked_pattern(f"seq a where a: transaction {text}").variable("a").where
    assert first is not None
    shown = show_expr(first)
    again = checked_pattern(f"seq a where a: transaction {shown}").variable("a").where
    assert again == first, shown


def test_values() -> None:
    assert show_duration(5_400_000) == "1 h 30 min"
    assert show_duration(0) == "0 s"
    assert show_time(0) == "1970-01-01T00:00:00Z"
    assert show_value(1999, Type(Kind.DECIMAL, scale=2)) == "19.99"
    assert show_value(1, Type(Kind.DECIMAL, scale=8)) == "0.00000001"
    assert show_value('a"b', Type(Kind.STRING)) == '"a\\"b"'
    assert show_value(None, Type(Kind.INT)) == "null"


@pytest.mark.parametrize("seed", range(20))
def test_nodes_by_class(seed: int) -> None:
    for pattern in load_text(random_file(seed)).patterns.values():
        trees: tuple[object, ...] = (pattern, pattern.structure, pattern.measures)
        for tree in trees:
            walked = list(nodes(tree))
            for kind in (Binary, Const, History, Step, PatternIR):
                by_class: list[object] = list(nodes_of(tree, kind))
                assert [id(node) for node in by_class] == [id(node) for node in walked if isinstance(node, kind)]
            assert list(histories(tree)) == [node for node in walked if isinstance(node, History)]


def test_the_nodes_of_an_equal_pattern_are_its_own() -> None:
    """Another object has its own nodes, even if it is equal, because readers compare nodes with `is`."""
    text = random_file(1)
    first, second = ({**load_text(text).patterns} for _ in range(2))
    for name, pattern in first.items():
        assert pattern == second[name]
        for tree in (pattern, second[name], pattern):
            assert next(nodes(tree)) is tree

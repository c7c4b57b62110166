"""Lossless conversions."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cep.base.schema import Kind, Type
from cep.lang.check.types import BOOL, FLOAT, INT, STRING, balanced, cast, common_number, convert_const, decimal_const
from cep.lang.ir import Cast, Const, CurrentField, Expr


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

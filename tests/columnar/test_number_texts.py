"""Numbers as people write them, against Python's own reading of the plain form."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from cep.columnar.number_texts import FORMS, AmbiguousError, NumberForm, form_of, plain_numbers

EUROPEAN, AMERICAN = NumberForm(",", "."), NumberForm(".", ",")


def written(number: Decimal, form: NumberForm) -> str:
    text = f"{number:,}" if form.thousands else str(number)
    return text.translate({ord(","): form.thousands, ord("."): form.decimal})


@pytest.mark.parametrize("form", FORMS)
def test_random_numbers_in_each_form(form: NumberForm) -> None:
    rng = random.Random(3)
    numbers = [Decimal(rng.randint(-(10**9), 10**9)).scaleb(-rng.randint(0, 4)) for _ in range(200)]
    texts = [rng.choice(["{}", "€{}", "{} €", " {}"]).format(written(number, form)) for number in numbers]
    assert [Decimal(text) for text in plain_numbers(pa.array(texts), form).to_pylist()] == numbers
    number_form = form_of(texts)
    assert number_form is not None
    assert number_form.decimal == form.decimal
    assert [Decimal(text) for text in plain_numbers(pa.array(texts), number_form).to_pylist()] == numbers


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["1.5", "2"], None), ([], None), (["a", "b"], None), (["7", "12"], None), (["1e5", ".5"], None),
        (["12,50", "3"], EUROPEAN), (["1.234,50"], EUROPEAN), (["1.234.567"], EUROPEAN), (["$12.30"], AMERICAN),
        (["1,200", "1,200.5"], AMERICAN), (["1,234,567"], AMERICAN), (["-$1,200.5"], AMERICAN),
        (["1\u00a0234,50"], NumberForm(",", "\u00a0")), (["1'234.50"], NumberForm(".", "'")),
    ],
)  # fmt: skip
def test_the_form_of_texts(texts: list[str], form: NumberForm | None) -> None:
    assert form_of(texts) == form


def test_one_text_with_two_meanings_is_not_guessed() -> None:
    with pytest.raises(AmbiguousError, match="1,200"):
        form_of(["1,200", "5"])
    assert form_of(["1,200"], decimal=",") == EUROPEAN
    assert form_of(["1,200"], decimal=".") == AMERICAN
    assert form_of(["1.200"]) is None
    with pytest.raises(AmbiguousError, match=r"1\.200"):
        form_of(["1.200", "850"], is_european=True)
    assert form_of(["1.200", "1.5"], is_european=True) is None
    with pytest.raises(AmbiguousError, match="different signs"):
        form_of(["0,50", "1,5", "0.25"])


def test_texts_of_another_form_are_null() -> None:
    texts = pa.array(["12.5", "1.23,4", "1.2345,0", "x", "", None, "1,2,3"])
    assert plain_numbers(texts, EUROPEAN).null_count == len(texts)

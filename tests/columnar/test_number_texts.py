"""Numbers as people write them, counts of different numbers, and amounts in minor units."""

import base64
import random
from decimal import Decimal
from pathlib import Path
from random import Random

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import cep
from cep.base.errors import UsageError
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.convert import FORMS, AmbiguousError, NumberForm, guess_number_form, plain_numbers, whole_numbers
from cep.columnar.decode import decode_json, decode_table
from cep.columnar.mapping import FieldMapping, check_fields, mapping_of
from cep.columnar.texts import different_count

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
    number_form = guess_number_form(texts)
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
    assert guess_number_form(texts) == form


def test_one_text_with_two_meanings_is_not_guessed() -> None:
    with pytest.raises(AmbiguousError, match="1,200"):
        guess_number_form(["1,200", "5"])
    assert guess_number_form(["1,200"], decimal=",") == EUROPEAN
    assert guess_number_form(["1,200"], decimal=".") == AMERICAN
    assert guess_number_form(["1.200"]) is None
    with pytest.raises(AmbiguousError, match=r"1\.200"):
        guess_number_form(["1.200", "850"], is_european=True)
    assert guess_number_form(["1.200", "1.5"], is_european=True) is None
    with pytest.raises(AmbiguousError, match="different signs"):
        guess_number_form(["0,50", "1,5", "0.25"])


def test_texts_of_another_form_are_null() -> None:
    texts = pa.array(["12.5", "1.23,4", "1.2345,0", "x", "", None, "1,2,3"])
    assert plain_numbers(texts, EUROPEAN).null_count == len(texts)


@pytest.mark.parametrize(
    ("numbers", "count"),
    [
        (np.array([], np.int64), 0),
        (np.array([7], np.int64), 1),
        (np.array([3, -3, 3, 2**63 - 1, -(2**63)]), 4),
        (np.array([255, 0, 255], np.uint8), 2),
        (np.array([0.0, -0.0, 1.5, np.inf, -np.inf]), 4),
        (np.array([np.nan, 1.0, np.nan, 2.0, 2.0]), 3),
        (np.array([np.nan, np.nan]), 1),
    ],
)
def test_different_numbers_are_counted(numbers: NDArray[np.generic], count: int) -> None:
    before = numbers.copy()
    assert different_count(numbers) == count
    np.testing.assert_array_equal(numbers, before)


@pytest.mark.parametrize("seed", range(5))
def test_a_set_has_as_many(seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(-50, 50, 200)
    assert different_count(numbers) == len(set(numbers.tolist()))


TYPE = Type(Kind.DECIMAL, scale=2)
FIELDS = (("i", Type(Kind.ID)), ("event_time", Type(Kind.TIME)), ("amount", TYPE), ("currency", Type(Kind.STRING)))
SCHEMA = Schema((EventType("e", tuple(Field(name, type_) for name, type_ in FIELDS)),))
BY_CURRENCY = mapping_of(minor=("amount:currency",))
# Minor units, currency, and units of decimal(2), or None for a bad value.
AMOUNTS = [
    (1050, "EUR", 1050), (1050, "JPY", 105000), (1050, "KWD", 105), (1051, "KWD", None), (-7, "jpy", -700),
    (5, "EURO", None), (5, None, None), (10**17, "JPY", None), (0, "CLF", 0), (120_000, "CLF", 1200),
    (-(2**63), "JPY", None),
]  # fmt: skip


def amounts(mapping: FieldMapping, records: list[dict[str, object]]) -> list[list[object]]:
    lines = pa.array([orjson.dumps(record) for record in records], pa.binary())
    table = pa.Table.from_pylist(records)
    decoded = decode_json(SCHEMA, lines, mapping), decode_table(SCHEMA, table, str, mapping)
    by_id = [dict(zip(each.event_id.to_pylist(), each.columns["amount"].to_pylist(), strict=True)) for each in decoded]
    return [[values.get(str(record["i"])) for record in records] for values in by_id]


@pytest.mark.parametrize("written", [int, str, lambda minor: f"{minor}.0", float])
def test_the_digits_of_minor_units_are_those_of_the_currency(written: type) -> None:
    records = [
        {"i": str(number), "event_time": "2026-01-01T00:00:00Z", "amount": written(minor), "currency": code}
        for number, (minor, code, _) in enumerate(AMOUNTS)
        if written is not float or minor < 2**53
    ]
    expected = [units for minor, _, units in AMOUNTS if written is not float or minor < 2**53]
    assert amounts(BY_CURRENCY, records) == [expected, expected]


@pytest.mark.parametrize("seed", range(5))
def test_base64_of_whole_numbers_is_read_exactly(seed: int) -> None:
    random = Random(seed)
    numbers = [0, 1, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), *(random.randint(-(2**b), 2**b) for b in range(63))]
    texts: list[str | None] = [
        base64.b64encode(n.to_bytes((n if n >= 0 else ~n).bit_length() // 8 + 1, "big", signed=True)).decode()
        for n in numbers
    ]
    texts += [None, "", "AQ", "A===", "====", "A-8=", base64.b64encode(b"123456789").decode()]
    assert whole_numbers(pa.array(texts)).to_pylist() == [*numbers, *[None] * 7]
    assert whole_numbers(pa.array(["x", *texts]).slice(1)).to_pylist() == [*numbers, *[None] * 7]
    as_bytes = [None if text is None else base64.b64decode(text) for text in texts[: len(numbers) + 2]]
    for layout in (pa.binary(), pa.large_binary()):
        assert whole_numbers(pa.array([b"x", *as_bytes], layout).slice(1)).to_pylist() == [*numbers, None, None]
    mapping = mapping_of(minor=("amount:base64",))
    times = "2026-01-01T00:00:00Z"
    records: list[dict[str, object]] = [
        {"i": str(number), "event_time": times, "amount": text, "currency": "x"} for number, text in enumerate(texts)
    ]
    assert amounts(mapping, records[: len(numbers)]) == [numbers, numbers]


def test_files_frames_and_jobs_say_it_alike(tmp_path: Path) -> None:
    text = (
        "event e { i id  event_time time  card string  amount decimal(2)  currency string }\n"
        "pattern p by card { seq t where t: e amount >= 10.50 emit amount = t.amount }"
    )
    frame = pd.DataFrame(
        {"i": ["1", "2", "3"], "event_time": pd.to_datetime(["2026-01-01T00:00:00Z"] * 3), "card": ["c"] * 3,
         "amount": [1050, 1050, 1050], "currency": ["EUR", "JPY", "KWD"]}
    )  # fmt: skip
    expected = [Decimal("10.50"), Decimal("1050.00")]
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "e.parquet")
    frame.to_csv(tmp_path / "e.csv", index=False)
    frame.to_json(tmp_path / "e.jsonl", orient="records", lines=True, date_format="iso")
    for events in (frame, tmp_path / "e.parquet", tmp_path / "e.csv", tmp_path / "e.jsonl"):
        alerts = cep.parse(text).match(events, minor=["amount:currency"])
        assert sorted(pa.table(alerts.measures("p")).column("amount").to_pylist()) == expected


def test_a_mapping_outlives_its_json() -> None:
    mapping = mapping_of(minor=("amount:currency", "fee"))
    assert FieldMapping.from_json(mapping.to_json()) == mapping


@pytest.mark.parametrize("minor", ["amount:nothing", "amount:", "amount:event_time", "currency:amount"])
def test_what_is_no_currency_is_refused(minor: str) -> None:
    with pytest.raises(UsageError, match=r"currency|minor|FIELD"):
        check_fields(mapping_of(minor=(minor,)), SCHEMA)

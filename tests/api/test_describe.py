"""A declaration drafted from a frame declares that frame."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

import cep
from cep.lang.load import load_text
from tests.api.frames import KINDS, payments


@pytest.mark.parametrize("kind", KINDS)
def test_the_draft_fits_the_frame(kind: str) -> None:
    draft = cep.describe(KINDS[kind](payments()), "payment")
    assert draft.columns == {}
    checked = load_text(draft.text)
    assert checked.ok, draft
    types = {name: str(type_) for name, type_ in checked.schema.columns().items()}
    assert types["amount"] == "decimal(2)"
    assert types["status"] == "enum(approved, declined)"
    assert (types["country"], types["score"]) == ("enum(FR, US)?", "float?")
    assert (types["card_id"], types["tries"], types["online"]) == ("string", "int", "bool")
    pattern = f"{draft.text}\npattern p by card_id {{ seq p  where p: payment amount > 600.00 }}"
    alerts = cep.parse(pattern).match(KINDS[kind](payments()), cores=2)
    assert len(alerts) > 10
    assert alerts.set_aside == []


def test_names_that_no_field_may_have_are_mapped() -> None:
    table = payments().rename_columns({"event_time": "at", "tries": "seq", "score": "the score", "online": "3d"})
    table = table.append_column("nested", pa.array([{"a": 1}] * 240))
    draft = cep.describe(table, "payment")
    names = {"event_time": "at", "seq_": "seq", "the_score": "the score", "_3d": "3d", "a": "nested.a"}
    assert draft.columns == names
    rules = cep.parse(f"{draft.text}\npattern p by card_id {{ seq p  where p: payment seq_ > 1 and _3d }}")
    assert len(rules.match(table, columns=draft.columns, cores=2)) > 10


def test_other_times_and_dates_are_drafted_too() -> None:
    opened = pa.array([None, *range(239)], pa.timestamp("s", "UTC"))
    table = payments().append_column("opened", opened).append_column("expiry", pa.array([20_000] * 240, pa.date32()))
    draft = cep.describe(table, "payment")
    types = {name: str(type_) for name, type_ in load_text(draft.text).schema.columns().items()}
    assert (types["event_time"], types["opened"], types["expiry"]) == ("time", "time?", "time")
    pattern = "pattern p by card_id { seq p  where p: payment opened < event_time and expiry < event_time - 300 d }"
    rules = cep.parse(f"{draft.text}\n{pattern}")
    with pytest.raises(cep.CepError, match="expiry"):
        rules.match(table, cores=2)
    assert draft.forms == {"tz": "UTC"}
    assert len(rules.match(table, tz="UTC", cores=2)) == 239


def test_a_query_without_an_id_and_a_frame_without_a_time_are_refused() -> None:
    without_id = payments().drop_columns(["tx_id"])
    assert cep.describe(without_id).columns == {"row_id": "#row"}
    with pytest.raises(cep.CepError, match="another value in every row"):
        cep.describe(pl.DataFrame(without_id).lazy())
    with pytest.raises(cep.CepError, match="no column is of times"):
        cep.describe(payments().drop_columns(["event_time"]))


def test_a_day_and_the_time_of_the_day_are_one_time_under_any_names() -> None:
    days = ["05.01.2026", "05.01.2026", "06.01.2026"]
    table = pa.table({
        "Buchungsnr": ["B1", "B2", "B3"], "Buchungstag": days, "Uhrzeit": ["00:06:01", "23:59:59", "12:00:00"],
        "H\u00e4ndler": ["x y", "z z", "x z"], "Betrug": [0, 1, 0],
    })  # fmt: skip
    draft = cep.describe(table, "payment")
    assert draft.columns == {"event_time": "Buchungstag + Uhrzeit", "Handler": "H\u00e4ndler"}
    assert draft.forms == {"time_form": "%d.%m.%Y %H:%M:%S", "tz": "UTC"}
    assert "# Betrug: a label" in draft.text
    other = table.append_column("Valuta", pa.array(days))
    assert cep.describe(other, "payment").columns["event_time"] == "Buchungstag", "two days: the clock may be of either"


def test_a_name_that_fits_anything_has_the_name_before_it() -> None:
    inner = pa.array([{"id": 7, "amount": {"value": 1.5}}, {"id": 7, "amount": {"value": 2.25}}])
    times = pa.array([0, 1_000], pa.timestamp("ms", "UTC"))
    table = pa.table({"eventId": ["a", "b"], "at": times, "card": inner, "Is Fraud?": [True, False]})
    draft = cep.describe(table, "payment")
    names = {"event_time": "at", "card_id": "card.id", "amount_value": "card.amount.value"}
    assert draft.columns == names
    assert "amount_value  decimal(2)" in draft.text
    assert "use it as --labels 'Is Fraud?'" in draft.text


def test_labels_inside_other_values_are_read_by_their_path() -> None:
    table = payments()
    is_fraud = [{"labels": {"fraud": number % 2 == 0}} for number in range(table.num_rows)]
    rules = cep.parse(f"{cep.describe(table, 'payment').text}\npattern p by card_id {{ seq p  where p: payment }}")
    quality = rules.backtest(table.append_column("meta", pa.array(is_fraud)), labels="meta.labels.fraud", cores=2)
    assert quality.figures.together.precision.value == 0.5

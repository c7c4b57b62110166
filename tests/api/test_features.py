"""Functions of past events as columns: they equal DuckDB's window queries, in any kind of frame."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import cep
from cep.api import whole
from cep.api.frames import open_frame
from cep.cli import main as cli
from tests.api.frames import EVENT, KINDS, payments
from tests.api.test_paths import WRITE
from tests.histories.test_sql import DAY_MS, EVENTS, asked_of, generated, numbered, run_sql


def sample(rows: int = 300) -> tuple[pa.Table, pa.Table]:
    """Return generated payments, not ordered by time, and the same payments as in `tests/histories/test_sql.py`."""
    table = numbered(generated().slice(0, rows))
    unit = pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))
    events = pa.table(
        {
            "tx_id": table["id"],
            "event_time": table["time_ms"].cast(pa.timestamp("ms", "UTC")),
            "key": table["key"],
            "other": table["other"],
            "amount": pc.multiply(table["amount"].cast(pa.decimal128(19, 0)), unit),
            "size": table["size"],
        }
    )
    return events.take(np.random.default_rng(5).permutation(rows)), table


def test_features_are_what_windows_in_sql_give() -> None:
    events, table = sample()
    features = [one for one in asked_of({"2 d": 2 * DAY_MS}) if "by other" not in one.text]
    frame = cep.features(events, {one.text: one.text for one in features}, by="key", declare=EVENTS)
    assert frame.select(events.column_names).equals(events), "the rows stay as they are"
    frame = frame.sort_by("tx_id")
    for one in features:
        expected = run_sql(f"select {one.sql} as value from payments order by id", table)["value"]
        ours = frame[one.text]
        is_decimal = pa.types.is_decimal(ours.type)
        assert np.asarray(pc.is_null(ours)).tolist() == np.asarray(pc.is_null(expected)).tolist(), one.text
        values = np.asarray(pc.fill_null(ours.cast(pa.float64()), 0.0)) * (100.0 if is_decimal else 1.0)
        theirs = np.asarray(pc.fill_null(expected.cast(pa.float64()), 0.0))
        np.testing.assert_allclose(values, theirs, rtol=max(one.close, 1e-12), atol=1e-9, err_msg=one.text)


def test_the_key_is_the_expressions_own_by() -> None:
    events, table = sample(200)
    frame = cep.features(events, {"n": "count(pay over 28 d by (key, other))", "m": "max(pay.size over 28 d by other)"},
                         declare=EVENTS).sort_by("tx_id")  # fmt: skip
    for name, sql in (("n", "count(*) over (partition by key, other"), ("m", "max(size) over (partition by other")):
        query = f"select {sql} order by time_ms, id rows between unbounded preceding and current row) as value, id"
        whole = run_sql(f"{query} from payments order by id", table)["value"]
        assert frame[name].to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_any_frame_gives_its_own_kind_back(kind: str) -> None:
    features = {"spent": "sum(payment.amount over 1 h)", "was": "last(payment).country", "new": "first_seen(country)"}
    expected = cep.features(payments(), features, by="card_id", declare=EVENT)
    assert expected["spent"].type == pa.decimal128(21, 2)
    assert expected["was"].type == pa.large_string()
    frame = KINDS[kind](payments())
    returned = cep.features(frame, features, by="card_id", declare=EVENT)
    assert type(returned) is type(frame)
    columns = open_frame(returned).columns(["tx_id", *features])
    for name in features:
        assert columns[name].cast(expected[name].type).to_pylist() == expected[name].to_pylist()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_files_are_read_once(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file changes during the call, the values belong to the returned rows."""
    path = tmp_path / f"payments.{suffix}"
    WRITE[suffix](payments(), path)
    features = {"spent": "sum(payment.amount over 1 h by card_id)"}
    expected = cep.features(path, features, declare=EVENT)
    assert expected["spent"].to_pylist() == cep.features(payments(), features, declare=EVENT)["spent"].to_pylist()

    def change(*_: object) -> None:
        WRITE[suffix](payments().slice(0, 7), path)

    monkeypatch.setattr(whole, "check_paths", change)
    assert cep.features(path, features, declare=EVENT).equals(expected)


def test_an_event_without_a_key_has_no_value() -> None:
    frame = cep.features(payments(), {"n": "count(payment over 1 d by country)"}, declare=EVENT)
    assert pc.is_null(frame["n"]).to_pylist() == pc.is_null(payments()["country"]).to_pylist()
    nothing = payments().set_column(5, "country", pa.nulls(payments().num_rows, pa.string()))
    assert cep.features(nothing, {"n": "count(payment over 1 d by country)"}, declare=EVENT)["n"].null_count == 240


def test_without_a_declaration_the_frame_is_described() -> None:
    frame = cep.features(payments(), {"n": "count(payment over 1 d by card_id where status == declined)"})
    declared = cep.features(
        payments(), {"n": "count(payment over 1 d by card_id where status == declined)"}, declare=EVENT
    )
    assert frame["n"].equals(declared["n"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sum(payment.amuont over 1 h by card_id)", r"(?s)CEP\d+.*amuont.*\^"),
        ("sum(payment.amount over 1 h)", "is of no key"),
        ("first_seen(country)", "is of no key"),
        ("amount > 3", "is no function of past events alone"),
        ("2 * sum(payment.amount over 1 h by card_id)", "is no function of past events alone"),
    ],
)
def test_what_is_no_such_function_is_refused(text: str, message: str) -> None:
    with pytest.raises(cep.CepError, match=message):
        cep.features(payments(), {"f": text}, declare=EVENT)


def test_other_mistakes_are_refused() -> None:
    good = "count(payment over 1 h by card_id)"
    with pytest.raises(cep.CepError, match="has a column `amount` already"):
        cep.features(payments(), {"amount": good}, declare=EVENT)
    with pytest.raises(cep.CepError, match="give at least one expression"):
        cep.features(payments(), [])
    with pytest.raises(cep.CepError, match=r"without `declare` they are of one type"):
        cep.features(payments(), [good, "count(login over 1 h by card_id)"])
    wrong = payments().set_column(0, "tx_id", pa.nulls(240, pa.string()))
    with pytest.raises(cep.CepError, match=r"no event can be read: 240 of 240 records .*`tx_id`"):
        cep.features(wrong, [good], declare=EVENT)


def test_the_verb_writes_what_the_function_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(payments(), tmp_path / "payments.parquet")
    (tmp_path / "events.cep").write_text(EVENT)
    arguments = ["--events", str(tmp_path / "payments.parquet"), "--declare", str(tmp_path / "events.cep")]
    arguments += ["--by", "card_id", "n=count(payment over 1 h)", "exists(payment over previous 5 min)"]
    for suffix in ("parquet", "csv"):
        assert cli.main(["features", *arguments, "--out", str(tmp_path / f"f.{suffix}")]) == 0
    assert "240 events, 2 more columns" in capsys.readouterr().out
    named = {
        "n": "count(payment over 1 h)",
        "exists(payment over previous 5 min)": "exists(payment over previous 5 min)",
    }
    expected = cep.features(payments(), named, by="card_id", declare=EVENT)
    assert pq.read_table(tmp_path / "f.parquet").equals(expected)
    assert pcsv.read_csv(tmp_path / "f.csv")["n"].to_pylist() == expected["n"].to_pylist()
    assert cli.main(["features", *arguments, "--out", str(tmp_path / "f.xml")]) == 2
    assert "cannot tell the format" in capsys.readouterr().err


def test_several_files_and_forms_are_read_as_the_other_verbs_read_them(tmp_path: Path) -> None:
    table = payments()
    named = {"n": "count(payment over 1 h by card_id)", "spent": "sum(payment.amount over 1 h by card_id)"}
    expected = cep.features(table, named, declare=EVENT)
    cents = pc.multiply(table["amount"].cast(pa.decimal128(15, 2)), pa.scalar(100)).cast(pa.int64())
    seconds = pc.divide(table["event_time"].cast(pa.int64()), 1_000)
    raw = table.set_column(table.column_names.index("amount"), "amount", cents)
    raw = raw.set_column(raw.column_names.index("event_time"), "event_time", seconds)
    raw = raw.rename_columns({"card_id": "cc_num"})
    forms: Any = {"columns": {"card_id": "cc_num"}, "minor": ["amount"], "time_unit": "s"}
    (tmp_path / "events.cep").write_text(EVENT)
    for number, start in enumerate((0, 100)):
        pq.write_table(raw.slice(start, 100 if number == 0 else None), tmp_path / f"p{number}.parquet")
    flags = ["--columns", "card_id=cc_num", "--minor", "amount", "--time-unit", "s", "--out", tmp_path / "f.parquet"]
    command = ["features", *(f"{name}={text}" for name, text in named.items()), "--declare", tmp_path / "events.cep"]
    twice = ["--events", tmp_path / "p0.parquet", "--events", tmp_path / "p1.parquet"]
    for events in (twice, ["--events", tmp_path / "p*.parquet"]):
        assert cli.main([str(word) for word in (*command, *events, *flags)]) == 0
        stored = pq.read_table(tmp_path / "f.parquet")
        assert stored.select(list(named)).equals(expected.select(list(named)))
    assert cep.features(raw, named, declare=EVENT, **forms).select(list(named)).equals(expected.select(list(named)))
    assert cli.main([str(word) for word in (*command, *twice, *flags, "--columns", "card_id")]) == 2

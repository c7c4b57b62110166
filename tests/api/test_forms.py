"""Forms of the values of a frame: constants, minor units, the unit and form of times, as for the verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cep
from cep.base.errors import UsageError
from cep.cli import main as cli
from tests.api.frames import KINDS, payments, write_rules

FORMS: dict[str, Any] = {"fixed": {"country": "NL"}, "minor": ["amount"], "time_unit": "s"}


def plain() -> pa.Table:
    """Return the payments, all of one country."""
    table = payments()
    index = table.column_names.index("country")
    return table.set_column(index, "country", pa.array(["NL"] * len(table)))


def raw() -> pa.Table:
    """Return the same payments without the country, with amounts in cents and times in whole seconds."""
    table = plain().drop_columns("country")
    cents = pc.multiply(table["amount"].cast(pa.decimal128(15, 2)), pa.scalar(100)).cast(pa.int64())
    seconds = pc.divide(table["event_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()), 1_000)
    table = table.set_column(table.column_names.index("amount"), "amount", cents)
    return table.set_column(table.column_names.index("event_time"), "event_time", seconds)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> cep.Rules:
    return cep.load(write_rules(tmp_path_factory.mktemp("forms") / "rules"))


@pytest.mark.parametrize("kind", [*KINDS, "path"])
def test_a_frame_as_it_is_gives_the_alerts_of_the_clean_one(kind: str, rules: cep.Rules, tmp_path: Path) -> None:
    expected = rules.match(plain())
    assert len(expected) > 3
    pq.write_table(raw(), tmp_path / "raw.parquet")
    frame = str(tmp_path / "raw.parquet") if kind == "path" else KINDS[kind](raw())
    alerts = rules.match(frame, **FORMS)
    assert alerts.set_aside == []
    assert alerts.table.equals(expected.table)
    if kind in ("Arrow", "path"):
        key = expected.table["key"][0].as_py()
        assert str(rules.why_not("small_then_large", key, frame, **FORMS)) == str(
            rules.why_not("small_then_large", key, plain())
        )
        assert str(alerts.why(0)) == str(expected.why(0))


def test_the_verbs_read_the_same(tmp_path: Path) -> None:
    write_rules(tmp_path / "rules")
    pq.write_table(raw(), tmp_path / "raw.parquet")
    flags = ["--fixed", "country=NL", "--minor", "amount", "--time-unit", "s"]
    command = [
        "replay",
        "--rules",
        tmp_path / "rules",
        "--events",
        tmp_path / "raw.parquet",
        "--out",
        tmp_path / "a.parquet",
    ]
    assert cli.main([*map(str, command), *flags]) == 0
    alerts = cep.load(tmp_path / "rules").match(raw(), **FORMS)
    assert pq.read_table(tmp_path / "a.parquet").equals(alerts.table)


def test_times_that_are_texts_have_a_form_and_a_zone(rules: cep.Rules) -> None:
    table = plain()
    local = pc.local_timestamp(pc.cast(table["event_time"], pa.timestamp("s", "Europe/Berlin")))
    index = table.column_names.index("event_time")
    texts = table.set_column(index, "event_time", pc.strftime(local, "%d.%m.%Y %H:%M:%S"))
    alerts = rules.match(texts, time_form="%d.%m.%Y %H:%M:%S", tz="Europe/Berlin")
    assert alerts.table.equals(rules.match(table).table)


@pytest.mark.parametrize(
    ("forms", "message"),
    [
        ({"minor": ["tries"]}, "only a decimal has minor units"),
        ({"minor": ["amuont"]}, "did you mean `amount`"),
        ({"fixed": {"contry": "NL"}}, "did you mean `country`"),
        ({"fixed": {"event_type": "paymnt"}}, "no event type `paymnt`; there are payment"),
        ({"time_unit": "h"}, "a unit of time is s, ms, us, ns"),
        ({"minors": ["amount"]}, "there is no minors="),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(forms: Any, message: str, rules: cep.Rules) -> None:
    with pytest.raises(UsageError, match=message):
        rules.match(plain(), **forms)


@pytest.mark.spark
def test_a_spark_frame_too(spark: SparkSession, rules: cep.Rules, tmp_path: Path) -> None:
    pq.write_table(raw(), tmp_path / "raw.parquet")
    alerts: Any = rules.match(spark.read.parquet(str(tmp_path / "raw.parquet")), **FORMS)
    expected = rules.match(plain())
    assert sorted(row["alert_id"] for row in alerts.select("alert_id").collect()) == sorted(
        expected.table["alert_id"].to_pylist()
    )


def test_a_file_of_another_country(rules: cep.Rules, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = plain()
    texts = table
    for name in ("amount", "score"):
        values = [None if value is None else str(value).replace(".", ",") for value in table[name].to_pylist()]
        texts = texts.set_column(table.column_names.index(name), name, [values])
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        pcsv.write_csv(texts, file, pcsv.WriteOptions(delimiter=";"))
    expected = rules.match(table).table["alert_id"]
    assert rules.match(path).table["alert_id"].equals(expected)
    assert "`;` between fields, `,` as decimal sign" in capsys.readouterr().err
    assert rules.match(path, delimiter=";", decimal=",").table["alert_id"].equals(expected)
    with pytest.raises(UsageError, match="one sign"):
        rules.match(path, delimiter="ab")

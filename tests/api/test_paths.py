"""Paths as events: several, wildcards, and refused paths; as in the verbs, they are refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import cep
from tests.api.frames import EVENT, payments, with_type, write_rules

IN_SECONDS = with_type(with_type(payments(), {"event_time": pa.timestamp("s", "UTC")}), {"event_time": pa.int64()})
NAIVE = with_type(payments(), {"event_time": pa.timestamp("ms")})
Write = Callable[[pa.Table, Path], None]


def write_lines(table: pa.Table, path: Path) -> None:
    """Write JSON lines with ISO 8601 times."""
    rows = table.to_pylist()
    path.write_bytes(b"".join(orjson.dumps(row, default=str, option=orjson.OPT_UTC_Z) + b"\n" for row in rows))


WRITE: dict[str, Write] = {
    "jsonl": write_lines,
    "parquet": pq.write_table,
    "csv": pcsv.write_csv,
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> cep.Rules:
    return cep.load(write_rules(tmp_path_factory.mktemp("paths") / "rules"))


@pytest.mark.parametrize("suffix", WRITE)
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (IN_SECONDS, r"`event_time` is 1772323200, which is in 1970 .*time_unit=\"s\""),
        (NAIVE, r"a time without a zone; say which one with tz=\"UTC\""),
        (payments().drop_columns("card_id"), r"no record has card_id.*columns=\{\"card_id\": …\}"),
    ],
    ids=["seconds", "no zone", "no column"],
)
def test_a_plain_path_is_checked_before_anything_runs(
    suffix: str, table: pa.Table, message: str, rules: cep.Rules, tmp_path: Path
) -> None:
    path = tmp_path / f"bad.{suffix}"
    WRITE[suffix](table, path)
    for events in (path, str(path), [path]):
        with pytest.raises(cep.CepError, match=message):
            rules.match(events, cores=2)
    with pytest.raises(cep.CepError, match=message):
        rules.why_not("small_then_large", "c1", path)
    with pytest.raises(cep.CepError, match=message):
        rules.diff(rules, path)


def test_what_is_refused_can_be_said(rules: cep.Rules, tmp_path: Path) -> None:
    expected = rules.match(payments(), cores=2).table
    for suffix, write in WRITE.items():
        path = tmp_path / f"a.{suffix}"
        write(IN_SECONDS, path)
        assert rules.match(path, time_unit="s", cores=2).table.equals(expected), suffix
        write(NAIVE, path)
        assert rules.match(path, tz="UTC", cores=2).table.equals(expected), suffix


def test_several_paths_and_wildcards_are_read_as_one(rules: cep.Rules, tmp_path: Path) -> None:
    table = payments()
    expected = rules.match(table, cores=2)
    for number, start in enumerate(range(0, table.num_rows, 100)):
        pq.write_table(table.slice(start, 100), tmp_path / f"p{number}.parquet")
    whole = sorted(tmp_path.glob("p*.parquet"))
    inputs: list[Any] = [tmp_path / "p*.parquet", str(tmp_path / "p?.parquet"), whole, tuple(map(str, whole)), tmp_path]
    for events in inputs:
        alerts = rules.match(events, cores=2)
        assert alerts.table.equals(expected.table)
        assert str(alerts.why(0)) == str(expected.why(0))
    assert str(rules.why_not("small_then_large", "c1", inputs[0])) == str(
        rules.why_not("small_then_large", "c1", table)
    )
    assert len(rules.match(whole[:1], cores=2)) < len(expected)
    with pytest.raises(cep.CepError, match=r"no file matches .*q\*\.parquet"):
        rules.match(tmp_path / "q*.parquet")
    with pytest.raises(cep.CepError, match="there are no events at"):
        rules.match([whole[0], tmp_path / "gone.parquet"])
    named = {"n": "count(payment over 1 h by card_id)"}
    frame = cep.features(tmp_path / "p*.parquet", named, declare=EVENT)
    assert frame["n"].equals(cep.features(table, named, declare=EVENT)["n"])
    assert cep.describe(whole, "payment").text == cep.describe(table, "payment").text


def test_labels_are_a_column_of_the_records(rules: cep.Rules, tmp_path: Path) -> None:
    table = payments().append_column("is_fraud", pa.array([n % 5 == 0 for n in range(payments().num_rows)]))
    expected = rules.backtest(table, "is_fraud", cores=2).to_json()
    for suffix, write in WRITE.items():
        write(table, tmp_path / f"labelled.{suffix}")
        assert rules.backtest(tmp_path / f"labelled.{suffix}", "is_fraud", cores=2).to_json() == expected, suffix

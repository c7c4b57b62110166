"""Payments in every kind of frame and every type of column, for the tests of the library."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tests.rule_files import rule_text

START = datetime(2026, 3, 1, tzinfo=UTC)
EVENT = """\
event payment {
  tx_id   id
  event_time time
  card_id string
  amount  decimal(2)
  status  enum(approved, declined)
  country string?
  score   float?
  tries   int
  online  bool
}
"""
PATTERN = """
pattern small_then_large(small: decimal = 2.00) by card_id {
  seq    bait+ -> hit  within 10 min
  where  bait: payment  status == declined and amount < small and online
         hit:  payment  amount > 500.00 and tries > 0 and (score is null or score > 0.5)
  skip   past last
  emit   baits = count(bait), amount = hit.amount, country = hit.country, score = hit.score, at = hit.event_time
}
"""
MESSAGE = "{baits} baits, then {amount} in {country}"
RULE = rule_text("small_then_large", "patterns.cep", severity="high", message=MESSAGE)
ROWS = 240


def write_rules(folder: Path) -> Path:
    """Write one rule and its pattern file; return their folder."""
    folder.mkdir()
    (folder / "patterns.cep").write_text(EVENT + PATTERN)
    (folder / "small_then_large.toml").write_text(RULE)
    return folder


def write_rules_and_before(folder: Path) -> None:
    """Write the rules, and in `before` the same rules with a higher amount."""
    write_rules(folder / "rules")
    text = (EVENT + PATTERN).replace("amount > 500.00", "amount > 640.00")
    (write_rules(folder / "before") / "patterns.cep").write_text(text)


def payments() -> pa.Table:
    """Make payments of twelve cards, a minute apart; some make the rule fire."""
    rng = np.random.default_rng(3)
    is_bait = rng.random(ROWS) < 0.5
    amounts = [Decimal("0.50") if bait else Decimal(int(n)) + Decimal("600.25")
               for bait, n in zip(is_bait, rng.integers(0, 90, ROWS), strict=True)]  # fmt: skip
    return pa.table(
        {
            "tx_id": pa.array([f"t{n:04}" for n in range(ROWS)], pa.string()),
            "event_time": pa.array([START + timedelta(seconds=20 * n) for n in range(ROWS)], pa.timestamp("ms", "UTC")),
            "card_id": pa.array([f"c{n}" for n in rng.integers(0, 12, ROWS)], pa.string()),
            "amount": pa.array(amounts, pa.decimal128(18, 2)),
            "status": pa.array(np.where(is_bait, "declined", "approved"), pa.string()),
            "country": pa.array([None if n % 5 == 0 else ("FR", "US")[n % 2] for n in range(ROWS)], pa.string()),
            "score": pa.array([None if n % 7 == 0 else 0.25 * (n % 4) for n in range(ROWS)], pa.float64()),
            "tries": pa.array(rng.integers(0, 4, ROWS), pa.int64()),
            "online": pa.array(rng.random(ROWS) < 0.9, pa.bool_()),
        }
    )


def labelled() -> pa.Table:
    """Return the payments, some of them fraud."""
    is_fraud = np.random.default_rng(1).random(ROWS) < 0.2
    return payments().append_column("is_fraud", pa.array(is_fraud))


def with_type(table: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Cast some columns."""
    for name, type_ in types.items():
        table = table.set_column(table.column_names.index(name), name, table[name].cast(type_))
    return table


def _texts(type_: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_type(table, dict.fromkeys(("tx_id", "card_id", "status", "country"), type_))


def _moments(unit: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_type(table, {"event_time": pa.timestamp(unit, "UTC")})


def _naive(unit: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_type(table, {"event_time": pa.timestamp(unit)})


# Every type of column in which the same payments may come. Types with times without a zone need `tz`.
TYPES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "as declared": lambda table: table,
    "large_string": _texts(pa.large_string()),
    "string_view": _texts(pa.string_view()),
    "dictionary": _texts(pa.dictionary(pa.int32(), pa.string())),
    "decimal(38, 6)": lambda table: with_type(table, {"amount": pa.decimal128(38, 6)}),
    "decimal256": lambda table: with_type(table, {"amount": pa.decimal256(40, 2)}),
    "float amount": lambda table: with_type(table, {"amount": pa.float64()}),
    "text amount": lambda table: with_type(table, {"amount": pa.string()}),
    "float32 and int32": lambda table: with_type(table, {"score": pa.float32(), "tries": pa.int32()}),
    "milliseconds": lambda table: with_type(table, {"event_time": pa.int64()}),
    "text time": lambda table: with_type(table, {"event_time": pa.string()}),
    **{f"time in {unit}": _moments(unit) for unit in ("s", "us", "ns")},
    **{f"naive in {unit}": _naive(unit) for unit in ("s", "ms", "us", "ns")},
}


def _duckdb(table: pa.Table) -> Any:
    import duckdb  # noqa: PLC0415 it tells of objects at the end of each process that has loaded it

    return duckdb.from_arrow(table)


def nan_for_null(table: pa.Table) -> pa.Table:
    """Return the payments with NaN in place of null scores."""
    return table.set_column(table.column_names.index("score"), "score", pc.fill_null(table["score"], float("nan")))


_TEXTS = ("tx_id", "card_id", "status", "country")


def _of_pandas(make: Callable[[Any], Any]) -> Callable[[pa.Table], Any]:
    return lambda table: make(table.to_pandas())


def _of_polars(types: Any) -> Callable[[pa.Table], Any]:
    return lambda table: pl.DataFrame(table).cast(types)


def _duckdb_enum(table: pa.Table) -> Any:
    casts = "status::enum('declined', 'approved') as status, country::enum('US', 'FR', 'DE') as country"
    return _duckdb(table).project(f"* exclude (status, country, tries), {casts}, tries::utinyint as tries")


# Columns that only one kind of frame has. All kinds share the types of Arrow.
OWN_TYPES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas, Categorical": _of_pandas(lambda frame: frame.astype(dict.fromkeys(_TEXTS, "category"))),
    "pandas, nullable": _of_pandas(lambda frame: frame.convert_dtypes()),
    "pandas, nullable, Int64": _of_pandas(lambda frame: frame.astype({"tries": "Int64", "score": "Float64"})),
    "pandas, of Arrow": _of_pandas(lambda frame: frame.convert_dtypes(dtype_backend="pyarrow")),
    "pandas, datetime64[s]": _of_pandas(lambda frame: frame.astype({"event_time": "datetime64[s, UTC]"})),
    "polars, Categorical": _of_polars(dict.fromkeys(_TEXTS, pl.Categorical())),
    "polars, Enum": _of_polars({"status": pl.Enum(["declined", "approved"]), "country": pl.Enum(["US", "FR", "DE"])}),
    "polars, Decimal(38, 9) and UInt8": _of_polars({"amount": pl.Decimal(38, 9), "tries": pl.UInt8}),
    "DuckDB, enum": _duckdb_enum,
}


# Every kind of frame, and the function that makes it from an Arrow table.
KINDS: dict[str, Callable[[pa.Table], Any]] = {
    "Arrow": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "polars, lazy": lambda table: pl.DataFrame(table).lazy(),
    "DuckDB": _duckdb,
}

"""The same alerts from any frame, and rules from folders, files and texts."""

from __future__ import annotations

import doctest
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import cep
from cep.api import describe as describe_module
from cep.api import features as features_module
from cep.api import rules as rules_module
from cep.api.frames import open_frame
from cep.cli import main as cli
from cep.demo.library import library_folder
from cep.demo.stream import StreamSize, build
from cep.engine.alerts import ALERT_SCHEMA
from cep.runners.output import write_outputs
from tests.api.frames import (
    EVENT,
    KINDS,
    OWN_TYPES,
    PATTERN,
    RULE,
    TYPES,
    nan_for_null,
    payments,
    with_type,
    write_rules,
)  # fmt: skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same alerts from any frame: `cep replay`'s, byte for byte.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rules, payments as Parquet, and the alerts of `cep replay`."""
    folder = tmp_path_factory.mktemp("match")
    write_rules(folder / "rules")
    pq.write_table(payments(), folder / "payments.parquet")
    for suffix in ("parquet", "jsonl"):
        arguments = ["--events", folder / "payments.parquet", "--out", folder / f"alerts.{suffix}"]
        assert cli.main(["replay", "--rules", str(folder / "rules"), *map(str, arguments)]) == 0
    return folder


@pytest.fixture(scope="module")
def rules(place: Path) -> cep.Rules:
    return cep.load(place / "rules")


@pytest.mark.parametrize(
    ("kind", "type_"),
    [(kind, type_) for kind in KINDS for type_ in TYPES if kind in ("Arrow", "pandas") or type_ != "decimal256"],
)
def test_any_frame_gives_the_bytes_of_the_replay(
    kind: str, type_: str, place: Path, rules: cep.Rules, tmp_path: Path
) -> None:
    table = TYPES[type_](payments())
    frame = KINDS[kind](table)
    tz = "UTC" if type_.startswith("naive") else None
    alerts = rules.match(frame, tz=tz, cores=2)
    assert len(alerts) > 5
    assert alerts.set_aside == []
    for suffix in ("parquet", "jsonl"):
        (file,) = alerts.write(tmp_path / f"alerts.{suffix}")
        assert file.read_bytes() == (place / f"alerts.{suffix}").read_bytes()
    assert type(alerts.frame) is type(frame)
    assert type(alerts.members) is type(frame)


@pytest.mark.parametrize("kind", OWN_TYPES)
def test_the_own_types_of_a_kind_of_frame(kind: str, place: Path, rules: cep.Rules, tmp_path: Path) -> None:
    alerts = rules.match(OWN_TYPES[kind](payments()), cores=2)
    assert alerts.set_aside == []
    check_bytes(alerts.table, place, tmp_path)


# Arrow layouts that Spark's columns lack.
NO_SPARK = ("large_string", "string_view", "dictionary", "decimal256")


@pytest.mark.spark
@pytest.mark.parametrize("type_", [type_ for type_ in TYPES if type_ not in NO_SPARK])
def test_a_frame_of_spark_gives_the_bytes_of_the_replay(
    type_: str, spark: SparkSession, place: Path, rules: cep.Rules, tmp_path: Path
) -> None:
    frame = spark.createDataFrame(TYPES[type_](payments()))
    tz = "UTC" if type_.startswith("naive") else None
    assert rules.set_aside(frame, tz=tz).count() == 0
    alerts: Any = rules.match(frame, tz=tz, partitions=2)
    table = alerts.orderBy("detected_at", "alert_id").toArrow().select(ALERT_SCHEMA.names).cast(ALERT_SCHEMA)
    check_bytes(table.combine_chunks(), place, tmp_path)


def check_bytes(alerts: pa.Table, place: Path, folder: Path) -> None:
    """Compare the files of these alerts with the files of the replay."""
    for suffix in ("parquet", "jsonl"):
        (file,) = write_outputs(alerts, (), folder / f"alerts.{suffix}", suffix)
        assert file.read_bytes() == (place / f"alerts.{suffix}").read_bytes()


@pytest.mark.filterwarnings("ignore::cep.RejectedRecordsWarning")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pandas"])
def test_not_a_number_is_what_the_replay_makes_of_it(kind: str, rules: cep.Rules, tmp_path: Path) -> None:
    """For pandas, NaN is null. For other frames it is a bad value: null, with a dead letter and a mark of its key."""
    table = nan_for_null(payments())
    pq.write_table(table, tmp_path / "payments.parquet")
    expected = rules.match(tmp_path / "payments.parquet", cores=2)
    assert expected.set_aside
    clean = rules.match(payments(), cores=2).table
    assert expected.table.drop_columns(["flawed"]).equals(clean.drop_columns(["flawed"]))
    assert any(expected.table["flawed"].to_pylist())
    assert not any(clean["flawed"].to_pylist())
    assert rules.match(KINDS[kind](table), cores=2).table.equals(expected.table)


def test_other_ways_to_hand_in_arrow(place: Path, rules: cep.Rules) -> None:
    table = payments()
    expected = pq.read_table(place / "alerts.parquet")

    class Exporting:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    batch = table.combine_chunks().to_batches()[0]
    frames: list[Any] = [batch, table.to_reader(), pads.dataset(table), Exporting(), str(place / "payments.parquet")]
    for frame in frames:
        assert rules.match(frame, cores=2).table.equals(expected)


def test_columns_of_other_names(place: Path, rules: cep.Rules, tmp_path: Path) -> None:
    expected = pq.read_table(place / "alerts.parquet")
    names = {"card_id": "cc_num", "event_time": "trans_time"}
    renamed = payments().rename_columns(names)
    assert rules.match(renamed, columns=names, cores=2).table.equals(expected)
    # A column that has a field's name but is not mapped to it.
    misleading = renamed.append_column("card_id", pa.array(["x"] * renamed.num_rows))
    assert rules.match(misleading, columns=names, cores=2).table.equals(expected)
    pq.write_table(renamed, tmp_path / "renamed.parquet")
    (tmp_path / "renamed.jsonl").write_bytes(
        b"".join(orjson.dumps(row, default=str) + b"\n" for row in renamed.to_pylist())
    )
    for name in ("renamed.parquet", "renamed.jsonl"):
        assert rules.match(tmp_path / name, columns=names, cores=2).table.equals(expected)
    with pytest.raises(cep.CepError, match=r"no column `cc_nun`; did you mean `cc_num`"):
        rules.match(renamed, columns={**names, "card_id": "cc_nun"})
    with pytest.raises(cep.CepError, match=r"no field `card`; did you mean `card_id`"):
        rules.match(renamed, columns={**names, "card": "cc_num"})


@pytest.mark.parametrize("kind", KINDS)
def test_fields_inside_nested_values(kind: str, place: Path, rules: cep.Rules) -> None:
    table = payments()
    card = pa.StructArray.from_arrays([table["card_id"].combine_chunks()], ["id"])
    after = pa.StructArray.from_arrays([card, table["amount"].combine_chunks()], ["card", "sum"])
    nested = table.drop_columns(["card_id", "amount"]).append_column("after", after)
    names = {"card_id": "after.card.id", "amount": "after.sum"}
    alerts = rules.match(KINDS[kind](nested), columns=names, cores=2)
    assert alerts.table.equals(pq.read_table(place / "alerts.parquet"))
    assert alerts.why(0).is_alert
    with pytest.raises(cep.CepError, match=r"nothing at `after.card.no`: there is no `no` in struct"):
        rules.match(KINDS[kind](nested), columns={**names, "card_id": "after.card.no"})


def test_what_cannot_be_meant_is_refused_before_anything_runs(rules: cep.Rules) -> None:
    table = payments()
    with pytest.raises(cep.CepError, match=r"no column `card_id`.*columns=.*did you mean `cardid`"):
        rules.match(table.rename_columns({"card_id": "cardid"}))
    seconds = with_type(table, {"event_time": pa.timestamp("s", "UTC")})
    seconds = with_type(seconds, {"event_time": pa.int64()})
    with pytest.raises(cep.CepError, match=r"`event_time` has numbers like 1772323200.*it is in seconds"):
        rules.match(seconds)
    naive = with_type(table, {"event_time": pa.timestamp("us")})
    for frame in (naive, pl.from_arrow(naive), naive.to_pandas(), KINDS["DuckDB"](naive)):
        with pytest.raises(cep.CepError, match=r'`event_time` has times without a zone.*tz="UTC"'):
            rules.match(frame)
    texts = with_type(naive, {"event_time": pa.string()})
    with pytest.raises(cep.CepError, match="without a zone"):
        rules.match(texts)
    with pytest.raises(cep.CepError, match=r'tz="Mars"'):
        rules.match(naive, tz="Mars")
    with pytest.raises(cep.CepError, match="events are a list; give a frame"):
        rules.match([1, 2])
    mixed = pd.DataFrame({**table.to_pandas().to_dict("list"), "card_id": ["a", 1] * (table.num_rows // 2)})
    texts = mixed.assign(card_id=mixed["card_id"].astype(str))
    assert rules.match(mixed).table.equals(rules.match(texts).table)


def test_a_zone_moves_times_by_its_offset(rules: cep.Rules) -> None:
    naive = with_type(payments(), {"event_time": pa.timestamp("ms")})
    utc = rules.match(naive, tz="UTC", cores=2).table["detected_at"].cast(pa.int64())
    paris = rules.match(naive, tz="Europe/Paris", cores=2).table["detected_at"].cast(pa.int64())
    texts = rules.match(with_type(naive, {"event_time": pa.string()}), tz="Europe/Paris", cores=2).table["detected_at"]
    assert pc.unique(pc.subtract(utc, paris)).to_pylist() == [3_600_000]
    assert texts.cast(pa.int64()).equals(paris)


def test_times_of_pandas_with_and_without_a_zone_are_each_what_they_say(rules: cep.Rules) -> None:
    frame = payments().to_pandas()
    aware = frame["event_time"].astype(object)
    kolkata = [time.tz_convert("Asia/Kolkata") for time in aware]
    naive = [time.tz_convert("Europe/Paris").tz_localize(None) for time in aware]
    mixed = [times[number % 2] for number, times in enumerate(zip(kolkata, naive, strict=True))]
    expected = rules.match(frame, cores=2).table["alert_id"]
    frame.index = [0] * len(frame)
    for values in (mixed, [pd.NaT, *mixed[1:]]):
        frame["event_time"] = pd.Series(values, frame.index, dtype=object)
        if values is mixed:
            assert rules.match(frame, tz="Europe/Paris", cores=2).table["alert_id"].equals(expected)
        with pytest.raises(cep.CepError, match=r"times without a zone"):
            rules.match(frame)


def test_a_null_of_pandas_is_a_null(place: Path, rules: cep.Rules) -> None:
    frame = payments().to_pandas()
    assert np.isnan(frame["score"]).any()
    assert rules.match(frame, cores=2).table.equals(pq.read_table(place / "alerts.parquet"))


@pytest.mark.filterwarnings("ignore::cep.RejectedRecordsWarning")
def test_records_that_cannot_be_read_are_set_aside(rules: cep.Rules) -> None:
    table = payments()
    wrong = table["status"].to_pylist()
    wrong[3] = "maybe"
    table = table.set_column(table.column_names.index("status"), "status", pa.array(wrong)).append_column(
        "note", pa.array(["n"] * table.num_rows)
    )
    for kind in ("Arrow", "pandas", "polars"):
        (letter,) = rules.match(KINDS[kind](table), cores=2).set_aside
        assert (letter["code"], "'maybe'" in letter["reason"]) == ("wrong_value", True)
        assert '"note": "n"' in letter["record"], "a record is shown whole"
    (letter,) = rules.match(KINDS["DuckDB"](table), cores=2).set_aside
    assert '"status": "maybe"' in letter["record"]


def test_several_event_types(tmp_path: Path) -> None:
    rules = cep.parse(
        EVENT
        + "event login { login_id id  event_time time  card_id string }\n"
        + "pattern both by card_id { seq l -> p within 1 h  where l: login  p: payment amount > 500.00 }"
    )
    with pytest.raises(cep.CepError, match=r"several event types \(payment, login\).*`event_type`"):
        rules.match(payments())
    named = payments().append_column("event_type", pa.array(["payment"] * payments().num_rows))
    assert len(rules.match(named, cores=2)) == 0, "a frame of payments needs no column of logins"
    kinds = payments().append_column("kind", pa.array(["payment"] * payments().num_rows))
    assert rules.match(kinds, columns={"event_type": "kind"}).counters["events"] == payments().num_rows


def test_no_events_give_no_alerts(rules: cep.Rules) -> None:
    for kind, make in KINDS.items():
        alerts = rules.match(make(payments().slice(0, 0)))
        assert (kind, len(alerts)) == (kind, 0)
        assert type(alerts.frame) is type(make(payments()))
        assert "0 alerts of 0 events" in repr(alerts)


def test_the_pool_of_arrow_stays_as_it_was(rules: cep.Rules) -> None:
    before = pa.cpu_count()
    rules.match(payments(), cores=before + 1)
    assert pa.cpu_count() == before


def test_patterns_of_a_file_or_a_text_are_rules(place: Path, tmp_path: Path) -> None:
    (tmp_path / "events.cep").write_text(EVENT)
    again = PATTERN.replace("small_then_large", "again").replace("online", "country in bad")
    (tmp_path / "more.cep").write_text(f'import "events.cep"\nlist bad: string = ["FR"]\n{again}')
    loaded = cep.load(tmp_path / "more.cep")
    assert [rule.id for rule in loaded] == ["again"]
    assert len(loaded.match(payments(), cores=2)) > 0
    parsed = cep.parse(EVENT + PATTERN).match(payments(), cores=2)
    expected = pq.read_table(place / "alerts.parquet")
    same = ["key", "measures", "events", "detected_at"]
    assert parsed.table.select(same).sort_by("detected_at").equals(expected.select(same).sort_by("detected_at"))


def test_texts_of_polars_are_handed_on_without_a_copy_unless_they_are_categories() -> None:
    frame = pl.DataFrame({"a": ["x"], "b": pl.Series(["y"], dtype=pl.Categorical)})
    assert open_frame(frame).columns(["a"]).schema.types == [pa.string_view()]
    assert open_frame(frame).columns(["a", "b"]).column("b").cast(pa.string()).to_pylist() == ["y"]


def test_since_and_until_leave_out_what_is_outside(place: Path) -> None:
    rules, table = cep.load(place / "rules"), payments()
    times = table["event_time"]
    first, last = (times[row].as_py().isoformat().replace("+00:00", "Z") for row in (60, 180))
    alerts = rules.match(table, since=first, until=last, cores=2)
    assert alerts.table.equals(rules.match(table.slice(60, 120), cores=2).table)
    assert 0 < len(alerts) < len(rules.match(table, cores=2))
    for name in ("since", "until"):
        with pytest.raises(cep.CepError, match=f"{name}: "):
            rules.match(table, **{name: "yesterday"})  # type: ignore[arg-type]


# Rules from folders, files and texts, their errors, and the modules that `import cep` loads.

ROOT = Path(__file__).parents[2]


def test_a_rule_that_is_wrong_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    (folder / "broken.toml").write_text(
        RULE.replace('id = "small_then_large"', 'id = "broken"').replace("owner", "ownr")
    )
    (folder / "other.toml").write_text(
        RULE.replace('id = "small_then_large"', 'id = "other"') + "[params]\nsmall = true\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rules = cep.load(folder)
    assert tuple(str(warning.message) for warning in caught) == rules.problems
    assert [rule.id for rule in rules] == ["small_then_large"]
    assert any("$.ownr: no such name here" in problem for problem in rules.problems)
    assert "small_then_large version 1 (live, high) by card_id" in repr(rules)
    with pytest.raises(KeyError, match="other version 1 is set aside"):
        rules["other"]
    with pytest.raises(KeyError, match="did you mean small_then_large"):
        rules["small_then_larg"]


def test_nothing_in_force_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    with pytest.raises(cep.CepError, match=r"no rule that can be in force\n.*no rule files"):
        cep.load(tmp_path / "rules")
    with pytest.raises(cep.CepError, match="is not a folder"):
        cep.load(tmp_path / "gone")
    with pytest.raises(cep.CepError, match="CEP110"):
        cep.load(tmp_path / "gone.cep")


def test_rules_as_they_were_in_a_commit(tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (folder / "patterns.cep").write_text(EVENT + PATTERN.replace("amount > 500.00", "amount > 640.00"))
    now, before = cep.load(folder), cep.load(f"{folder}@HEAD")
    assert before.problems == ()
    assert before.match(payments(), cores=1).table.num_rows > now.match(payments(), cores=1).table.num_rows
    assert now.diff(before, payments(), cores=1).lost.num_rows > 0
    with pytest.raises(cep.CepError, match="gone cannot be read"):
        cep.load(f"{folder}@HEAD", control="gone")
    with pytest.raises(cep.CepError, match="no commit HEAD~7"):
        cep.load(f"{folder}@HEAD~7")
    with pytest.raises(cep.CepError, match="no commit HEAD"):
        cep.load(tmp_path / "gone@HEAD")


def test_mistakes_of_a_text_have_lines_and_carets() -> None:
    with pytest.raises(cep.CepError, match=r"(?s)error\[CEP\d+\].*amuont.*\^\^\^\^\^\^"):
        cep.parse(EVENT + PATTERN.replace("hit.amount", "hit.amuont"))
    with pytest.raises(cep.CepError, match="cannot import"):
        cep.parse('import "events.cep"\n' + PATTERN)


def test_programs_read_the_mistakes_of_a_text() -> None:
    with pytest.raises(cep.PatternError) as raised:
        cep.parse(EVENT + PATTERN.replace("hit.amount", "hit.amuont"))
    (mistake,) = raised.value.mistakes
    line = next(i for i, text in enumerate((EVENT + PATTERN).splitlines(), 1) if "hit.amount" in text)
    assert (raised.value.code, mistake["code"], mistake["span"]["line"]) == ("pattern", "CEP203", line)
    assert "amount" in mistake["help"]


def test_arguments_that_are_none(tmp_path: Path) -> None:
    rules = cep.parse(EVENT + PATTERN)
    with pytest.raises(cep.CepError, match="dedup: 'soon' is no time"):
        rules.match(payments(), dedup="soon")
    with pytest.raises(cep.CepError, match="control records change rules"):
        cep.load(tmp_path / "x.cep", control="c.jsonl")
    twice = rules.match(pq.read_table(_twice(tmp_path)), dedup="1 d", cores=1)
    assert twice.counters["duplicates"] == payments().num_rows
    assert twice.table.equals(rules.match(payments(), cores=1).table)


def _twice(folder: Path) -> Path:
    pq.write_table(pa.concat_tables([payments(), payments()]), folder / "twice.parquet")
    return folder / "twice.parquet"


def test_importing_loads_nothing_heavy() -> None:
    """`import cep` loads no heavy module. The library does not need Spark, Kafka, PostgreSQL or pandas."""
    code = (
        "import sys, cep\n"
        "heavy = {'numba', 'pyarrow', 'numpy', 'pydantic', 'narwhals'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
        "cep.load\n"
        "absent = {'pyspark', 'py4j', 'confluent_kafka', 'psycopg', 'rocksdict', 'pygls'}\n"
        "assert not absent & sys.modules.keys(), absent & sys.modules.keys()\n"
        "print(sorted(set(cep.__all__) - set(dir(cep))))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (process.stdout, process.returncode) == ("[]\n", 0), process.stderr


def test_every_public_name_is_there() -> None:
    assert all(getattr(cep, name) is not None for name in cep.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        cep.lod  # noqa: B018


def test_the_examples_of_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = build(11, StreamSize(cards_count=150, payments_per_card=12))
    pq.write_table(stream.payments, tmp_path / "payments.parquet")
    (tmp_path / "rules").symlink_to(library_folder() / "rules")
    monkeypatch.chdir(tmp_path)
    for module in (rules_module, describe_module, features_module):
        failed, tried = doctest.testmod(module, extraglobs={"cep": cep})
        assert failed == 0
        assert tried >= 3

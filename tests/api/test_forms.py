"""Frames of other forms: the values, the rows of several events, drafted declarations, and paths."""

import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cep
from cep.base.errors import UsageError
from cep.cli.main import main
from cep.lang.load import load_text
from tests.api.frames import EVENT, KINDS, payments, with_type, write_rules

# Forms of the values of a frame: constants, minor units, the unit and form of times, as for the verbs.

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
    command = ["replay", "--rules", tmp_path / "rules", "--events", tmp_path / "raw.parquet", *flags]
    assert main([*map(str, command), "--out", str(tmp_path / "a.parquet")]) == 0
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


# Frames whose rows are several events, such as a transfer that belongs to two accounts.

COLUMNS = {"sent/card_id": "from_card", "received/card_id": "to_card"}
FIXED = {"received/country": "ZZ"}


def transfers() -> pa.Table:
    """Return rows with two cards and no column called `card_id`; every tenth row lacks a receiver."""
    table = payments()
    cards = table["card_id"]
    other = pa.array([None if row % 10 == 0 else f"to-{card}" for row, card in enumerate(cards.to_pylist())])
    return table.drop_columns("card_id").append_column("from_card", cards).append_column("to_card", other)


def apart() -> pa.Table:
    """Return the same events with a row for each."""
    table = transfers()
    parts = []
    for view, name in (("sent", "from_card"), ("received", "to_card")):
        ids = pc.binary_join_element_wise(table["tx_id"].cast(pa.string()), view, "#")
        part = table.set_column(table.column_names.index("tx_id"), "tx_id", ids)
        if view == "received":
            countries = pa.repeat("ZZ", table.num_rows)
            part = part.set_column(part.column_names.index("country"), "country", countries)
        part = part.append_column("card_id", part[name]).drop_columns(["from_card", "to_card"])
        parts.append(part.filter(pc.is_valid(part["card_id"])))
    return pa.concat_tables(parts, promote_options="permissive")


def test_any_frame_gives_the_alerts_of_a_row_for_each_event(rules: cep.Rules, tmp_path: Path) -> None:
    expected = rules.match(apart(), cores=2)
    assert len(expected) > len(rules.match(payments(), cores=2)) > 0
    pq.write_table(transfers(), tmp_path / "t.parquet")
    frames: list[Any] = [
        transfers(), transfers().to_pandas(), pl.from_arrow(transfers()), tmp_path / "t.parquet",
    ]  # fmt: skip
    for frame in frames:
        alerts = rules.match(frame, columns=COLUMNS, fixed=FIXED, cores=2)
        assert alerts.table.equals(expected.table), type(frame)
        assert len(alerts.set_aside) == 0
    key = expected.table["key"][-1].as_py()
    story = rules.why_not("small_then_large", key, apart())
    assert str(rules.why_not("small_then_large", key, transfers(), columns=COLUMNS, fixed=FIXED)) == str(story)


def test_a_column_of_labels_is_of_every_view(rules: cep.Rules) -> None:
    alert = rules.match(apart(), cores=2)
    frauds = {event_id.partition("#")[0] for event_id in pa.table(alert.members)["event_id"].to_pylist()}
    table = transfers()
    is_fraud = pa.array([event_id in frauds for event_id in table["tx_id"].cast(pa.string()).to_pylist()])
    measured = rules.backtest(
        table.append_column("is_fraud", is_fraud), labels="is_fraud", columns=COLUMNS, fixed=FIXED
    )
    (rule,) = measured.to_json()["rules"]
    assert rule["precision"]["value"] == 1.0, rule
    about = measured.figures.about
    assert about["fraud_events"] == about["frauds"] == len(frauds), "a record is one fraud, whatever makes events of it"
    assert rule["event_recall"]["value"] == rule["fraud_recall"]["value"] == 1.0
    paid = sum(row["amount"] for row in table.to_pylist() if str(row["tx_id"]) in frauds)
    assert about["fraud_money"] == pytest.approx(float(paid))
    labels = pa.table({"event_id": sorted(frauds)})
    by_file = rules.backtest(table, labels=labels, columns=COLUMNS, fixed=FIXED)
    assert by_file.figures.together == measured.figures.together


def test_what_a_view_lacks_is_refused(rules: cep.Rules) -> None:
    with pytest.raises(cep.CepError, match="no column `nowhere`"):
        rules.match(transfers(), columns={"sent/card_id": "nowhere"})
    with pytest.raises(cep.CepError, match="no column `card_id`"):
        rules.match(transfers(), columns={"sent/card_id": "from_card"}, fixed={"received/country": "ZZ"})
    with pytest.raises(cep.CepError, match="no field `card_idd`"):
        rules.match(transfers(), columns={"sent/card_idd": "from_card", **COLUMNS})


@pytest.mark.spark
def test_spark_frames_too(spark: SparkSession, rules: cep.Rules, tmp_path: Path) -> None:
    expected = rules.match(apart(), cores=2).table
    pq.write_table(transfers(), tmp_path / "t.parquet")
    frame = spark.read.parquet(str(tmp_path / "t.parquet"))
    alerts: Any = rules.match(frame, columns=COLUMNS, fixed=FIXED)
    alert_ids = [row["alert_id"] for row in alerts.collect()]
    assert sorted(alert_ids) == sorted(expected["alert_id"].to_pylist())


DECLARED = """
event transfer { tx_id id  event_time time  card_id string?  amount decimal(2)  country string? }
"""
SPENT = {"spent": "sum(transfer.amount over 7 d)", "pairs": "count(transfer over previous 1 d)"}


@pytest.mark.parametrize("suffix", ["frame", ".parquet", ".csv", ".jsonl"])
def test_a_feature_has_a_column_for_each_view(suffix: str, tmp_path: Path) -> None:
    """The values equal those of a table with a row for each event; a record without a receiver has none there."""
    whole = transfers().select(["tx_id", "event_time", "from_card", "to_card", "amount", "country"])
    events: Any = whole if suffix == "frame" else tmp_path / f"transfers{suffix}"
    if suffix == ".parquet":
        pq.write_table(whole, events)
    elif suffix == ".csv":
        pcsv.write_csv(whole, events)
    elif suffix == ".jsonl":
        rows = [
            {**row, "event_time": row["event_time"].isoformat(), "amount": str(row["amount"])}
            for row in whole.to_pylist()
        ]
        events.write_text("\n".join(map(json.dumps, rows)))
    features = cep.features(events, SPENT, by="card_id", declare=DECLARED, columns=COLUMNS, fixed=FIXED)
    assert features.num_rows == whole.num_rows
    single = cep.features(apart(), SPENT, by="card_id", declare=DECLARED)
    expected = {row["tx_id"]: (row["spent"], row["pairs"]) for row in single.to_pylist()}
    for view in ("sent", "received"):
        expected_pairs = [expected.get(f"{tx_id}#{view}", (None, None)) for tx_id in whole["tx_id"].to_pylist()]
        pairs = zip(features[f"spent_{view}"].to_pylist(), features[f"pairs_{view}"].to_pylist(), strict=True)
        assert list(pairs) == expected_pairs, view
    assert sum(value is None for value in features["spent_received"].to_pylist()) == 24
    later = cep.features(
        events, SPENT, by="card_id", declare=DECLARED, columns=COLUMNS, fixed=FIXED, since="2026-03-01T00:30:00Z"
    )
    assert 0 < later.num_rows < features.num_rows
    if suffix != "frame":
        flags = [text for name, source in COLUMNS.items() for text in ("--columns", f"{name}={source}")]
        (tmp_path / "t.cep").write_text(DECLARED)
        out = tmp_path / "out.parquet"
        flags += ["--events", str(events), "--declare", str(tmp_path / "t.cep"), "--by", "card_id", "--out", str(out)]
        assert main(["features", *flags, "--fixed", "received/country=ZZ", f"spent={SPENT['spent']}"]) == 0
        assert pq.read_table(out)["spent_sent"].to_pylist() == features["spent_sent"].to_pylist()


def test_features_of_views_need_a_declaration() -> None:
    with pytest.raises(cep.CepError, match=r"with views .* give their declaration"):
        cep.features(transfers(), SPENT, by="card_id", columns=COLUMNS)
    clash = transfers().append_column("spent_sent", transfers()["amount"])
    with pytest.raises(cep.CepError, match="has a column `spent_sent` already"):
        cep.features(clash, SPENT, by="card_id", declare=DECLARED, columns=COLUMNS)


PASSED = """
event transfer { tx_id id  event_time time  account string  amount decimal(2)  side enum(in, out) }
pattern passed by account {
  seq    a -> b  within 1 h
  where  a: transfer side == in
         b: transfer side == out
}
"""


@pytest.mark.parametrize("first", ["payee", "payer"])
def test_the_names_of_views_do_not_change_the_alerts(first: str) -> None:
    """Transfers of one time: the order of their events is not that of the names of views, of any length."""
    draw = random.Random(5)
    names = [f"a{draw.randrange(6)}" for _ in range(400)]
    table = pa.table({
        "tx_id": [str(number) for number in range(90, 290)],
        "event_time": pa.array([60_000 * (number // 4) for number in range(200)], pa.timestamp("ms", "UTC")),
        "payer": names[:200], "payee": names[200:], "amount": [10.0] * 200,
    })  # fmt: skip
    passed = (
        PASSED.replace("(in, out)", "(inward, outward)").replace("== in", "== inward").replace("== out", "== outward")
    )
    bound_events = []
    for sent, received in (("sent", "received"), ("s", "r"), ("a", "zzzzzz"), ("z", "a")):
        views = [(f"{received}/account", "payee"), (f"{sent}/account", "payer")]
        columns = dict(views if first == "payee" else views[::-1])
        fixed = {f"{received}/side": "inward", f"{sent}/side": "outward"}
        alerts = cep.parse(passed).match(table, columns=columns, fixed=fixed, cores=2)
        bound = [
            tuple(event["event_id"].partition("#")[0] for event in events)
            for events in alerts.table["events"].to_pylist()
        ]
        bound_events.append(sorted(bound))
    assert len(bound_events[0]) > 50
    assert bound_events[1:] == bound_events[:1] * 3


# A declaration drafted from a frame declares that frame.


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


def test_a_column_of_texts_and_numbers_is_drafted_as_texts_and_matched() -> None:
    frame = payments().to_pandas().assign(note=[("x", 1)[number % 2] for number in range(240)])
    draft = cep.describe(frame, "payment")
    assert re.search(r"^  note +(string|enum\(.*\))$", draft.text, re.MULTILINE), draft.text
    assert "note" not in draft.columns
    forms: dict[str, Any] = {**draft.forms}
    rules = cep.parse(f'{draft.text}\npattern p by card_id {{ seq p  where p: payment note == "x" }}')
    assert len(rules.match(frame, columns=draft.columns, cores=1, **forms)) == 120


def test_labels_and_features_of_a_frame_with_a_column_of_texts_and_numbers() -> None:
    frame = pd.DataFrame({
        "tx_id": ["a", "b", "c"], "event_time": pd.to_datetime([0, 1, 2], unit="s", utc=True), "card_id": ["x"] * 3,
        "amount": [10.0, 20.0, 1.0], "is_fraud": [1, "no", None], "note": [1, "z", 2.5],
    })  # fmt: skip
    declared = "event pay { tx_id id  event_time time  card_id string  amount decimal(2) }"
    rules = cep.parse(declared + " pattern p by card_id { seq a where a: pay amount > 5.00 }")
    assert rules.backtest(frame, "is_fraud").figures.about["fraud_events"] == 1
    labels = pd.DataFrame({"event_id": ["a", 5], "label": [1, "no"]})
    assert rules.backtest(frame, labels).figures.about["fraud_events"] == 1
    features = cep.features(frame, {"n": "count(pay over 1 h by card_id)"}, declare=declared)
    assert features["note"].tolist() == ["1", "z", "2.5"]
    assert features["n"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("amounts", "kind"),
    [
        (pa.array([Decimal("100.25"), Decimal(3)], pa.decimal128(38, 18)), "decimal(2)"),  # 64 bits have no 18 digits
        (pa.array([Decimal("1.25"), Decimal(3)], pa.decimal128(38, 18)), "decimal(18)"),
        (pa.array([Decimal(10) ** 30, Decimal(3)], pa.decimal128(38, 2)), "no field can have"),
        (pa.array([5.000001, 3.25]), "float"),
        (pa.array([0.1, 3.25], pa.float32()), "decimal(2)"),
        (pa.array([2**64 - 1, 7], pa.uint64()), "string"),
        (pa.array([2**63 - 1, 7], pa.uint64()), "int"),
    ],
)
def test_the_drafted_type_has_all_values(amounts: pa.Array, kind: str) -> None:
    table = pa.table({"id": ["a", "b"], "event_time": pa.array([0, 1], pa.timestamp("ms", "UTC")), "amount": amounts})
    draft = cep.describe(table, "pay")
    assert kind in next(line for line in draft.text.splitlines() if "amount" in line)
    alerts = cep.parse(draft.text + " pattern p by id { seq a where a: pay }").match(table, cores=1)
    assert alerts.set_aside == []


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
    for name in ("card payment", "1st", "by"):
        with pytest.raises(cep.CepError, match=f"`{name}` cannot name an event type"):
            cep.describe(payments(), name)


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


# Paths as events: several, wildcards, and refused paths; as in the verbs, they are refused before anything runs.

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

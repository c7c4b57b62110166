"""Functions of past events as columns, and the quality of rules by labels."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import cep
from cep.api import events as api_events
from cep.api.frames import open_frame
from cep.cli import main as cli
from tests.analysis.test_suggest import BASE, planted
from tests.api.frames import EVENT, KINDS, PATTERN, labelled, payments, write_rules
from tests.api.test_forms import WRITE
from tests.cli.test_quality import pays_rule
from tests.histories.test_sql import DAY_MS, EVENTS, asked_of, generated, numbered, run_sql

# Functions of past events as columns: they equal DuckDB's window queries, in any kind of frame.


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
        api_events = run_sql(f"{query} from payments order by id", table)["value"]
        assert frame[name].to_pylist() == api_events.to_pylist()


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

    monkeypatch.setattr(api_events, "check_paths", change)
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


# Differences between two sets of rules, and the quality of rules by labels.


def test_diff_says_what_comes_and_goes() -> None:
    before = cep.parse(EVENT + PATTERN)
    after = cep.parse(EVENT + PATTERN.replace("amount > 500.00", "amount > 640.00"))
    difference = after.diff(before, payments(), cores=2)
    old, new = (rules.match(payments(), cores=2).table for rules in (before, after))
    assert difference.kept_count + difference.gained.num_rows == new.num_rows
    assert difference.kept_count + difference.lost.num_rows == old.num_rows
    assert 0 < difference.lost.num_rows < old.num_rows
    assert f"lost {difference.lost.num_rows} of small_then_large" in repr(difference)
    back = before.diff(after, payments(), cores=2)
    assert back.gained.select(["key", "events"]).equals(difference.lost.select(["key", "events"]))


@pytest.mark.parametrize("kind", ["Arrow", "pandas", "DuckDB"])
def test_backtest_gives_the_figures_of_the_verb(kind: str, tmp_path: Path) -> None:
    table = labelled()
    pq.write_table(table, tmp_path / "payments.parquet")
    folder = write_rules(tmp_path / "rules")
    arguments = ["--rules", folder, "--events", tmp_path / "payments.parquet", "--labels", "is_fraud"]
    arguments += ["--episodes", "0s"]
    assert cli.main(["backtest", *map(str, arguments), "--json", str(tmp_path / "figures.json")]) == 0
    expected = orjson.loads((tmp_path / "figures.json").read_bytes())
    rules = cep.load(folder)
    quality = rules.backtest(KINDS[kind](table), "is_fraud", cores=2, episodes="0s")
    assert orjson.loads(orjson.dumps(quality.to_json())) == expected
    assert "small_then_large" in repr(quality)
    assert quality._repr_html_().count("<tr>") == 3
    labels = pa.table({"event_id": table["tx_id"].filter(table["is_fraud"])})
    backtest = rules.backtest(KINDS[kind](payments()), labels, cores=2)
    assert backtest.figures.together.fraud_recall == quality.figures.together.fraud_recall
    with pytest.raises(cep.CepError, match="no column `is_fruad`; did you mean `is_fraud`"):
        rules.backtest(KINDS[kind](table), "is_fruad")


def test_report_and_prune_are_those_of_the_verbs(tmp_path: Path) -> None:
    pq.write_table(labelled(), tmp_path / "payments.parquet")
    folder = write_rules(tmp_path / "rules")
    arguments = ["--rules", folder, "--events", tmp_path / "payments.parquet", "--labels", "is_fraud"]
    assert cli.main(["report", *map(str, arguments), "--out", str(tmp_path / "verb.html")]) == 0
    quality = cep.load(folder).backtest(tmp_path / "payments.parquet", "is_fraud", cores=2)
    page = quality.report(tmp_path / "python.html", against=quality)
    assert "Beside the other rules" in page.read_text()
    quality.report(tmp_path / "python.html")
    for form in ("html", "json"):
        assert (tmp_path / f"python.{form}").read_bytes() == (tmp_path / f"verb.{form}").read_bytes()
    pruned = quality.prune()
    assert pruned.frauds_after == pruned.frauds_before == quality.figures.together.fraud_recall.part
    assert quality.prune(budget=0.001).stay == ()
    with pytest.raises(cep.CepError, match=r"\*\.html"):
        quality.report(tmp_path / "page.txt")
    with pytest.raises(cep.CepError, match="a share of the frauds"):
        quality.prune(tolerance=2)
    with pytest.raises(cep.CepError, match="a number of alerts a day"):
        quality.prune(budget=float("nan"))


def test_suggest_in_python(tmp_path: Path) -> None:
    rules = cep.parse(BASE)
    answer = rules.suggest(planted(4, frauds=40, count=1_500), "is_fraud", "card_id", steps=2, count=1, cores=2)
    assert len(answer.suggestions) == 1
    assert "pattern suggested_" in answer.text
    with pytest.raises(cep.CepError, match="no field of the events"):
        rules.suggest(planted(4, frauds=40, count=300), "is_fraud", "nobody")
    with pytest.raises(cep.CepError, match="precision"):
        rules.suggest(planted(4, frauds=40, count=300), "is_fraud", "card_id", precision=80)


@pytest.mark.parametrize("has_list", [False, True])
def test_tune_proposes_what_the_verb_does(has_list: bool, tmp_path: Path) -> None:
    table = labelled()
    pq.write_table(table, tmp_path / "payments.parquet")
    folder = write_rules(tmp_path / "rules")
    if has_list:
        watched = PATTERN.replace("amount > 500.00", "amount > 500.00 and card_id in watched")
        assert watched != PATTERN
        (folder / "patterns.cep").write_text(f'{EVENT}list watched: string = ["c1", "c3", "c5", "c7"]\n{watched}')
    read = ["--rules", folder, "--events", tmp_path / "payments.parquet", "--labels", "is_fraud"]
    flags = ["--try", "small=1..5/5", "--json", tmp_path / "tuned.json", "--gap", "1 s", "--episodes", "0s"]
    assert cli.main(["rules", "tune", "small_then_large", *map(str, [*read, *flags])]) == 0
    terms: dict[str, Any] = {"tries": {"small": "1..5/5"}, "gap": "1 s", "episodes": "0s", "cores": 2}
    best = cep.load(folder).tune("small_then_large", table, "is_fraud", **terms)
    assert orjson.loads(orjson.dumps(best)) == orjson.loads((tmp_path / "tuned.json").read_bytes())
    one: Any = {"small": 3}
    assert cep.load(folder).tune("small_then_large", table, "is_fraud", **{**terms, "tries": one}).tried["small"]
    with pytest.raises(cep.CepError, match="has no rule small_then_larg; did you mean small_then_large"):
        cep.load(folder).tune("small_then_larg", table, "is_fraud")
    with pytest.raises(cep.CepError, match="the history has no events"):
        cep.load(folder).tune("small_then_large", table.slice(0, 0), "is_fraud")


@pytest.mark.parametrize(
    ("param", "condition"),
    [
        ("within_: duration = 36 h", "count(payment over within_) >= 0"),
        ("way: enum(approved, declined) = approved", "status != way or status == way"),
    ],
)
def test_a_default_of_another_parameter_is_no_obstacle(param: str, condition: str, tmp_path: Path) -> None:
    """A duration of two units and a symbol are given to each replay, as a rule's file has them."""
    head = f"pattern any(large: decimal(2) = 500.00, {param}) by card_id"
    rules = cep.parse(f"{EVENT}{head} {{\n  seq t\n  where t: payment amount > large and ({condition})\n}}\n")
    best = rules.tune("any", labelled(), "is_fraud", tries={"large": "400,500"}, gap="1 s", episodes="0s", cores=2)
    assert best.present == {"large": 500.0}
    page = rules.backtest(labelled(), "is_fraud", cores=2).report(tmp_path / "page.html", thresholds=["any"])
    curves = {
        each["param"]: each["points"] for each in orjson.loads(page.with_suffix(".json").read_bytes())["thresholds"]
    }
    values = [round(24 * point["value"]) for point in curves.get("within_", ())]
    assert 36 in values or "within_" not in param
    assert len(values) in (0, 21), "also the values of two units"


@pytest.mark.parametrize(
    ("form", "days"), [("a{3,} within 7 d", 7), ("a{3,} within 3 h", 1), ("a -> b within 3 h", 0.125)]
)
def test_no_match_spans_two_parts_of_a_tuning(form: str, days: float) -> None:
    other = " b: payment" if "b" in form.partition(" within")[0] else ""
    rules = cep.parse(f"{EVENT}pattern any by card_id {{\n  seq {form}\n  where a: payment{other}\n}}\n")
    assert rules._one_rule("any").gap_ms == days * 86_400_000


def labelled_folder(tmp_path: Path) -> tuple[Path, list[str], pa.Table]:
    """Return a folder of rules, arguments of measuring verbs, and the events.

    The events have columns of other names, times without a zone, and a field of money that is not `amount`.
    """
    table = labelled()
    times = table["event_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms"))
    table = table.set_column(table.column_names.index("event_time"), "event_time", times)
    table = table.rename_columns(["sum_paid" if name == "amount" else name for name in table.column_names])
    pq.write_table(table, tmp_path / "payments.parquet")
    frauds = table["tx_id"].filter(table["is_fraud"])
    reports = pa.table({
        "event_id": frauds, "label": [True] * len(frauds),
        "reported_at": [1_772_323_200_000 + 3_600_000 * number for number in range(len(frauds))],
    })  # fmt: skip
    pq.write_table(reports, tmp_path / "labels.parquet")
    folder = write_rules(tmp_path / "rules")
    arguments = ["--rules", folder, "--events", tmp_path / "payments.parquet", "--labels", tmp_path / "labels.parquet"]
    return folder, [*map(str, arguments), "--columns", "amount=sum_paid", "--time-zone", "Europe/Amsterdam"], table


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [("as_of", "--as-of", "2026-03-02T12:00:00Z"), ("maturity", "--maturity", "2 d"), ("amount", "--amount", "amount")],
)
def test_backtest_takes_the_terms_of_the_verb(name: str, flag: str, value: str, tmp_path: Path) -> None:
    folder, arguments, table = labelled_folder(tmp_path)
    figures = tmp_path / "figures.json"
    assert cli.main(["backtest", *arguments, flag, value, "--json", str(figures)]) == 0
    terms: dict[str, Any] = {"columns": {"amount": "sum_paid"}, "tz": "Europe/Amsterdam", "cores": 2, name: value}
    backtest = cep.load(folder).backtest(table, tmp_path / "labels.parquet", **terms)
    assert orjson.loads(orjson.dumps(backtest.to_json())) == orjson.loads(figures.read_bytes())


def test_tune_takes_the_terms_of_the_verb(tmp_path: Path) -> None:
    folder, arguments, table = labelled_folder(tmp_path)
    reports = pq.read_table(tmp_path / "labels.parquet")
    times = [1_772_319_660_000 + 100_000 * number for number in range(reports.num_rows)]  # about a minute after each
    pq.write_table(reports.set_column(2, "reported_at", pa.array(times)), tmp_path / "labels.parquet")
    values_by_flag = {
        "--try": "small=1..5/5", "--objective": "money", "--review-cost": "7.5", "--gap": "3 min",
        "--as-of": "2026-06-01T00:00:00Z", "--maturity": "5 min", "--amount": "amount", "--budget": "500",
        "--json": str(tmp_path / "tuned.json"),
    }  # fmt: skip
    flags = [word for pair in values_by_flag.items() for word in pair]
    assert cli.main(["rules", "tune", "small_then_large", *arguments, *flags]) == 0
    rules, labels = cep.load(folder), tmp_path / "labels.parquet"
    terms: dict[str, Any] = {"columns": {"amount": "sum_paid"}, "tz": "Europe/Amsterdam", "cores": 2,
             "amount": "amount", "as_of": "2026-06-01T00:00:00Z", "maturity": "5 min"}  # fmt: skip
    tried = {"small": "1..5/5"}
    best = rules.tune("small_then_large", table, labels, objective="money", tries=tried, budget=500.0, review_cost=7.5,
                      gap="3 min", **terms)  # fmt: skip
    assert orjson.loads(orjson.dumps(best)) == orjson.loads((tmp_path / "tuned.json").read_bytes())
    cheap = rules.tune("small_then_large", table, labels, objective="money", tries=tried, gap="3 min", **terms)
    assert cheap.present_rows[0].value != best.present_rows[0].value, "a review has its cost"
    with pytest.raises(cep.CepError, match="gap: "):
        rules.tune("small_then_large", table, labels, gap="long")
    with pytest.raises(cep.CepError, match="maturity: "):
        rules.tune("small_then_large", table, labels, maturity="long")
    with pytest.raises(cep.CepError, match="as_of: "):
        rules.backtest(table, labels, as_of="yesterday")
    misspelt: dict[str, Any] = {"matruity": "1 h"}
    with pytest.raises(cep.CepError, match="there is no matruity="):
        rules.backtest(table, labels, **misspelt)


def test_suggest_takes_the_terms_of_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = planted(4, frauds=40, count=1_500)
    pq.write_table(table, tmp_path / "events.parquet")
    for part in ("rules", "patterns"):
        (tmp_path / part).mkdir()
    (tmp_path / "patterns" / "pays.cep").write_text(BASE)
    (tmp_path / "rules" / "any.toml").write_text(pays_rule("any"))
    folder = tmp_path / "rules"
    command = ["--rules", folder, "--events", tmp_path / "events.parquet", "--labels", "is_fraud", "--key", "card_id"]
    terms: dict[str, Any] = {"as_of": "2026-04-25T00:00:00Z", "maturity": "1 d", "amount": "amount"}
    flags = [word for name, value in terms.items() for word in ("--" + name.replace("_", "-"), value)]
    out = tmp_path / "suggested.cep"
    flags += ["--max-steps", "2", "--count", "1", "--out", str(out)]
    assert cli.main(["rules", "suggest", *map(str, command), *flags]) == 0
    answer = cep.load(folder).suggest(table, "is_fraud", "card_id", steps=2, count=1, cores=2, **terms)
    assert answer.text == out.read_text()
    (one,) = answer.suggestions
    printed = capsys.readouterr().out
    assert (
        f"the last {answer.held_out_days:.1f} days, which had no say, have {answer.held_out_frauds} frauds" in printed
    )
    assert f"{one.chosen_for.value:.3f}" in printed


def test_a_report_draws_the_rules_that_are_named(tmp_path: Path) -> None:
    table = labelled()
    quality = cep.load(write_rules(tmp_path / "rules")).backtest(table, "is_fraud", cores=2)
    page = quality.report(tmp_path / "page.html", thresholds=["small_then_large"])
    drawn = orjson.loads(page.with_suffix(".json").read_bytes())["thresholds"]
    assert {each["rule"] for each in drawn} == {"small_then_large"}
    assert "Thresholds" not in quality.report(tmp_path / "none.html", thresholds=[]).read_text()
    with pytest.raises(cep.CepError, match="did you mean small_then_large"):
        quality.report(tmp_path / "page.html", thresholds=["small_then_larg"])

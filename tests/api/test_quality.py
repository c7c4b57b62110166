"""Differences between two sets of rules, and the quality of rules by labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cep
from cep.cli import main as cli
from tests.analysis.test_suggest import BASE, planted
from tests.api.frames import EVENT, KINDS, PATTERN, payments, write_rules
from tests.cli.test_backtest import RULE


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
    is_fraud = np.random.default_rng(1).random(240) < 0.2
    table = payments().append_column("is_fraud", pa.array(is_fraud))
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
    labels = pa.table({"event_id": table["tx_id"].filter(pa.array(is_fraud))})
    backtest = rules.backtest(KINDS[kind](payments()), labels, cores=2)
    assert backtest.figures.together.fraud_recall == quality.figures.together.fraud_recall
    with pytest.raises(cep.CepError, match="no column `is_fruad`; did you mean `is_fraud`"):
        rules.backtest(KINDS[kind](table), "is_fruad")


def test_report_and_prune_are_those_of_the_verbs(tmp_path: Path) -> None:
    is_fraud = np.random.default_rng(1).random(240) < 0.2
    pq.write_table(payments().append_column("is_fraud", pa.array(is_fraud)), tmp_path / "payments.parquet")
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
    is_fraud = np.random.default_rng(1).random(240) < 0.2
    table = payments().append_column("is_fraud", pa.array(is_fraud))
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
    with pytest.raises(cep.CepError, match="has no rule small_then_larg; did you mean small_then_large"):
        cep.load(folder).tune("small_then_larg", table, "is_fraud")


def labelled_folder(tmp_path: Path) -> tuple[Path, list[str], pa.Table]:
    """Return a folder of rules, arguments of measuring verbs, and the events.

    The events have columns of other names, times without a zone, and a field of money that is not `amount`.
    """
    is_fraud = np.random.default_rng(1).random(240) < 0.2
    table = payments().append_column("is_fraud", pa.array(is_fraud))
    times = table["event_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms"))
    table = table.set_column(table.column_names.index("event_time"), "event_time", times)
    table = table.rename_columns(["sum_paid" if name == "amount" else name for name in table.column_names])
    pq.write_table(table, tmp_path / "payments.parquet")
    reports = pa.table({
        "event_id": table["tx_id"].filter(pa.array(is_fraud)), "label": [True] * int(is_fraud.sum()),
        "reported_at": [1_772_323_200_000 + 3_600_000 * number for number in range(int(is_fraud.sum()))],
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
    (tmp_path / "rules" / "any.toml").write_text(RULE.format(name="any"))
    folder = tmp_path / "rules"
    command = ["--rules", folder, "--events", tmp_path / "events.parquet", "--labels", "is_fraud", "--key", "card_id"]
    terms: dict[str, Any] = {"as_of": "2026-04-25T00:00:00Z", "maturity": "1 d", "amount": "amount"}
    flags = [word for name, value in terms.items() for word in ("--" + name.replace("_", "-"), value)]
    out = tmp_path / "suggested.cep"
    assert (
        cli.main(
            ["rules", "suggest", *map(str, command), *flags, "--max-steps", "2", "--count", "1", "--out", str(out)]
        )
        == 0
    )
    answer = cep.load(folder).suggest(table, "is_fraud", "card_id", steps=2, count=1, cores=2, **terms)
    assert answer.text == out.read_text()
    (one,) = answer.suggestions
    printed = capsys.readouterr().out
    assert (
        f"the last {answer.held_out_days:.1f} days, which had no say, have {answer.held_out_frauds} frauds" in printed
    )
    assert f"{one.chosen_for.value:.3f}" in printed


def test_a_report_draws_the_rules_that_are_named(tmp_path: Path) -> None:
    is_fraud = np.random.default_rng(1).random(240) < 0.2
    table = payments().append_column("is_fraud", pa.array(is_fraud))
    quality = cep.load(write_rules(tmp_path / "rules")).backtest(table, "is_fraud", cores=2)
    page = quality.report(tmp_path / "page.html", thresholds=["small_then_large"])
    drawn = orjson.loads(page.with_suffix(".json").read_bytes())["thresholds"]
    assert {each["rule"] for each in drawn} == {"small_then_large"}
    assert "Thresholds" not in quality.report(tmp_path / "none.html", thresholds=[]).read_text()
    with pytest.raises(cep.CepError, match="did you mean small_then_large"):
        quality.report(tmp_path / "page.html", thresholds=["small_then_larg"])

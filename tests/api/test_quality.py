"""What two sets of rules differ in, and how good rules are by labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cep
from cep.cli import main as cli
from tests.analysis.test_suggest import BASE, planted
from tests.api.frames import EVENT, KINDS, PATTERN, payments, write_rules


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
    assert cli.main(["backtest", *map(str, arguments), "--json", str(tmp_path / "figures.json")]) == 0
    expected = orjson.loads((tmp_path / "figures.json").read_bytes())
    rules = cep.load(folder)
    quality = rules.backtest(KINDS[kind](table), "is_fraud", cores=2)
    assert orjson.loads(orjson.dumps(quality.to_json())) == expected
    assert "small_then_large" in repr(quality)
    assert quality._repr_html_().count("<tr>") == 3
    labels = pa.table({"event_id": table["tx_id"].filter(pa.array(is_fraud))})
    given = rules.backtest(KINDS[kind](payments()), labels, cores=2)
    assert given.figures.together.fraud_recall == quality.figures.together.fraud_recall
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
    given = ["--try", "small=1..5/5", "--json", tmp_path / "tuned.json"]
    assert cli.main(["tune", "small_then_large", *map(str, [*read, *given])]) == 0
    best = cep.load(folder).tune("small_then_large", table, "is_fraud", tries={"small": "1..5/5"}, cores=2)
    assert orjson.loads(orjson.dumps(best)) == orjson.loads((tmp_path / "tuned.json").read_bytes())
    with pytest.raises(cep.CepError, match="has no rule small_then_larg; did you mean small_then_large"):
        cep.load(folder).tune("small_then_larg", table, "is_fraud")

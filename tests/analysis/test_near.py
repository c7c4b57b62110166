"""Near the line: DuckDB counts the same in each interval of a threshold; each alert is in one interval."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.axes import numeric_axes
from cep.analysis.figure_charts import near_lines
from cep.analysis.labels import labels_of_column
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.near import Line, lines
from cep.analysis.split import whole_time
from cep.analysis.sweep import Bench
from cep.lang.load import load_text
from cep.lists.store import ListStore
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import SOURCE, payments
from tests.bench.peer_data import upsert

SILENT = Console(quiet=True)
PRESENT = {"large": 320.5, "small_large": 300.0}


def bench_of(name: str, path: Path) -> tuple[Bench, Measured, tuple[Line, ...]]:
    """Return the rule with its present threshold, its results and its lines."""
    record = upsert(SOURCE, name).model_copy(update={"params": {"large": PRESENT[name]}})
    deployment, events = deploy([record]), pq.read_table(path)
    labels = labels_of_column([events], "is_fraud", deployment.schema)
    measured = measure(deployment, partial(read_pieces, path), labels, Terms(), SILENT)
    whole = whole_time(measured.history.events, measured.marks)
    bench = Bench(record, ((), ListStore()), partial(read_pieces, path), measured.marks, (whole,), 2, SILENT)
    axes = numeric_axes(load_text(SOURCE, "p").patterns[name], record.params)
    return bench, measured, lines(bench, axes)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("near") / "events.parquet"
    pq.write_table(payments(5)[0], file)
    return file


@pytest.fixture(scope="module")
def large(path: Path) -> tuple[Bench, Measured, tuple[Line, ...]]:
    return bench_of("large", path)


def test_intervals_of_one_event_are_a_histogram(path: Path, large: tuple[Bench, Measured, tuple[Line, ...]]) -> None:
    (line,) = large[2]
    assert (line.param, line.present) == ("large", 320.5)
    assert [each.is_inside for each in line.intervals] == [False] * 6 + [True] * 6
    for each in line.intervals:
        expected = duckdb.execute(
            f"""select count(*) filter (is_fraud), count(*) filter (not is_fraud) from '{path}'
                where round(amount * 100) > ? and round(amount * 100) <= ?""",
            [round(each.looser * 100), round(each.tighter * 100)],
        ).fetchall()[0]
        assert (each.right, each.wrong + each.immature) == expected
    further = duckdb.execute(f"select count(*) from '{path}' where amount > ?", [line.intervals[-1].tighter]).fetchall()
    assert further == [(line.further,)]


def test_intervals_of_a_sequence_are_what_two_replays_differ_in(path: Path) -> None:
    """A higher threshold may bind another event. An alert of the tighter value need not be one of the looser."""
    bench, _, (line,) = bench_of("small_large", path)
    assert sum(each.alerts for each in line.intervals) > 0
    values = [line.intervals[0].looser, *(each.tighter for each in line.intervals)]
    with duckdb.connect() as connection:
        for value in values:
            history, _ = bench.judged([{"large": value}])
            connection.register("a", history.replayed.alerts)
            connection.sql(f"create table v{values.index(value)} as "
                           "select list_transform(events, lambda e: e.event_id) as ids from a")  # fmt: skip
        for number, each in enumerate(line.intervals):
            ((count,),) = connection.sql(
                f"select count(*) from v{number} anti join v{number + 1} using (ids)"
            ).fetchall()
            assert each.alerts == count


def test_each_alert_of_the_rule_is_inside_once(large: tuple[Bench, Measured, tuple[Line, ...]]) -> None:
    _, measured, (line,) = large
    inside = sum(each.alerts for each in line.intervals if each.is_inside)
    assert inside + line.further == measured.figures.rules[0].alerts


def test_samples_stand_just_beside_the_line(path: Path, large: tuple[Bench, Measured, tuple[Line, ...]]) -> None:
    (line,) = large[2]
    assert {sample.is_inside for sample in line.samples} == {True, False}
    assert len(line.samples) <= 12
    for sample in line.samples:
        assert line.present in (sample.looser, sample.tighter)
        ((amount, bad),) = duckdb.execute(
            f"select round(amount, 2), is_fraud from '{path}' where tx_id = ?", [sample.event_ids[-1]]
        ).fetchall()
        assert (amount > line.present) == sample.is_inside
        assert (sample.verdict == "right") == bad
    (chart,) = near_lines([line])
    assert f"{sum(each.alerts for each in line.intervals if each.is_inside):,} are on this side" in chart.text

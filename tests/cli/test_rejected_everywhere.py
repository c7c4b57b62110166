"""Half of the records are bad: every verb, form of files and frame reports it by its exit code."""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import cep
from cep.cli import main as cli
from cep.cli.verbs import VERBS as ALL_VERBS
from tests.analysis.test_suggest import BASE, planted
from tests.cli.test_backtest import RULE

PATTERN = """
pattern large(least: decimal = 300.00) by card_id {
  seq hit
  where hit: pay amount > least
}
"""
EVENTS = BASE[: BASE.index("pattern")]
EXPRESSION = "count(pay over 1 h by card_id)"
# Jobs (test_job_rejections has them), a verb that reads only the form of events, and one that reads a rate.
ELSEWHERE = {"run", "live", "new", "plan"}


def halves() -> pa.Table:
    """Return as many records without an id as good ones, for each card."""
    table = planted(4, frauds=30, count=900)
    times = pc.strftime(table["event_time"].cast(pa.timestamp("ms", "UTC")), "%Y-%m-%dT%H:%M:%SZ")
    table = table.set_column(table.column_names.index("event_time"), "event_time", times)
    table = table.set_column(table.column_names.index("amount"), "amount", table["amount"].cast(pa.string()))
    nameless = table.set_column(0, table.column_names[0], pa.nulls(table.num_rows, pa.string()))
    return pa.concat_tables([table, nameless])


TABLE = halves()


def _json_lines(path: Path, table: pa.Table = TABLE) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))


def _folder(path: Path) -> None:
    for number in range(2):
        part = path / f"part={number}"
        part.mkdir(parents=True)
        pq.write_table(TABLE.slice(number * 800, 800 if number == 0 else None), part / "x.parquet")


def _packed(path: Path) -> None:
    pa_csv.write_csv(TABLE, path.with_suffix(""))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


FORMS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "JSON lines": ("e.jsonl", _json_lines),
    "JSON array": ("e.json", lambda path: path.write_text(json.dumps(TABLE.to_pylist()))),
    "CSV": ("e.csv", lambda path: pa_csv.write_csv(TABLE, path)),
    "packed CSV": ("p.csv.gz", _packed),
    "Parquet": ("e.parquet", lambda path: pq.write_table(TABLE, path)),
    "folder": ("folder", _folder),
    "wildcard": ("e*.jsonl", lambda path: _json_lines(path.with_name("e1.jsonl"))),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with rules, an alert, a dead letter, and the events in each form, each in its own folder."""
    folder = tmp_path_factory.mktemp("rejected")
    for part in ("rules", "patterns", "letters"):
        (folder / part).mkdir()
    (folder / "patterns" / "pays.cep").write_text(EVENTS + PATTERN)
    (folder / "events.cep").write_text(EVENTS)
    (folder / "rules" / "large.toml").write_text(RULE.format(name="large"))
    (folder / "letters" / "1.jsonl").write_text('{"code": "late", "event_id": "nobody"}\n')
    for form, (name, write) in FORMS.items():
        (folder / form).mkdir()
        write(folder / form / name)
    replay = ["replay", "--rules", folder / "rules", "--events", folder / "CSV" / "e.csv", "--rejected-max", "0.9"]
    assert cli.main([*map(str, replay), "--out", str(folder / "alerts.jsonl")]) == 0
    yield folder
    shutil.rmtree(folder)


def commands(place: Path) -> dict[str, list[object]]:
    """Return the words of each verb that reads a history, without its events."""
    rules, alert = ["--rules", place / "rules"], json.loads((place / "alerts.jsonl").read_text().splitlines()[0])
    keys = {json.loads(line)["key"] for line in (place / "alerts.jsonl").read_text().splitlines()}
    quiet = next(card for card in TABLE["card_id"].to_pylist() if card not in keys)
    labelled, out = [*rules, "--labels", "is_fraud"], ["--out", place / "out.jsonl"]
    return {
        "replay": [*rules, *out],
        "why": [*rules, "--alerts", place / "alerts.jsonl", "--alert", alert["alert_id"]],
        "why-not": [*rules, "--rule", "large", "--key", quiet],
        "diff": [place / "rules", place / "rules"],
        "backtest": labelled,
        "report": [*labelled, "--thresholds", "none", "--out", place / "page.html"],
        "rules prune": labelled,
        "rules suggest": [*labelled, "--key", "card_id", "--max-steps", "1", "--max", "1"],
        "rules tune": ["large", *labelled, "--try", "least=200,300"],
        "features": [f"n={EXPRESSION}", "--declare", place / "events.cep", "--out", place / "f.csv"],
        "job letters": ["replay", place / "letters", *rules],
    }


VERBS = (
    "replay", "why", "why-not", "diff", "backtest", "report", "rules prune", "rules suggest",
    "rules tune", "features", "job letters",
)  # fmt: skip
QUICK = {(verb, "CSV") for verb in VERBS} | {("replay", form) for form in FORMS}


@pytest.mark.parametrize(
    ("verb", "form"),
    [
        pytest.param(verb, form, marks=() if (verb, form) in QUICK else pytest.mark.slow)
        for verb in VERBS
        for form in FORMS
    ],
)
def test_a_verb_ends_with_1_and_says_why(verb: str, form: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*commands(place)[verb], "--events", place / form / FORMS[form][0]]
    assert cli.main([*verb.split(), *map(str, words)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "missing_field: field `tx_id` is missing or null" in lines[-2]
    assert "(50.00%) were rejected, more than --rejected-max 0.01 allows" in lines[-1]
    code = cli.main([*verb.split(), *map(str, words), "--rejected-max", "0.5"])
    assert code == int(verb == "rules prune"), "a rule could go"
    assert "(50.00%) were rejected" in capsys.readouterr().err.splitlines()[-1]


def test_no_verb_is_forgotten() -> None:
    """The table has each verb with the flag for a history."""
    reading = set()
    for verb, entry in ALL_VERBS.items():
        parser = cli.parser_of(verb, entry)
        inner = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parts = [parser, *(part for choices in inner for part in choices.values())]
        if any("--events" in part._option_string_actions for part in parts):
            reading.add(verb)
    assert reading - ELSEWHERE == set(VERBS)


FRAMES: dict[str, Callable[[Path], Any]] = {
    "Arrow": lambda _: TABLE,
    "pandas": lambda _: TABLE.to_pandas(),
    "polars": lambda _: pl.from_arrow(TABLE),
    "lazy": lambda _: pl.LazyFrame(pl.from_arrow(TABLE)),
    "path": lambda place: place / "Parquet" / "e.parquet",
    "paths": lambda place: [place / "JSON lines" / "e.jsonl"],
}
RULES = cep.parse(EVENTS + PATTERN)
CALLS: dict[str, Callable[..., object]] = {
    "match": RULES.match,
    "why_not": lambda events, **how: RULES.why_not("large", TABLE["card_id"][0].as_py(), events, **how),
    "diff": lambda events, **how: RULES.diff(RULES, events, **how),
    "backtest": lambda events, **how: RULES.backtest(events, "is_fraud", **how),
    "suggest": lambda events, **how: RULES.suggest(events, "is_fraud", "card_id", steps=1, count=1, **how),
    "tune": lambda events, **how: RULES.tune("large", events, "is_fraud", tries={"least": "200,300"}, **how),
    "features": lambda events, **how: cep.features(events, {"n": EXPRESSION}, declare=EVENTS, **how),
}
QUICK_CALLS = {(name, "Arrow") for name in CALLS} | {("match", kind) for kind in FRAMES}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (name, kind) in QUICK_CALLS else pytest.mark.slow)
        for name in CALLS
        for kind in FRAMES
    ],
)
def test_python_warns_or_raises(name: str, kind: str, place: Path) -> None:
    events = FRAMES[kind](place)
    with pytest.warns(cep.RejectedRecordsWarning, match=r"\(50.00%\) were rejected, .* field `tx_id` is missing"):
        CALLS[name](events)
    with pytest.raises(cep.RejectedRecordsError, match=r"\(50.00%\) were rejected"):
        CALLS[name](events, strict=True)

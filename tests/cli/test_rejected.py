"""Rejected and lost records: every verb and every job names them."""

import argparse
import gzip
import io
import json
import shutil
from collections import Counter
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
from cep.cli.main import main
from cep.cli.replay import _figures
from cep.cli.verbs import VERBS as ALL_VERBS
from cep.runners.assembly import JobRejections
from cep.runners.embedded.reports import ProgressLines
from cep.runners.meanings import COUNTERS, FROM_ZERO, LABELS, LOSSES, is_loss
from cep.runners.observe import Log, Observed
from cep.runners.output import Replayed
from cep.runners.spark.match_stream import OBSERVED
from tests.analysis.test_suggest import BASE, planted
from tests.cli.test_quality import pays_rule
from tests.cli.test_rules import RULE as PAIR_RULE
from tests.output_of import OutputOf

# A verb never hides rejected records: reasons in its last lines, and exit code 1 above the share.

PAIR = """event tx { i id  event_time time  card string  amount decimal(2) }
pattern p by card { seq a -> b within 1 h  where a: tx amount > 1.00  b: tx amount > 2.00 }
"""


def history(folder: Path, form: str, bad_count: int) -> Path:
    """Write 100 records, `bad_count` of them with an amount that is not a number."""
    for name, text in (("patterns/p.cep", PAIR), ("rules/p.toml", PAIR_RULE)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    rows = [
        {
            "i": str(n),
            "event_time": f"2026-01-01T00:{n % 60:02}:00Z",
            "card": "c",
            "amount": "x" if n < bad_count else "3.00",
        }
        for n in range(100)
    ]
    table, path = pa.Table.from_pylist(rows), folder / f"events.{form}"
    if form == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif form == "csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    ("bad_count", "share", "code"), [(0, "0.01", 0), (1, "0.01", 0), (2, "0.01", 1), (2, "0.05", 0)]
)
def test_a_replay_tells_of_rejected_records(
    tmp_path: Path, output_of: OutputOf, form: str, bad_count: int, share: str, code: int
) -> None:
    events = history(tmp_path, form, bad_count)
    out = ["--out", str(tmp_path / "alerts.jsonl")]
    command = ["replay", "--rules", str(tmp_path / "rules"), "--events", str(events), *out, "--rejected-max", share]
    lines = output_of(main(command), code).err.splitlines()
    if bad_count:
        assert "field `amount`" in lines[-2]
        assert f"{bad_count} of 100 records" in lines[-1]
    assert any("more than --rejected-max" in line for line in lines) == bool(code)


@pytest.mark.parametrize("verb", ["backtest", "report", "diff"])
def test_other_verbs_end_with_1_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    events = history(tmp_path, "jsonl", 100)
    rules = [str(tmp_path / "rules")] * 2 if verb == "diff" else ["--rules", str(tmp_path / "rules")]
    (tmp_path / "labels.csv").write_text("i,fraud\n1,true\n")
    labels = [] if verb == "diff" else ["--labels", str(tmp_path / "labels.csv")]
    out = ["--out", str(tmp_path / "page.html")] if verb == "report" else []
    assert main([verb, *rules, "--events", str(events), *labels, *out]) == 1
    assert "100 of 100 records" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("bad_count", "code"), [(0, 0), (1, 0), (2, 1)])
def test_features_are_judged_too(tmp_path: Path, output_of: OutputOf, bad_count: int, code: int) -> None:
    events = history(tmp_path, "jsonl", 0)
    lines = events.read_text().splitlines()
    events.write_text("\n".join(["{", *lines[1:]] if bad_count else lines) + "\n{\n" * (bad_count > 1))
    (tmp_path / "e.cep").write_text(PAIR.splitlines()[0])
    out = ["--out", str(tmp_path / "f.csv"), "--declare", str(tmp_path / "e.cep")]
    twice = ["n=count(tx over 1 h by card)", "n=count(tx over 2 h by card)"]
    assert "the same name" in output_of(main(["features", *twice, "--events", str(events), *out]), 2).err
    error = output_of(main(["features", "n=count(tx over 1 h by card)", "--events", str(events), *out]), code).err
    assert (f"{bad_count} of 10" in error) == bool(bad_count)
    assert ("unreadable" in error) == bool(bad_count)


def test_why_not_judges_the_records_of_the_key(tmp_path: Path, output_of: OutputOf) -> None:
    events = history(tmp_path, "jsonl", 0)
    lines = events.read_text().splitlines()
    command = ["why-not", "--rules", str(tmp_path / "rules"), "--rule", "p", "--key", "c", "--events", str(events)]
    command += ["--until", "2026-01-01T00:00:01Z"]
    for bad_count, code in ((0, 0), (5, 1)):
        bad = [line.replace('"i": "', '"j": "') for line in lines[:bad_count]]
        events.write_text("\n".join([lines[0], *bad]))
        assert ("more than --rejected-max" in output_of(main(command), code).err) == bool(code)
    assert main([*command, "--rejected-max", "0.9"]) == 0


# Half of the records are bad: every verb, form of files and frame reports it by its exit code.

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
    (folder / "rules" / "large.toml").write_text(pays_rule("large"))
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
def test_a_verb_ends_with_1_and_says_why(verb: str, form: str, place: Path, output_of: OutputOf) -> None:
    words = [*commands(place)[verb], "--events", place / form / FORMS[form][0]]
    lines = output_of(cli.main([*verb.split(), *map(str, words)]), 1).err.splitlines()
    assert "missing_field: field `tx_id` is missing or null" in lines[-2]
    assert "(50.00%) were rejected, more than --rejected-max 0.01 allows" in lines[-1]
    code = cli.main([*verb.split(), *map(str, words), "--rejected-max", "0.5"])
    assert code == int(verb == "rules prune"), "a rule could go"
    assert "(50.00%) were rejected" in output_of.read().err.splitlines()[-1]


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


# A job names rejected records in its log, is unhealthy above the share, and ends with 1.

LETTER = (
    b'{"code": "wrong_value", "reason": "field `amount`: \'x\' is not a value of type decimal(2)", "record": "secret"}'
)


def watched(*, ends: bool = False) -> tuple[JobRejections, Observed, io.StringIO]:
    written = io.StringIO()
    log = Log("json", written)
    observed = Observed(60_000, log)
    return JobRejections(observed, log, 0.01, ends, every_ms=0), observed, written


def take(rejections: JobRejections, records: int, bad: int) -> None:
    counters = Counter({"records": records, "events": records - bad, "poison[wrong_value]": bad})
    rejections.add(counters, [LETTER] * bad)


def test_the_health_follows_the_share_and_names_no_value() -> None:
    rejections, observed, written = watched()
    take(rejections, 1_000, 5)
    assert observed.troubles == {}
    take(rejections, 99, 99)
    assert observed.troubles == {}, "too few to judge"
    take(rejections, 901, 0)
    assert "records" in observed.troubles
    take(rejections, 1_000, 0)
    assert observed.troubles == {}
    assert rejections.end() == 1, "104 of 3,000"
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["rejected", "unhealthy", "healthy", "rejected"]
    assert lines[0]["reasons"] == "5 wrong_value of `amount`"
    assert "99 of 1,000 records (9.90%)" in lines[1]["reason"]
    assert (lines[3]["records"], lines[3]["rejected"]) == (3_000, 104)
    assert "secret" not in written.getvalue()
    assert "'x'" not in written.getvalue()


def test_a_job_that_reads_nothing_says_so() -> None:
    rejections, _, written = watched(ends=True)
    assert rejections.end() == 0
    assert json.loads(written.getvalue())["event"] == "nothing_read"


@pytest.mark.parametrize(("bad_count", "code"), [(0, 0), (1, 0), (2, 1)])
def test_a_job_that_ends_prints_examples(tmp_path: Path, output_of: OutputOf, bad_count: int, code: int) -> None:
    events = history(tmp_path, "jsonl", bad_count)
    command = ["run", "--rules", str(tmp_path / "rules"), "--events", str(events), "--alerts", str(tmp_path / "alerts")]
    error = output_of(main([*command, "--available-now"]), code).err
    assert ("field `amount`" in error) == bool(bad_count)
    assert (f"{bad_count} of 100 records" in error) == bool(bad_count)
    assert ("more than --rejected-max 0.01 allows" in error) == bool(code)
    assert main([*command, "--available-now", "--rejected-max", "0.5"]) == 0


def test_events_ahead_of_the_clock_end_a_job_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = history(tmp_path, "jsonl", 0)
    events.write_text(events.read_text().replace("2026-", "2226-"))
    rules = ["--rules", str(tmp_path / "rules"), "--events", str(events)]
    assert main(["run", *rules, "--alerts", str(tmp_path / "alerts"), "--available-now"]) == 1
    assert "dated more than 60000 ms ahead" in capsys.readouterr().err
    assert main(["replay", *rules, "--out", str(tmp_path / "a.jsonl")]) == 1
    assert "100 of 100 records (100.00%) were rejected" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_job_reads_a_named_file_of_each_form(form: str, tmp_path: Path) -> None:
    events = history(tmp_path, form, 0)
    rules = ["--rules", str(tmp_path / "rules"), "--events", str(events)]
    assert main(["run", *rules, "--alerts", str(tmp_path / "alerts"), "--available-now"]) == 0
    assert main(["replay", *rules, "--out", str(tmp_path / "a.jsonl")]) == 0
    sent = [line for path in (tmp_path / "alerts").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert sent
    assert sorted(sent) == sorted((tmp_path / "a.jsonl").read_bytes().splitlines())


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_ends_with_1_too(tmp_path: Path, output_of: OutputOf) -> None:
    events = history(tmp_path, "csv", 0)
    (tmp_path / "events").mkdir()
    events.rename(tmp_path / "events" / "a.csv")
    (tmp_path / "events" / "b.json").write_text('[{"i": "x", ')
    command = ["live", "--rules", str(tmp_path / "rules"), "--events", str(tmp_path / "events"), "--available-now"]
    command += ["--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"), "--rejected-max", "0.001"]
    error = output_of(main(command), 1).err
    assert "b.json, or what is left of it, cannot be read" in error
    assert "1 of 101 records (0.99%) were rejected, more than --rejected-max 0.001 allows" in error


# Each counter of refused, rejected or lost records is shown with the losses, unless it is called ordinary.

# Each counts the normal work of a job.
ORDINARY = {
    "records", "events", "alerts", "alerts_delivered", "matches", "runs_started", "runs_expired", "timeouts",
    "run_steps", "rule_events", "rule_steps", "rule_late_ms", "histories_folded", "events_produced", "control_applied",
    "control_heartbeat", "control_ignored", "control_waiting",
}  # fmt: skip


def labelled(name: str) -> str:
    """Return the counter's name with the labels that a job counts."""
    return f"{name}[{'@'.join('x' for _ in LABELS[name])}]" if name in LABELS else name


def test_every_other_counter_is_a_loss() -> None:
    assert {*FROM_ZERO, *COUNTERS} - set(LOSSES) == ORDINARY


@pytest.mark.parametrize("name", LOSSES)
def test_a_replay_shows_it(name: str) -> None:
    replayed = Replayed(pa.table({"alert_id": []}), (), Counter({"events": 2, labelled(name): 3}), 1.0)
    shown = dict(_figures(replayed))
    assert shown[labelled(name).replace("_", " ")] == "3"


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "held" and not name.startswith("rule_")])
def test_the_lines_of_a_live_job_name_it(name: str) -> None:
    written = io.StringIO()
    totals = Counter({"records": 5, "events": 5, labelled(name): 3})
    ProgressLines(Log("json", written)).tell(Observed(60_000), totals, 1.0)
    assert json.loads(written.getvalue())[labelled(name)] == 3


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("rule_")])
def test_a_query_of_spark_observes_it(name: str) -> None:
    of_jobs = {"events_before_start", "events_after_end", "deliveries_retried", "checkpoints_failed", "alerts_refused"}
    assert (name in OBSERVED) == (name not in of_jobs)
    assert len(OBSERVED) == len(set(OBSERVED))


def test_labels_do_not_hide_it() -> None:
    assert is_loss("poison[too_long]")
    assert not is_loss("alerts[card_testing@3]")

"""Verbs: exit codes, their table, help pages, settings; and what a new user runs first."""

import io
import json
import random
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from inspect import isfunction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from cep import __version__
from cep.base import errors
from cep.base.exits import MEANINGS, Exit
from cep.base.limits import KEY_GROUPS_LIVE_DEFAULT
from cep.base.text import HIDDEN
from cep.cli import main as cli
from cep.cli.docs import page_paths
from cep.cli.help_pages import CODE_PAGES, ERROR_PAGES, RULE_FILES, page_of_code, page_of_error
from cep.cli.main import main
from cep.cli.settings import add_setting_arguments, settings_of
from cep.cli.verbs import MOVED, TOP, VERBS, Group, Parser, entries, find
from cep.lang.explain.catalogue import CATALOGUE
from cep.model.settings import SECTIONS, Settings, default_file, extra_of, fields
from tests.output_of import OutputOf
from tests.rule_files import rule_text

# Verbs, help texts and exit codes.


def run_check(monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException) -> int:
    """Return the exit code of `cep check` if the verb ends with this outcome."""

    def run(*_: object) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr("cep.cli.check.run", run)
    return cli.main(["check", "x.cep"])


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (0, 0),
        (1, 1),
        (errors.UsageError("two sources"), 2),
        (errors.SinkError("disk full"), 3),
        (errors.SourceAwayError("no answer"), 3),
        (errors.StateCorruptError("the store is damaged, and the next start takes a checkpoint"), 3),
        (ZeroDivisionError("bug"), 3),
        (errors.SourceGoneError("created again"), 4),
        (errors.StateFormatError("another build"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_how_a_verb_ends_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException, code: int
) -> None:
    ended = run_check(monkeypatch, outcome)
    assert ended == code
    assert Exit(ended) in MEANINGS


def test_an_operating_error_has_one_message_and_a_bug_says_what_to_report(
    monkeypatch: pytest.MonkeyPatch, output_of: OutputOf, tmp_path: Path
) -> None:
    run_check(monkeypatch, errors.SinkError("disk full"))
    assert output_of.read().err.startswith("cep: disk full\n")
    run_check(monkeypatch, ZeroDivisionError("bug"))
    assert "Traceback" in output_of.read().err  # CEP_DEBUG is set for all tests
    monkeypatch.delenv("CEP_DEBUG")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_check(monkeypatch, ZeroDivisionError("bug"))
    printed = output_of.read().err
    (report_file,) = tmp_path.iterdir()
    assert "Traceback" not in printed
    assert printed.startswith("cep: ZeroDivisionError in test_main.py:")
    assert str(report_file) in printed
    assert "Traceback" in report_file.read_text()
    assert report_file.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert "run it again" in output_of(run_check(monkeypatch, ZeroDivisionError("bug")), 3).err
    denied = PermissionError(13, "Permission denied", "/proc/x")
    assert output_of(run_check(monkeypatch, denied), 3).err.startswith("cep: /proc/x: Permission denied; CEP_DEBUG=1")


@pytest.mark.parametrize("arguments", [[], ["chekc"], ["check"], ["check", "--color", "pink", "x.cep"]])
def test_wrong_arguments_are_usage(arguments: list[str], output_of: OutputOf) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: cep" in output_of.read().err


@pytest.mark.parametrize("verb", ["check", "test", "replay", "live"])
def test_every_verb_has_help(verb: str, output_of: OutputOf) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"usage: cep {verb}" in output_of.read().out


def test_check_gets_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    check_arguments: list[object] = []

    def run(*arguments: object) -> int:
        check_arguments.extend(arguments)
        return 0

    monkeypatch.setattr("cep.cli.check.run", run)
    assert cli.main(["check", "--json", "--color", "never", "a.cep", "b.cep"]) == 0
    assert check_arguments == [["a.cep", "b.cep"], True, False]


def test_the_version_is_told(output_of: OutputOf) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert output_of.read().out == f"cep {__version__}\n"


def test_a_process_ends_without_the_destructors_of_libraries() -> None:
    """A thread left by a reader can abort a process in these destructors, after its answer: `abort` imitates it."""
    script = (
        "import atexit, ctypes, sys; from cep.cli.main import entry; libc = ctypes.CDLL(None); "
        "libc.__cxa_atexit(libc.abort, None, None); atexit.register(print, 'cleared'); sys.argv = ['cep', {}]; entry()"
    )
    for argument, code in (("'docs'", 0), ("'--help'", 0), ("'--no-such'", 2)):
        ended = subprocess.run(
            [sys.executable, "-c", script.format(argument)], capture_output=True, text=True, check=False
        )
        assert ended.returncode == code
        assert ended.stdout.endswith("cleared\n")


def test_streams_that_are_closed_or_lack_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(lines, encoding="ascii", line_buffering=True))
    monkeypatch.setattr("sys.stderr", None)
    cli.mend_streams()
    print("version 1 → 2")
    print("to nowhere", file=sys.stderr)
    assert lines.getvalue() == b"version 1 \\u2192 2\n"


def test_a_verb_starts_without_pandas_and_has_it_where_it_is_needed() -> None:
    script = (
        "import os, sys; from cep.cli.main import entry; os._exit = print; sys.argv = ['cep', 'run']; entry(); "
        "import pyarrow as pa; pa.array(['a']); assert 'pandas' not in sys.modules; "
        "assert pa.table({'a': [1, 2]}).to_pandas().shape == (2, 1)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


# The table of verbs: groups, nearest names, and the names of 0.2.

GROUPS = [name for name, entry in entries() if isinstance(entry, Group)]


def refused(words: list[str], output_of: OutputOf) -> str:
    """Return the message about words that are not a command, which is on standard error."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == Exit.USAGE
    printed = output_of.read()
    assert printed.out == ""
    return printed.err


def test_the_top_level_is_short() -> None:
    assert len(TOP.entries()) <= 25, "put the new verb into the group of its noun"


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_there(name: str) -> None:
    assert find([*name.split(), "--flag"]) == (name, VERBS[name])
    assert isfunction(VERBS[name].part("run"))
    assert VERBS[name].part("HELP")


@pytest.mark.parametrize("name", ["", *GROUPS])
def test_a_group_alone_lists_its_verbs(name: str, output_of: OutputOf) -> None:
    group = find(name.split())[1]
    assert isinstance(group, Group)
    text = refused(name.split(), output_of)
    sections = [text.partition(f"{title}:\n")[2].partition("\n\n")[0] for title in group.sections]
    assert [line.split()[0] for section in sections for line in section.split("\n")] == list(group.entries())
    assert all(len(line) <= 120 for line in text.splitlines())
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    assert (stopped.value.code, output_of.read().out) == (0, text)


@pytest.mark.parametrize("name", ["keys", "lists", "rules audit", "rules shadow", "job letters"])
def test_a_verb_with_parts_lists_them(name: str, output_of: OutputOf) -> None:
    text = refused(name.split(), output_of)
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert text == output_of.read().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["chekc"], "did you mean `cep check`?"),
        (["publsh"], "did you mean `cep rules publish`?"),
        (["lock"], "did you mean `cep rules lock`?"),
        (["rules", "lokc"], "did you mean `cep rules lock`?"),
        (["job", "savepiont", "--to", "x"], "did you mean `cep job savepoint`?"),
        (["job", "publish"], "`cep job --help` lists the verbs"),
        (["xyzzy"], "`cep --help` lists the verbs"),
        (["\x1b[31m"], "there is no verb \\u001b[31m; `cep --help`"),
        (["--verbose"], "`cep --help` lists the verbs"),
    ],
)
def test_an_unknown_verb_names_the_nearest(words: list[str], hint: str, output_of: OutputOf) -> None:
    assert hint in refused(words, output_of)


def test_names_of_0_2_are_names_of_verbs() -> None:
    assert set(MOVED.values()) <= VERBS.keys()
    assert MOVED.keys() & TOP.entries().keys() == set()


def test_a_name_of_0_2_works_and_prints_its_new_name(output_of: OutputOf) -> None:
    new = output_of(main(["job", "monitor", "alerts"]))
    old = output_of(main(["monitor", "alerts"]))
    assert (old.out, new.err, old.err) == (new.out, "", "cep monitor is now cep job monitor\n")


# Errors and diagnostics name an existing page.


def test_every_page_is_there() -> None:
    pages = {verb.page for verb in VERBS.values() if verb.page is not None}
    named = {*pages, *ERROR_PAGES.values(), *CODE_PAGES.values(), RULE_FILES}
    assert named - page_paths().keys() == set()


def test_every_verb_has_a_page_but_the_one_of_pages() -> None:
    assert [name for name, verb in VERBS.items() if verb.page is None] == ["docs"]


def test_every_error_has_a_page() -> None:
    classes = [
        class_ for class_ in vars(errors).values() if isinstance(class_, type) and issubclass(class_, errors.CepError)
    ]
    without = [class_ for class_ in classes if page_of_error(class_.__new__(class_), "replay") is None]
    assert without == [errors.CepError]
    assert page_of_error(errors.StateFormatError(), "run") == "guides/move"
    assert page_of_error(errors.StateCorruptError(), "run") == "guides/operate"
    assert page_of_error(errors.UsageError(), "docs") is None


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_has_a_page(code: str, output_of: OutputOf) -> None:
    assert main(["explain", code]) == 0
    assert f"`cep docs {page_of_code(code)}`" in output_of.read().out.splitlines()[-1]


def test_an_error_ends_with_its_page(monkeypatch: pytest.MonkeyPatch, output_of: OutputOf) -> None:
    def run(*_: object) -> int:
        raise errors.SinkError("disk full")

    monkeypatch.setattr("cep.cli.check.run", run)
    assert main(["check", "x.cep"]) == 3
    assert output_of.read().err.splitlines() == ["cep: disk full", "read on: `cep docs guides/operate`"]


@pytest.mark.parametrize("verb", ["check", "lint", "test"])
def test_a_mistake_names_the_code_and_the_page(verb: str, tmp_path: Path, output_of: OutputOf) -> None:
    file = tmp_path / "x.cep"
    file.write_text("event e { id id  event_time time  k string }\npattern p by k { seq a where a: e amont > 2 }\n")
    last = output_of(main([verb, str(file)]), 1).out.splitlines()[-1]
    assert last == "read on: `cep explain CEP201`, `cep docs reference/language/declarations`"


# `cep settings`, and flags that are derived from the model.


def parser() -> Parser:
    argument_parser = Parser()
    add_setting_arguments(argument_parser, *SECTIONS)
    return argument_parser


def test_print_and_check(tmp_path: Path, output_of: OutputOf) -> None:
    printed = output_of(main(["settings"])).out
    assert printed == default_file()
    path = tmp_path / "cep.toml"
    path.write_text(printed)
    assert main(["settings", "--check", str(path)]) == 0
    path.write_text(printed.replace("key_groups", "key_grops"))
    assert "did you mean `key_groups`?" in output_of(main(["settings", "--check", str(path)]), 2).err


def test_flags_of_every_type() -> None:
    assert settings_of(parser().parse_args([])) == Settings()
    words = ["--rules", "r", "--lateness", "10 s", "--key", "a", "--key", "b,c", "--key-groups", "8", "--levels", "3"]
    settings = settings_of(parser().parse_args([*words, "--listen", "9464", "--listen", "9464"]))
    assert settings.job == Settings().job.model_copy(
        update={"rules": Path("r"), "lateness": 10_000, "keys": ("a", "b,c"), "key_groups": 8, "levels": 3}
    )
    assert settings.observe.listen == ("127.0.0.1", 9464)
    with pytest.raises(errors.UsageError, match="lateness"):
        settings_of(parser().parse_args(["--lateness", "soon"]))


def test_a_flag_with_one_value_is_not_given_twice(output_of: OutputOf) -> None:
    for verb in ("run", "live"):
        with pytest.raises(SystemExit):
            main([verb, "--rules", "rules", "--events", "a", "--events", "b"])
        assert "--events is given twice, and takes one value" in output_of.read().err
    lists = parser().parse_args(["--columns", "a=b", "--columns", "c=d"])
    assert settings_of(lists).events.columns == ("a=b", "c=d")


def test_help_has_every_flag() -> None:
    text = parser().format_help()
    assert all(extra_of(info)["flag"] in text for _, _, info in fields() if extra_of(info)["flag"])
    assert f"(default: {KEY_GROUPS_LIVE_DEFAULT})" in text


# `cep live` refuses senseless options before it starts anything.

RULES = str(Path(__file__).parents[2] / "rules")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give the events"),
        (["--events", "x", "--topic", "y", "--bootstrap-servers", "z"], "give the events"),
        (["--topic", "y"], "needs --bootstrap-servers"),
        (["--events", "x", "--alerts", "kafka:alerts"], "needs --bootstrap-servers"),
        (["--events", "x", "--control", "a", "--control-topic", "b"], "not both"),
        (["--events", "x", "--dead-letter-topic", "d"], "needs --bootstrap-servers"),
        (
            ["--topic", "y", "--bootstrap-servers", "z", "--alerts", "kafka:a", "--dead-letter-topic", "a"],
            "a topic of its own",
        ),
        (["--topic", "y", "--bootstrap-servers", "z", "--dead-letter-topic", "y"], "topic y has the events"),
        (["--topic", "y", "--bootstrap-servers", "z", "--alerts", "kafka:y"], "topic y has the events"),
        (["--events", "x", "--alerts", "d", "--alerts", "console", "--dead-letters", "./d"], "a folder of its own"),
        (["--events", "x", "--alerts", "x/"], "x has the events"),
        (["--events", "x", "--dead-letters", "x"], "x has the events"),
        (["--topic", "y", "--bootstrap-servers", "z", "--format", "avro"], "avro needs the url of a schema registry"),
        (["--events", "x", "--alerts", "https://there/alerts"], "give the secret"),
        (["--events", "x", "--pages", "0"], "$.job.pages: input should be greater than or equal to 1 (--pages)"),
        (["--events", "x", "--key", "card_id,planet"], "no field `planet`"),
        (["--events", "x", "--key-groups", "0"], "$.job.key_groups: input should be greater"),
        (["--events", "x", "--connector", "spark"], "give its stream to `Rules.match_stream`"),
    ],
)
def test_bad_arguments(tmp_path: Path, output_of: OutputOf, words: list[str], reason: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert main(["live", "--rules", RULES, "--checkpoint", str(checkpoint), *words]) == Exit.USAGE
    assert reason in output_of.read().err
    assert not checkpoint.exists()


def test_rules_and_checkpoint_are_needed(output_of: OutputOf) -> None:
    assert "give --rules" in output_of(main(["live"]), Exit.USAGE).err
    assert "give --checkpoint" in output_of(main(["live", "--rules", RULES]), Exit.USAGE).err


def test_a_time_without_a_unit(tmp_path: Path, output_of: OutputOf) -> None:
    assert (
        main(["live", "--rules", RULES, "--checkpoint", str(tmp_path), "--events", "x", "--lateness", "10"])
        == Exit.USAGE
    )
    assert "'10' is no time such as" in output_of.read().err


# `cep demo`: the day in one process. The commands that it prints for the next step work.

DAY = ["demo", "--size", "small", "--seconds", "0"]


def offered(text: str) -> list[list[str]]:
    """Return the commands after `What next`."""
    lines = text.split("What next")[1].splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  cep ")]


def test_the_day_and_what_comes_next(tmp_path: Path, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = output_of(main(DAY)).out
    assert "All 39 alerts are equal" in text
    assert "impossible_travel is published" in text
    assert list(tmp_path.iterdir()) == []
    commands = offered(text)
    assert [words[0] for words in commands] == ["demo", "test", "replay", "report", "why-not", "new"]
    assert commands[0] == ["demo", "--into", "day"]
    assert offered(output_of(main([*DAY, "--into", "day"])).out) == commands[1:]
    for words in commands[1:]:
        assert main(words) == 0, words
        output_of.read()
    assert main(["check", "day/patterns"]) == 0
    assert len((tmp_path / "day" / "alerts.jsonl").read_text().splitlines()) > 39  # the late rule sees the whole day


def test_a_folder_that_has_rules_is_left_alone(tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "rules").mkdir()
    assert "choose another folder" in output_of(main([*DAY, "--into", str(tmp_path)]), Exit.USAGE).err
    assert main([*DAY, "--cores", "0"]) == Exit.USAGE


# `cep describe`: its draft passes the check, and reads the file that it was drafted from.

RULE = rule_text()
ROWS: list[dict[str, Any]] = [
    {
        "payment_id": f"p{n}", "booked": datetime(2026, 3, 1, 10, n, tzinfo=UTC), "card": f"c{n % 3}",
        "amount": n + 0.25, "status": ("approved", "declined")[n % 2], "seq": n, "note": None if n % 4 else f"note {n}",
        "online": n % 2 == 0,
    }
    for n in range(12)
]  # fmt: skip


def written(folder: Path, kind: str) -> Path:
    path = folder / f"Card payments.{kind}"
    table = pa.Table.from_pylist(ROWS)
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "csv":
        pcsv.write_csv(table, path)
    else:
        lines = [json.dumps({**row, "booked": row["booked"].isoformat().replace("+00:00", "Z")}) for row in ROWS]
        path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_draft_is_sound_and_reads_its_file(kind: str, tmp_path: Path, output_of: OutputOf) -> None:
    path = written(tmp_path, kind)
    draft = output_of(cli.main(["describe", str(path)])).out
    assert "event card_payments {" in draft
    for line in ("id", "time", "string", "decimal(2)", "enum(approved, declined)", "int", "string?", "bool"):
        assert f" {line}\n" in draft
    flags = shlex.split(draft.splitlines()[0].removeprefix("# read it with: "))
    assert "event_time=booked" in flags
    rules = tmp_path / "rules"
    rules.mkdir()
    pattern = "pattern p by card { seq a where a: card_payments status == declined }\n"
    (rules / "p.cep").write_text(draft + pattern, encoding="utf-8")
    (rules / "p.toml").write_text(RULE, encoding="utf-8")
    assert cli.main(["check", str(rules)]) == 0
    out = tmp_path / "alerts.jsonl"
    command = ["replay", "--rules", str(rules), "--events", str(path), "--out", str(out), "--rejected-max", "0"]
    assert cli.main([*command, *flags]) == 0
    alerts = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(alerts) == 6
    assert alerts[0]["detected_at"].startswith((ROWS[1]["booked"] + timedelta(0)).strftime("%Y-%m-%dT%H:%M"))


def test_a_file_without_times_is_refused(tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "a.csv").write_text("id,x\na,1\n", encoding="utf-8")
    assert "no column is of times" in output_of(cli.main(["describe", str(tmp_path / "a.csv")]), 2).err


def test_a_name_with_an_escape_sequence_is_printed_as_an_escape(tmp_path: Path, output_of: OutputOf) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join(json.dumps({"note\x1b[31m\u202e": n, "at": "2026-03-01T00:00:00Z"}) for n in range(9)))
    printed = output_of(cli.main(["describe", str(path)])).out
    assert "note\\u001b[31m\\u202e" in printed
    assert HIDDEN.search(printed) is None


# From an unknown file to the first backtest, like a new user: on three forms of files.

PATTERN = """
pattern large
  by card
{
  seq    hit
  where  hit: payment  amount > 200.00 and direction == incoming
}
"""


def rows() -> list[dict[str, object]]:
    """Return payments of 20 cards; large credits are fraud."""
    draw = random.Random(3)
    payments: list[dict[str, object]] = []
    for number in range(300):
        booked = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=number)
        is_fraud = number % 15 == 0
        amount = round(draw.uniform(300, 900) if is_fraud else draw.uniform(1, 150), 2)
        direction = "credit" if is_fraud else draw.choice(("credit", "debit"))
        payments.append({
            "number": 5_000 + number, "booked": booked, "card": 70 + draw.randrange(20), "amount": amount,
            "direction": direction, "is_fraud": int(is_fraud),
        })  # fmt: skip
    return payments


def write(path: Path) -> None:
    """Write a German CSV, JSON lines with offsets, or a Parquet file with times without a zone."""
    records = rows()
    for row in records:
        booked: datetime = row["booked"]  # type: ignore[assignment]
        if path.suffix == ".csv":
            row |= {"booked": f"{booked:%d.%m.%Y %H:%M}", "amount": str(row["amount"]).replace(".", ",")}
        elif path.suffix == ".jsonl":
            row["booked"] = booked.isoformat()
        else:
            row["booked"] = booked.replace(tzinfo=None)
    if path.suffix == ".csv":
        lines = [";".join(records[0]), *(";".join(map(str, row.values())) for row in records)]
        path.write_text("\n".join(lines))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        pq.write_table(pa.Table.from_pylist(records), path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_from_an_unknown_file_to_the_first_backtest(suffix: str, tmp_path: Path, output_of: OutputOf) -> None:
    events, file = tmp_path / f"day{suffix}", tmp_path / "payments.cep"
    write(events)
    draft = output_of(cli.main(["describe", str(events), "--name", "payment"])).out
    assert "amount      decimal(2)" in draft
    assert "# is_fraud: a label" in draft
    file.write_text(draft)
    assert cli.main(["check", str(file)]) == 0
    assert cli.main(["fmt", "--check", str(file)]) == 0
    flags = shlex.split(draft.splitlines()[0].removeprefix("# read it with: "))
    assert "--time-zone" in flags
    flags_of_events = ["--events", str(events), "--labels", "is_fraud", *flags]
    file.write_text(draft.replace("enum(credit, debit)", "enum(incoming, outgoing)") + PATTERN)
    flags_of_events += ["--values", "direction.credit=incoming", "--values", "direction.debit=outgoing"]
    figures = output_of(cli.main(["backtest", str(file), *flags_of_events])).line
    assert "300 events of 13 days; 20 frauds" in figures
    assert "large 20 1.5 1.000" in figures
    assert cli.main(["backtest", str(file), *flags_of_events, "--values", "direction.x=in"]) == 2
    assert "has no symbol in" in output_of.read().err

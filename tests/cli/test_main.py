"""Verbs, help texts and exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cep import __version__
from cep.base.errors import SinkError, SourceAwayError, SourceGoneError, StateCorruptError, StateFormatError, UsageError
from cep.base.exits import MEANINGS, Exit
from cep.cli import main as cli


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
        (UsageError("two sources"), 2),
        (SinkError("disk full"), 3),
        (SourceAwayError("no answer"), 3),
        (StateCorruptError("the store is damaged, and the next start takes a checkpoint"), 3),
        (ZeroDivisionError("bug"), 3),
        (SourceGoneError("created again"), 4),
        (StateFormatError("another build"), 4),
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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_check(monkeypatch, SinkError("disk full"))
    assert capsys.readouterr().err.startswith("cep: disk full\n")
    run_check(monkeypatch, ZeroDivisionError("bug"))
    assert "Traceback" in capsys.readouterr().err  # CEP_DEBUG is set for all tests
    monkeypatch.delenv("CEP_DEBUG")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_check(monkeypatch, ZeroDivisionError("bug"))
    printed = capsys.readouterr().err
    (report_file,) = tmp_path.iterdir()
    assert "Traceback" not in printed
    assert printed.startswith("cep: ZeroDivisionError in test_main.py:")
    assert str(report_file) in printed
    assert "Traceback" in report_file.read_text()
    assert report_file.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run_check(monkeypatch, ZeroDivisionError("bug")) == 3
    assert "run it again" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["chekc"], ["check"], ["check", "--color", "pink", "x.cep"]])
def test_wrong_arguments_are_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: cep" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "test", "replay", "live"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"usage: cep {verb}" in capsys.readouterr().out


def test_check_gets_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    check_arguments: list[object] = []

    def run(*arguments: object) -> int:
        check_arguments.extend(arguments)
        return 0

    monkeypatch.setattr("cep.cli.check.run", run)
    assert cli.main(["check", "--json", "--color", "never", "a.cep", "b.cep"]) == 0
    assert check_arguments == [["a.cep", "b.cep"], True, False]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"cep {__version__}\n"


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


def test_a_verb_starts_without_pandas_and_has_it_where_it_is_needed() -> None:
    script = (
        "import os, sys; from cep.cli.main import entry; os._exit = print; sys.argv = ['cep', 'run']; entry(); "
        "import pyarrow as pa; pa.array(['a']); assert 'pandas' not in sys.modules; "
        "assert pa.table({'a': [1, 2]}).to_pandas().shape == (2, 1)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr

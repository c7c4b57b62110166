"""The verb `cep test`: its output, its exit codes, JUnit XML, and watching."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from cep.base.errors import UsageError
from cep.cli import main as cli
from cep.cli.test import watch

TEXT = """
event payment { id id  event_time time  card string  amount decimal(2)  status enum(approved, declined) }
pattern burst(n: int = 2) by card {
  seq p{n} -> q within 10 min
  where p: payment status == declined
        q: payment status == approved and amount > 100
  emit total = sum(p.amount)
}
"""
DOCUMENTED = TEXT.replace("pattern burst", "## Declines,\n## then one that goes through.\npattern burst")
GOOD = """
test "it fires" of burst {
  c1: 0s payment amount=1 status=declined x2 every 1s  5m payment amount=101
  expect match on c1 at 5m { total: 2.00 }
}
"""
BAD = """
test "it does not" of burst {
  c1: 0s payment amount=1 status=declined x2 every 1s  5m payment amount=99
  expect match on c1 at 5m
}
"""
GAP = """
test "a known gap" of burst { c1: 0s payment  todo "not yet"  expect matches 1 }
"""
WRONG = """
test "with a mistake" of burst { c1: 0s paymnt  expect none }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.cep"


def run(path: Path, text: str, *arguments: str) -> int:
    path.write_text(TEXT + text, encoding="utf-8")
    return cli.main(["test", str(path), *arguments])


def test_all_passed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, GOOD + GAP) == 0
    out = capsys.readouterr().out
    assert "PASS  it fires" in out
    assert "a known gap (not yet)" in out
    assert "2 tests: 1 passed, 0 failed, 1 todo" in out


def test_a_failure_shows_what_came_and_why(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, GOOD + BAD) == 1
    out = capsys.readouterr().out
    assert "FAIL  it does not" in out
    assert "expected  match on c1 at 5 min\n" in out
    assert "got       nothing\n" in out
    assert "p 0 s, 1 s · then waited for q\n" in out
    assert "5 min e00003 is no q: amount > 100.00 is not true (amount = 99.00)\n" in out
    assert "the window was over at 10 min (within 10 min)\n" in out


def test_a_mistake_is_an_error_and_the_others_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, GOOD + WRONG) == 1
    out = capsys.readouterr().out
    assert "error[CEP202]" in out
    assert "PASS  it fires" in out
    assert "ERROR burst: with a mistake" in out
    assert "2 tests: 1 passed, 0 failed, 1 error" in out


def test_only_some(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole name wins over a part of a name."""
    longer = GOOD.replace('"it fires"', '"it fires twice"')
    for only, names in (
        ("it fires", ["it fires"]),
        ("burst: it does not", ["it does not"]),
        ("burst", ["it fires", "it does not", "it fires twice"]),
        ("FIRES", ["it fires", "it fires twice"]),
    ):
        assert run(path, GOOD + BAD + longer, "--only", only) == int("it does not" in names)
        outcomes = [
            line[10:] for line in capsys.readouterr().out.splitlines() if line[4:10].strip() in ("PASS", "FAIL")
        ]
        assert outcomes == names
    assert run(path, GOOD, "--only", "it firse") == 2
    assert "did you mean `it fires`?" in capsys.readouterr().err
    assert run(path, GOOD + WRONG, "--only", "with a mistake") == 1
    assert "1 test: 0 passed, 0 failed, 1 error" in capsys.readouterr().out


def test_no_tests_is_a_finding_and_no_files_is_usage(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "") == 1
    assert "no tests here" in capsys.readouterr().out
    assert cli.main(["test", str(path.parent / "nowhere")]) == 2


def test_coverage(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, GOOD, "--coverage") == 0
    out = capsys.readouterr().out
    assert "burst 2/2 3/3 4/6" in " ".join(out.split())
    assert "burst never: outcome q: amount > 100.00 is not true" in out


def test_junit(path: Path) -> None:
    report = path.parent / "out" / "junit.xml"
    assert run(path, GOOD + BAD + GAP + WRONG, "--junit", str(report)) == 1
    root = ET.fromstring(report.read_bytes())
    assert {k: root.attrib[k] for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    cases = {case.attrib["name"]: case for case in root.iter("testcase")}
    assert list(cases["it fires"]) == []
    (failure,) = cases["it does not"]
    assert failure.tag == "failure"
    assert "amount > 100.00 is not true" in (failure.text or "")
    assert [child.tag for child in cases["a known gap"]] == ["skipped"]
    assert [child.tag for child in cases["with a mistake"]] == ["error"]
    assert cases["it does not"].attrib["line"] == "15"


def test_the_words_of_the_pattern_are_in_the_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = path.parent / "junit.xml"
    path.write_text(DOCUMENTED + GOOD, encoding="utf-8")
    assert cli.main(["test", str(path), "--junit", str(report)]) == 0
    assert "burst  Declines, then one that goes through.\n" in capsys.readouterr().out
    (about,) = ET.fromstring(report.read_bytes()).iter("property")
    assert about.attrib == {"name": "description", "value": "Declines, then one that goes through."}


def test_a_report_that_cannot_be_written_is_an_operating_error(path: Path) -> None:
    assert run(path, GOOD, "--junit", str(path / "below a file.xml")) == 3


def test_watch_runs_again_when_a_file_changes(path: Path) -> None:
    path.write_text(TEXT + GOOD, encoding="utf-8")
    sleeps: list[float] = []
    runs: list[str] = []

    def once() -> int:
        if not path.exists():
            raise UsageError("a folder without pattern files")
        runs.append(path.read_text(encoding="utf-8"))
        return len(runs)

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            path.write_text(TEXT + GOOD + BAD, encoding="utf-8")
        if len(sleeps) == 4:
            path.unlink()

    code = watch([str(path.parent)], once, Console(file=io.StringIO()), sleep=sleep, polls_max=5)
    assert len(sleeps) == 5
    assert len(runs) == 2
    assert code == 2

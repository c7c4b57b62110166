"""The verbs for authors of patterns: explain, fmt, lint, new, plan and test."""

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from cep.base.errors import UsageError
from cep.cli import main as cli
from cep.cli.main import main
from cep.cli.test import watch
from cep.lang.explain.catalogue import CATALOGUE
from tests.lang.common import EVENTS
from tests.output_of import OutputOf

# `cep explain`.

GOLDEN = Path(__file__).parents[1] / "lang" / "golden"


def test_a_code(output_of: OutputOf) -> None:
    out = output_of(main(["explain", "cep401"])).out
    assert out.startswith("CEP401: absence without a window")
    assert "Example:\n\n    seq" in out


def test_an_unknown_code_names_the_nearest(output_of: OutputOf) -> None:
    assert "did you mean `CEP4" in output_of(main(["explain", "CEP40l"]), 2).err


def test_all(output_of: OutputOf) -> None:
    assert len(output_of(main(["explain", "--all"])).out.splitlines()) == len(CATALOGUE)


def test_every_code_has_an_example() -> None:
    assert all(entry.example.startswith("  ") for entry in CATALOGUE.values())


def test_examples_are_what_the_golden_files_show() -> None:
    """The text above the carets is a line from one of the code's golden files."""
    for code, entry in CATALOGUE.items():
        files = [*GOLDEN.glob(f"*/{code}_*.cep"), *GOLDEN.glob("diagnostics/parts/*.cep")]
        lines = {line.strip() for file in files for line in file.read_text("utf-8", "replace").splitlines()}
        shown = entry.example.splitlines()
        if len(shown) > 1 and set(shown[1].strip()) == {"^"}:
            assert shown[0].strip() in lines, code


# `cep fmt`.

UNTIDY = "list l=[1,2]\n"
TIDY = "list l = [1, 2]\n"


def test_files_are_formatted_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "a.cep"
    path.parent.mkdir()
    path.write_text(UNTIDY, encoding="utf-8")
    path.chmod(0o640)
    assert main(["fmt", str(tmp_path)]) == 0
    assert path.read_text(encoding="utf-8") == TIDY
    assert path.stat().st_mode & 0o777 == 0o640
    assert "1 file, 1 changed, 0 left alone" in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir()] == ["a.cep"]


def test_check_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.cep"
    path.write_text(UNTIDY, encoding="utf-8")
    assert main(["fmt", "--check", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == UNTIDY
    assert f"would format {path}" in capsys.readouterr().out
    path.write_text(TIDY, encoding="utf-8")
    assert main(["fmt", "--check", str(path)]) == 0


def test_a_file_with_mistakes_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.cep"
    path.write_text("list l = [", encoding="utf-8")
    assert main(["fmt", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == "list l = ["
    assert "error[CEP105]" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, output_of: OutputOf) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(UNTIDY))
    assert output_of(main(["fmt", "-"])).out == TIDY
    text, written = "# Gr\u00f6\u00dfe\nlist l = [1]\n".encode(), io.BytesIO()
    with monkeypatch.context() as in_ascii:
        in_ascii.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
        in_ascii.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert main(["fmt", "-"]) == 0
        assert written.getvalue() == text
    monkeypatch.setattr("sys.stdin", io.StringIO("list l = ["))
    assert "error[CEP105]" in output_of(main(["fmt", "-"]), 1).err


def test_a_path_that_is_not_there_is_usage(tmp_path: Path, output_of: OutputOf) -> None:
    assert main(["fmt", str(tmp_path / "none.cep")]) == 2
    assert "no pattern files" in output_of(main(["fmt", str(tmp_path)]), 2).err


# `cep lint`.

CLEAN = (
    EVENTS
    + """
pattern p by card_id { seq a where a: transaction amount > 500 }
test "fires" of p { c: 0s transaction amount=900  expect matches 1 }
test "does not" of p { c: 0s transaction amount=1  expect none }
"""
)


def lint(tmp_path: Path, text: str, *options: str) -> int:
    path = tmp_path / "p.cep"
    path.write_text(text, encoding="utf-8")
    return main(["lint", *options, str(path)])


def test_clean(tmp_path: Path, output_of: OutputOf) -> None:
    assert output_of(lint(tmp_path, CLEAN)).out == "no mistakes\n"


def test_findings_and_mistakes(tmp_path: Path, output_of: OutputOf) -> None:
    out = output_of(lint(tmp_path, CLEAN + "list l = [1]\npattern q by card { seq a }"), 1).out
    assert "error[CEP417]" in out
    assert "warning[CEP702]" in out


def test_json(tmp_path: Path, output_of: OutputOf) -> None:
    report = json.loads(output_of(lint(tmp_path, CLEAN + "list l = [1]", "--json"), 1).out)
    assert [d["code"] for d in report["findings"]] == ["CEP702"]


def test_fix_applies_what_a_machine_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = CLEAN.replace("amount > 500", "amont > 500 && status = 'x'").replace("'x'", '"approved"')
    assert lint(tmp_path, broken, "--fix") == 0
    text = (tmp_path / "p.cep").read_text(encoding="utf-8")
    assert "amount > 500 and status == approved" in text
    assert "fixed" in capsys.readouterr().out


def test_fix_leaves_imported_files_alone(tmp_path: Path) -> None:
    other = tmp_path / "events.cep"
    other.write_text(EVENTS + "define big = amont > 1", encoding="utf-8")
    assert lint(tmp_path, 'import "events.cep"\npattern p by card_id { seq a where a: transaction big }', "--fix") == 1
    assert "amont" in other.read_text(encoding="utf-8")


# `cep new pattern`.


def test_the_skeleton_passes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "pattern", "rapid_refunds", "--folder", str(tmp_path)]) == 0
    path = str(tmp_path / "rapid_refunds.cep")
    assert f"wrote {path}" in capsys.readouterr().out
    assert main(["check", path]) == 0
    assert main(["lint", path]) == 0
    assert main(["fmt", "--check", path]) == 0
    assert main(["test", path]) == 0


def test_event_types_from_a_file(tmp_path: Path) -> None:
    assert main(["new", "pattern", "first", "--folder", str(tmp_path)]) == 0
    assert main(["new", "pattern", "second", "--folder", str(tmp_path), "--events", "first.cep"]) == 0
    assert main(["check", str(tmp_path / "second.cep")]) == 0
    assert 'import "first.cep"' in (tmp_path / "second.cep").read_text(encoding="utf-8")


def test_no_file_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.cep").write_text("# mine\n", encoding="utf-8")
    assert main(["new", "pattern", "mine", "--folder", str(tmp_path)]) == 2
    assert (tmp_path / "mine.cep").read_text(encoding="utf-8") == "# mine\n"
    assert "already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Big", "a-b", "where", "", "1st", "../up"])
def test_names(name: str, tmp_path: Path) -> None:
    assert main(["new", "pattern", name, "--folder", str(tmp_path)]) == 2


def test_the_event_types_of_the_folder_are_taken(tmp_path: Path) -> None:
    assert main(["new", "pattern", "first", "--folder", str(tmp_path)]) == 0
    (tmp_path / "first.cep").rename(tmp_path / "events.cep")
    assert main(["new", "pattern", "second", "--folder", str(tmp_path)]) == 0
    assert 'import "events.cep"' in (tmp_path / "second.cep").read_text()
    assert main(["check", str(tmp_path)]) == 0
    assert main(["test", str(tmp_path)]) == 0


# `cep plan`.

PLANNED = (
    EVENTS
    + "## Some,\n## then one.\npattern p(least: int) by card_id { seq a{least,} -> b within 1 h }\n"
    + "pattern q by card_id { seq a }"
)


@pytest.fixture
def planned(tmp_path: Path) -> str:
    file = tmp_path / "p.cep"
    file.write_text(PLANNED, encoding="utf-8")
    return str(file)


def test_a_pattern_with_its_picture(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "p.svg"
    assert main(["plan", planned, "--pattern", "p", "--set", "least=2", "--svg", str(svg)]) == 0
    assert "pattern p by card_id\n  Some,\n  then one.\n" in capsys.readouterr().out
    drawn = svg.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "<desc>Some,\nthen one.</desc>" in drawn


def test_a_pattern_that_cannot_be_planned_is_a_finding(planned: str, output_of: OutputOf) -> None:
    out = output_of(main(["plan", planned]), 1).out
    assert "cannot be compiled: the parameter `least` has no default" in out
    assert "pattern q by card_id" in out
    assert "`least`" in output_of(main(["plan", planned, "--set", "least=--5"]), 1).out


@pytest.mark.parametrize(
    "options",
    [
        ["--pattern", "pp"],
        ["--set", "least"],
        ["--set", "least=2", "--set", "least=3"],
        ["--events", "0"],
        ["--svg", "x.svg", "--set", "least=2"],
    ],
)
def test_usage(planned: str, options: list[str]) -> None:
    assert main(["plan", planned, *options]) == 2


def test_mistakes_come_first(tmp_path: Path, output_of: OutputOf) -> None:
    file = tmp_path / "p.cep"
    file.write_text("pattern p", encoding="utf-8")
    assert "error[" in output_of(main(["plan", str(file)]), 1).out


# The verb `cep test`: its output, its exit codes, JUnit XML, and watching.

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


def test_all_passed(path: Path, output_of: OutputOf) -> None:
    out = output_of(run(path, GOOD + GAP)).out
    assert "PASS  it fires" in out
    assert "a known gap (not yet)" in out
    assert "2 tests: 1 passed, 0 failed, 1 todo" in out


def test_a_failure_shows_what_came_and_why(path: Path, output_of: OutputOf) -> None:
    out = output_of(run(path, GOOD + BAD), 1).out
    assert "FAIL  it does not" in out
    assert "expected  match on c1 at 5 min\n" in out
    assert "got       nothing\n" in out
    assert "p 0 s, 1 s · then waited for q\n" in out
    assert "5 min e00003 is no q: amount > 100.00 is not true (amount = 99.00)\n" in out
    assert "the window was over at 10 min (within 10 min)\n" in out


def test_a_mistake_is_an_error_and_the_others_run(path: Path, output_of: OutputOf) -> None:
    out = output_of(run(path, GOOD + WRONG), 1).out
    assert "error[CEP202]" in out
    assert "PASS  it fires" in out
    assert "ERROR burst: with a mistake" in out
    assert "2 tests: 1 passed, 0 failed, 1 error" in out


def test_only_some(path: Path, output_of: OutputOf) -> None:
    """A whole name wins over a part of a name."""
    longer = GOOD.replace('"it fires"', '"it fires twice"')
    for only, names in (
        ("it fires", ["it fires"]),
        ("burst: it does not", ["it does not"]),
        ("burst", ["it fires", "it does not", "it fires twice"]),
        ("FIRES", ["it fires", "it fires twice"]),
    ):
        assert run(path, GOOD + BAD + longer, "--only", only) == int("it does not" in names)
        outcomes = [line[10:] for line in output_of.read().out.splitlines() if line[4:10].strip() in ("PASS", "FAIL")]
        assert outcomes == names
    assert "did you mean `it fires`?" in output_of(run(path, GOOD, "--only", "it firse"), 2).err
    assert run(path, GOOD + WRONG, "--only", "with a mistake") == 1
    assert "1 test: 0 passed, 0 failed, 1 error" in output_of.read().out


def test_no_tests_is_a_finding_and_no_files_is_usage(path: Path, output_of: OutputOf) -> None:
    assert "no tests here" in output_of(run(path, ""), 1).out
    assert cli.main(["test", str(path.parent / "nowhere")]) == 2


def test_coverage(path: Path, output_of: OutputOf) -> None:
    out = output_of(run(path, GOOD, "--coverage")).out
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

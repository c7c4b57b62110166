"""Codes, rendering, several mistakes in one run, and the verb `cep check` as a function."""

import json
import os
import re
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.base.limits import DIAGNOSTICS_MAX, RULE_FILE_BYTES_MAX
from cep.cli.check import run
from cep.lang.diagnostics import Collector, Diagnostic, Label, Severity, Span, did_you_mean, nearest
from cep.lang.explain.catalogue import CATALOGUE, explain
from cep.lang.explain.render import render_text, summary, to_json
from cep.lang.load import load_text
from tests.lang.common import EVENTS, codes, shown
from tests.output_of import OutputOf
from tests.rule_files import rule_text

FIVE = (
    EVENTS
    + """
pattern five by card_id {
  seq   a -> b{4,2} -> a -> c within 1 h
  where a: transaction  amont > 1
        b: transaction  status == aproved
        c: transaction  amount > 2.005
  emit  total = sum(b.amunt)
}
"""
)


def test_five_different_mistakes_in_a_pattern_are_reported_at_once() -> None:
    reported = codes(FIVE)
    assert sorted(reported) == ["CEP201", "CEP203", "CEP304", "CEP305", "CEP406", "CEP409"]


def test_mistakes_of_syntax_do_not_hide_each_other() -> None:
    reported = codes(
        EVENTS
        + """
event other { id id  at }
pattern one by card_id { seq a -> where a: transaction ) emit x = }
pattern two by { seq a }
list l = [1, 2
pattern three by card_id { seq a where a: transaction amont > 1 }
"""
    )
    assert reported.count("CEP105") == 6
    assert "CEP201" in reported


def test_the_good_patterns_of_a_file_with_mistakes_are_there() -> None:
    checked = load_text(FIVE + "pattern good by card_id { seq a }")
    assert not checked.ok
    assert list(checked.patterns) == ["good"]


def test_every_code_in_the_source_is_in_the_catalogue_and_the_other_way_round() -> None:
    source = Path(__file__).parents[2] / "cep"
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py")]
    reported = {code for text in texts for code in re.findall(r'"(CEP\d{3})"', text)}
    assert reported == set(CATALOGUE)
    assert all(len(entry.explanation) > 40 for entry in CATALOGUE.values())


def test_explain() -> None:
    text = explain("cep401")
    assert text is not None
    assert text.startswith("CEP401: absence without a window")
    assert explain("CEP999") is None


def test_json_has_lines_columns_and_labels() -> None:
    text = EVENTS + "pattern p by card_id { seq a -> a }"
    checked = load_text(text, "x.cep")
    (diagnostic,) = [to_json(d, checked.sources) for d in checked.diagnostics]
    assert diagnostic["code"] == "CEP406"
    assert diagnostic["severity"] == "error"
    line = text.count("\n") + 1
    assert diagnostic["span"] == {"file": "x.cep", "line": line, "column": 33, "end_line": line, "end_column": 34}
    assert diagnostic["labels"][0]["span"]["column"] == 28


def test_color_only_if_wanted() -> None:
    checked = load_text("pattern")
    assert "\x1b[" in render_text(checked.diagnostics, checked.sources, color=True)
    assert "\x1b[" not in render_text(checked.diagnostics, checked.sources)


def test_a_long_line_is_cut_and_control_characters_are_not_printed() -> None:
    checked = load_text("list l = [" + "1, " * 200 + "\x1b[31m\x07]")
    text = shown(checked)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert max(len(line) for line in text.splitlines()) < 200


def test_a_mark_on_the_line_just_shown_does_not_repeat_the_line() -> None:
    text = shown(load_text(EVENTS + "pattern p by card_id { seq a -> a }"))
    assert text.count("seq a -> a") == 1


def test_each_mark_on_a_long_line_stands_below_its_text() -> None:
    text = "a" * 20 + "FIRST" + "b" * 400 + "SECOND" + "c" * 50
    labels = (Label(Span("f", 20, 25), "first"),)
    lines = render_text([Diagnostic("CEP106", "two", Span("f", 425, 431), labels)], {"f": text}).splitlines()
    for mark in ("^^^^^^", "----- first"):
        number, column = next((i, line.index(mark)) for i, line in enumerate(lines) if mark in line)
        assert lines[number - 1][column:].startswith("SECOND" if mark[0] == "^" else "FIRST")


def test_the_same_thing_is_said_once_but_counted() -> None:
    collector = Collector()
    for _ in range(3):
        collector.add("CEP201", "x", Span("f", 0, 1))
    assert len(collector.diagnostics) == 1
    assert collector.error_count == 3


def test_diagnostics_past_the_limit_are_counted() -> None:
    checked = load_text("list l = [" + " ".join(f"'{i}'," for i in range(DIAGNOSTICS_MAX + 20)) + "]")
    assert len(checked.diagnostics) == DIAGNOSTICS_MAX
    assert checked.dropped == 20
    assert not checked.ok


def test_summary() -> None:
    warning = Diagnostic("CEP420", "w", severity=Severity.WARNING)
    assert summary([]) == "no mistakes"
    assert summary([warning, Diagnostic("CEP201", "e"), Diagnostic("CEP201", "f")]) == "2 errors, 1 warning"


def test_nearest() -> None:
    assert nearest("amont", ["amount", "country"]) == "amount"
    assert nearest("Amount", ["amount"]) == "amount"
    assert nearest("zzz", ["amount"]) is None
    assert did_you_mean("zzz", []) == ""
    assert did_you_mean("zzz", ["a", "b"], "fields") == "fields: `a`, `b`"


def test_a_mistake_in_a_shared_list_keeps_both_patterns_out() -> None:
    body = "{ seq a where a: transaction status in l }"
    checked = load_text(EVENTS + f"list l = [aproved]\npattern p by card_id {body}\npattern q by card_id {body}")
    assert not checked.patterns


def test_clean_files_and_folders(tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "p.cep").write_text(EVENTS + "pattern p by card_id { seq a }", encoding="utf-8")
    assert output_of(run([str(tmp_path)], as_json=False, color=False)).out == "1 pattern, no mistakes\n"


def test_mistakes_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.cep"
    path.write_text(EVENTS + "pattern p by card { seq a }", encoding="utf-8")
    assert run([str(path)], as_json=False, color=False) == 1
    out = capsys.readouterr().out
    assert "error[CEP417]" in out
    assert "1 pattern, 1 error" in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.cep"
    path.write_text(EVENTS + "pattern p by card_id { seq a+ }", encoding="utf-8")
    assert run([str(path)], as_json=True, color=False) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["patterns"] == ["p"]
    assert [d["severity"] for d in report["diagnostics"]] == ["warning"]


def test_a_pattern_with_mistakes_counts(tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "p.cep").write_text(
        EVENTS + "pattern p by card_id { seq a }\npattern q by x { seq a }", encoding="utf-8"
    )
    assert "2 patterns, 1 error\n" in output_of(run([str(tmp_path)], as_json=False, color=False), 1).out


def windowed(name: str, status: str, window: str) -> str:
    return rule_text(name, pattern="p", status=status, message="card {key}") + f"[params]\nwindow = {window}\n"


def test_rule_files_are_checked_too(tmp_path: Path, output_of: OutputOf) -> None:
    text = EVENTS + "pattern p(window: duration) by card_id { seq a -> b within window }"
    (tmp_path / "p.cep").write_text(text, encoding="utf-8")
    (tmp_path / "cep.toml").write_text("[job]\nlateness = 5\n", encoding="utf-8")  # settings, and no rule
    (tmp_path / "good.toml").write_text(windowed("good", "live", '"10 min"'), encoding="utf-8")
    assert output_of(run([str(tmp_path)], as_json=False, color=False)).out == "1 pattern, 1 rule, no mistakes\n"
    for name, status, window in (("bare", "live", "600"), ("draft", "draft", '"x"'), ("spelt", "lively", '"1 s"')):
        (tmp_path / f"{name}.toml").write_text(windowed(name, status, window), encoding="utf-8")
    assert run([str(tmp_path)], as_json=False, color=False) == 1
    out = output_of.read().out
    assert "bare.toml: the parameters do not fit the pattern; CEP503 the parameter `window` is of type duration" in out
    assert 'write "600 s" or "600 min"' in out
    assert "draft.toml: the parameters do not fit" in out
    assert "spelt.toml: $.status" in out
    assert "1 pattern, 4 rules, 3 mistakes in rules\n" in out
    assert run([str(tmp_path / "good.toml")], as_json=False, color=False) == 0
    assert run([str(tmp_path / "bare.toml")], as_json=True, color=False) == 1
    assert len(json.loads(output_of.read().out.partition("\n")[2])["rules"]) == 1
    output = output_of(
        run([str(tmp_path), str(tmp_path / "p.cep"), str(tmp_path / "bare.toml")], as_json=False, color=False), 1
    )
    assert "1 pattern, 4 rules, 3 mistakes in rules\n" in output.out, "each file counts once"


@pytest.mark.parametrize("folder", ["rules", "a: b"])
def test_mistakes_of_rules_and_their_lists_are_told_in_any_folder(
    folder: str, tmp_path: Path, output_of: OutputOf
) -> None:
    rules = tmp_path / folder
    rules.mkdir()
    pattern = "pattern p by card_id { seq a  where a: transaction card_id in blocked }"
    text = EVENTS + f'list blocked: string from "blocked.txt"\n{pattern}'
    (rules / "p.cep").write_text(text, encoding="utf-8")
    for name, status in (("p", "live"), ("spelt", "lively")):
        (rules / f"{name}.toml").write_text(rule_text(name, pattern="p", status=status, message="m"), encoding="utf-8")
    assert "blocked.txt" in output_of(run([str(rules / "p.toml")], as_json=False, color=False), 1).out
    assert "spelt.toml: $.status" in output_of(run([str(rules / "spelt.toml")], as_json=False, color=False), 1).out
    (rules / "blocked.txt").write_text("c1\n", encoding="utf-8")
    assert run([str(rules / "p.toml")], as_json=False, color=False) == 0


def test_a_folder_without_anything_to_check_is_no_clean_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no pattern files"):
        run([str(tmp_path)], as_json=False, color=False)


def test_a_pipe_a_device_and_a_link_out_of_the_folder_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe without a writer, and a device without an end. A job refuses them, so a check must not pass."""
    folder = tmp_path / "repository" / "rules"
    (folder.parent / ".git").mkdir(parents=True)
    folder.mkdir()
    (tmp_path / "outside.toml").write_text("pattern = 'p'", encoding="utf-8")
    (folder / "large.toml").write_text(f"# {'x' * RULE_FILE_BYTES_MAX}\npattern = 'p'", encoding="utf-8")
    (folder / "device.toml").symlink_to("/dev/zero")
    (folder / "out.toml").symlink_to(tmp_path / "outside.toml")
    os.mkfifo(folder / "pipe.toml")
    (folder / "p.cep").write_text(EVENTS + "pattern p by card_id { seq a }", encoding="utf-8")
    names = ("device", "large", "out", "pipe")
    for paths in ([str(folder)], [str(folder / f"{name}.toml") for name in names]):
        assert run(paths, as_json=False, color=False) == 1
        output = capsys.readouterr().out
        for name, reason in zip(names, ("not below", "larger than", "not below", "no regular file"), strict=True):
            (line,) = [line for line in output.splitlines() if line.startswith(str(folder / f"{name}.toml"))]
            assert reason in line

"""The verb `cep check` as a function."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.base.limits import RULE_FILE_BYTES_MAX
from cep.cli.check import run
from tests.lang.common import EVENTS


def test_clean_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "p.cep").write_text(EVENTS + "pattern p by card_id { seq a }", encoding="utf-8")
    assert run([str(tmp_path)], as_json=False, color=False) == 0
    assert capsys.readouterr().out == "1 pattern, no mistakes\n"


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


def test_a_pattern_with_mistakes_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.cep").write_text(
        EVENTS + "pattern p by card_id { seq a }\npattern q by x { seq a }", encoding="utf-8"
    )
    assert run([str(tmp_path)], as_json=False, color=False) == 1
    assert "2 patterns, 1 error\n" in capsys.readouterr().out


RULE = """id = "{id}"
pattern = "p"
file = "p.cep"
version = 1
status = "{status}"
severity = "high"
owner = "me"
message = "card {{key}}"
[params]
window = {window}
"""


def test_rule_files_are_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EVENTS + "pattern p(window: duration) by card_id { seq a -> b within window }"
    (tmp_path / "p.cep").write_text(text, encoding="utf-8")
    (tmp_path / "cep.toml").write_text("[job]\nlateness = 5\n", encoding="utf-8")  # settings, and no rule
    (tmp_path / "good.toml").write_text(RULE.format(id="good", status="live", window='"10 min"'), encoding="utf-8")
    assert run([str(tmp_path)], as_json=False, color=False) == 0
    assert capsys.readouterr().out == "1 pattern, 1 rule, no mistakes\n"
    for name, status, window in (("bare", "live", "600"), ("draft", "draft", '"x"'), ("spelt", "lively", '"1 s"')):
        (tmp_path / f"{name}.toml").write_text(RULE.format(id=name, status=status, window=window), encoding="utf-8")
    assert run([str(tmp_path)], as_json=False, color=False) == 1
    out = capsys.readouterr().out
    assert "bare.toml: the parameters do not fit the pattern; CEP503 the parameter `window` is of type duration" in out
    assert 'write "600 s" or "600 min"' in out
    assert "draft.toml: the parameters do not fit" in out
    assert "spelt.toml: $.status" in out
    assert "1 pattern, 4 rules, 3 mistakes in rules\n" in out
    assert run([str(tmp_path / "good.toml")], as_json=False, color=False) == 0
    assert run([str(tmp_path / "bare.toml")], as_json=True, color=False) == 1
    assert len(json.loads(capsys.readouterr().out.partition("\n")[2])["rules"]) == 1


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

"""`cep rules`: the folder of this repository, and changed copies of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cep.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rules", "patterns"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path / "rules"


def printed_line(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_rules_of_this_repository_are_locked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list", "--rules", str(ROOT / "rules")]) == 0
    assert "card_testing 1 live high card-fraud" in printed_line(capsys)


def test_a_change_wants_a_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rules", str(folder)]
    changed(folder / "card_testing.toml", "tries = 3", "tries = 4")
    assert main(["rules", "list", *options]) == 1
    assert "run `cep rules bump card_testing`" in printed_line(capsys)
    assert main(["rules", "lock", *options]) == 1
    assert main(["rules", "bump", "card_testing", *options]) == 0
    assert "version 1 → 2, locked" in printed_line(capsys)
    assert main(["rules", "list", *options]) == 0
    assert "version = 2" in (folder / "card_testing.toml").read_text()
    assert main(["rules", "bump", "card_testing", "--above", "7", *options]) == 0
    assert "version = 8" in (folder / "card_testing.toml").read_text()


def test_layout_and_comments_want_none(folder: Path) -> None:
    pattern = folder.parent / "patterns" / "cards.cep"
    pattern.write_text("# reviewed\n" + pattern.read_text().replace("\n  seq ", "\n\n  # what it looks for\n  seq   "))
    changed(folder / "card_testing.toml", "tries = 3", "tries   =   3 # few")
    assert main(["rules", "list", "--rules", str(folder)]) == 0


def test_a_rule_is_shown_with_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "show", "card_testing", "--rules", str(ROOT / "rules")]) == 0
    printed = printed_line(capsys)
    assert "params.window 10 min" in printed
    assert "pattern card_testing(" in printed


def test_what_is_wrong_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rules", str(folder)]
    changed(folder / "card_testing.toml", "status =", "state =")
    changed(folder / "rising_amounts.toml", 'pattern = "rising_amounts"', 'pattern = "rising_amount"')
    assert main(["rules", "list", *options]) == 1
    printed = printed_line(capsys)
    assert "card_testing.toml" in printed
    assert "did you mean `rising_amounts`" in printed
    assert main(["rules", "show", "card_testing", *options]) == 2
    assert main(["rules", "show", "nobody", *options]) == 2


def test_the_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    kinds = set(schema["discriminator"]["mapping"])
    assert kinds == {"upsert", "retire", "rollback", "pause", "resume", "snooze", "list", "heartbeat"}
    assert main(["rules", "schema", "--files"]) == 0
    assert "approved_by" in json.loads(capsys.readouterr().out)["properties"]


def test_a_list_says_which_parameter_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(folder / "card_testing.toml", 'window = "10 min"', "window = 600")
    assert main(["rules", "list", "--rules", str(folder)]) == 1
    assert "CEP503 the parameter `window` is of type duration, 600 does not fit" in printed_line(capsys)

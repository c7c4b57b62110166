"""A pattern, a list or a rule reads files below the root only, and messages quote no outside file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cep.cli.main import main
from cep.lang.load import bundle_source, load_files, load_overlaid
from cep.nfa.diagnose import compilable
from cep.rulebook.files import declared_lists, read_rule_file, read_rules
from tests.lang.common import EVENTS, shown

SECRET = "root:x:0:0:a-secret-line"
RULE = """\
id = "good"
pattern = "p"
file = "FILE"
version = 1
status = "live"
severity = "high"
owner = "me"
message = "m"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder for the job, next to a secret outside it."""
    (tmp_path / "secret.cep").write_text(SECRET)
    (tmp_path / "secret.csv").write_text(f"blocked\n{SECRET}\n")
    patterns = tmp_path / "given" / "patterns"
    patterns.mkdir(parents=True)
    (patterns / "linked.cep").symlink_to(tmp_path / "secret.cep")
    (patterns / "linked.csv").symlink_to(tmp_path / "secret.csv")
    os.mkfifo(patterns / "pipe")
    return patterns


def _import(name: str) -> str:
    return f'import "{name}"\n{EVENTS}\npattern p by card_id {{ seq a where a: transaction }}\n'


def _list(name: str) -> str:
    text = 'list blocked: int from "NAME"\npattern p by card_id { seq a where a: transaction amount in blocked }\n'
    return EVENTS + text.replace("NAME", name)


@pytest.mark.parametrize("write", [_import, _list])
@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../../secret.cep", "../../secret.csv", "linked.cep", "linked.csv", "/dev/zero", "pipe", "."],
)
def test_nothing_outside_is_read_or_quoted(folder: Path, write: Callable[[str], str], name: str) -> None:
    (folder / "x.cep").write_text(write(name))
    for checked in (compilable(load_files([folder / "x.cep"])), compilable(load_overlaid([folder / "x.cep"], {}))):
        text = shown(checked)
        assert any(d.code in ("CEP208", "CEP801") for d in checked.diagnostics), text
        assert "root:" not in text
        assert SECRET not in "".join(checked.sources.values())


def test_a_link_among_the_files_of_a_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pipe").unlink()
    for verb in ("check", "lint", "fmt", "test", "plan"):
        assert main([verb, str(folder)]) != 0
        output = capsys.readouterr()
        assert "not below" in output.out + output.err
        assert "a-secret" not in output.out + output.err


def test_a_pipe_named_like_a_pattern_does_not_stop_a_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pipe").rename(folder / "pipe.cep")
    assert main(["check", str(folder / "pipe.cep")]) == 1
    assert "no regular file" in capsys.readouterr().out


def test_a_repository_is_the_root_of_all_that_is_in_it(folder: Path) -> None:
    (folder.parent / "common").mkdir()
    (folder.parent / "common" / "events.cep").write_text(EVENTS)
    (folder / "x.cep").write_text('import "../common/events.cep"\n')
    (diagnostic,) = load_files([folder / "x.cep"]).diagnostics
    assert "not below" in diagnostic.message
    (folder.parent / ".git").mkdir()
    assert load_files([folder / "x.cep"]).ok
    assert "event transaction" in bundle_source(folder / "x.cep")


def test_rules_name_patterns_beside_their_folder_and_no_further(folder: Path) -> None:
    rules = folder.parent / "rules"
    rules.mkdir()
    (folder / "x.cep").write_text(EVENTS + "pattern p by card_id { seq a where a: transaction }\n")
    (rules / "good.toml").write_text(RULE.replace("FILE", "../patterns/x.cep"))
    assert [record.id for record in read_rules(rules)[0]] == ["good"]
    for name in ("../../secret.cep", "/etc/passwd", "../patterns/linked.cep", "../patterns/pipe"):
        (rules / "good.toml").write_text(RULE.replace("FILE", name))
        records, problems = read_rules(rules)
        assert records == []
        assert "not below" in problems[0] or "no regular file" in problems[0]
        assert "root:" not in "".join(problems)
        assert declared_lists(rules)[0] == []
    (rules / "good.toml").unlink()
    (rules / "good.toml").symlink_to(folder.parent.parent / "secret.cep")
    assert "not below" in "".join(read_rules(rules)[1])
    assert read_rule_file(rules / "good.toml") is None

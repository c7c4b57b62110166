"""The table of verbs: groups, nearest names, and the names of 0.2."""

from __future__ import annotations

from inspect import isfunction

import pytest

from cep.base.exits import Exit
from cep.cli.main import main
from cep.cli.verbs import MOVED, TOP, VERBS, Group, entries, find

GROUPS = [name for name, entry in entries() if isinstance(entry, Group)]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message about words that are not a command, which is on standard error."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == Exit.USAGE
    printed = capsys.readouterr()
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
def test_a_group_alone_lists_its_verbs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    group = find(name.split())[1]
    assert isinstance(group, Group)
    text = refused(name.split(), capsys)
    sections = [text.partition(f"{title}:\n")[2].partition("\n\n")[0] for title in group.sections]
    assert [line.split()[0] for section in sections for line in section.split("\n")] == list(group.entries())
    assert all(len(line) <= 120 for line in text.splitlines())
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    assert (stopped.value.code, capsys.readouterr().out) == (0, text)


@pytest.mark.parametrize("name", ["keys", "lists", "rules audit", "rules shadow", "job letters"])
def test_a_verb_with_parts_lists_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(name.split(), capsys)
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert text == capsys.readouterr().out


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
def test_an_unknown_verb_names_the_nearest(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in refused(words, capsys)


def test_names_of_0_2_are_names_of_verbs() -> None:
    assert set(MOVED.values()) <= VERBS.keys()
    assert MOVED.keys() & TOP.entries().keys() == set()


def test_a_name_of_0_2_works_and_prints_its_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "monitor", "alerts"]) == 0
    new = capsys.readouterr()
    assert main(["monitor", "alerts"]) == 0
    old = capsys.readouterr()
    assert (old.out, new.err, old.err) == (new.out, "", "cep monitor is now cep job monitor\n")

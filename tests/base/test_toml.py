"""Bounds of TOML are looked at before it is parsed, and take nothing that is within them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.limits import NESTING_MAX, TOML_NAME_PARTS_MAX
from cep.base.toml import parse_toml
from tests.tidy.source import ROOT

_DEEP = NESTING_MAX + 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 100_000, "line 1: brackets are nested more than 64 deep"),
        ("\na = " + "{a=" * 100_000, "line 2: brackets are nested"),
        ("a = [\n" * _DEEP + "]\n" * _DEEP, "brackets are nested"),
        ("[" * _DEEP, "brackets are nested"),
        (".".join("a" * 30_000) + " = 1", "line 1: a name has more than 16 parts"),
        ("x = 1\n[" + " . ".join("a" * 30_000) + "]", "line 2: a name has more than 16 parts"),
        ("a = {" + '."."'.join("a" * 30_000) + " = 1}", "a name has more than 16 parts"),
        ("a = " + "9" * 5_000, "too many digits"),
        ("a = -" + "9" * 5_000, "too many digits"),
        ("#" * 1_000_001, "1000001 bytes are over the limit of 1000000"),
        (b"\xff", "not UTF-8"),
        ("a = ", "Invalid value"),
    ],
)
def test_what_is_too_much_is_refused_at_once(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_toml(text, 1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * NESTING_MAX + "]" * NESTING_MAX,
        ".".join("a" * TOML_NAME_PARTS_MAX) + " = 1",
        'a = "' + "[.{" * 1_000 + '"',
        "a = '" + "[.{" * 1_000 + "'",
        'a = """\n' + '[."{\n' * 1_000 + '"""',
        "a = '''\n" + "[.'{\n" * 1_000 + "'''",
        "# " + "[.{" * 1_000,
        "a = [" + "1.5, " * 1_000 + "]",
        'a = "\\"' + "[.{" * 100 + '"',
        'a = """\\"""' + "[.{" * 100 + '"""',
        'a = """x""""',
    ],
)
def test_what_is_within_the_bounds_is_what_the_parser_says(text: str) -> None:
    assert parse_toml(text, 1_000_000) == tomllib.loads(text)


def test_our_own_files_are_within_the_bounds() -> None:
    paths = [*ROOT.glob("rules/*.toml"), *ROOT.glob("tests/corpus/*.toml"), ROOT / "pyproject.toml"]
    for path in paths:
        assert parse_toml(path.read_bytes(), 10_000_000) == tomllib.loads(path.read_text(encoding="utf-8"))


@given(st.text(st.sampled_from("ab.=[]{}\"'\\\n#,1 -"), max_size=60))
def test_it_agrees_with_the_parser(text: str) -> None:
    """Short texts are within all bounds, so that only the parser decides."""
    try:
        expected: object = tomllib.loads(text)
    except ValueError:
        expected = None
    try:
        found: object = parse_toml(text, 1_000)
    except ValueError:
        found = None
    assert found == expected or text.count(".") >= TOML_NAME_PARTS_MAX


def test_a_folder_of_hostile_rules_is_refused_file_by_file(tmp_path: Path) -> None:
    from cep.rulebook.files import read_rules  # noqa: PLC0415 the other tests need no language

    (tmp_path / "deep.toml").write_text("a = " + "[" * 60_000)
    (tmp_path / "dots.toml").write_text(".".join("a" * 30_000) + " = 1")
    (tmp_path / "digits.toml").write_text("version = " + "9" * 5_000)
    (tmp_path / "nul.toml").write_text(
        'id = "nul"\npattern = "p"\nfile = "a\\u0000b"\nversion = 1\nstatus = "live"\nseverity = "high"\n'
        'owner = "o"\nmessage = "m"\n'
    )
    records, problems = read_rules(tmp_path)
    assert records == []
    assert {problem.split(":")[0].rpartition("/")[2] for problem in problems} == {
        "deep.toml", "dots.toml", "digits.toml", "nul.toml",
    }  # fmt: skip

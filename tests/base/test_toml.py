"""The bounds of TOML are checked before parsing, and refuse only content that exceeds them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.limits import NESTING_MAX, TOML_NAME_PARTS_MAX
from cep.base.toml import parse_toml, with_value
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
    """Short texts are within all bounds, so only the parser decides."""
    try:
        expected: object = tomllib.loads(text)
    except ValueError:
        expected = None
    try:
        parsed: object = parse_toml(text, 1_000)
    except ValueError:
        parsed = None
    assert parsed == expected or text.count(".") >= TOML_NAME_PARTS_MAX


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


SHAPES = (
    'id = "a"\nversion = 1\n\n[params]\nlarge = 1.5 # of 2025\nother = 2\n\n[limits]\nlarge = 9\n',
    'id = "a"\nversion = 1\n[params]  # note\nlarge = 1.5\n',
    'id = "a"\nversion = 1\n[ params ]\n"large" = 1.5',
    "id = 'a'\nversion = 1\nparams.large = 1.5\nparams.other = 2\n",
    'id = "a"\nversion = 1\nparams = { large = 1.5, other = "}" } # large = 1.5\n',
    'id = """\n[params]\nlarge = 1.5\nversion = 1\n"""\nversion = 1\n["params"]\nlarge=1.5#x\n',
    'id = "a"\r\nversion = 1\r\n\r\n[params]\r\nxlarge = 3\r\nlarge = 1.5\r\n[params.more]\r\nlarge = 7\r\n',
    'id = "a"\nversion = 1\n[other]\nx = 1\n[params]\n# large = 3\nlarge = "7 d" # "q"\n',
)


@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize("value", [2.5, 3, "7 d", True, 'a "b" # c'])
@pytest.mark.parametrize("name", ["large", "extra"])
def test_one_value_changes_and_all_other_text_stays(text: str, value: object, name: str) -> None:
    changed = with_value(text, ("params", name), value)
    expected = tomllib.loads(text)
    expected["params"][name] = value
    assert tomllib.loads(changed) == expected
    assert with_value(changed, ("params", name), value) == changed
    before, after = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    assert len([line for line in before if line not in after]) <= 1, "one line at most is another one"
    assert ("\r\n" in changed) == ("\r\n" in text)
    comments = [line.partition("#")[2] for line in before if "#" in line]
    assert all(comment.strip() in changed for comment in comments)


@pytest.mark.parametrize("text", SHAPES)
def test_a_version_is_that_of_the_rule_in_any_shape(text: str) -> None:
    changed = with_value(text, ("version",), 12)
    assert tomllib.loads(changed) == {**tomllib.loads(text), "version": 12}
    assert changed.count("12") == 1


def test_a_missing_table_is_added_and_what_fits_nowhere_is_refused() -> None:
    assert with_value('id = "a"\n', ("params", "large"), 5.0) == 'id = "a"\n\n[params]\nlarge = 5.0\n'
    assert with_value("params = {}\n", ("params", "large"), 5) == "params = { large = 5 }\n"
    with pytest.raises(ValueError, match="`params` is not a table"):
        with_value("params = 1\n", ("params", "large"), 5)
    with pytest.raises(ValueError, match="no place for"):
        with_value("large = [1, 2]\n", ("large",), 5)

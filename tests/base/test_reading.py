"""Only regular files below a root are read, up to a size, without blocking; TOML is bounded before it is parsed."""

import os
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UnreadableError
from cep.base.files import Folder, check_below, open_file, read_file, read_lines, repository_of, root_of
from cep.base.limits import NESTING_MAX, TOML_NAME_PARTS_MAX
from cep.base.toml import parse_toml, with_value
from tests.tidy.source import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a root with a file in it. A secret lies next to the root, and links lead from the root to the secret."""
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "inner" / "a.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "out").symlink_to(tmp_path)
    (root / "circle").symlink_to(root / "circle")
    (root / "good.txt").symlink_to("inner/a.txt")
    os.mkfifo(root / "pipe")
    return root


def test_what_is_below_is_read_and_so_is_a_link_within(folder: Path) -> None:
    for name in ("inner/a.txt", "good.txt", "inner/../inner/a.txt"):
        assert read_file(folder / name, 6, folder) == b"inside"


@pytest.mark.parametrize(
    "name", ["../secret.txt", "link.txt", "out/secret.txt", "/etc/passwd", "/dev/zero", "/nothing/there", "../nothing"]
)
def test_what_leads_out_is_refused_alike_whether_it_is_there_or_not(folder: Path, name: str) -> None:
    with pytest.raises(UnreadableError, match=f"^it is not below {folder}; only what is there may be read$"):
        read_file(folder / name, 100, folder)


@pytest.mark.parametrize(
    "name",
    [
        "a.txt",
        "good.txt",
        "link.txt",
        "circle",
        "pipe",
        "out",
        "nothing",
        "inner",
        "inner/a.txt",
        "out/secret.txt",
        "..",
    ],
)
def test_a_folder_that_stays_open_reads_and_refuses_as_a_path_does(folder: Path, name: str) -> None:
    (folder / "a.txt").write_text("open")
    with Folder(folder, folder) as opened:
        assert _read(lambda: opened.read(name, 6)) == _read(lambda: read_file(folder / name, 6, folder))


def _read(read: Callable[[], bytes]) -> bytes | str:
    try:
        return read()
    except UnreadableError as error:
        return str(error)


def test_a_folder_that_stays_open_is_bounded_and_closed(folder: Path) -> None:
    before = _open_count()
    with Folder(folder / "inner", folder) as opened, pytest.raises(UnreadableError, match="limit of 5"):
        opened.read("a.txt", 5)
    (folder / "a.txt").write_text("other")
    other = os.open(folder, os.O_RDONLY)  # gets the number of the closed descriptor
    assert opened.read("a.txt", 6) == b"inside"
    opened.close()
    os.close(other)
    with Folder(folder / "nothing", folder) as lost, pytest.raises(UnreadableError, match="no such file"):
        lost.read("a.txt", 5)
    with Folder(folder / "out", folder) as outside, pytest.raises(UnreadableError, match="not below"):
        outside.read("secret.txt", 100)
    assert _open_count() == before


def _open_count() -> int:
    descriptors = Path("/proc/self/fd")
    return len(list(descriptors.iterdir())) if descriptors.exists() else 0


def test_a_file_that_becomes_a_link_while_its_folder_is_open_is_not_followed_out(folder: Path) -> None:
    with Folder(folder / "inner", folder) as opened:
        (folder / "inner" / "a.txt").unlink()
        (folder / "inner" / "a.txt").symlink_to(folder.parent / "secret.txt")
        with pytest.raises(UnreadableError, match="not below"):
            opened.read("a.txt", 100)


def test_lines_have_no_ends_and_no_file_is_read_ahead(folder: Path) -> None:
    path = folder / "lines"
    path.write_bytes(b"one\n\r\ntwo\r\n" + b"x" * 9 + b"\nlast")
    assert list(read_lines(path, 10)) == [b"one", b"", b"two", b"x" * 9, b"last"]
    lines = read_lines(path, 8)
    assert [next(lines) for _ in range(3)] == [b"one", b"", b"two"]
    with pytest.raises(UnreadableError, match=r"^a line of it is longer than 8 bytes"):
        next(lines)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("pipe", "it is no regular file"), ("inner", "it is a folder"), ("none", "no such file"), ("a\0b", "character")],
)
def test_lines_of_what_is_no_file_are_refused_at_once(folder: Path, name: str, reason: str) -> None:
    for read in (open_file, lambda path: list(read_lines(path))):
        with pytest.raises(UnreadableError, match=reason):
            read(folder / name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe", "it is no regular file"),
        ("inner", "it is a folder"),
        (".", "it is a folder"),
        ("none", "there is no such file"),
        ("circle", "symbolic link"),
        ("inner/a.txt/b", "not a directory"),
        ("x" * 5_000, "name too long"),
        ("a\0b", "a character that no path has"),
        ("a\ud800b", "a character that no path has"),
    ],
)
@pytest.mark.parametrize("confined", [True, False])
def test_what_is_no_file_is_refused_at_once(folder: Path, name: str, reason: str, confined: bool) -> None:
    with pytest.raises(UnreadableError, match=reason):
        read_file(folder / name, 100, folder if confined else None)


def test_devices_and_sockets_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(UnreadableError, match="no regular file"):
            read_file(Path(device), 100)
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the name of a socket must be short
        listening.bind("s")
        with pytest.raises(UnreadableError):
            read_file(tmp_path / "s", 100)


def test_a_file_has_at_most_so_many_bytes(folder: Path) -> None:
    assert read_file(folder / "inner" / "a.txt", 6) == b"inside"
    with pytest.raises(UnreadableError, match="6 bytes are over the limit of 5"):
        read_file(folder / "inner" / "a.txt", 5)


def test_a_file_that_says_it_is_empty_is_bounded_while_it_is_read() -> None:
    endless = Path("/proc/self/maps")  # a file without a size until it is read
    if endless.exists():
        assert endless.stat().st_size == 0
        with pytest.raises(UnreadableError, match="larger than 50 bytes"):
            read_file(endless, 50)


def test_a_step_that_becomes_a_link_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.realpath(folder / "inner" / "a.txt")

    def exchange(path: Path, root: Path) -> Path:
        (folder / "inner").rename(folder / "before")
        (folder / "inner").symlink_to(folder.parent)
        return Path(real)

    monkeypatch.setattr("cep.base.files.check_below", exchange)
    with pytest.raises(UnreadableError):
        read_file(folder / "inner" / "a.txt", 100, folder)


def test_the_root_is_the_repository_else_the_common_folder(tmp_path: Path) -> None:
    for name in ("a/b", "a/c"):
        (tmp_path / name).mkdir(parents=True)
    assert root_of([tmp_path / "a" / "b" / "x.cep"]) == tmp_path / "a" / "b"
    assert root_of([tmp_path / "a" / "b" / "x.cep", tmp_path / "a" / "c" / "y.cep"]) == tmp_path / "a"
    assert repository_of(tmp_path / "a" / "b") is None
    (tmp_path / ".git").mkdir()
    assert root_of([tmp_path / "a" / "b" / "x.cep"]) == tmp_path
    assert repository_of(tmp_path / "a" / "b") == tmp_path


def test_the_whole_file_system_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(UnreadableError, match="not below"):
        check_below(tmp_path / "x", Path("/"))


@pytest.mark.parametrize("name", ["x" * 5_000, "a\0b", "a\ud800b", "/" * 5_000, ""])
def test_a_root_is_there_for_any_name(name: str) -> None:
    assert root_of([Path(name) / "x.cep"]).is_absolute()
    repository_of(Path(name))


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
    'id = "a"\nversion = 1\n[other]\nlarge = 1\n[params]\nlarge = 1\n',
    'id = "a"\nversion = 1\n[other]\nx = 1\n[params]\n# large = 3\nlarge = "7 d" # "q"\n',
)


@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize("value", [2.5, 3, "7 d", True, 'a "b" # c\x7f'])
@pytest.mark.parametrize("name", ["large", "extra"])
def test_one_value_changes_and_all_other_text_stays(text: str, value: object, name: str) -> None:
    changed = with_value(text, ("params", name), value)
    expected = tomllib.loads(text)
    expected["params"][name] = value
    assert tomllib.loads(changed) == expected
    assert type(tomllib.loads(changed)["params"][name]) is type(value)
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
    assert with_value("[params]\nlarge = 1\n", ("version",), 2) == "version = 2\n[params]\nlarge = 1\n"
    assert with_value("", ("version",), 2) == "version = 2\n"
    with pytest.raises(ValueError, match="`params` is not a table"):
        with_value("params = 1\n", ("params", "large"), 5)
    with pytest.raises(ValueError, match="no place for"):
        with_value("large = [1, 2]\n", ("large",), 5)

"""Only regular files below a root are read, up to a size, and opening one never blocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cep.base.errors import UnreadableError
from cep.base.files import Folder, check_below, open_file, read_file, read_lines, repository_of, root_of


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

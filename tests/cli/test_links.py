"""No verb writes through a link: a rules repository may contain links that an attacker has committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cep.base.durable import replace_file, repository_root
from cep.base.errors import LinkedPathError
from cep.cli.main import main

PATTERN = """event tx { id id  event_time time  card string }
pattern p by card { seq a -> b within 1 h
where a: tx b: tx }
"""
RULE = """id = "p"
pattern = "p"
file = "../patterns/p.cep"
version = 1
status = "live"
severity = "low"
owner = "a"
message = "m"
"""


def _repository(folder: Path) -> Path:
    """Make a repository of rules, and a file of the user outside it."""
    for name in ("repo/.git", "repo/patterns", "repo/rules/signed"):
        (folder / name).mkdir(parents=True)
    (folder / "repo/patterns/p.cep").write_text(PATTERN)
    (folder / "repo/rules/p.toml").write_text(RULE)
    (folder / "profile").write_text("original\n")
    return folder / "repo"


def _fmt(repo: Path) -> list[str]:
    return ["fmt", str(repo / "patterns")]


def _lock(repo: Path) -> list[str]:
    return ["rules", "lock", "--rules", str(repo / "rules")]


def _bump(repo: Path) -> list[str]:
    return ["rules", "bump", "p", "--rules", str(repo / "rules")]


# Each verb with the files that it writes, by their names in the repository.
VERBS: list[tuple[Callable[[Path], list[str]], str]] = [
    (_fmt, "patterns/p.cep"), (_lock, "rules/rules.lock"), (_bump, "rules/p.toml"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "name"), VERBS)
def test_a_committed_link_under_a_temporary_name_is_not_followed(
    tmp_path: Path, verb: Callable[[Path], list[str]], name: str
) -> None:
    repo = _repository(tmp_path)
    main(_lock(repo)) if verb is _bump else None
    target = repo / name
    for temporary in (f".{target.name}.new", f".{target.name}.tmp"):
        (target.parent / temporary).symlink_to(tmp_path / "profile")
    assert main(verb(repo)) in (0, 1)
    assert (tmp_path / "profile").read_text() == "original\n"
    assert target.is_file()
    assert not target.is_symlink()


@pytest.mark.parametrize(("verb", "name"), VERBS)
def test_a_file_that_is_a_link_is_not_written(tmp_path: Path, verb: Callable[[Path], list[str]], name: str) -> None:
    repo = _repository(tmp_path)
    main(_lock(repo)) if verb is _bump else None
    target, outside = repo / name, tmp_path / "outside"
    if target.exists():
        target.rename(outside)
    else:
        outside.write_text("")
    target.symlink_to(outside)
    before = outside.read_bytes()
    main(verb(repo))
    assert outside.read_bytes() == before
    assert target.is_symlink()


def test_a_linked_parent_below_the_root_is_refused(tmp_path: Path) -> None:
    repo = _repository(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (repo / "patterns" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkedPathError, match="sub is a link"):
        replace_file(repo / "patterns/sub/a.cep", b"x", root=repo)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert repository_root(repo / "patterns") == repo


def test_a_folder_exchanged_for_a_link_while_the_file_is_written(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()

    def exchange(file: object) -> None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(elsewhere)

    replace_file(folder / "a", exchange, root=tmp_path)
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["a"]


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.cep"
    path.write_text("x")
    path.chmod(0o640)
    replace_file(path, b"y", root=tmp_path)
    assert path.stat().st_mode & 0o777 == 0o640

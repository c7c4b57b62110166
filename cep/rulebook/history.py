"""A folder of rules under git → the commits of a rule, and the rule as it was in one.

Tested by: tests/rulebook/test_history.py
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cep.model.rule import UpsertRecord
from cep.rulebook.files import read_rules

_GIT_S = 60
_COMMITS_MAX = 1_000


def history(directory: Path, rule_id: str) -> list[str]:
    """Return `HASH date author: subject` of each commit of a rule's file, the newest first; none without git."""
    log = _git(directory, "log", f"-{_COMMITS_MAX}", "--format=%H %as %an: %s", "--", f"{rule_id}.toml")
    return log.decode(errors="replace").splitlines()


def at_commit(directory: Path, commit: str, rule_id: str) -> UpsertRecord | None:
    """Read a rule as it was in a commit, with its pattern; None if it was not there or was wrong.

    Cost: the files of that commit are unpacked, because a pattern may import any of them.
    """
    with folder_at(directory, commit) as folder:
        if folder is None:
            return None
        records, _ = read_rules(folder)
    return next((record for record in records if record.id == rule_id), None)


def in_git(directory: Path, rule_id: str, version: int) -> UpsertRecord | None:
    """Return the version from the newest commit that has it, or None."""
    for commit in history(directory, rule_id):
        record = at_commit(directory, commit.split(" ", 1)[0], rule_id)
        if record is not None and record.version == version:
            return record
    return None


@contextmanager
def folder_at(directory: Path, commit: str) -> Iterator[Path | None]:
    """Provide a folder as it was in a commit, while the block runs; None for an unknown commit.

    Cost: all files of that commit are unpacked.
    """
    top = _git(directory, "rev-parse", "--show-toplevel").decode().strip() if directory.is_dir() else ""
    archive = _git(Path(top), "archive", "--format=zip", commit) if top else b""
    if not archive:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder)  # no links, nothing outside of the folder
        yield Path(folder) / directory.resolve().relative_to(Path(top).resolve())


def _git(directory: Path, *arguments: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        return b""
    command = [git, "-C", str(directory), *arguments]
    process = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_S)  # noqa: S603 no shell, our arguments
    return process.stdout if process.returncode == 0 else b""

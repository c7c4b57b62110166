"""Rules as they were in git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cep.rulebook.files import at_commit, history

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b", *arguments], check=True)


def test_a_rule_as_it_was(tmp_path: Path) -> None:
    for name in ("rules", "patterns"):
        shutil.copytree(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "-q")
    path = tmp_path / "rules" / "card_testing.toml"
    for version, severity in ((1, "high"), (2, "low")):
        text = (ROOT / "rules" / "card_testing.toml").read_text()
        path.write_text(text.replace("version = 1", f"version = {version}").replace('"high"', f'"{severity}"'))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", f"version {version}")
    commits = history(tmp_path / "rules", "card_testing")
    assert [line.split(": ")[1] for line in commits] == ["version 2", "version 1"]
    records = [at_commit(tmp_path / "rules", line.split(" ")[0], "card_testing") for line in commits]
    assert [(r.version, r.severity, "pattern card_testing" in r.source) for r in records if r is not None] == [
        (2, "low", True), (1, "high", True),
    ]  # fmt: skip


def test_without_git_there_is_no_history(tmp_path: Path) -> None:
    assert history(tmp_path, "card_testing") == []
    assert at_commit(tmp_path, "HEAD", "card_testing") is None

"""`rules.lock` beside the rule files: which meaning each version of a rule has → what contradicts it.

    [card_testing]
    1 = "5a0c…"     the hash of rulebook/meaning.py
    2 = "91fe…"

A version that has been locked keeps its meaning for good: a job that has it takes no other text for it, and an alert of
last year says by version and hash what it was. The file is kept under version control and only grows.
Tested by: tests/rulebook/test_lock.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import UsageError
from cep.model.rule import UpsertRecord
from cep.rulebook.meaning import content_hash

LOCK_FILE = "rules.lock"
_HEAD = """\
# Which meaning each version of a rule has: `cep rules lock` writes it, `cep publish` refuses what contradicts it.
"""
_HASH = re.compile(r"[0-9a-f]{64}")
_VERSION_LINE = re.compile(r"^(version[ \t]*=[ \t]*)(\d+)", re.MULTILINE)
_TABLE = re.compile(r"^\[", re.MULTILINE)

Lock = dict[str, dict[int, str]]


@dataclass(frozen=True, slots=True)
class LockProblem:
    """A rule file that contradicts the lock, and the command that mends it."""

    rule_id: str
    message: str
    command: str

    def __str__(self) -> str:
        return f"{self.rule_id}: {self.message}; {self.command}"


def read_lock(directory: Path) -> Lock:
    """The lock of a folder of rules; nothing, if there is none yet. Raises: UsageError for a file that is not one."""
    path = directory / LOCK_FILE
    if not path.exists():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        lock = {
            rule_id: {int(version): digest for version, digest in known.items()} for rule_id, known in found.items()
        }
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no lock of rules ({error}); restore it from version control") from error
    if not all(isinstance(d, str) and _HASH.fullmatch(d) for known in lock.values() for d in known.values()):
        raise UsageError(f"{path} is no lock of rules: a version has no hash; restore it from version control")
    return lock


def write_lock(directory: Path, lock: Lock) -> None:
    """Write it, rules and versions in order. Raises: UsageError if it cannot be written."""
    parts = [_HEAD]
    for rule_id, known in sorted(lock.items()):
        parts.append(f"\n[{rule_id}]\n" + "".join(f'{version} = "{known[version]}"\n' for version in sorted(known)))
    try:
        (directory / LOCK_FILE).write_text("".join(parts), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{directory / LOCK_FILE} cannot be written: {error}") from error


def problems_of_lock(records: Iterable[UpsertRecord], lock: Lock) -> list[LockProblem]:
    """What contradicts the lock, in the order of the records."""
    found: list[LockProblem] = []
    for record in records:
        known = lock.get(record.id, {})
        digest = known.get(record.version)
        if known and record.version < max(known):
            message = f"version {record.version} is below {max(known)}, which is locked: a version never goes back"
            found.append(LockProblem(record.id, message, f"run `cep rules bump {record.id}`"))
        elif digest is None:
            message = f"version {record.version} is not locked"
            found.append(LockProblem(record.id, message, "run `cep rules lock`"))
        elif digest != content_hash(record):
            message = f"it means something else than version {record.version} did when it was locked"
            found.append(LockProblem(record.id, message, f"run `cep rules bump {record.id}`"))
    return found


def locked(records: Iterable[UpsertRecord], lock: Lock) -> tuple[Lock, list[LockProblem]]:
    """The lock with the versions that it has not; and what it must not take, which is left out."""
    problems = [p for p in problems_of_lock(records, lock) if p.command != "run `cep rules lock`"]
    refused = {problem.rule_id for problem in problems}
    after = {rule_id: dict(known) for rule_id, known in lock.items()}
    for record in records:
        if record.id not in refused:
            after.setdefault(record.id, {})[record.version] = content_hash(record)
    return after, problems


def with_version(text: str, version: int) -> str:
    """The text of a rule file with another version; all else stays as its author wrote it. Raises: ValueError."""
    table = _TABLE.search(text)  # tables come after the names of the rule itself
    end = len(text) if table is None else table.start()
    changed, count = _VERSION_LINE.subn(rf"\g<1>{version}", text[:end], count=1)
    if count == 0:
        raise ValueError("has no line `version = …`")
    return changed + text[end:]

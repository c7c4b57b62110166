"""`rules.lock` next to the rule files: the meaning of each version of a rule → contradictions.

    [card_testing]
    1 = "5a0c…"     the hash of rulebook/meaning.py
    2 = "91fe…"
    ["list:blocked/string"]
    1 = "0000…"     the name of the entries of a declared list (deploy.py)

A locked version keeps its meaning for good: a job refuses another text for it, and an old alert identifies its rule by
version and hash. The file only grows. A rule with a new version moves to the end, so the rules are in the order of
their newest versions by age.
Tested by: tests/rulebook/test_files.py
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file, write_file
from cep.base.limits import LOCK_FILE_BYTES_MAX
from cep.base.toml import parse_toml, with_value
from cep.model.rule import UpsertRecord
from cep.rulebook.meaning import content_hash, earlier_hash

LOCK_FILE = "rules.lock"
_HEAD = """\
# Which meaning each version of a rule has: `cep rules lock` writes it, `cep rules publish` refuses what contradicts it.
"""
_HASH = re.compile(r"[0-9a-f]{64}")
_LOCKED = re.compile(r"^(?:\[(.+)\]|(\d{1,10}) = )", re.MULTILINE)

_LIST = "list:"

Lock = dict[str, dict[int, str]]  # by rule and version: the hash of its meaning


@dataclass(frozen=True, slots=True)
class LockProblem:
    """A rule file that contradicts the lock, and the command that mends it."""

    rule_id: str
    message: str
    command: str

    def __str__(self) -> str:
        return f"{self.rule_id}: {self.message}; {self.command}"


def read_lock(directory: Path) -> Lock:
    """Read the lock file of a folder of rules: a hash of each version's meaning; {} if missing. Raises: UsageError."""
    path = directory / LOCK_FILE
    if not path.exists():
        return {}
    try:
        tables = parse_toml(read_file(path, LOCK_FILE_BYTES_MAX), LOCK_FILE_BYTES_MAX)
        lock = {
            rule_id: {int(version): digest for version, digest in versions.items()}
            for rule_id, versions in tables.items()
        }
    except (UnreadableError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no lock of rules ({error}); restore it from version control") from error
    if not all(isinstance(d, str) and _HASH.fullmatch(d) for versions in lock.values() for d in versions.values()):
        raise UsageError(f"{path} is no lock of rules: a version has no hash; restore it from version control")
    return lock


def write_lock(directory: Path, lock: Lock) -> None:
    """Write it, the rules in their order. Raises: UsageError if it cannot be written."""
    parts = [_HEAD]
    for rule_id, versions in lock.items():
        name = rule_id if rule_id.isidentifier() else json.dumps(rule_id)
        parts.append(f"\n[{name}]\n" + "".join(f'{version} = "{versions[version]}"\n' for version in sorted(versions)))
    write_file(directory / LOCK_FILE, "".join(parts).encode())


def problems_of_lock(records: Iterable[UpsertRecord], lock: Lock) -> list[LockProblem]:
    """List the records that contradict the lock file, in their order."""
    problems: list[LockProblem] = []
    for record in records:
        versions = lock.get(record.id, {})
        digest = versions.get(record.version)
        if versions and record.version < max(versions):
            message = f"version {record.version} is below {max(versions)}, which is locked: a version never goes back"
            problems.append(LockProblem(record.id, message, f"run `cep rules bump {record.id}`"))
        elif digest is None:
            message = f"version {record.version} is not locked"
            problems.append(LockProblem(record.id, message, "run `cep rules lock`"))
        elif digest != content_hash(record):
            message = f"it means something else than version {record.version} did when it was locked"
            if digest == earlier_hash(record):
                message = f"an earlier build locked version {record.version}, with a hash that other texts can have"
            problems.append(LockProblem(record.id, message, f"run `cep rules bump {record.id}`"))
    return problems


def locked(records: Iterable[UpsertRecord], lock: Lock) -> tuple[Lock, list[LockProblem]]:
    """Return the lock with the new versions, and the problems of versions that it refuses."""
    problems = [p for p in problems_of_lock(records, lock) if p.command != "run `cep rules lock`"]
    refused = {problem.rule_id for problem in problems}
    after = {rule_id: dict(versions) for rule_id, versions in lock.items()}
    for record in records:
        if record.id not in refused and record.version not in after.get(record.id, {}):
            after[record.id] = {**after.pop(record.id, {}), record.version: content_hash(record)}
    return after, problems


def changed_lists(entries: Mapping[str, str], lock: Lock) -> list[str]:
    """Name the declared lists whose entries differ from the locked ones. `entries` has the names of the new ones."""
    return [name for name, stored in entries.items() if _locked_entries(name, lock) not in ("", stored)]


def locked_lists(entries: Mapping[str, str], lock: Lock) -> Lock:
    """Return the lock with the entries of declared lists, each change of them under the next number."""
    after = dict(lock)
    for name, stored in entries.items():
        if _locked_entries(name, lock) != stored:
            versions = lock.get(_LIST + name, {})
            after[_LIST + name] = {**versions, max(versions, default=0) + 1: stored}
    return after


def _locked_entries(name: str, lock: Lock) -> str:
    versions = lock.get(_LIST + name, {})
    return versions[max(versions)] if versions else ""


def oldest_first(records: Iterable[UpsertRecord], directory: Path) -> list[UpsertRecord]:
    """Sort rules by age: in the order of the lock file, where the last changed rule is last; then the others.

    A regular expression finds the headings `[rule]` and lines `version = …`: a job starts faster without a parser.
    """
    try:
        text = read_file(directory / LOCK_FILE, LOCK_FILE_BYTES_MAX).decode()
    except (UnreadableError, UnicodeDecodeError):
        return list(records)
    positions: dict[tuple[str, int], int] = {}
    rule_id = ""
    for position, (name, version) in enumerate(_LOCKED.findall(text)):
        if name:
            rule_id = name
        else:
            positions[rule_id, int(version)] = position
    return sorted(records, key=lambda record: positions.get((record.id, record.version), len(text)))


def with_version(text: str, version: int) -> str:
    """Change the version in the text of a rule file; the rest of the text is unchanged. Raises: ValueError."""
    if "version" not in parse_toml(text, LOCK_FILE_BYTES_MAX):
        raise ValueError("has no line `version = …`")
    return with_value(text, ("version",), version)

"""`rules/signed/`: one file per signed change, in the form of the control topic ↔ control records.

    rules/signed/card_testing.2.json     version 2 of a rule, also as a retirement or a rollback
    rules/signed/card_testing.pause.1.json

A file has a record per line: a list may need several. People sign it, and it is published, byte for byte. Under version
control, the folder shows who signed each change.
Tested by: tests/rulebook/test_files.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from cep.base.durable import replace_file, repository_root
from cep.base.errors import UnreadableError, UsageError
from cep.base.limits import CONTROL_RECORD_BYTES_MAX, LIST_PARTS_MAX
from cep.base.reading import read_file
from cep.model.rule import (
    HeartbeatRecord,
    ListRecord,
    RetireRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
)
from cep.rulebook.lock import read_lock
from cep.rulebook.meaning import content_hash
from cep.rulebook.statement import Signable, digest_of, line_of

SIGNED_FOLDER = "signed"
_ENDING = ".json"
_SHORT = 12
_BYTES_MAX = CONTROL_RECORD_BYTES_MAX * LIST_PARTS_MAX
Version = tuple[int, str]  # a version and the hash by which a later change names it


def change_path(directory: Path, record: Signable) -> Path:
    """Return the file of a change below a folder of rules."""
    line = line_of(record)
    if isinstance(record, SnoozeRecord) and record.key is not None:
        line = f"{record.id}.snooze.{hashlib.sha256(record.key.encode()).hexdigest()[:_SHORT]}"
    if isinstance(record, ListRecord):
        line = f"list.{record.id}.{record.of.rstrip(')').replace('(', '_')}"
    if isinstance(record, UpsertRecord | RetireRecord | RollbackRecord):
        line = record.id  # those in shadow count with the others
    return directory / SIGNED_FOLDER / f"{line.replace('/', '.')}.{record.version}{_ENDING}"


def write_change(path: Path, records: Sequence[Signable]) -> None:
    """Write the records of one change. Raises: UsageError."""
    try:
        lines = b"".join(record.to_json() + b"\n" for record in records)
        replace_file(path, lines, root=repository_root(path.parent.parent))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def read_change(path: Path) -> list[Signable]:
    """Read the one or more records of a change. Raises: UsageError with the line that is wrong."""
    try:
        data = read_file(path, _BYTES_MAX)
    except UnreadableError as error:
        raise UsageError(f"{path} cannot be read: {error}; `cep rules sign` writes such files") from error
    records: list[Signable] = []
    for number, line in enumerate(data.splitlines(), start=1):
        record, problems = parse_control(line)
        if record is None or isinstance(record, HeartbeatRecord):
            why = "; ".join(map(str, problems)) or "a heartbeat is no change"
            raise UsageError(f"{path}:{number}: {why}; restore it from version control, or sign the change again")
        records.append(record)
    if not records or len({(line_of(record), record.version) for record in records}) > 1:
        raise UsageError(f"{path} is not one change; restore it from version control, or sign the change again")
    return records


def with_signatures(directory: Path, records: Iterable[UpsertRecord]) -> list[UpsertRecord]:
    """Put in the place of each record the signed one of the same version and meaning, where there is one.

    A file that is damaged counts as missing: the job then says that the rule is not signed.
    """
    return [signed_version(directory, record) or record for record in records]


def signed_version(directory: Path, record: UpsertRecord) -> UpsertRecord | None:
    """Return the signed record of a rule's version; None if it is missing or has another meaning."""
    path = change_path(directory, record)
    if not path.exists():
        return None
    try:
        signed = read_change(path)[0]
    except UsageError:
        return None
    if not isinstance(signed, UpsertRecord) or (signed.id, signed.version) != (record.id, record.version):
        return None
    return signed if content_hash(signed) == content_hash(record) else None


def version_before(directory: Path, record: UpsertRecord | RetireRecord | RollbackRecord) -> Version:
    """Return the version that a change of a rule follows, from rules.lock and the signed changes; (0, "") if none."""
    before = dict(read_lock(directory).get(record.id, {}))
    for path in (directory / SIGNED_FOLDER).glob(f"{record.id}.*{_ENDING}"):
        if path.name.removeprefix(f"{record.id}.").removesuffix(_ENDING).isdigit():
            signed = read_change(path)[0]
            before[signed.version] = digest_of(signed)
    version = max((version for version in before if version < record.version), default=0)
    return version, before.get(version, "")


def last_of(records: Iterable[Signable], record: Signable) -> Version:
    """Return the version that a change follows among the records of a control topic; (0, "") if it is the first."""
    line = line_of(record)
    versions = {
        other.version: digest_of(other)
        for other in records
        if not isinstance(other, HeartbeatRecord) and line_of(other) == line and other.version < record.version
    }
    version = max(versions, default=0)
    return version, versions.get(version, "")

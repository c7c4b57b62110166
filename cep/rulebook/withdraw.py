"""A signers file and the signed changes beside it → the same file with a key withdrawn.

The key goes on to count for the versions that it has signed, or a replay would refuse what the job took. So `until`
has the last version of each rule that the folder has with a signature of the key. All else stays as it is written.
Tested by: tests/rulebook/test_withdraw.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from cep.base.durable import replace_file, repository_root
from cep.base.errors import UnreadableError, UsageError
from cep.base.limits import SIGNERS_FILE_BYTES_MAX
from cep.base.reading import read_file
from cep.base.signing import SigningKey
from cep.base.toml import parse_toml
from cep.rulebook.changes import read_change
from cep.rulebook.signers import read_trust, sign_signers
from cep.rulebook.statement import line_of
from cep.rulebook.trust import Trust

_HEADER = re.compile(r"^\s*\[\[\s*signer\s*\]\]", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_UNTIL = re.compile(r"^\s*until\s*=.*\n?", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*\d+", re.MULTILINE)


def withdraw(path: Path, key: str, root: SigningKey) -> tuple[Trust, dict[str, int]]:
    """Withdraw a person's key, and sign the file anew with the next version.

    Returns: who may sign from now on, and the last versions that the key counts for. Raises: UsageError.
    """
    read_trust(path, root.public)  # what nobody has signed is not signed on the way
    try:
        text = read_file(path, SIGNERS_FILE_BYTES_MAX).decode()
        before = parse_toml(text, SIGNERS_FILE_BYTES_MAX)
    except (UnreadableError, ValueError) as error:
        raise UsageError(f"the signers file {path} cannot be read: {error}; see `cep docs approve`") from error
    until = _signed_versions(path.parent, key)
    changed = _with_until(text, key, until)
    if changed is None:
        raise UsageError(f"{path} has no signer with the key {key}; `cep keys check` prints them")
    changed = _VERSION.sub(f"version = {int(before.get('version', 0)) + 1}", changed, count=1)
    try:
        after = parse_toml(changed, SIGNERS_FILE_BYTES_MAX)
    except ValueError:
        after = {}
    if not after or _without(after, key) != _without(before, key) or _of(after, key).get("until") != until:
        raise UsageError(f"{path} is written in a way that this verb cannot change; add `until` yourself and sign it")
    try:
        replace_file(path, changed.encode(), root=repository_root(path.parent))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error
    return sign_signers(path, root), until


def _signed_versions(folder: Path, key: str) -> dict[str, int]:
    """Return the last version of each line of versions that the key has signed as author or approver."""
    last: dict[str, int] = {}
    for path in sorted(folder.glob("*.json")):
        for record in read_change(path):
            signed = record.signed
            if signed is None or key not in (signed.author.key, signed.approver and signed.approver.key):
                continue
            line = line_of(record)
            last[line] = max(last.get(line, 0), record.version)
    return last


def _with_until(text: str, key: str, until: dict[str, int]) -> str | None:
    """Return the text with `until` in the table of the key; None if no table has the key."""
    for header in _HEADER.finditer(text):
        following = _TABLE.search(text, header.end())
        end = len(text) if following is None else following.start()
        block = text[header.end() : end]
        if f'"{key}"' not in block:
            continue
        rest = _UNTIL.sub("", block).rstrip("\n")
        entries = ", ".join(f"{json.dumps(name)} = {version}" for name, version in sorted(until.items()))
        between = "\n\n" if following is not None else "\n"
        return f"{text[: header.end()]}{rest}\nuntil = {{ {entries} }}{between}{text[end:].lstrip()}"
    return None


def _of(table: dict[str, object], key: str) -> dict[str, object]:
    signers = table.get("signer")
    assert isinstance(signers, list), "the key was in one of them"
    return next(signer for signer in signers if signer.get("key") == key)


def _without(table: dict[str, object], key: str) -> dict[str, object]:
    """Return all but the version, and `until` of the key."""
    signers = table.get("signer")
    listed = signers if isinstance(signers, list) else []
    others = [{n: v for n, v in s.items() if n != "until" or s.get("key") != key} for s in listed]
    return {**{name: value for name, value in table.items() if name != "version"}, "signer": others}

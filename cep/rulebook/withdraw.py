"""A signers file and the signed changes next to it → the same file with a key withdrawn.

The key still counts for the records that it has signed; otherwise a replay would refuse changes that the job took.
`only` therefore has the hash of each record of the folder with a signature of the key. Versions do not identify
records: a new job takes the first text that comes under a number. The rest of the file stays unchanged.
Tested by: tests/rulebook/test_withdraw.py
"""

from __future__ import annotations

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
from cep.rulebook.statement import body_hash
from cep.rulebook.trust import Trust

_HEADER = re.compile(r"^\s*\[\[\s*signer\s*\]\]", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_ONLY = re.compile(r"^\s*only\s*=\s*\[[^\]]*\]\n?", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*\d+", re.MULTILINE)


def withdraw(path: Path, key: str, root: SigningKey) -> tuple[Trust, list[str]]:
    """Withdraw a person's key, and sign the file again with the next version.

    Returns: the new signers, and the hashes of the records for which the key counts. Raises: UsageError.
    """
    read_trust(path, root.public)  # the file must be signed already
    try:
        text = read_file(path, SIGNERS_FILE_BYTES_MAX).decode()
        before = parse_toml(text, SIGNERS_FILE_BYTES_MAX)
    except (UnreadableError, ValueError) as error:
        raise UsageError(f"the signers file {path} cannot be read: {error}; see `cep docs approve`") from error
    only = _signed_digests(path.parent, key)
    changed = _with_only(text, key, only)
    if changed is None:
        raise UsageError(f"{path} has no signer with the key {key}; `cep keys check` prints them")
    changed = _VERSION.sub(f"version = {int(before.get('version', 0)) + 1}", changed, count=1)
    try:
        after = parse_toml(changed, SIGNERS_FILE_BYTES_MAX)
    except ValueError:
        after = {}
    if not after or _without(after, key) != _without(before, key) or _of(after, key).get("only") != only:
        raise UsageError(f"{path} is written in a way that this verb cannot change; add `only` yourself and sign it")
    try:
        replace_file(path, changed.encode(), root=repository_root(path.parent))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error
    return sign_signers(path, root), only


def _signed_digests(folder: Path, key: str) -> list[str]:
    """Return the hash of each record that the key has signed as author or approver."""
    digests: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        for record in read_change(path):
            signed = record.signed
            if signed is not None and key in (signed.author.key, signed.approver and signed.approver.key):
                digests.add(body_hash(record))
    return sorted(digests)


def _with_only(text: str, key: str, only: list[str]) -> str | None:
    """Return the text with `only` in the table of the key; None if no table has the key."""
    for header in _HEADER.finditer(text):
        following = _TABLE.search(text, header.end())
        end = len(text) if following is None else following.start()
        block = text[header.end() : end]
        if f'"{key}"' not in block:
            continue
        rest = _ONLY.sub("", block).rstrip("\n")
        entries = "".join(f'\n  "{digest}",' for digest in only) + ("\n" if only else "")
        between = "\n\n" if following is not None else "\n"
        return f"{text[: header.end()]}{rest}\nonly = [{entries}]{between}{text[end:].lstrip()}"
    return None


def _of(table: dict[str, object], key: str) -> dict[str, object]:
    signers = table.get("signer")
    assert isinstance(signers, list), "the key was in one of them"
    return next(signer for signer in signers if signer.get("key") == key)


def _without(table: dict[str, object], key: str) -> dict[str, object]:
    """Return all but the version, and `only` of the key."""
    signers = table.get("signer")
    listed = signers if isinstance(signers, list) else []
    others = [{n: v for n, v in s.items() if n != "only" or s.get("key") != key} for s in listed]
    return {**{name: value for name, value in table.items() if name != "version"}, "signer": others}

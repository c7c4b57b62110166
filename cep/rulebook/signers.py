"""The signers file and the root key's signature beside it → who may sign what (trust.py).

    rule_set = "payments"
    version = 3

    [people]
    pause = 1

    [[signer]]
    name = "Ada"
    key = "ed25519:…"
    may = ["author", "approve"]
    rules = ["card_*", "list:blocked"]
    groups = ["cards"]
    produces = ["card_*"]
    events = ["payment", "card_*"]
    priority_min = 50
    until = { card_testing = 5 }

`people` says how many must sign: two where it says nothing, but one for `resume`. Without `rules` a person
may sign changes of all. The next four names bound what a rule says that other rules feel (trust.Scope).
`until` withdraws a key: it counts up to these versions only.
The file's signature is in FILE.sig. A job is given the root key apart from the file.
Tested by: tests/rulebook/test_signers.py
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cep.base.durable import replace_file, repository_root
from cep.base.errors import UnreadableError, UsageError
from cep.base.limits import (
    KEY_FILE_BYTES_MAX,
    RULE_PRIORITY_MAX,
    RULE_TEXT_CHARS_MAX,
    SIGNERS_FILE_BYTES_MAX,
    SIGNERS_MAX,
)
from cep.base.reading import read_file
from cep.base.signing import SigningKey, is_public_key, is_signed
from cep.base.toml import parse_toml
from cep.model.problem import problems_of
from cep.rulebook.trust import PEOPLE, Scope, Signer, Trust

_HEAD = b"cep signers 1\n"
_VERSION_MAX = 2**31 - 1
_Text = Annotated[str, Field(min_length=1, max_length=RULE_TEXT_CHARS_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _People(_Strict):
    upsert: Literal[1, 2] = 2
    rollback: Literal[1, 2] = 2
    retire: Literal[1, 2] = 2
    pause: Literal[1, 2] = 2
    resume: Literal[1, 2] = 1
    snooze: Literal[1, 2] = 2
    list: Literal[1, 2] = 2


class _Signer(_Strict):
    name: _Text
    key: Annotated[str, Field(pattern=r"^ed25519:[0-9a-f]{64}$")]
    may: Annotated[list[Literal["author", "approve"]], Field(min_length=1, max_length=2)]
    rules: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] = ["*"]
    groups: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] | None = None
    produces: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] | None = None
    events: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] = ["*"]
    priority_min: Annotated[int, Field(ge=0, le=RULE_PRIORITY_MAX)] = 0
    until: dict[str, Annotated[int, Field(ge=0, le=_VERSION_MAX)]] | None = None


class _File(_Strict):
    rule_set: _Text
    version: Annotated[int, Field(ge=1, le=_VERSION_MAX)]
    people: _People = _People()
    signer: Annotated[list[_Signer], Field(min_length=1, max_length=SIGNERS_MAX)]


def signature_path(path: Path) -> Path:
    """Return where the signature of a signers file is."""
    return path.with_name(path.name + ".sig")


def read_trust(path: Path, root_key: str) -> Trust:
    """Read a signers file whose signature fits. Raises: UsageError with what to do next."""
    if not is_public_key(root_key):
        raise UsageError("the root key is no public key; give the text `ed25519:…` of a .pub file")
    data = _bytes(path)
    try:
        signature = read_file(signature_path(path), KEY_FILE_BYTES_MAX).decode("ascii").strip()
    except (UnreadableError, ValueError) as error:
        raise UsageError(
            f"{path} is not signed ({error}); whoever has the root key runs `cep keys trust {path} --sign-with ROOT`"
        ) from error
    if not is_signed(_HEAD + data, signature, root_key):
        raise UsageError(
            f"{path} is not what the root key has signed; restore it from version control, or whoever has the root "
            f"key checks it and runs `cep keys trust {path} --sign-with ROOT`"
        )
    return _trust(path, data, root_key)


def given_trust(path: Path | None, root_key: str | None) -> Trust | None:
    """Read who may sign changes, None if neither is given. Raises: UsageError; one of both alone is no trust."""
    if path is None and root_key is None:
        return None
    if path is None or root_key is None:
        raise UsageError("signed changes need both --signers and --root-key; see `cep docs approve`")
    return read_trust(path, root_key)


def sign_signers(path: Path, key: SigningKey) -> Trust:
    """Sign a signers file with the root key. Raises: UsageError for a file that is none."""
    data = _bytes(path)
    trust = _trust(path, data, key.public)
    try:
        signature = f"{key.sign(_HEAD + data)}\n".encode()
        replace_file(signature_path(path), signature, root=repository_root(path.parent))
    except OSError as error:
        raise UsageError(f"{signature_path(path)} cannot be written: {error}") from error
    return trust


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path, SIGNERS_FILE_BYTES_MAX)
    except UnreadableError as error:
        raise UsageError(f"the signers file {path} cannot be read: {error}; see `cep docs approve`") from error


def _trust(path: Path, data: bytes, root_key: str) -> Trust:
    try:
        table: dict[str, Any] = parse_toml(data, SIGNERS_FILE_BYTES_MAX)
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; see `cep docs approve`") from error
    try:
        file = _File.model_validate(table)
    except ValidationError as error:
        problems = "; ".join(map(str, problems_of(error, tuple({*_File.model_fields, *_Signer.model_fields}))))
        raise UsageError(f"{path} is no signers file: {problems}; see `cep docs approve`") from error
    keys = [signer.key for signer in file.signer]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        # One key under two names would let one person be two.
        raise UsageError(f"{path} has the key {twice[0]} twice; each key belongs to one person")
    if root_key in keys:
        raise UsageError(f"{path} has the root key among the signers; it signs this file and nothing else")
    people = tuple((kind, getattr(file.people, kind)) for kind in PEOPLE)
    return Trust(file.rule_set, file.version, root_key, people, tuple(map(_signer, file.signer)))


def _signer(signer: _Signer) -> Signer:
    until = None if signer.until is None else tuple(sorted(signer.until.items()))
    groups, produces = (None if names is None else tuple(names) for names in (signer.groups, signer.produces))
    scope = Scope(groups, produces, tuple(signer.events), signer.priority_min)
    return Signer(_one_spelling(signer.name), signer.key, tuple(signer.may), tuple(signer.rules), until, scope)


def _one_spelling(name: str) -> str:
    """Return a person's name so that two spellings of it are equal."""
    return " ".join(unicodedata.normalize("NFKC", name).split())

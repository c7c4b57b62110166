"""Keys to erase → a rulebook that does not name them; and the file in which two people ask for the erasure.

    {"rule_set": "payments", "nonce": HEX, "digests": [HMAC, …], "author": {"key": …, "signature": …}, "approver": {…}}

The version of a snooze stays, under the hash of its key, so that an old record of it is refused. Texts of rules and
entries of lists must be changed by people: `cep job erase` reports them.

A job that takes signed changes erases only keys that two people have signed. A digest is keyed by the random `nonce`,
so the audit can keep it: the holder of the file can show which key it is, and other people cannot guess the key.
Tested by: tests/rulebook/test_suppression.py, tests/cli/test_erase.py
"""

import hmac
import json
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file, write_file
from cep.base.limits import CONTROL_RECORD_BYTES_MAX, RULE_TEXT_CHARS_MAX
from cep.base.signing import SigningKey, is_signed
from cep.model.rule import Nonce, Sha256, Signature
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.trust import Trust


def forget_keys(book: Rulebook, keys: Collection[str]) -> int:
    """Take keys out of a rulebook and, as whole words, out of its texts, in place. Return how many snoozes went."""
    before = len(book.snoozes.names())
    book.snoozes = book.snoozes.without(keys)
    book.ledger = book.ledger.without(keys)
    return before - len(book.snoozes.names())


_FORMAT = "cep erasure 1"
_NONE = "0" * 128
_NONCE_BYTES = 16
Role = Literal["author", "approver"]


class ErasureRequest(BaseModel):
    """The digests of keys to erase, and the people who ask for it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    rule_set: Annotated[str, Field(min_length=1, max_length=RULE_TEXT_CHARS_MAX)]
    nonce: Nonce
    digests: list[Sha256]
    author: Signature
    approver: Signature | None = None


def write_request(path: Path, keys: Iterable[str], trust: Trust, key: SigningKey) -> bool:
    """Sign an erasure as author of a new file, or as approver of its file: then return True. Raises: UsageError."""
    if path.exists():
        request = read_request(path)
        approver = Signature(key=key.public, signature=key.sign(_statement(request, "approver")))
        request = request.model_copy(update={"approver": approver})
        check_request(request, keys, trust)
    else:
        nonce = secrets.token_hex(_NONCE_BYTES)
        author = Signature(key=key.public, signature=_NONE)  # the key is part of the statement that is signed below
        request = ErasureRequest(rule_set=trust.rule_set, nonce=nonce, digests=digests_of(keys, nonce), author=author)
        author = Signature(key=key.public, signature=key.sign(_statement(request, "author")))
        request = request.model_copy(update={"author": author})
        _check_person(request, "author", trust)
    write_file(path, request.model_dump_json(exclude_none=True).encode() + b"\n", path.parent)
    return request.approver is not None


def read_request(path: Path) -> ErasureRequest:
    """Read a request. Raises: UsageError."""
    try:
        return ErasureRequest.model_validate_json(read_file(path, CONTROL_RECORD_BYTES_MAX))
    except (UnreadableError, ValidationError) as error:
        reason = str(error) if isinstance(error, UnreadableError) else "it has other fields or values"
        raise UsageError(
            f"{path} is no request to erase keys: {reason}; make one with --request and --sign-with"
        ) from None


def check_request(request: ErasureRequest, keys: Iterable[str], trust: Trust) -> None:
    """Check that two people have signed the erasure of exactly these keys. Raises: UsageError without a key."""
    if request.rule_set != trust.rule_set:
        raise UsageError(f"the request is for the rules `{request.rule_set}`, not `{trust.rule_set}`")
    if sorted(request.digests) != digests_of(keys, request.nonce):
        raise UsageError("the request was signed for other keys; give the same keys, or sign a new request")
    author = _check_person(request, "author", trust)
    if request.approver is None:
        raise UsageError("nobody has approved the request; another person runs the same command with --sign-with")
    approver = _check_person(request, "approver", trust)
    if request.author.key == request.approver.key or author.casefold() == approver.casefold():
        raise UsageError("its author has approved the request; another person must sign it")


def digests_of(keys: Iterable[str], nonce: str) -> list[str]:
    """Return the digest of each key, in order."""
    return sorted(hmac.digest(bytes.fromhex(nonce), key.encode(), "sha256").hex() for key in keys)


def _check_person(request: ErasureRequest, role: Role, trust: Trust) -> str:
    """Check the signature of the author or the approver of a request. Return the person's name. Raises: UsageError."""
    signature = request.author if role == "author" else request.approver
    assert signature is not None, "the caller has looked"
    signer = trust.signer(signature.key)
    if signer is None:
        raise UsageError(f"the key {signature.key} of its {role} is none of the signers file")
    right = "author" if role == "author" else "approve"
    if right not in signer.may or signer.only is not None:  # only: the key is withdrawn or has expired
        raise UsageError(f"{signer.name} may not sign a request as its {role}")
    if not is_signed(_statement(request, role), signature.signature, signature.key):
        raise UsageError(f"the request is not what {signer.name} has signed as its {role}; sign a new one")
    return signer.name


def _statement(request: ErasureRequest, role: Role) -> bytes:
    values = {
        "what": _FORMAT,
        "role": role,
        "author": request.author.key,
        "rule_set": request.rule_set,
        "nonce": request.nonce,
        "digests": sorted(request.digests),
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

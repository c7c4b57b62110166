"""People who sign in tests, each with a key that is the same in every run."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cep.base.exits import Exit
from cep.base.signing import SigningKey
from cep.cli.main import main
from cep.model.rule import UpsertRecord
from cep.rulebook.signers import sign_signers
from cep.rulebook.trust import PEOPLE, Signable, Signer, Trust, approve, digest_of, sign

# People who sign in tests, each with a key that is the same in every run.

RULE_SET = "payments"
BOTH = ("author", "approve")


def key_of(number: int) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


ROOT, ADA, BOB, EVE, ADA_AGAIN = (key_of(number) for number in range(1, 6))
SIGNERS = (
    Signer("Ada", ADA.public, BOTH, ("*",)),
    Signer("Bob", BOB.public, BOTH, ("*",)),
    Signer("ada", ADA_AGAIN.public, BOTH, ("*",)),  # her second key
)
TRUST = Trust(RULE_SET, 1, ROOT.public, tuple((kind, 1 if kind == "resume" else 2) for kind in PEOPLE), SIGNERS)


def by_two(record: Signable, after: Signable | None = None) -> Signable:
    """Return the record as Ada signs and Bob approves it, as a change of `after`."""
    past = (0, "") if after is None else (after.version, digest_of(after))
    return approve(sign(record, ADA, RULE_SET, past), BOB)


def upsert_by_two(record: UpsertRecord, after: Signable | None = None) -> UpsertRecord:
    signed = by_two(record, after)
    assert isinstance(signed, UpsertRecord)
    return signed


def write_key(path: Path, key: SigningKey) -> Path:
    """Write a private key as `cep keys new` does."""
    path.write_bytes(key._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


def write_signers(path: Path, text: str = "", version: int = 1) -> Path:
    """Write a signers file with Ada and Bob, followed by `text`, signed by the root key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'rule_set = "{RULE_SET}"\nversion = {version}\n{text}\n'
        + "".join(
            f'[[signer]]\nname = "{name}"\nkey = "{key.public}"\nmay = ["author", "approve"]\n'
            for name, key in (("Ada", ADA), ("Bob", BOB))
        )
    )
    sign_signers(path, ROOT)
    return path


# Erasures that two people have signed.


def signed_request(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Let two people sign the erasure, once for the job and its savepoint. Return the arguments that name the file."""
    assert main(words) == Exit.USAGE
    assert "two people must sign the erasure" in capsys.readouterr().err
    file = tmp_path / "request.json"
    is_new = not file.exists()
    for name, key in (("ada", ADA), ("bob", BOB)) if is_new else ():
        assert main([*words, "--request", str(file), "--sign-with", str(write_key(tmp_path / name, key))]) == 0
    capsys.readouterr()
    return ["--request", str(file)]

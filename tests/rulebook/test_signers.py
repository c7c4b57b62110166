"""The signers file: read with its signature, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from cep.base.errors import UsageError
from cep.rulebook.signers import given_trust, read_trust, sign_signers, signature_path
from cep.rulebook.statement import Signable
from cep.rulebook.trust import PEOPLE, Trust
from tests.rulebook.people import ADA, BOB, ROOT, write_signers
from tests.tidy.source import ROOT as SOURCE


def test_it_says_who_may_sign_what(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "signers.toml", "[people]\npause = 1")
    trust = read_trust(path, ROOT.public)
    assert [signer.name for signer in trust.signers] == ["Ada", "Bob"]
    assert dict(trust.people) == {
        "upsert": 2, "rollback": 2, "retire": 2, "pause": 1, "resume": 1, "snooze": 2, "list": 2,
    }  # fmt: skip
    assert Trust.from_json(trust.to_json()) == trust
    assert given_trust(None, None) is None
    for half in ((path, None), (None, ROOT.public)):
        with pytest.raises(UsageError, match="both --signers and --root-key"):
            given_trust(*half)


def test_every_record_of_a_version_says_how_many_people_it_needs(tmp_path: Path) -> None:
    kinds = {record.model_fields["kind"].default for record in get_args(Signable)}
    assert kinds == set(PEOPLE)
    trust = read_trust(write_signers(tmp_path / "signers.toml", "[people]\npause = 1"), ROOT.public)
    assert dict(trust.people).keys() == kinds


@pytest.mark.parametrize("kind", PEOPLE)
def test_a_job_of_an_earlier_build_asks_two_people_for_a_kind_of_a_later_one(kind: str, tmp_path: Path) -> None:
    trust = read_trust(write_signers(tmp_path / "signers.toml", "[people]\npause = 1"), ROOT.public)
    saved = trust.to_json()
    del saved["people"][kind]
    assert Trust.from_json(saved).people == tuple((k, 2 if k == kind else n) for k, n in trust.people)


def test_a_changed_file_or_another_key_is_refused(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "signers.toml")
    with pytest.raises(UsageError, match="not what the root key has signed"):
        read_trust(path, BOB.public)
    with pytest.raises(UsageError, match="no public key"):
        read_trust(path, "nothing")
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="not what the root key has signed"):
        read_trust(path, ROOT.public)
    signature_path(path).unlink()
    with pytest.raises(UsageError, match="is not signed"):
        read_trust(path, ROOT.public)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (BOB.public, ADA.public, "twice"),
        (BOB.public, ROOT.public, "the root key among the signers"),
        ("version = 1", "version = 0", "version"),
        ('may = ["author", "approve"]', 'may = ["all"]', "may"),
        ("rule_set", "rules_set", "rule_set"),
        ("[[signer]]", "[[signer", "not TOML"),
        (ADA.public, "ed25519:00", "key"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = write_signers(tmp_path / "signers.toml")
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UsageError, match=reason):
        sign_signers(path, ROOT)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ("\n" + ".".join("a" * 9_000) + " = 1\n", "a name has more than"),
        ("\nx = " + "[" * 9_000 + "\n", "nested more than"),
        ("\nx = " + "9" * 5_000 + "\n", "too many digits"),
    ],
)
def test_a_file_that_would_cost_the_parser_much_is_refused_unparsed(tmp_path: Path, added: str, reason: str) -> None:
    path = write_signers(tmp_path / "signers.toml")
    path.write_text(path.read_text() + added)
    with pytest.raises(UsageError, match=reason):
        sign_signers(path, ROOT)


def test_only_one_module_has_the_unbounded_parser() -> None:
    """Python's own parser of TOML takes quadratic time for some files."""
    users = [path for path in sorted((SOURCE / "cep").rglob("*.py")) if "tomllib.load" in path.read_text()]
    assert [str(path.relative_to(SOURCE)) for path in users] == ["cep/base/toml.py"]


def test_the_next_step_names_a_flag_that_is_there(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "signers.toml")
    signature_path(path).unlink()
    with pytest.raises(UsageError, match=r"cep keys trust .* --sign-with ROOT`"):
        read_trust(path, ROOT.public)

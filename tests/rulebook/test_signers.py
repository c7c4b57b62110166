"""The signers file: read with its signature, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from cep.base.errors import UsageError
from cep.model.rule import RollbackRecord, UpsertRecord
from cep.rulebook.signers import given_trust, read_trust, sign_signers, signature_path
from cep.rulebook.statement import Signable
from cep.rulebook.trust import PEOPLE, Trust, reason_against
from tests.rulebook.people import ADA, BOB, ROOT, by_two, write_signers
from tests.rulebook.records import upsert
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


# -------------------------------------------------------------------------------------------------------------- scopes

SCOPED = """
event payment { tx_id id  event_time time  card string }
event card_flag { flag_id id  event_time time  card string }
event login { login_id id  event_time time  card string }
pattern reads by card { seq a where a: payment }
pattern looks by card { seq a where a: payment count(login over 1 h) > 2 }
pattern makes by card { seq a where a: payment emit card = a.card produce card_flag }
"""


@pytest.mark.parametrize(
    ("scope", "changes", "reason"),
    [
        ("", {}, None),
        ("", {"exclusive": "card_group"}, None),
        ("", {"exclusive": "logins"}, "exclusive groups card_*, not logins"),
        ('groups = ["logins"]', {"exclusive": "logins"}, None),
        ("groups = []", {"exclusive": "card_group"}, "exclusive groups"),
        ("", {"pattern": "makes"}, None),
        ('produces = ["other"]', {"pattern": "makes"}, "produce other, not card_flag"),
        ("", {"pattern": "looks"}, None),
        ('events = ["payment"]', {}, None),
        ('events = ["payment"]', {"pattern": "looks"}, "read payment, not login"),
        ('events = ["card_*"]', {}, "read card_*, not payment"),
        ("priority_min = 50", {"priority": 50}, None),
        ("priority_min = 50", {"priority": 49}, "`priority` from 50 on, not 49"),
    ],
)
@pytest.mark.parametrize("is_rollback", [False, True])
def test_a_scope_covers_what_other_rules_feel(
    tmp_path: Path, scope: str, changes: dict[str, Any], reason: str | None, is_rollback: bool
) -> None:
    """The scope holds for each of the two people, so the scope of one person is enough to refuse a change."""
    path = write_signers(tmp_path / "signers.toml")
    scoped = f'rules = ["card_*"]\n{scope}\n'
    for key in (ADA, BOB):
        other = path.read_text()
        path.write_text(other.replace(f'key = "{key.public}"', f'key = "{key.public}"\n{scoped}'))
        sign_signers(path, ROOT)
        trust = read_trust(path, ROOT.public)
        assert Trust.from_json(orjson.loads(orjson.dumps(trust.to_json()))) == trust
        record: Signable = upsert(1, "card_r", source=SCOPED, **{"pattern": "reads", "message": "m", **changes})
        if is_rollback:
            assert isinstance(record, UpsertRecord)
            record = RollbackRecord(id="card_r", version=2, to_version=1, rule=record)
        refusal = reason_against(by_two(record), trust)
        assert (refusal is None) == (reason is None)
        if refusal is not None:
            assert refusal.cause == "not_allowed"
            assert reason is not None
            assert reason in refusal.reason
        path.write_text(other)


def test_trust_that_an_earlier_build_has_saved_has_no_scopes(tmp_path: Path) -> None:
    trust = read_trust(write_signers(tmp_path / "signers.toml"), ROOT.public)
    saved = trust.to_json()
    saved["signers"] = [signer[:5] for signer in saved["signers"]]
    assert Trust.from_json(saved) == trust

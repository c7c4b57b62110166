"""Signers: their file, their keys, withdrawn keys, and the lists that they sign."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from cep.api.replay import GivenRules
from cep.base.audit import Line, verify
from cep.base.errors import UsageError
from cep.base.exits import Exit
from cep.base.text import utc_ms
from cep.cli.main import main
from cep.model.rule import HeartbeatRecord, ListRecord, PauseRecord, RollbackRecord, UpsertRecord
from cep.rulebook import signers
from cep.rulebook.audit import has_new_signers, note_signers
from cep.rulebook.files import change_path, read_change, write_change
from cep.rulebook.trust import PEOPLE, Signable, Trust, digest_of, reason_against, sign, sign_heartbeat
from cep.runners.live_checkpoint import open_checkpoint
from cep.step.job import Job
from cep.step.rules import apply_records
from tests.output_of import OutputOf
from tests.rule_files import rule_text
from tests.rulebook.people import ADA, BOB, EVE, ROOT, RULE_SET, TRUST, by_two, key_of, write_key, write_signers
from tests.rulebook.records import SCHEMA, new_book, restarted, upsert
from tests.tidy.source import ROOT as SOURCE

# The signers file: read with its signature, or not at all.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_signers(tmp_path / "signers.toml")


def test_it_says_who_may_sign_what(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "signers.toml", "[people]\npause = 1")
    trust = signers.read_trust(path, ROOT.public)
    assert [signer.name for signer in trust.signers] == ["Ada", "Bob"]
    assert dict(trust.people) == {
        "upsert": 2, "rollback": 2, "retire": 2, "pause": 1, "resume": 1, "snooze": 2, "list": 2,
    }  # fmt: skip
    assert Trust.from_json(trust.to_json()) == trust
    assert signers.given_trust(None, None) is None
    for half in ((path, None), (None, ROOT.public)):
        with pytest.raises(UsageError, match="both --signers and --root-key"):
            signers.given_trust(*half)


def test_every_record_of_a_version_says_how_many_people_it_needs(tmp_path: Path) -> None:
    kinds = {record.model_fields["kind"].default for record in get_args(Signable)}
    assert kinds == set(PEOPLE)
    trust = signers.read_trust(write_signers(tmp_path / "signers.toml", "[people]\npause = 1"), ROOT.public)
    assert dict(trust.people).keys() == kinds


@pytest.mark.parametrize("kind", PEOPLE)
def test_a_job_of_an_earlier_build_asks_two_people_for_a_kind_of_a_later_one(kind: str, tmp_path: Path) -> None:
    trust = signers.read_trust(write_signers(tmp_path / "signers.toml", "[people]\npause = 1"), ROOT.public)
    saved = trust.to_json()
    del saved["people"][kind]
    assert Trust.from_json(saved).people == tuple((k, 2 if k == kind else n) for k, n in trust.people)


def test_a_changed_file_or_another_key_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="not what the root key has signed"):
        signers.read_trust(path, BOB.public)
    with pytest.raises(UsageError, match="no public key"):
        signers.read_trust(path, "nothing")
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="not what the root key has signed"):
        signers.read_trust(path, ROOT.public)
    signers.signature_path(path).unlink()
    with pytest.raises(UsageError, match="is not signed"):
        signers.read_trust(path, ROOT.public)


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
        ('may = ["author", "approve"]', 'may = ["author"]\nuntil = { r = 1 }', r"write `only = \[\]` in its place"),
        # What would cost the parser much is refused unparsed.
        ("version = 1", "version = 1\n" + ".".join("a" * 9_000) + " = 1", "a name has more than"),
        ("version = 1", "version = 1\nx = " + "[" * 9_000, "nested more than"),
        ("version = 1", "version = 1\nx = " + "9" * 5_000, "too many digits"),
    ],
)
def test_a_file_that_says_something_else_is_refused(path: Path, old: str, new: str, reason: str) -> None:
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UsageError, match=reason):
        signers.sign_signers(path, ROOT)


def test_only_one_module_has_the_unbounded_parser() -> None:
    """Python's own parser of TOML takes quadratic time for some files."""
    users = [path for path in sorted((SOURCE / "cep").rglob("*.py")) if "tomllib.load" in path.read_text()]
    assert [str(path.relative_to(SOURCE)) for path in users] == ["cep/base/toml.py"]


def test_the_next_step_names_a_flag_that_is_there(path: Path) -> None:
    signers.signature_path(path).unlink()
    with pytest.raises(UsageError, match=r"cep keys trust .* --sign-with ROOT`"):
        signers.read_trust(path, ROOT.public)


# -------------------------------------------------------------------------------------------------------------- scopes

SCOPED = """
event payment { tx_id id  event_time time  card string }
event card_flag { flag_id id  event_time time  card string }
event login { login_id id  event_time time  card string }
pattern reads by card { seq a where a: payment }
pattern looks by card { seq a where a: payment count(login over 1 h) > 2 }
pattern begins by card { seq a where a: payment first_seen(tx_id) < 1 h }
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
        ('events = ["payment"]', {"pattern": "begins"}, "read payment, not all event types, as `first_seen` does"),
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
        signers.sign_signers(path, ROOT)
        trust = signers.read_trust(path, ROOT.public)
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
    trust = signers.read_trust(write_signers(tmp_path / "signers.toml"), ROOT.public)
    saved = trust.to_json()
    saved["signers"] = [signer[:5] for signer in saved["signers"]]
    assert Trust.from_json(saved) == trust


# People and keys of a signers file: who counts as a second person, which keys count, and how they are exchanged.

NEW_ROOT = key_of(9)


def renamed(tmp_path: Path, *names: str) -> Path:
    """Write a signers file with these people."""
    path = write_signers(tmp_path / "signers.toml")
    keys = (ADA, BOB, EVE)
    people = "".join(
        f'[[signer]]\nname = {orjson.dumps(name).decode()}\nkey = "{key.public}"\nmay = ["author"]\n'
        for name, key in zip(names, keys, strict=False)
    )
    path.write_text(f'rule_set = "payments"\nversion = 1\n{people}')
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("Ad\u0251", "\u1d00da", "Ada\u01c0", "Ad\uab30"),
        *("Ada" + hidden for hidden in "\u200b\u200d\u2060\ufeff\u00ad\u202e\u034f\u115f\u3164\ufe0f\U000e0041"),
        "\u0410da", "Ad\u0430", "\u0391da", "Ada\u0323\u0330", "\u0410\u0434\u0430", "\U0001d400da \u0430", "12", " ",
    ],
)  # fmt: skip
def test_a_name_that_looks_like_another_is_no_second_person(tmp_path: Path, name: str) -> None:
    path = renamed(tmp_path, "Ada", name)
    with pytest.raises(UsageError, match=r"scripts|has a name with"):
        signers.sign_signers(path, ROOT)


@pytest.mark.parametrize(
    ("names", "are_one"),
    [
        (["Ada", " ADA "], True),
        (["Ada", "\uff21da"], True),
        (["Jos\u00e9", "Jose\u0301"], True),
        (["Ada", "Bob"], False),
        (["\u0410\u0434\u0430", "\u0411\u043e\u0431"], False),
        (["\u5c71\u7530 \u592a\u90ce", "\u3084\u307e\u3060"], False),
        (["Ada O'Neill-Smith", "J. R."], False),
        (["ILKA", "Ilka"], True),
        (["Ali", "All"], False),
    ],
)
def test_names_of_one_script_are_compared_in_one_spelling(tmp_path: Path, names: list[str], are_one: bool) -> None:
    one, other = signers.sign_signers(renamed(tmp_path, *names), ROOT).signers
    assert (one.name.casefold() == other.name.casefold()) == are_one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Al", "AI"), ("Al", "A1"), ("Bob", "B0b"), ("Bern", "Bem"), ("Ewa", "Evva"), ("ILSE", "lLse"),
        ("Ali", "Al\u0131"), ("Jan", "\u0237an"), ("Kim", "\u0138im"), ("Pia", "\u01bfia"), ("Eva", "E\u01b2a"),
        ("Bo", "8o"), ("Sam", "5am"), ("Zed", "2ed"), ("Claus", "daus"), ("Anne-Li", "Anne\u2010Li"),
        ("J O'Neill", "J O\u2019Neill"), ("Ada", "Ada."), ("\u0406\u0432\u0430\u043d", "\u04c0\u0432\u0430\u043d"),
    ],
)  # fmt: skip
def test_letters_that_look_alike_make_no_second_person(tmp_path: Path, one: str, other: str) -> None:
    with pytest.raises(UsageError, match=f"look alike: {one} and {other}"):
        signers.sign_signers(renamed(tmp_path, one, other), ROOT)


def test_a_key_of_small_order_is_no_signer(path: Path) -> None:
    small = "ed25519:01" + "0" * 62
    path.write_text(path.read_text().replace(BOB.public, small))
    with pytest.raises(UsageError, match="anybody can sign for"):
        signers.sign_signers(path, ROOT)
    with pytest.raises(UsageError, match="no public key"):
        signers.read_trust(path, small)


@pytest.mark.parametrize(("today", "counts"), [("2027-01-31", True), ("2027-02-01", False), ("2030-01-01", False)])
def test_a_key_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, today: str, counts: bool) -> None:
    monkeypatch.setattr(signers, "_today", lambda: today)
    path = write_signers(tmp_path / "signers.toml")
    path.write_text(path.read_text().replace(f'"{ADA.public}"', f'"{ADA.public}"\nexpires = 2027-01-31'))
    trust = signers.sign_signers(path, ROOT)
    refusal = reason_against(by_two(upsert(1)), trust)
    assert (refusal is None) == counts
    if refusal is not None:
        assert "withdrawn or has expired" in refusal.reason


@pytest.mark.parametrize(
    ("last_event", "kind"),
    [(None, "applied"), ("2027-01-31T23:59:59.999Z", "applied"), ("2027-02-01T00:00:00Z", "refused")],
)
def test_a_key_expires_in_a_job_that_runs(last_event: str | None, kind: str) -> None:
    book = new_book(trust=replace(TRUST, signers=tuple(replace(who, expires="2027-01-31") for who in TRUST.signers)))
    seen_ms = None if last_event is None else utc_ms(last_event)
    lines, counters, _ = apply_records(book, (by_two(upsert(1)).to_json(),), seen_ms)
    assert counters[f"control_{kind}"] == 1
    assert orjson.loads(lines[0])["outcome"] == kind
    heartbeat = sign_heartbeat(HeartbeatRecord(event_time="2027-01-01T00:00:00Z"), ADA, RULE_SET).to_json()
    _, counters, _ = apply_records(book, (heartbeat,), seen_ms)
    assert counters["control_heartbeat"] == (kind == "applied")
    pinned = replace(TRUST.signers[0], expires="2027-01-31", only=("a" * 64,))
    trust = replace(TRUST, signers=(pinned, *TRUST.signers[1:]))
    assert trust.after(2**41) is trust, "a key that was withdrawn before counts for what it names"


# ------------------------------------------------------------------------------------------------ exchanges of keys


def opened(folder: Path, path: Path, root: str) -> None:
    open_checkpoint(folder, Job(SCHEMA, (("card_id",),), trust=signers.read_trust(path, root)), ())


def raised(path: Path, version: int) -> None:
    path.write_text(path.read_text().replace(f"version = {version - 1}", f"version = {version}"))


def test_the_old_root_key_signs_a_rotation(path: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    opened(job, path, ROOT.public)
    opened(job, path, ROOT.public)
    before = path.read_bytes()
    raised(path, 2)
    signers.sign_signers(path, NEW_ROOT)
    with pytest.raises(UsageError, match="the old root key must sign the change"):
        opened(job, path, NEW_ROOT.public)
    signers.roots_path(path).write_text(f"{ROOT.public} {NEW_ROOT.public} {NEW_ROOT.sign(b'x')}\n")
    with pytest.raises(UsageError, match="the old root key must sign the change"):
        opened(job, path, NEW_ROOT.public)
    signers.roots_path(path).unlink()
    path.write_bytes(before)
    signers.sign_signers(path, ROOT)
    words = ["keys", "rotate", str(path), "--key"]
    key = str(write_key(tmp_path / "root.pem", ROOT))
    assert main([*words, NEW_ROOT.public, "--sign-with", key]) == 0
    assert main([*words, ROOT.public, "--sign-with", key]) == Exit.USAGE
    raised(path, 2)
    signers.sign_signers(path, NEW_ROOT)
    opened(job, path, NEW_ROOT.public)
    # A second rotation: a job that has missed the one between also goes on.
    last = key_of(11)
    signers.rotate_root(path, last.public, NEW_ROOT)
    raised(path, 3)
    signers.sign_signers(path, last)
    assert signers.read_trust(path, last.public).earlier_roots == (NEW_ROOT.public, ROOT.public)
    opened(job, path, last.public)
    with pytest.raises(UsageError, match="not what the root key has signed"):
        opened(job, path, ROOT.public)


def test_signers_are_not_exchanged_under_one_version(path: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    opened(job, path, ROOT.public)
    path.write_text(path.read_text().replace(BOB.public, EVE.public))
    signers.sign_signers(path, ROOT)
    with pytest.raises(UsageError, match="another signers file of version 1; raise `version`"):
        opened(job, path, ROOT.public)
    raised(path, 2)
    signers.sign_signers(path, ROOT)
    opened(job, path, ROOT.public)


def test_another_signers_file_is_a_line_of_the_audit() -> None:
    book = new_book(trust=replace(TRUST, file_digest="a" * 64))
    first = by_two(upsert(1))
    lines, _, _ = apply_records(book, (first.to_json(),), 1_000)
    assert [orjson.loads(line)["what"] for line in lines] == ["change"]
    again = restarted(book)
    again.trust = replace(TRUST, version=2, root_key=NEW_ROOT.public, file_digest="b" * 64)
    assert has_new_signers(again)
    lines += note_signers(again)
    assert not has_new_signers(again)
    assert note_signers(again) == []
    entry = orjson.loads(lines[-1])
    assert (entry["what"], entry["version"], entry["root_key"]) == ("signers", 2, NEW_ROOT.public)
    assert [who for who, _, _ in entry["people"]] == ["Ada", "Bob", "ada"]
    # A key expires although the file stays the same.
    ended = tuple(replace(who, expires="2027-01-31", only=() if who.name == "Bob" else None) for who in TRUST.signers)
    before, again.trust = again.trust, replace(again.trust, signers=ended)
    assert has_new_signers(again)
    lines += note_signers(again)
    assert note_signers(again) == []
    people = orjson.loads(lines[-1])["people"]
    assert [(name, state) for name, _, state in people if state != "counts"] == [("Bob", "counts for 0 records")]
    again.trust = before
    lines += note_signers(again)
    more, _, _ = apply_records(again, (by_two(upsert(2, params={"large": 7}), first).to_json(),), 1_000)
    assert verify([Line("", line) for line in [*lines, *more]], again.trail.head).problems == ()
    assert not has_new_signers(restarted(again))


# A withdrawn key counts only for records that it has already signed; the rest of the file stays as people wrote it.

PAUSE = PauseRecord(id="r1", version=3)


def signed_folder(tmp_path: Path) -> Path:
    """Return the signers of a folder in which Ada and Bob have signed a pause, and Bob alone the next one."""
    path = write_signers(tmp_path / "signed" / "signers.toml", "# who may\n[people]\npause = 1")
    both = by_two(PAUSE)
    alone = sign(PAUSE.model_copy(update={"version": 4}), BOB, RULE_SET, (3, digest_of(both)))
    for record in (both, alone):
        write_change(change_path(tmp_path, record), [record])
    return path


@pytest.mark.parametrize(("key", "last"), [(ADA, 3), (BOB, 4)])
def test_what_it_has_signed_counts_and_nothing_else(key: object, last: int, tmp_path: Path) -> None:
    signer = ADA if key is ADA else BOB
    path = signed_folder(tmp_path)
    trust, only = signers.withdraw(path, signer.public, ROOT)
    assert len(only) == last - 2
    assert (trust, trust.version) == (signers.read_trust(path, ROOT.public), 2)
    for version in (3, 4, 5):
        record = PAUSE.model_copy(update={"version": version})
        refusal = reason_against(sign(record, signer, RULE_SET), trust)
        assert (refusal is None) == (version <= last)
        other = record.model_copy(update={"reason": "another record of the version"})
        assert reason_against(sign(other, signer, RULE_SET), trust) is not None
    assert "# who may" in path.read_text()
    assert signers.withdraw(path, signer.public, ROOT)[0].signers == trust.signers, "again changes the version alone"
    assert signers.read_trust(path, ROOT.public).version == 3


def test_what_is_not_signed_is_not_signed_on_the_way(tmp_path: Path) -> None:
    path = signed_folder(tmp_path)
    with pytest.raises(UsageError, match="no signer with the key"):
        signers.withdraw(path, EVE.public, ROOT)
    with pytest.raises(UsageError, match="not what the root key has signed"):
        signers.withdraw(path, ADA.public, EVE)
    path.write_text(path.read_text().replace("pause = 1", "pause = 2"))
    with pytest.raises(UsageError, match="not what the root key has signed"):
        signers.withdraw(path, ADA.public, ROOT)


@pytest.mark.parametrize("line", ["  version = 1", '"version" = 1'])
def test_a_key_is_not_withdrawn_without_the_next_version(line: str, tmp_path: Path) -> None:
    """A job accepts no other file of the same version."""
    path = signed_folder(tmp_path)
    text = path.read_text().replace("version = 1", line)
    path.write_text(text)
    signers.sign_signers(path, ROOT)
    with pytest.raises(UsageError, match="this verb cannot change"):
        signers.withdraw(path, ADA.public, ROOT)
    assert path.read_text() == text


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = signed_folder(tmp_path)
    root = write_key(tmp_path / "root.pem", ROOT)
    assert main(["keys", "withdraw", str(path), "--key", ADA.public, "--sign-with", str(root)]) == 0
    assert "counts for 1 record(s)" in capsys.readouterr().out


# The entries of declared lists are signed with the rules that read them, wherever a pattern declares them.

PATTERNS = """
event payment {{ tx_id id  event_time time  card string }}
list spared: string {entries}
list unread: string = ["x"]
pattern p by card {{ seq a where a: payment card not in spared }}
"""
WAYS = ["in place", "in a file", "in an imported file", "in a file behind comments"]


def write_list(folder: Path, way: str, *entries: str) -> None:
    text = "= [" + ", ".join(f'"{entry}"' for entry in entries) + "]"
    (folder / "spared.txt").write_text("\n".join(entries))
    (folder / "p.cep").write_text(PATTERNS.format(entries=text if way == "in place" else 'from "spared.txt"'))
    if way == "in an imported file":
        (folder / "p.cep").rename(folder / "lists.cep")
        (folder / "p.cep").write_text('import "lists.cep"')
    if way == "in a file behind comments":
        text = (folder / "p.cep").read_text().replace("list ", "list # of cards\n ")
        (folder / "lists.cep").write_text(text)
        (folder / "p.cep").write_text('import # all lists\n "lists.cep"')


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, way: str) -> Path:
    """Return a folder with a rule that two people have signed."""
    rules = tmp_path / "rules"
    rules.mkdir()
    write_list(rules, way, "c9")
    (rules / "r.toml").write_text(rule_text("r", pattern="p"))
    for name, key in (("ada", ADA), ("bob", BOB)):
        write_key(tmp_path / f"{name}.pem", key)
    write_signers(rules / "signed" / "signers.toml")
    assert main(["rules", "lock", "--rules", str(rules)]) == 0
    assert main(["rules", "sign", "r", "--rules", str(rules), *by(rules, "ada")]) == 0
    assert main(["rules", "approve", str(rules / "signed" / "r.1.json"), *by(rules, "bob")]) == 0
    return rules


def by(rules: Path, name: str | None = None) -> list[str]:
    words = ["--signers", str(rules / "signed" / "signers.toml"), "--root-key", ROOT.public]
    return words if name is None else [*words, "--sign-with", str(rules.parent / f"{name}.pem")]


def given(rules: Path) -> GivenRules:
    return GivenRules.read(rules, None, trust=signers.read_trust(rules / "signed" / "signers.toml", ROOT.public))


def started(rules: Path) -> int:
    (rules.parent / "events.jsonl").write_text("")
    return main(
        ["run", "--rules", str(rules), "--events", str(rules.parent / "events.jsonl"), "--available-now", *by(rules)]
    )


def test_signed_entries_are_taken_and_others_refused(
    folder: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert given(folder).deployment.set_aside == ()
    assert started(folder) == 0
    for entries in (["c9", "c1"], ["c1"]):
        write_list(folder, way, *entries)
        (aside,) = given(folder).deployment.set_aside
        assert aside.rule_id == "list spared"
        assert "its entries are not the entries that the signed rules name" in aside.reason
        assert started(folder) == Exit.USAGE
        capsys.readouterr()
        assert main(["rules", "list", "--rules", str(folder)]) == 1
        assert "list spared/string: its entries have changed" in capsys.readouterr().out
    write_list(folder, way, "c9")
    assert started(folder) == 0
    assert main(["rules", "list", "--rules", str(folder)]) == 0


def test_the_lock_reports_changed_entries_once(folder: Path, way: str, output_of: OutputOf) -> None:
    write_list(folder, way, "c9", "c1")
    output_of.read()
    lock = ["rules", "lock", "--rules", str(folder)]
    output = output_of(main(lock)).out
    assert "list spared/string: its entries have changed since they were locked" in output
    assert "locked: list:spared/string 2" in output
    assert "nothing new to lock" in output_of(main(lock)).out


def test_an_approver_has_the_list_that_was_signed(folder: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_list(folder, way, "c9", "c1")
    assert main(["rules", "approve", str(folder / "signed" / "r.1.json"), *by(folder, "bob")]) == Exit.USAGE
    assert "the entries of spared/string are not the entries that its author has signed" in capsys.readouterr().err


def test_a_signed_change_of_the_list_stands_for_its_new_entries(folder: Path, way: str) -> None:
    write_list(folder, way, "c9", "c1")
    for entries, count in ((["c9"], 1), (["c1", "c9"], 0)):
        change = ListRecord(id="spared", of="string", version=2, change="replace", entries=[*entries])
        write_change(change_path(folder, change), [by_two(change)])
        assert len(given(folder).deployment.set_aside) == count
    write_change(change_path(folder, change), [change])
    assert len(given(folder).deployment.set_aside) == 1, "nobody has signed it"


def test_rules_that_disagree_vouch_for_no_list(folder: Path, way: str) -> None:
    (record,) = read_change(folder / "signed" / "r.1.json")
    assert isinstance(record, UpsertRecord)
    assert record.lists is not None
    assert list(record.lists) == ["spared/string"], "the unread list is no part of it"
    without: list[Signable] = [by_two(record.model_copy(update={"lists": None, "signed": None}))]
    write_change(folder / "signed" / "r.1.json", without)
    assert [aside.rule_id for aside in given(folder).deployment.set_aside] == ["list spared"]
    other = record.model_copy(update={"id": "s", "lists": {"spared/string": "0" * 64}, "signed": None})
    (folder / "s.toml").write_text(rule_text("s", pattern="p"))
    write_change(folder / "signed" / "r.1.json", [record])
    write_change(folder / "signed" / "s.1.json", [by_two(other)])
    assert [aside.rule_id for aside in given(folder).deployment.set_aside] == ["list spared"], way


def test_a_list_with_mistakes_is_not_signed(folder: Path, way: str) -> None:
    (folder / "spared.txt").unlink()
    if way != "in place":
        assert main(["rules", "sign", "r", "--rules", str(folder), *by(folder, "ada")]) == Exit.USAGE

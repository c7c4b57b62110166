"""People and keys of a signers file: who counts as a second person, which keys count, and how they are exchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from cep.base.audit import Line, verify
from cep.base.errors import UsageError
from cep.base.exits import Exit
from cep.base.utc import utc_ms
from cep.cli.main import main
from cep.model.rule import HeartbeatRecord
from cep.rulebook import signers
from cep.rulebook.audit import has_new_signers, note_signers
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.signers import read_trust, roots_path, rotate_root, sign_signers
from cep.rulebook.statement import sign_heartbeat
from cep.rulebook.trust import reason_against
from cep.runners.live_checkpoint import open_checkpoint
from cep.step.job import Job
from cep.step.rules import apply_records
from tests.rulebook.people import ADA, BOB, EVE, ROOT, RULE_SET, TRUST, by_two, key_of, write_key, write_signers
from tests.rulebook.records import SCHEMA, new_book, upsert

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
        sign_signers(path, ROOT)


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
    one, other = sign_signers(renamed(tmp_path, *names), ROOT).signers
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
        sign_signers(renamed(tmp_path, one, other), ROOT)


def test_a_key_of_small_order_is_no_signer(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "signers.toml")
    small = "ed25519:01" + "0" * 62
    path.write_text(path.read_text().replace(BOB.public, small))
    with pytest.raises(UsageError, match="anybody can sign for"):
        sign_signers(path, ROOT)
    with pytest.raises(UsageError, match="no public key"):
        read_trust(path, small)


@pytest.mark.parametrize(("today", "counts"), [("2027-01-31", True), ("2027-02-01", False), ("2030-01-01", False)])
def test_a_key_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, today: str, counts: bool) -> None:
    monkeypatch.setattr(signers, "_today", lambda: today)
    path = write_signers(tmp_path / "signers.toml")
    path.write_text(path.read_text().replace(f'"{ADA.public}"', f'"{ADA.public}"\nexpires = 2027-01-31'))
    trust = sign_signers(path, ROOT)
    refusal = reason_against(by_two(upsert(1)), trust)
    assert (refusal is None) == counts
    if refusal is not None:
        assert "withdrawn or has expired" in refusal.reason


@pytest.mark.parametrize(
    ("last_event", "kind"),
    [(None, "applied"), ("2027-01-31T23:59:59.999Z", "applied"), ("2027-02-01T00:00:00Z", "refused")],
)
def test_a_key_expires_in_a_job_that_runs(last_event: str | None, kind: str) -> None:
    book = new_book()
    book.trust = replace(TRUST, signers=tuple(replace(who, expires="2027-01-31") for who in TRUST.signers))
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


def test_a_withdrawal_by_numbers_is_refused_with_its_next_step(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "signers.toml")
    path.write_text(path.read_text() + "until = { r = 1 }\n")
    with pytest.raises(UsageError, match=r"write `only = \[\]` in its place"):
        sign_signers(path, ROOT)


# ------------------------------------------------------------------------------------------------ exchanges of keys


def opened(folder: Path, path: Path, root: str) -> None:
    open_checkpoint(folder, Job(SCHEMA, (("card_id",),), trust=read_trust(path, root)), ())


def raised(path: Path, version: int) -> None:
    path.write_text(path.read_text().replace(f"version = {version - 1}", f"version = {version}"))


def test_the_old_root_key_signs_a_rotation(tmp_path: Path) -> None:
    path, job = write_signers(tmp_path / "signers.toml"), tmp_path / "job"
    opened(job, path, ROOT.public)
    opened(job, path, ROOT.public)
    before = path.read_bytes()
    raised(path, 2)
    sign_signers(path, NEW_ROOT)
    with pytest.raises(UsageError, match="the old root key must sign the change"):
        opened(job, path, NEW_ROOT.public)
    roots_path(path).write_text(f"{ROOT.public} {NEW_ROOT.public} {NEW_ROOT.sign(b'x')}\n")
    with pytest.raises(UsageError, match="the old root key must sign the change"):
        opened(job, path, NEW_ROOT.public)
    roots_path(path).unlink()
    path.write_bytes(before)
    sign_signers(path, ROOT)
    words = ["keys", "rotate", str(path), "--key"]
    key = str(write_key(tmp_path / "root.pem", ROOT))
    assert main([*words, NEW_ROOT.public, "--sign-with", key]) == 0
    assert main([*words, ROOT.public, "--sign-with", key]) == Exit.USAGE
    raised(path, 2)
    sign_signers(path, NEW_ROOT)
    opened(job, path, NEW_ROOT.public)
    # A second rotation: a job that has missed the one between also goes on.
    last = key_of(11)
    rotate_root(path, last.public, NEW_ROOT)
    raised(path, 3)
    sign_signers(path, last)
    assert read_trust(path, last.public).earlier_roots == (NEW_ROOT.public, ROOT.public)
    opened(job, path, last.public)
    with pytest.raises(UsageError, match="not what the root key has signed"):
        opened(job, path, ROOT.public)


def test_signers_are_not_exchanged_under_one_version(tmp_path: Path) -> None:
    path, job = write_signers(tmp_path / "signers.toml"), tmp_path / "job"
    opened(job, path, ROOT.public)
    path.write_text(path.read_text().replace(BOB.public, EVE.public))
    sign_signers(path, ROOT)
    with pytest.raises(UsageError, match="another signers file of version 1; raise `version`"):
        opened(job, path, ROOT.public)
    raised(path, 2)
    sign_signers(path, ROOT)
    opened(job, path, ROOT.public)


def test_another_signers_file_is_a_line_of_the_audit() -> None:
    book = new_book()
    book.trust = replace(TRUST, file_digest="a" * 64)
    first = by_two(upsert(1))
    lines, _, _ = apply_records(book, (first.to_json(),), 1_000)
    assert [orjson.loads(line)["what"] for line in lines] == ["change"]
    again = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
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
    restored = rulebook_from_bytes(rulebook_bytes(again), SCHEMA, (("card_id",),))
    restored.trust = again.trust
    assert not has_new_signers(restored)

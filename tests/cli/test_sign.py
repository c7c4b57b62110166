"""Keys, signatures and approvals from the command line, up to a job that verifies them on a broker."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cep.base.visible import HIDDEN
from cep.cli.main import main
from cep.model.rule import UpsertRecord
from cep.rulebook.changes import read_change, write_change
from cep.rulebook.signers import read_trust
from cep.rulebook.statement import sign, unsigned
from tests.cli.test_publish import ROOT as CHECKOUT
from tests.cli.test_publish import Answering, changed
from tests.real_kafka import KafkaCluster
from tests.rulebook.people import ADA, BOB, EVE, ROOT, RULE_SET, write_key, write_signers

NUMBERS = itertools.count()
RULE = "card_testing"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rules", "patterns"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    for name, key in (("ada", ADA), ("bob", BOB), ("eve", EVE), ("root", ROOT)):
        write_key(tmp_path / f"{name}.pem", key)
    write_signers(tmp_path / "rules" / "signed" / "signers.toml")
    return tmp_path / "rules"


def trusting(folder: Path) -> list[str]:
    return ["--signers", str(folder / "signed" / "signers.toml"), "--root-key", ROOT.public]


def by(folder: Path, name: str) -> list[str]:
    return [*trusting(folder), "--sign-with", str(folder.parent / f"{name}.pem")]


@pytest.fixture
def job(kafka_broker: KafkaCluster, folder: Path) -> Iterator[Answering]:
    name = f"sign-{next(NUMBERS)}"
    for topic in (name, f"{name}-status"):
        kafka_broker.create(topic, 1)
    with Answering(kafka_broker.address, name) as answering:
        answering.book.trust = read_trust(folder / "signed" / "signers.toml", ROOT.public)
        yield answering


def test_keys_and_signers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", str(tmp_path / "ada.pem")]) == 0
    assert main(["keys", "new", str(tmp_path / "ada.pem")]) == 2
    capsys.readouterr()
    assert main(["keys", "show", str(tmp_path / "ada.pem")]) == 0
    assert capsys.readouterr().out == (tmp_path / "ada.pub").read_text()
    signers = write_signers(tmp_path / "signers.toml")
    root = write_key(tmp_path / "root.pem", ROOT)
    assert main(["keys", "trust", str(signers), "--sign-with", str(root)]) == 0
    assert main(["keys", "check", str(signers), "--root-key", ROOT.public]) == 0
    assert "two people for upsert, rollback, retire, pause, snooze, list" in capsys.readouterr().out
    assert main(["keys", "check", str(signers), "--root-key", ADA.public]) == 2


def test_a_rule_is_signed_and_approved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--rules", str(folder)]
    path = folder / "signed" / f"{RULE}.1.json"
    assert main(["rules", "sign", RULE, *rules]) == 2, "no signers are named"
    assert main(["rules", "sign", RULE, *rules, *trusting(folder)]) == 2, "nor a key"
    assert main(["rules", "sign", RULE, *rules, *by(folder, "eve")]) == 2, "she is no signer"
    assert not path.exists()
    assert main(["rules", "sign", RULE, *rules, *by(folder, "ada")]) == 0
    assert main(["rules", "approve", str(path), *by(folder, "ada")]) == 2
    assert "another person must run `cep rules approve`" in capsys.readouterr().err
    assert main(["rules", "approve", str(path), *trusting(folder)]) == 0
    shown = capsys.readouterr().out
    assert "signed by Ada" in shown
    assert "+pattern card_testing(" in shown
    assert main(["rules", "approve", str(path), *by(folder, "bob")]) == 0
    (record,) = read_change(path)
    assert record.signed is not None
    assert record.signed.approver is not None
    path.write_bytes(path.read_bytes().replace(b'"priority":10', b'"priority":11'))
    assert main(["rules", "approve", str(path), *by(folder, "bob")]) == 2
    changed(folder, "tries = 3", "tries = 4")
    assert main(["rules", "sign", RULE, *rules, *by(folder, "ada")]) == 1, "its version has another meaning"


def next_version(folder: Path, old: str, new: str) -> Path:
    """Sign version 1 and approve it, then sign version 2 with a changed pattern; return the file of version 2."""
    rules = ["--rules", str(folder)]
    first, second = (folder / "signed" / f"{RULE}.{version}.json" for version in (1, 2))
    assert main(["rules", "lock", *rules]) == 0
    assert main(["rules", "sign", RULE, *rules, *by(folder, "ada")]) == 0
    assert main(["rules", "approve", str(first), *by(folder, "bob")]) == 0
    source = folder.parent / "patterns" / "cards.cep"
    source.write_text(source.read_text().replace(old, new, 1))
    assert main(["rules", "bump", RULE, *rules]) == 0
    assert main(["rules", "sign", RULE, *rules, *by(folder, "ada")]) == 0
    return second


CONDITION = "status == approved and amount > large"


def test_an_approver_sees_the_difference_to_the_signed_version(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next_version(folder, CONDITION, f'{CONDITION} and card_id != "c9"  # as before')
    before = folder / "signed" / f"{RULE}.1.json"
    signed = before.read_bytes()
    edited = signed.replace(CONDITION.encode(), f'{CONDITION} and card_id != \\"c9\\"'.encode())
    for data, is_compared in ((signed, True), (edited, False), (None, False)):
        before.unlink() if data is None else before.write_bytes(data)
        capsys.readouterr()
        assert main(["rules", "approve", str(path), *trusting(folder)]) == 0
        shown = capsys.readouterr().out
        text, meaning = shown.split("meaning, without comments and layout:")
        assert all('card_id != "c9"' in part for part in (text, meaning)), "an edited file hides nothing"
        assert ("all of the text is shown" in shown) != is_compared
        assert "# as before" in text
        assert "# as before" not in meaning


def test_an_approver_sees_hidden_characters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = f"{CONDITION} # \u2028 and amount < 2 \x1b[2K\u202e"
    path = folder / "signed" / f"{RULE}.1.json"
    assert main(["rules", "sign", RULE, "--rules", str(folder), *by(folder, "ada")]) == 0
    (record,) = read_change(path)
    assert isinstance(record, UpsertRecord)
    source = record.source.replace(CONDITION, hidden)
    write_change(path, [sign(unsigned(record).model_copy(update={"source": source}), ADA, RULE_SET)])
    capsys.readouterr()
    assert main(["rules", "approve", str(path), *trusting(folder)]) == 0
    shown = capsys.readouterr().out
    assert "\\u2028 and amount < 2 \\u001b[2K\\u202e" in shown
    assert "CEP101" in shown
    assert HIDDEN.search(shown) is None


def test_from_the_author_to_a_job(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--rules", str(folder)]
    publish = ["rules", "publish", *rules, "--only", RULE, *trusting(folder), *job.flags]

    def signed(version: int, *more: str) -> None:
        assert main(["rules", "sign", RULE, *rules, *by(folder, "ada"), *more]) == 0
        assert main(["rules", "approve", str(folder / "signed" / f"{RULE}.{version}.json"), *by(folder, "bob")]) == 0

    assert main(publish) == 1
    assert "cep rules sign card_testing" in capsys.readouterr().out
    signed(1)
    assert main(publish) == 0
    changed(folder, "tries = 3", "tries = 4")
    assert main(["rules", "bump", RULE, *rules]) == 0
    signed(2)
    assert main(publish) == 0
    assert job.book.report().last_versions == {RULE: 2}
    # A pause needs two signatures, a resumption one.
    pause = folder / "signed" / f"{RULE}.pause.1.json"
    assert main(["rules", "pause", RULE, *by(folder, "ada"), *job.flags]) == 0
    assert job.book.report().paused == ()
    assert main(["rules", "approve", str(pause), *by(folder, "bob")]) == 0
    send = ["rules", "publish", "--change", str(pause), *trusting(folder), *job.flags]
    assert main(send) == 0
    assert job.book.report().paused == (RULE,)
    assert main(["rules", "resume", RULE, *by(folder, "bob"), *job.flags]) == 0
    assert job.book.report().paused == ()
    assert main(send) == 1, "an old pause is not taken again"
    assert "is older than version 2" in " ".join(capsys.readouterr().out.split())
    # A rollback is a change of its own; the next version follows it.
    rollback = ["rules", "rollback", RULE, "--to", "1", *rules, *by(folder, "ada"), *job.flags]
    assert main(rollback) == 0
    back = folder / "signed" / f"{RULE}.3.json"
    assert main(["rules", "approve", str(back), *by(folder, "bob")]) == 0
    assert main(["rules", "publish", "--change", str(back), *trusting(folder), *job.flags]) == 0
    assert main(["rules", "bump", RULE, "--above", "3", *rules]) == 0
    signed(4)
    assert main(publish) == 0
    assert job.book.report().last_versions == {RULE: 4}
    # Lists need signatures too.
    add = ["lists", "add", "blocked", "C-1", "--of", "string", *by(folder, "ada"), *job.flags]
    assert main(add) == 0
    (path,) = (folder / "signed").glob("list.blocked.*")
    assert main(["rules", "approve", str(path), *by(folder, "bob")]) == 0
    assert main(["rules", "publish", "--change", str(path), *trusting(folder), *job.flags]) == 0
    assert [report.entries for report in job.book.report().lists] == [1]


def test_who_goes_around_the_verbs_gets_nowhere(job: Answering, folder: Path) -> None:
    rules = ["--rules", str(folder)]
    unverified = ["rules", "publish", *rules, "--only", RULE, *job.flags]
    assert main(unverified) == 1, "the job refuses what a publisher without signers sends"
    assert job.book.report().last_versions == {}
    assert main(["rules", "sign", RULE, *rules, *by(folder, "ada")]) == 0
    path = folder / "signed" / f"{RULE}.1.json"
    assert main(["rules", "publish", "--change", str(path), *trusting(folder), *job.flags]) == 1
    assert main(["rules", "publish", "--change", str(path), *job.flags]) == 1
    (record,) = read_change(path)
    path.write_bytes(unsigned(record).to_json())
    assert main(["rules", "approve", str(path), *by(folder, "bob")]) == 2
    assert job.book.report().last_versions == {}

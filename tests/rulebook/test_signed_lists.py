"""The entries of declared lists are signed with the rules that read them, wherever a pattern declares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.api.given import GivenRules
from cep.base.exits import Exit
from cep.cli.main import main
from cep.model.rule import ListRecord, UpsertRecord
from cep.rulebook.changes import change_path, read_change, write_change
from cep.rulebook.signers import read_trust
from cep.rulebook.statement import Signable
from tests.rulebook.people import ADA, BOB, ROOT, by_two, write_key, write_signers

PATTERNS = """
event payment {{ tx_id id  event_time time  card string }}
list spared: string {entries}
list unread: string = ["x"]
pattern p by card {{ seq a where a: payment card not in spared }}
"""
RULE = 'pattern = "p"\nfile = "p.cep"\nversion = 1\nstatus = "live"\nseverity = "low"\nowner = "o"\nmessage = "m"\n'
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
    (rules / "r.toml").write_text(f'id = "r"\n{RULE}')
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
    return GivenRules.read(rules, None, trust=read_trust(rules / "signed" / "signers.toml", ROOT.public))


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


def test_the_lock_reports_changed_entries_once(folder: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_list(folder, way, "c9", "c1")
    capsys.readouterr()
    lock = ["rules", "lock", "--rules", str(folder)]
    assert main(lock) == 0
    output = capsys.readouterr().out
    assert "list spared/string: its entries have changed since they were locked" in output
    assert "locked: list:spared/string 2" in output
    assert main(lock) == 0
    assert "nothing new to lock" in capsys.readouterr().out


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
    (folder / "s.toml").write_text(f'id = "s"\n{RULE}')
    write_change(folder / "signed" / "r.1.json", [record])
    write_change(folder / "signed" / "s.1.json", [by_two(other)])
    assert [aside.rule_id for aside in given(folder).deployment.set_aside] == ["list spared"], way


def test_a_list_with_mistakes_is_not_signed(folder: Path, way: str) -> None:
    (folder / "spared.txt").unlink()
    if way != "in place":
        assert main(["rules", "sign", "r", "--rules", str(folder), *by(folder, "ada")]) == Exit.USAGE

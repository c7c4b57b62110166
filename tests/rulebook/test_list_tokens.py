"""Lists of card numbers and snoozes of cards take tokens; refusals show no number."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from cep.base.audit import is_audit
from cep.base.secrets import secret_keys
from cep.cli.main import main
from cep.columnar.route import key_of
from cep.lists.content import Content
from cep.lists.entries import keys_of
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, SnoozeRecord
from cep.nfa.given_lists import GivenList
from cep.rulebook.deploy import schema_of
from cep.rulebook.files import declared_lists, list_record
from cep.rulebook.publish import values_in
from cep.rulebook.rulebook import Rulebook
from cep.step.rules import apply_records
from tests.columnar.protected import VISA, keys
from tests.rulebook.people import TRUST, by_two
from tests.rulebook.records import upsert

__all__ = ["keys"]
SOURCE = """
event payment { tx_id id  event_time time  card pan  shop string }
list cards: string
list shops: string
pattern listed(given: list of string = cards) by card {
  seq    x
  where  x: payment  card in given or shop in shops
}
"""


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("change", ["replace", "add"])
def test_numbers_are_refused_where_tokens_are_looked_up(change: str) -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    book = Rulebook(schema_of([record]), (("card",),))
    assert book.apply(record, None).kind == "applied"
    token = secret_keys()[0].token("pan", VISA.encode())

    def outcome(name: str, entries: list[str], version: int, how: str = change) -> tuple[str, str]:
        list_change = ListRecord(id=name, of="string", version=version, change=how, entries=entries)  # type: ignore[arg-type]
        lines, counters, _ = apply_records(book, (list_change.to_json(),), None)
        (kind,) = (name for name in counters if name in ("control_applied", "control_refused"))
        return kind, "".join(line.decode() for line in lines)

    kind, letter = outcome("cards", [token, VISA], 1)
    assert kind == "control_refused"
    assert "CEP320" in letter
    assert VISA not in letter
    assert outcome("cards", [token], 1) == ("control_applied", "")
    assert outcome("shops", [VISA], 1)[0] == "control_applied", "a shop may be called so"
    assert outcome("cards", [VISA], 2, "remove")[0] == "control_applied"


@pytest.mark.usefixtures("keys")
def test_a_rule_is_refused_if_its_list_has_numbers() -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    token = secret_keys()[0].token("pan", VISA.encode())
    for name, list_kind, entries, kind in (
        ("cards", "string", [token, VISA], "refused"), ("cards", "string", [token], "applied"),
        ("shops", "string", [VISA], "applied"), ("cards", "int", ["1"], "applied"),
    ):  # fmt: skip
        book = Rulebook(schema_of([record]), (("card",),))
        list_change = ListRecord(id=name, of=list_kind, version=1, change="replace", entries=[*entries])
        assert book.apply(list_change, None).kind == "applied"
        outcome = book.apply(record, None)
        assert outcome.kind == kind
        assert VISA not in outcome.full_reason
        if kind == "refused":
            book.apply(list_change.model_copy(update={"version": 2, "change": "remove", "entries": [VISA]}), None)
            assert book.apply(record, None).kind == "applied"


@pytest.mark.usefixtures("keys")
def test_numbers_in_files_and_in_place_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = secret_keys()[0].token("pan", VISA.encode())
    folder = tmp_path / "rules"
    folder.mkdir()
    path = tmp_path / "p.cep"
    rule = 'id = "r"\npattern = "listed"\nfile = "../p.cep"\nversion = 1\nstatus = "live"\nseverity = "low"\n'
    (folder / "r.toml").write_text(rule + 'owner = "o"\nmessage = "m"\n')
    for entries, is_right in (([VISA, token], False), ([token], True)):
        (tmp_path / "cards.txt").write_text("\n".join(entries))
        for listed in ('list cards: string from "cards.txt"', f"list cards: string = {orjson.dumps(entries).decode()}"):
            path.write_text(SOURCE.replace("list cards: string", listed))
            assert main(["check", str(path)]) == (0 if is_right else 1)
            lists, problems = declared_lists(folder)
            assert (len(lists), len(problems)) == ((1, 0) if is_right else (0, 1))
            output = "".join([*capsys.readouterr(), *problems])
            assert VISA not in output
            assert ("CEP320" in output) != is_right
        params = {"given": entries}
        record = upsert(1, source=SOURCE, pattern="listed", message="{key}", params=params)
        outcome = Rulebook(schema_of([record]), (("card",),)).apply(record, None)
        assert outcome.kind == ("applied" if is_right else "refused")
        assert VISA not in outcome.full_reason
    # A list from the start of the job is named by its hash; its entries count as well.
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    store = ListStore()
    content = Content("string").changed("replace", keys_of([VISA], "string")[0])
    list_change = list_record(GivenList("cards", "string", pa.array([VISA]), content, 0), store)
    book = Rulebook(schema_of([record]), (("card",),), store)
    assert book.apply(record, None).kind == "applied"
    assert book.apply(list_change, None, is_given=True).kind == "refused"


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("by", ["card", "(shop, card)"])
def test_a_snooze_of_a_card_takes_its_token(by: str) -> None:
    record = upsert(1, source=SOURCE.replace("by card", f"by {by}"), pattern="listed", message="{key}")
    token = secret_keys()[0].token("pan", VISA.encode())
    book = Rulebook(schema_of([record]), None)
    book.trust = TRUST
    assert book.apply(by_two(record), None).kind == "applied"
    for card, is_right in ((VISA, False), (token, True)):
        key = card if by == "card" else key_of((VISA, card))
        snooze = SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", key=key, by="Ada")
        reason = values_in(snooze, [upsert(1, "other"), record])
        assert (reason is None) == is_right
        lines, counters, _ = apply_records(book, (by_two(snooze).to_json(),), None)
        assert ("control_applied" in counters) == is_right
        unsigned, _, _ = apply_records(book, (snooze.model_copy(update={"version": 2}).to_json(),), None)
        output = "".join(line.decode() for line in (*lines, *unsigned)) + str(reason)
        assert is_right or VISA not in output
        assert any(is_audit(line) for line in lines)
        assert any(is_audit(line) for line in unsigned)


@pytest.mark.usefixtures("keys")
def test_a_verb_says_so_before_it_sends() -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    entries = [ListRecord(id=name, of="string", version=1, change="add", entries=[VISA]) for name in ("cards", "shops")]
    cards, shops = (values_in(change, [upsert(1, "other"), record]) for change in entries)
    assert shops is None
    assert cards is not None
    assert "1 of its entries are no tokens" in cards
    assert VISA not in cards

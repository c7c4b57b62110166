"""Rulebooks as files: shared parts are stored once, and damage is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import SinkError, StateCorruptError
from cep.rulebook.saved import RulebookStore, rulebook_bytes, save
from tests.rulebook.records import SCHEMA, new_book, upsert


def test_rulebooks_that_differ_in_one_rule_share_the_others(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    for name in ("a", "b", "c"):
        book.apply(upsert(1, name), None)
    first = store.put(save(book))
    book.apply(upsert(2, "c", params={"large": 9}, on_update="restart"), None)
    second = store.put(save(book))
    assert first != second
    assert len(list((tmp_path / "record").iterdir())) == 4
    assert rulebook_bytes(store.get(second, SCHEMA, None)) == rulebook_bytes(book)
    assert [rule.version for rule in store.get(first, SCHEMA, None).deployed()] == [1, 1, 1]


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    book.apply(upsert(1), None)
    digest = store.put(save(book))
    (record,) = (tmp_path / "record").iterdir()
    record.write_bytes(record.read_bytes() + b" ")
    with pytest.raises(StateCorruptError, match="other bytes than its name says"):
        store.get(digest, SCHEMA, None)
    record.unlink()
    with pytest.raises(StateCorruptError, match="cannot be read"):
        store.get(digest, SCHEMA, None)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot be written"):
        RulebookStore(tmp_path / "file").put(save(new_book()))

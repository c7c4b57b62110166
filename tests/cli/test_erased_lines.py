"""The lines of a job's folder that go with an erased key, and content that an erasure cannot search."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import orjson
import pytest

from cep.base.secrets import SecretKey
from cep.cli.erase import _copy_dead_letters, _files_with
from cep.model.rule import PauseRecord, SnoozeRecord
from cep.rulebook.statement import Signable
from cep.runners.handover.erase import has_other_tokens, ways_to_write
from cep.step.rules import apply_records
from tests.rulebook.records import new_book, upsert

KEYS = ["e", "c1", "c17", "1", "applied", "why", "record", "card_id", '["c1","m3"]']


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.mark.parametrize("key", KEYS)
def test_the_audit_loses_the_texts_of_snoozes_of_the_key_alone(folder: Path, tmp_path: Path, key: str) -> None:
    book = new_book()
    book.is_audited = True
    snoozed = ("c1", "c17", "e")
    records: list[Signable] = [
        upsert(1),
        *(
            SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", key=one, by="Ada", reason="e c1 applied why")
            for one in snoozed
        ),
        PauseRecord(id="r", version=1, by="e", reason="c1 applied record"),
    ]
    lines, _, _ = apply_records(book, tuple(record.to_json() for record in records), 1_000)
    (folder / "a.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    copied = _copy_dead_letters(folder, tmp_path / "copy", {key})
    assert copied.bare == {2 + snoozed.index(key)} if key in snoozed else copied.bare == set()
    assert copied.left_out == 0


def letter(record: dict[str, object], cut: int | None = None) -> bytes:
    text = orjson.dumps(record).decode()
    return orjson.dumps({"code": "late_event", "reason": "field `amount`: much c1", "record": text[:cut]})


def test_a_dead_letter_goes_if_its_record_has_the_key_as_a_value(folder: Path, tmp_path: Path) -> None:
    """Compare with the definition, for random records of short values, whole and as a cut text."""
    chosen = random.Random(3)
    values = ["e", "ee", "c1", "c17", "xc1", "c1 ", "record", 1, 17, None, True, ["c1"], {"card": "c1"}]
    records = [{name: chosen.choice(values) for name in ("card_id", "shop", "n")} for _ in range(60)]
    (folder / "a.jsonl").write_bytes(b"".join(letter(record) + b"\n" for record in records))
    for key in ("e", "c1", "c17", "1", "17", "much", "late", "card", "shop"):

        def has_key(value: object, key: str = key) -> bool:
            if isinstance(value, dict | list):
                return any(map(has_key, value.values() if isinstance(value, dict) else value))
            return value is not None and value is not True and str(value) == key

        copied = _copy_dead_letters(folder, tmp_path / key, {key})
        assert copied.left_out == sum(map(has_key, records)), key
        lines = (tmp_path / key / "a.jsonl").read_bytes().splitlines()
        assert lines == [letter(record) for record in records if not has_key(record)]
    (folder / "a.jsonl").write_bytes(letter({"card_id": "c1", "note": "x" * 50}, 30) + b"\n")
    assert _copy_dead_letters(folder, tmp_path / "cut", {"c1"}).left_out == 1
    assert _copy_dead_letters(folder, tmp_path / "other", {"c"}).left_out == 0


def test_a_key_is_found_as_an_escape_or_a_decimal(folder: Path, tmp_path: Path) -> None:
    """Most programs write other letters than ASCII as escapes, and a field of whole numbers reads 1.0 as 1."""
    cut = json.dumps({"card_id": "M\u00fcller", "note": "x" * 50})[:40]
    records = [cut, '{"card_id": "M\\u00fcller"}', '{"n": 17.0}', '{"n": 17.5}']
    (folder / "a.jsonl").write_bytes(b"".join(orjson.dumps({"code": "x", "record": r}) + b"\n" for r in records))
    assert _copy_dead_letters(folder, tmp_path / "name", {"M\u00fcller"}).left_out == 2
    assert _copy_dead_letters(folder, tmp_path / "number", {"17"}).left_out == 1


def test_tokens_of_a_secret_that_is_gone_are_named() -> None:
    """In every mixture of secrets: without the secret, cep cannot tell if such a token stands for the same value."""
    secrets = [SecretKey(name, name.encode() * 32) for name in ("k1", "k2", "k3")]
    tokens = {secret.id: secret.token("pan", b"4111111111111111") for secret in secrets}
    others = {secret.id: secret.token("pan", b"378282246310005") for secret in secrets}
    for names in itertools.chain.from_iterable(itertools.combinations(tokens, n) for n in range(4)):
        searched = ways_to_write([tokens[name] for name in names])
        for stored, token in tokens.items():
            for text in (token, others[stored]):
                assert has_other_tokens(f"x {text} y".encode(), searched) == (bool(names) and stored not in names)
    assert not has_other_tokens(tokens["k1"].encode(), ways_to_write(["c1"])), "a key without protected fields"


def test_a_file_that_cannot_be_searched_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (folder / name).write_bytes(b"c1" if name == "c.jsonl" else b"x")
    read = Path.read_bytes

    def refusing(path: Path) -> bytes:
        if path.name == "b.jsonl":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refusing)
    paths, unsearched = _files_with(folder, [b"c1"])
    assert [path.name for path in paths] == ["c.jsonl"]
    assert unsearched == [f"{folder / 'b.jsonl'}: Permission denied"]

"""Files of signed changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.model.rule import ListRecord, PauseRecord, RollbackRecord, SnoozeRecord
from cep.rulebook.changes import change_path, last_of, read_change, version_before, with_signatures, write_change
from cep.rulebook.files import read_rules
from cep.rulebook.meaning import content_hash
from cep.rulebook.statement import digest_of
from tests.rulebook.people import by_two, upsert_by_two
from tests.rulebook.records import upsert

ROOT = Path(__file__).parents[2]


def test_each_change_has_a_file(tmp_path: Path) -> None:
    records = [
        by_two(upsert(1)),
        by_two(PauseRecord(id="r", version=1)),
        by_two(SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", by="a")),
        by_two(SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", by="a", key="../../etc")),
        by_two(ListRecord(id="blocked", of="decimal(2)", version=1, change="replace", entries=["1.00"])),
    ]
    paths = [change_path(tmp_path, record) for record in records]
    assert len(set(paths)) == len(paths)
    for path, record in zip(paths, records, strict=True):
        assert path.parent == tmp_path / "signed"
        write_change(path, [record])
        assert read_change(path) == [record]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"kind":"heartbeat","event_time":"2030-01-01T00:00:00Z"}', b"\xff"])
def test_what_is_no_change_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.1.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"r\.1\.json"):
        read_change(tmp_path / "r.1.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_change(tmp_path / "gone.json")


def test_rules_come_with_their_signatures(tmp_path: Path) -> None:
    for name in ("rules", "patterns"):
        shutil.copytree(ROOT / name, tmp_path / name)
    folder = tmp_path / "rules"
    records, _ = read_rules(folder)
    signed = upsert_by_two(records[0])
    write_change(change_path(folder, signed), [signed])
    assert with_signatures(folder, records) == [signed, *records[1:]]
    # Another layout of the text is the same change; another meaning, or a damaged file, is not.
    laid_out = records[0].model_copy(update={"source": records[0].source + "\n// more\n"})
    assert with_signatures(folder, [laid_out]) in ([signed], [laid_out])
    other = records[0].model_copy(update={"severity": "low"})
    assert content_hash(other) != content_hash(signed)
    assert with_signatures(folder, [other]) == [other]
    change_path(folder, signed).write_bytes(b"{")
    assert with_signatures(folder, records) == records


def test_the_version_before_is_locked_or_signed(tmp_path: Path) -> None:
    assert version_before(tmp_path, upsert(1)) == (0, "")
    (tmp_path / "rules.lock").write_text(f'[r]\n1 = "{"a" * 64}"\n4 = "{"b" * 64}"\n')
    assert version_before(tmp_path, upsert(4)) == (1, "a" * 64)
    back = by_two(RollbackRecord(id="r", version=3, to_version=1, rule=upsert(1)))
    write_change(change_path(tmp_path, back), [back])
    assert version_before(tmp_path, upsert(4)) == (3, digest_of(upsert(1)))
    pauses = [PauseRecord(id="r", version=1), PauseRecord(id="s", version=2)]
    assert last_of(pauses, PauseRecord(id="r", version=3)) == (1, digest_of(pauses[0]))

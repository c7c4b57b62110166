"""Senders of events, publishers and writers of input files change no rule, stop no job and add no line to the audit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import pytest

from cep.base.audit import Head, Line, is_audit, is_letter, verify
from cep.columnar.decode import Decoded
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Workers
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.columnar.common import GOOD
from tests.hostile.doors import _RECORD, _HonestJob, job_files
from tests.hostile.mutate import broken_bytes, broken_value
from tests.rulebook.people import TRUST, by_two, upsert_by_two
from tests.rulebook.records import retire
from tests.rulebook.test_trust import DATA
from tests.runners.embedded.cases import decoded

FIRST: UpsertRecord = upsert_by_two(_RECORD)
_NOW_MS = 1_772_323_200_000


def lines_of_senders(audit: list[bytes]) -> list[bytes]:
    """Return changes and lines of the audit as events: plain, and as a value of a decoded event."""
    signed = by_two(retire(2).model_copy(update={"id": FIRST.id}), FIRST).to_json()
    changes = [*DATA, signed, *audit, audit[0].replace(b'"number":1', b'"number":2')]
    within = [{**GOOD, "tx_id": f"t{n}", "note": line.decode(), "lat": line.decode()} for n, line in enumerate(changes)]
    return [*changes, *map(orjson.dumps, within)]


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("way", ["records", "file"])
def test_no_event_is_a_change_or_a_line_of_the_audit(is_signed: bool, way: str, tmp_path: Path) -> None:
    record = FIRST if is_signed else _RECORD
    deployed = deploy([record])
    trust = TRUST if is_signed else None
    job = Job(deployed.schema, deployed.key_domains, 2, trust=trust, is_audited=not is_signed)
    engine = Engine(job, (record.to_json(),), MemoryStore(), Workers(1))
    audit = [line for line in engine.step([], (), {}, _NOW_MS).dead_letters if is_audit(line)]
    before, head = engine.rulebook, Head(**{k: v for k, v in (engine.audit_head() or {}).items() if k != "signature"})
    assert len(audit) == head.count == 1
    stepped = engine.step(read(job, lines_of_senders(audit), way, tmp_path), (), {}, _NOW_MS)
    assert engine.rulebook == before
    assert (engine.audit_head() or {})["count"] == 1
    assert len(stepped.dead_letters) > len(DATA)
    assert all(is_letter(letter) and not is_audit(letter) for letter in stepped.dead_letters)
    assert verify([Line("", line) for line in audit], head).problems == ()
    engine.close()


def read(job: Job, lines: list[bytes], way: str, folder: Path) -> list[Decoded]:
    """Decode the lines as the records of a topic, or as a file."""
    if way == "records":
        return decoded(job, lines)
    path = folder / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return [piece.decode() for piece in read_pieces(path, job.schema).pieces]


def changes_of_strangers(random: Random) -> list[bytes]:
    """Return records of a publisher without keys: unsigned ones, signed ones with other content, and damaged bytes."""
    signed = by_two(retire(2).model_copy(update={"id": FIRST.id}), FIRST).to_json()
    unsigned = retire(2).model_copy(update={"id": FIRST.id}).to_json()
    outside = ListRecord(id="victim", of="string", version=1, change="replace", entries=["a"]).to_json()
    source = f'import "{Path(__file__)}"\n'
    return [
        unsigned, signed.replace(b'"version":2', b'"version":3'), broken_bytes(signed, random),
        json.dumps(broken_value(json.loads(signed), random)).encode(),
        outside.replace(b'"victim"', b'"../../victim"'), outside.replace(b'"victim"', b'"/victim"'),
        _RECORD.model_copy(update={"id": "reader", "source": source}).to_json(), b"[" * 10_000, b"\xff", b"",
    ]  # fmt: skip


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_publisher_stop_no_job_and_write_no_file(seed: int, is_signed: bool, tmp_path: Path) -> None:
    random, honest, folder = Random(seed), _HonestJob(), tmp_path / "job" / "lists"
    honest.engine.close()
    record = FIRST if is_signed else _RECORD
    honest.job = replace(honest.job, trust=TRUST if is_signed else None)
    honest.engine = Engine(honest.job, (record.to_json(),), MemoryStore(), Workers(1), ListStore(folder))
    letters: list[bytes] = []
    for _ in range(6):
        # Without signatures a publisher may retire a rule; that is not the question here.
        changes = changes_of_strangers(random)[0 if is_signed else 4 :]
        lines = [orjson.dumps(event) for event in honest.pair()]
        times = {"p": (honest.now_ms, False)}
        stepped = honest.engine.step(decoded(honest.job, lines), tuple(changes), times, honest.now_ms)
        honest.missed(set(stepped.alerts["key"].to_pylist()))
        letters += stepped.dead_letters
    assert {"control_refused", "control_unreadable"} <= {orjson.loads(letter).get("code") for letter in letters}
    assert list(honest.engine.rulebook.rulebook.rules) == [record.id]
    assert not any(b"def changes_of_strangers" in letter for letter in letters), "an import reads no other folder"
    outside = [path for path in tmp_path.parent.rglob("*victim*") if folder not in path.parents]
    assert outside == []
    honest.engine.close()


@pytest.mark.parametrize("seed", range(12))
def test_hostile_files_take_no_event_from_a_job(seed: int, tmp_path: Path) -> None:
    """Links, pipes, folders, damaged Parquet and text next to two honest files: the job reads both and ends."""
    feed = job_files(tmp_path)
    for number in range(3):
        feed(Random(f"{seed}/{number}"))

"""A sender of events and a writer of an input file change no rule, and add no line to the audit."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cep.base.audit import Head, Line, is_audit, is_letter, verify
from cep.columnar.decode import Decoded
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Workers
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.columnar.common import GOOD
from tests.hostile.doors import _RECORD
from tests.rulebook.people import TRUST, by_two, upsert_by_two
from tests.rulebook.records import retire
from tests.rulebook.test_audited import DATA
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

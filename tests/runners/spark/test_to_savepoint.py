"""The embedded runner continues from Spark's positions: offsets of topics, names of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cep.base.errors import StateCorruptError
from cep.runners.handover.beginning import Beginning
from cep.runners.spark.to_savepoint import read_positions
from cep.sources.offsets import Position


def logged(query: Path, *offsets: str) -> Path:
    (query / "offsets").mkdir(parents=True)
    (query / "offsets" / "7").write_text("\n".join(["v1", "{}", *offsets]))
    return query


def test_a_topic(tmp_path: Path) -> None:
    read = Position({"pay-ments": {0: 17, 11: 4}}, {"pay-ments": [0]}, {"pay-ments": "an id"})
    query = logged(tmp_path, json.dumps(read.to_json()), "-")
    positions = read_positions(query, 0, 7)
    assert positions == {"pay-ments[0]": 17, "pay-ments[11]": 4}
    assert read_positions(query, 1, 7) == {}, "nothing was read of it so far"
    assert read_positions(query, 2, 7) == {}, "the job has no such source"
    starting = Beginning("", 0, {}, {"events": positions}).starting("events", "pay-ments")
    assert json.loads(starting or "") == {"pay-ments": {"0": 17, "11": 4}}


def test_a_folder(tmp_path: Path) -> None:
    query = logged(tmp_path, '{"logOffset":11}')
    log = query / "sources" / "0"
    log.mkdir(parents=True)

    def entry(name: str) -> str:
        return json.dumps({"path": f"file:///data/{name}", "timestamp": 1, "batchId": 0})

    (log / "9.compact").write_text("\n".join(["v1", entry("a.jsonl"), entry("b%20c.jsonl")]))
    for number, name in ((10, "d.jsonl"), (11, "e.jsonl"), (12, "planned.jsonl")):
        (log / str(number)).write_text(f"v1\n{entry(name)}")
    (log / ".10.crc").write_bytes(b"x")
    positions = read_positions(query, 0, 7)
    assert positions == dict.fromkeys(["a.jsonl", "b c.jsonl", "d.jsonl", "e.jsonl"], -1)
    assert Beginning("", 0, {}, {"events": positions}).files_read("events") == tuple(sorted(positions))


def test_a_log_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="does not say how far"):
        read_positions(tmp_path, 0, 7)
    with pytest.raises(StateCorruptError, match="does not say how far"):
        read_positions(logged(tmp_path, "nonsense"), 0, 7)

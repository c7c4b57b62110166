"""Letters in files: whole or not at all, and the same when a micro-batch comes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import SinkError
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.durable import write_durably


def test_a_micro_batch_that_comes_again_replaces_its_file(tmp_path: Path) -> None:
    sink = DeadLetterFiles(tmp_path / "letters")
    sink.write([], 0)
    assert not (tmp_path / "letters").exists()
    for _ in range(2):
        sink.write([b'{"code": "a"}', b'{"code": "b"}'], 1)
    sink.close()
    (file,) = (tmp_path / "letters").iterdir()
    assert file.read_bytes() == b'{"code": "a"}\n{"code": "b"}\n'


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot be written"):
        write_durably(tmp_path / "file" / "letters.jsonl", b"")

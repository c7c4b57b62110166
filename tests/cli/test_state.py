"""`cep state` refuses what is no checkpoint before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.schema import Schema
from cep.cli.main import USAGE, main
from cep.lang.load import load_text
from cep.runners.job import Job
from cep.runners.live_checkpoint import open_checkpoint
from tests.engine.rules import EVENTS


def test_a_folder_without_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "--checkpoint", str(tmp_path)]) == USAGE
    assert "no checkpoint directory of a live job" in capsys.readouterr().err


def test_a_job_that_has_done_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema: Schema = load_text(EVENTS).schema
    open_checkpoint(tmp_path / "job", Job(schema, (("key",),)), ())
    assert main(["state", "--checkpoint", str(tmp_path / "job")]) == USAGE
    assert "no finished micro-batch" in capsys.readouterr().err

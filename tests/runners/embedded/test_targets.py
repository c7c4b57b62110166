"""A job whose checkpoints are elsewhere: looked at, saved, restored into, without being told where again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.cli.main import main
from cep.runners.embedded.targets import is_embedded, own_target, remembered_target, target_of
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_savepoint import place, run, written


def test_the_place_that_was_asked_for_is_remembered_until_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    assert not is_embedded(tmp_path / "job")
    assert remembered_target(tmp_path / "job", "elsewhere").url == str(tmp_path / "elsewhere")
    assert is_embedded(tmp_path / "job")
    monkeypatch.chdir("/")
    assert target_of(tmp_path / "job").url == str(tmp_path / "elsewhere")
    assert remembered_target(tmp_path / "job", "memory://far").url == "memory://far"
    assert target_of(tmp_path / "job").url == "memory://far"
    own = own_target(tmp_path / "job").url
    assert remembered_target(tmp_path / "job", None).url == target_of(tmp_path / "job").url == own


@pytest.mark.slow
@pytest.mark.always
def test_a_job_with_its_checkpoints_elsewhere_is_looked_at_saved_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = day()
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, lines[:3_000])
    assert run(tmp_path / "one", "--checkpoint-target", str(tmp_path / "far" / "one")) == 0
    assert main(["state", "--checkpoint", str(tmp_path / "one")]) == 0
    assert "impossible_travel" in capsys.readouterr().out
    assert main(["savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "saved")]) == 0
    assert main(["restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "two")]) == 0
    place(tmp_path / "events", 1, lines[3_000:])
    assert run(tmp_path / "two", "--checkpoint-target", str(tmp_path / "far" / "two")) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(lines), deployment(), tmp_path))

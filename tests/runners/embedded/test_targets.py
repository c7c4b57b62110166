"""A job whose checkpoints are elsewhere: queries, savepoints and restores find them without an option."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cep.base.errors import StateCorruptError, StoreError, UsageError
from cep.cli.main import main
from cep.runners.embedded.targets import default_target, is_embedded, remembered_target, target_of
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_opening import Process, settings_of
from tests.runners.embedded.test_savepoint import place, run, written

if TYPE_CHECKING:
    from tests.real_s3 import S3Server


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
    default_url = default_target(tmp_path / "job").url
    assert remembered_target(tmp_path / "job", None).url == target_of(tmp_path / "job").url == default_url


def test_a_damaged_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"\xff")
    with pytest.raises(StateCorruptError, match="names no place"):
        target_of(tmp_path)
    assert remembered_target(tmp_path, str(tmp_path / "far")).url == target_of(tmp_path).url


@pytest.mark.parametrize("user", ["me:secret", "secret"])
def test_a_password_in_an_address_is_refused_without_being_said(tmp_path: Path, user: str) -> None:
    with pytest.raises(UsageError, match="FSSPEC_SFTP_PASSWORD") as refused:
        remembered_target(tmp_path, f"sftp://{user}@host/job")
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.always
def test_a_job_with_its_checkpoints_elsewhere_is_looked_at_saved_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = day()
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, lines[:3_000])
    assert run(tmp_path / "one", "--checkpoint-target", str(tmp_path / "far" / "one")) == 0
    assert main(["job", "state", "--checkpoint", str(tmp_path / "one")]) == 0
    assert "impossible_travel" in capsys.readouterr().out
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "saved")]) == 0
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "two")]) == 0
    place(tmp_path / "events", 1, lines[3_000:])
    assert run(tmp_path / "two", "--checkpoint-target", str(tmp_path / "far" / "two")) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(lines), deployment(), tmp_path))


@pytest.mark.slow
@pytest.mark.always
def test_a_job_whose_machine_is_lost_goes_on_from_an_object_store(s3: S3Server, tmp_path: Path) -> None:
    """Files of alerts report their alerts; the state goes into a savepoint and back again."""
    lines = day()
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, lines[:2_000])
    to_s3 = "--checkpoint-target", s3.url("job")
    assert run(tmp_path / "one", *to_s3) == 0
    shutil.rmtree(tmp_path / "one" / "store")
    place(tmp_path / "events", 1, lines[2_000:4_000])
    assert run(tmp_path / "one", *to_s3) == 0
    assert not (tmp_path / "one" / "checkpoints").exists()
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", s3.url("saved")]) == 0
    assert main(["job", "restore", "--from", s3.url("saved"), "--checkpoint", str(tmp_path / "two")]) == 0
    place(tmp_path / "events", 2, lines[4_000:])
    assert run(tmp_path / "two", "--checkpoint-target", s3.url("two")) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(lines), deployment(), tmp_path))


def test_an_object_store_that_goes_away_is_told_while_the_job_runs(s3: S3Server, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", s3.url("job"))
    with Process(settings) as job:
        job.commit()
        s3.stop()
        assert [job.commit() for _ in range(2)] == [2, 3]
        assert job.commits.totals["checkpoints_failed"] == len(job.failed) == 2
        assert "check the address, the credentials and the network" in str(job.failed[0])
        with pytest.raises(StoreError, match="check the address"):
            remembered_target(tmp_path / "job", s3.url("job")).sizes()
        s3.start()
        job.commit()
        assert job.commits.totals["checkpoints_failed"] == 2
    shutil.rmtree(tmp_path / "job")
    with Process(settings) as job:
        assert job.number == 4

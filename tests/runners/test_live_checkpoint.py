"""A checkpoint directory belongs to one job and remembers its first rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cep.base.errors import StateCorruptError, StoreError, UsageError
from cep.base.exits import MEANINGS, exit_of
from cep.runners.live_checkpoint import JOB_FILE, lock_checkpoint, open_checkpoint, read_job
from tests.rulebook.people import TRUST
from tests.runners.spark.live_cases import changed_schema, make_job, rules
from tests.small_disk import small_disk

JOB = make_job(rules("card_testing").values())
RULES = (b'{"first": 1}', b'{"second": 2}')


def test_a_job_goes_on_with_the_rules_it_began_with(tmp_path: Path) -> None:
    assert open_checkpoint(tmp_path / "new", JOB, RULES) == (RULES, False)
    assert open_checkpoint(tmp_path / "new", JOB, (b"{}",)) == (RULES, True)
    assert read_job(tmp_path / "new") == JOB
    assert read_job(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lateness_ms": 5}, "lateness"),
        ({"pages_count": 2, "groups_count": 16}, "key groups, pages"),
        ({"domains": (("account_id",),)}, "keys"),
        ({"schema": make_job(rules("card_testing").values()).schema.__class__(())}, "event types"),
    ],
)
def test_another_job_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    open_checkpoint(tmp_path, JOB, RULES)
    with pytest.raises(UsageError, match=f"belongs to a job with other {words}:"):
        open_checkpoint(tmp_path, replace(JOB, **changes), RULES)


def test_a_folder_that_says_nothing_sensible_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "query").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"keyed state but no job\.json"):
        open_checkpoint(tmp_path / "a", JOB, RULES)
    (tmp_path / "job.json").write_text("[")
    with pytest.raises(StateCorruptError, match="cannot be read"):
        open_checkpoint(tmp_path, JOB, RULES)
    (tmp_path / "job.json").write_text('{"format": 7}')
    with pytest.raises(UsageError, match="format 7"):
        open_checkpoint(tmp_path, JOB, RULES)


def test_a_job_that_goes_on_says_anew_whether_it_is_audited(tmp_path: Path) -> None:
    """A job of an earlier build does not store whether it is audited, and rules may change in one life only."""
    plain = make_job(rules().values())
    open_checkpoint(tmp_path, plain, ())
    before = (tmp_path / JOB_FILE).read_bytes()
    open_checkpoint(tmp_path, plain, ())
    assert (tmp_path / JOB_FILE).read_bytes() == before, "nothing is new, and nothing is written"
    audited = replace(plain, is_audited=True)
    open_checkpoint(tmp_path, audited, ())
    assert read_job(tmp_path) == audited
    open_checkpoint(tmp_path, plain, ())
    assert read_job(tmp_path) == plain
    with pytest.raises(UsageError, match="other lateness"):
        open_checkpoint(tmp_path, replace(audited, lateness_ms=7), ())
    assert read_job(tmp_path) == plain, "a job that is refused leaves nothing behind"


def test_new_event_types_of_a_start_that_is_refused_are_not_written(tmp_path: Path) -> None:
    signed = replace(JOB, trust=TRUST)
    open_checkpoint(tmp_path, signed, RULES)
    other = replace(signed, schema=changed_schema(JOB.schema))
    with pytest.raises(UsageError, match="takes signed changes only"):
        open_checkpoint(tmp_path, replace(other, trust=None), RULES)
    assert read_job(tmp_path) == signed
    open_checkpoint(tmp_path, other, RULES)
    assert read_job(tmp_path) == other


@pytest.mark.parametrize(("dedup_ms", "first_key", "key"), [(5, "5a", "5a"), (5, "", ""), (0, "5a", "5b")])
def test_the_key_of_digests_stays_while_ids_are_stored(tmp_path: Path, dedup_ms: int, first_key: str, key: str) -> None:
    first = replace(JOB, dedup_ms=dedup_ms, digest_key=first_key)
    open_checkpoint(tmp_path, first, RULES)
    open_checkpoint(tmp_path, replace(first, dedup_ms=5, digest_key="5b"), RULES)
    stored = read_job(tmp_path)
    assert stored is not None
    assert (stored.digest_key, stored.dedup_ms) == (key, 5)


def test_a_start_on_a_full_disk_may_be_tried_again(tmp_path: Path) -> None:
    """It ended with the code of a mistake in the settings, after which a supervisor does not start the job again."""
    with small_disk(tmp_path / "disk", 1) as disk:
        folder = disk.folder / "job"
        folder.mkdir()
        disk.fill(0)
        with pytest.raises(StoreError, match="make room there") as caught:
            open_checkpoint(folder, JOB, RULES)
        assert MEANINGS[exit_of(caught.value)].restart is True
        disk.free()
        assert open_checkpoint(folder, JOB, RULES) == (RULES, False)


def test_a_folder_that_cannot_be_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="give another"):
        open_checkpoint(tmp_path / "file" / "job", JOB, RULES)
    for folder in ("file", "file/job"):
        with pytest.raises(UsageError, match="give another"), lock_checkpoint(tmp_path / folder):
            pass

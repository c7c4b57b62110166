"""The folder of rulebooks holds only the rulebooks that a live job may go back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import StateCorruptError
from cep.base.limits import MICRO_BATCHES_RETAINED
from cep.rulebook.saved import RulebookStore, save
from cep.runners.spark.live_output import RetainedRulebooks
from tests.rulebook.records import SCHEMA, new_book, upsert


@pytest.mark.slow
@pytest.mark.always
def test_what_the_job_cannot_go_back_to_is_removed(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    book.apply(upsert(1, "stays"), None)
    digests: dict[int, str] = {}
    removed = 0
    for version in range(1, 31):
        batch_id = 10 * version
        book.apply(upsert(version, params={"large": version}, on_update="restart"), 1_000 * version)
        book.forget(1_000 * version + 500)
        store.put_control(b"what was told in micro-batch %d" % batch_id)
        digests[batch_id] = store.put(save(book))
        for _ in range(2):  # a repeated micro-batch ends in the same place
            removed += RetainedRulebooks(tmp_path).changed(digests[batch_id], batch_id)
        for epoch_batch, digest in digests.items():
            if epoch_batch >= batch_id - MICRO_BATCHES_RETAINED:
                assert store.get(digest, SCHEMA, None).record_of("stays", 1) is not None
    assert removed > 0
    assert 10 < len(list((tmp_path / "index").iterdir())) < 22
    assert len(list((tmp_path / "record").iterdir())) < 25
    assert len(list((tmp_path / "control").iterdir())) < 11
    with pytest.raises(StateCorruptError):
        store.get(digests[10], SCHEMA, None)


def test_what_a_job_has_begun_with_stays(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    book.apply(upsert(1), None)
    first = store.put(save(book))
    for batch_id in range(0, 3 * MICRO_BATCHES_RETAINED, 25):
        book.apply(upsert(2 + batch_id), batch_id)
        RetainedRulebooks(tmp_path, first).changed(store.put(save(book)), batch_id)
    assert [rule.version for rule in store.get(first, SCHEMA, None).deployed()] == [1]


def test_half_a_file_of_a_killed_writer_goes_too(tmp_path: Path) -> None:
    store = RulebookStore(tmp_path)
    digest = store.put(save(new_book()))
    (tmp_path / "index" / f".{'0' * 64}.1f").write_bytes(b"half of an ind")
    assert store.prune({digest}) == 1
    assert store.get(digest, SCHEMA, None).deployed() == ()

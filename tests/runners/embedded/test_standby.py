"""A store that follows a changelog, with any pauses, equals the store of one whole reading of the changelog."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from random import Random

import pytest

from cep.base.errors import SourceError, UsageError
from cep.runners.embedded import changelog as module
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.opening import PART, StoreSettings, followed_folder, open_store
from cep.runners.embedded.standby import stand_by
from cep.sources.kafka import KafkaSettings
from cep.state.keys import ALL_KEYS
from cep.state.memory import MemoryStore
from tests.runners.embedded.cases import day, expected
from tests.runners.embedded.outside import Steps
from tests.runners.embedded.test_changelog import GIVEN, LATENESS_MS, Topics, alerts_of, live, local, stored, topics
from tests.runners.spark.live_cases import disordered

__all__ = ["topics"]
RELEASE = (pytest.mark.slow,)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=RELEASE) for seed in range(1, 8))])
def test_a_follower_has_what_a_whole_reading_gives(
    seed: int, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not topics.kafka.is_real:
        return
    monkeypatch.setattr(module, "CHANGELOG_PART_BYTES", 700)  # many entries are in parts, and their number changes
    chance, lines = Random(seed), disordered(list(day()), LATENESS_MS, seed)
    sink = topics.sink()
    follower, folder = topics.of(sink), tmp_path / "standby"
    store = MemoryStore()
    for life in range(3):
        live(tmp_path / "job", topics, lines, seed * 100 + life, Steps(chance.randrange(20, 60)))
        follower.follow(store, folder)
    assert live(tmp_path / "job", topics, lines, seed * 100 + 99, Steps(1_000_000))
    assert follower.is_followed
    committed_ms = follower.replay(store, folder)
    whole = MemoryStore()
    assert topics.of(sink).replay(whole, tmp_path / "whole") == committed_ms
    assert dict(store.scan(ALL_KEYS)) == dict(whole.scan(ALL_KEYS))
    assert not follower.is_followed
    sink.close()
    assert stored(topics)
    assert local(tmp_path / "job").keys() <= dict(whole.scan(ALL_KEYS)).keys()


@pytest.mark.parametrize("lives", [(30, 40), (60, 6), (30, 90)])
def test_a_store_of_before_is_not_gone_on_with(lives: tuple[int, int], topics: Topics, tmp_path: Path) -> None:
    """One process is killed. The other takes over and is killed too, and the first is started again at once."""
    if not topics.kafka.is_real:
        return
    lines = disordered(list(day()), LATENESS_MS, 5)
    for number, steps in enumerate(lives):
        assert not live(tmp_path / f"{number}" / "job", topics, lines, number, Steps(steps))
    assert live(tmp_path / "0" / "job", topics, lines, 9, Steps(1_000_000))
    expected_alerts = sorted(expected(list(day()), GIVEN, tmp_path))
    assert alerts_of(topics, len(expected_alerts)) == expected_alerts


class Scripted(Changelog):
    """A changelog without entries, which reports scripted positions."""

    def __init__(self, script: list[int | Exception]) -> None:
        super().__init__("t", KafkaSettings("nowhere"), None)  # type: ignore[arg-type]  # nothing is written
        self.script = script

    def follow(self, store: object, lists_folder: Path) -> int:
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_standby_waits_through_an_outage_and_ends_with_the_lease(tmp_path: Path) -> None:
    log = Scripted([1, SourceError("no broker"), 7, 9])
    followed: list[int] = []
    folder, stop = tmp_path / "job", threading.Event()
    stand_by(StoreSettings(folder), folder, log, lambda: len(log.script) == 1, stop, followed.append)
    assert followed == [1, 7]
    assert (followed_folder(folder) / PART).is_dir()
    stop.set()
    stand_by(StoreSettings(folder), folder, log, lambda: False, stop, followed.append)
    assert log.script == [9]
    with pytest.raises(UsageError, match="another job"):
        stand_by(StoreSettings(folder), folder, Scripted([UsageError("another job")]), lambda: False, threading.Event())


def test_what_was_followed_counts_before_a_store_of_before(topics: Topics, tmp_path: Path) -> None:
    """A process that worked once has its own store, and another process has continued since."""
    if not topics.kafka.is_real:
        return
    lines, folder = list(day()), tmp_path / "job"
    assert not live(folder, topics, lines, 1, Steps(30))
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("lock"))
    assert live(tmp_path / "other", topics, lines, 2, Steps(1_000_000))
    settings, sink = StoreSettings(folder, cache_bytes=8 << 20), topics.sink()
    log = topics.of(sink)
    with settings.open(followed_folder(folder) / PART) as store:
        log.follow(store, followed_folder(folder) / "beside")
    opened = open_store(settings, folder, log)
    other = StoreSettings(tmp_path / "other").open(tmp_path / "other" / "store" / "store")
    with opened.store, other:
        assert opened.replayed_ms is not None
        assert opened.head is not None
        mine, theirs = dict(opened.store.scan(ALL_KEYS)), dict(other.scan(ALL_KEYS))
    assert {name: value for name, value in theirs.items() if b"changed" not in name} == mine
    foreign = Changelog(topics.changelog, KafkaSettings(topics.kafka.address), sink, job="another")
    with pytest.raises(UsageError, match="whose folder is called ``, and this one is called `another`"):
        foreign.follow(MemoryStore(), tmp_path / "lists")
    sink.close()

"""A crash before each numbered step of the checkpoint protocol, by kill -9 and by simulation, and damage at random."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cep.state.checkpoints import Checkpoints, Part, checkpoint_numbers, read_manifest, restore
from cep.state.keys import ALL_KEYS, store_key
from cep.state.manifest import FOLDER
from cep.state.rocks import RocksSettings, RocksStore
from cep.state.target import Target

# Writes 100 entries and takes a checkpoint, again and again; in round 4 it dies before the given unit of work.
VICTIM = """
import os, signal, sys
from pathlib import Path
from cep.state.checkpoints import Checkpoints, Part
from cep.state.keys import store_key
from cep.state.rocks import RocksStore
from cep.state.target import Target

folder, fatal_step, fatal_unit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
round_number, units = 0, 0

def on_step(step):
    global units
    if round_number == 4 and step == fatal_step:
        units += 1
        if units == fatal_unit:
            os.kill(os.getpid(), signal.SIGKILL)

store = RocksStore(folder / "store")
checkpoints = Checkpoints(Target(str(folder / "target")), folder / "work", kept_count=2, on_step=on_step)
for round_number in range(1, 6):
    for i in range(100):
        store.put(store_key(0, b"%d/%d" % (round_number, i), b"", b"n"), b"%d" % round_number)
    checkpoints.begin([Part("main", store, 0, 8)], b"%d" % round_number, 0).result()
"""
PUBLISHED_FROM = 5  # a crash before this step, or before a later one, leaves the new checkpoint


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("step", "unit"), [(1, 1), (2, 1), (3, 1), (3, 3), (4, 1), (5, 1), (6, 1), (6, 2), (7, 1)], ids=str
)
def test_kill_9_before_a_step(tmp_path: Path, step: int, unit: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path), str(step), str(unit)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    target = Target(str(tmp_path / "target"))
    restored = restore(target, tmp_path / "back")
    assert restored is not None
    last = 4 if step >= PUBLISHED_FROM else 3
    assert (restored.manifest.number, restored.payload, restored.refused) == (last, b"%d" % last, ())
    with (
        RocksStore(restored.path("main")) as store,
        Checkpoints(target, tmp_path / "work", kept_count=2, restored=restored) as checkpoints,
    ):
        assert len(list(store.scan(ALL_KEYS))) == 100 * last
        copying = checkpoints.begin([Part("main", store, 0, 8)], b"next", 0)
        assert copying is not None
        assert copying.result(timeout=60).number == last + 1
    numbers = checkpoint_numbers(target)
    assert numbers == [last, last + 1]
    named = {file.sha256 for number in numbers for file in read_manifest(target, number).files}
    assert set(target.sizes(FOLDER)) == named, "what the crash left is collected"
    assert list((tmp_path / "work").iterdir()) == []


class _Crash(BaseException):
    """The process has died."""


class _Life:
    """One life of a process: it writes, takes checkpoints, and dies before a random unit of a random step."""

    def __init__(self, chance: Random, states: list[dict[bytes, bytes]]) -> None:
        """`states` holds the contents of each checkpoint ever begun; a payload is an index into it."""
        self._chance = chance
        self._countdown = chance.randrange(1, 40)
        self._states = states

    def on_step(self, step: int) -> None:
        self._countdown -= 1
        if self._countdown <= 0:
            raise _Crash(step)

    def until_death(self, path: Path, checkpoints: Checkpoints, model: dict[bytes, bytes]) -> None:
        chance = self._chance
        with RocksStore(path, RocksSettings(wal=False)) as store:
            while True:
                for _ in range(chance.randrange(30)):
                    key = store_key(0, b"%d" % chance.randrange(60), b"", b"n")
                    if chance.random() < 0.3:
                        store.delete(key)
                        model.pop(key, None)
                    else:
                        model[key] = chance.randbytes(chance.randrange(100))
                        store.put(key, model[key])
                self._states.append(dict(model))
                copying = checkpoints.begin([Part("main", store, 0, 8)], b"%d" % (len(self._states) - 1), 0)
                assert copying is not None
                copying.result(timeout=60)


def _damaged(target: Target, chance: Random) -> set[int]:
    """Damage a file that the newest checkpoint has and its predecessors do not; return the damaged numbers."""
    numbers = checkpoint_numbers(target)
    if len(numbers) < 2 or chance.random() < 0.5:
        return set()
    files = {number: {file.sha256 for file in read_manifest(target, number).files} for number in numbers}
    new_files = sorted(files[numbers[-1]] - set[str]().union(*(files[number] for number in numbers[:-1])))
    paths = [path for name in new_files if (path := Path(target.url) / FOLDER / name).exists()]
    if not paths:
        return set()
    path = chance.choice(paths)
    good = path.read_bytes()
    path.unlink()
    if chance.random() < 0.7 and good:
        place = chance.randrange(len(good))
        path.write_bytes(
            good[:place] if chance.random() < 0.5 else good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :]
        )
    return {numbers[-1]}


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("seed", SEEDS)
def test_any_number_of_crashes_and_damages_lose_nothing_published(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    target = Target(str(tmp_path / "target"))
    states: list[dict[bytes, bytes]] = []
    lost: set[int] = set()
    for life_number in range(6):
        lost |= _damaged(target, chance)
        numbers = checkpoint_numbers(target)
        whole = [number for number in numbers if number not in lost]
        folder = tmp_path / f"life{life_number}"
        restored = restore(target, folder)
        model: dict[bytes, bytes] = {}
        if whole:
            assert restored is not None
            # A damaged checkpoint may be whole again: a later checkpoint, which was never published, wrote the same
            # file.
            assert restored.manifest.number >= max(whole), f"seed {seed}"
        if restored is not None:
            model = dict(states[int(restored.payload)])
            with RocksStore(restored.path("main")) as store:
                assert dict(store.scan(ALL_KEYS)) == model, f"seed {seed}, life {life_number}"
        life = _Life(chance, states)
        with (
            Checkpoints(
                target, tmp_path / "work", kept_count=2, restored=restored, on_step=life.on_step
            ) as checkpoints,
            pytest.raises(_Crash),
        ):
            life.until_death(folder / "main", checkpoints, model)
        shutil.rmtree(folder)
    assert checkpoint_numbers(target), f"seed {seed}"

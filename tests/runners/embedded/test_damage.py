"""Files of a job of a later format or with a changed byte: the job names the file or repairs it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

import orjson
import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.runners.embedded.commit_entries import HEAD
from cep.runners.embedded.opening import PART, store_folder
from cep.runners.embedded.waiting import ADDED_WAITING
from cep.runners.handover.group_entries import PAGES, PAST, SEGMENTS
from cep.state.checkpoints import PAYLOAD
from cep.state.keys import ALL_KEYS, STORE_GROUP, split_key, store_key
from cep.state.manifest import FOLDER, Manifest
from cep.state.rocks import RocksStore
from tests.runners.embedded.cases import expected, morning
from tests.runners.embedded.damage import GIVEN, Halfway, alerts, cut_off, live
from tests.seeds import LATER, seeds

LIVES_MAX = 3
RULEBOOK = store_key(STORE_GROUP, b"", b"engine", b"rulebook")


@pytest.fixture(scope="module")
def expected_alerts(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return sorted(expected(list(morning()), GIVEN, tmp_path_factory.mktemp("expected")))


@pytest.fixture(scope="module")
def cut_off_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_off(tmp_path_factory.mktemp("left") / "with", Halfway())


@pytest.fixture
def folder(cut_off_job: Path, tmp_path: Path) -> Path:
    """Return a copy of the job's folder for one test."""
    return shutil.copytree(cut_off_job, tmp_path / "own")


def test_what_was_cut_off_is_gone_on_with(folder: Path, expected_alerts: list[bytes]) -> None:
    assert 0 < len(alerts(folder)) < len(expected_alerts)
    live(folder)
    assert sorted(alerts(folder)) == expected_alerts


# ------------------------------------------------------------------------------------------------------ a later format


def byte_at(index: int) -> Callable[[bytes], bytes]:
    """Return a change of a format that is one byte."""
    return lambda data: data[:index] + b"\x09" + data[index + 1 :]


def in_json(data: bytes) -> bytes:
    return orjson.dumps(orjson.loads(data) | {"format": 99})


def in_index(data: bytes) -> bytes:
    """Apply the change to a rulebook, whose index is JSON in JSON."""
    fields = orjson.loads(data)
    return orjson.dumps(fields | {"index": in_json(fields["index"].encode()).decode()})


BY_NAMESPACE = {PAGES: byte_at(3), PAST: byte_at(3), SEGMENTS: byte_at(3), ADDED_WAITING: byte_at(8 + 3)}
BY_KEY = {HEAD: in_json, RULEBOOK: in_index}
# Other entries of the store share the format of the head, which is read first.


@pytest.mark.parametrize(
    "format_key", [pytest.param(entry, marks=() if entry == PAGES else LATER) for entry in (*BY_NAMESPACE, *BY_KEY)]
)
def test_a_later_format_in_the_store_is_named_and_nothing_is_lost(
    format_key: bytes, folder: Path, expected_alerts: list[bytes]
) -> None:
    before: dict[bytes, bytes] = {}
    with RocksStore(store_folder(folder / "job") / PART) as store:
        for key, data in list(store.scan(ALL_KEYS)):
            change = BY_KEY.get(key) if format_key in BY_KEY else BY_NAMESPACE.get(split_key(key).namespace)
            if change is not None and format_key in (key, split_key(key).namespace):
                before[key] = data
                store.put(key, change(data))
        store.sync()
    assert before, "the job has some"
    for _ in range(2):
        with pytest.raises(StateFormatError, match=r"format \d+, this build reads \d.*build that wrote it"):
            live(folder)
    with RocksStore(store_folder(folder / "job") / PART) as store:
        for key, data in before.items():
            store.put(key, data)
        store.sync()
    live(folder)
    assert sorted(alerts(folder)) == expected_alerts


@pytest.mark.parametrize("is_lost", [pytest.param(False, marks=LATER), True])
@pytest.mark.parametrize("case", ["manifest", "payload"])
def test_a_checkpoint_of_a_later_format_is_named_and_stays(
    case: str, is_lost: bool, folder: Path, expected_alerts: list[bytes]
) -> None:
    """The result is the same with and without the store: its writer may have continued from the checkpoint."""
    (path,) = (folder / "job" / "checkpoints").glob("*.manifest")
    good = path.read_bytes()
    if case == "manifest":
        body = in_json(good.partition(b"\n")[2])
        path.write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)
    else:
        manifest = Manifest.from_bytes(good, path.name)
        (file,) = (file for file in manifest.files if file.name == PAYLOAD)
        body = in_json((path.parent / FOLDER / file.sha256).read_bytes())
        other = replace(file, size=len(body), sha256=sha256(body).hexdigest())
        (path.parent / FOLDER / other.sha256).write_bytes(body)
        path.write_bytes(
            replace(
                manifest, files=tuple(other if old_file == file else old_file for old_file in manifest.files)
            ).to_bytes()
        )
    if is_lost:
        shutil.rmtree(store_folder(folder / "job"))
    for _ in range(2):
        with pytest.raises(StateFormatError, match=r"format 99, this build reads \d.*the build that wrote it"):
            live(folder)
    path.write_bytes(good)
    live(folder)
    assert sorted(alerts(folder)) == expected_alerts


# ------------------------------------------------------------------------------------------------------- a changed byte


def change_a_byte(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def files_of(job: Path) -> list[Path]:
    """Return the files that a job reads."""
    return [path for path in sorted(job.rglob("*")) if path.is_file() and path.stat().st_size and path.name != "LOG"]


@pytest.mark.parametrize("kind", ["log", "sst", "any"])
@pytest.mark.parametrize("seed", seeds(4, inner=0))
def test_a_changed_byte_is_made_good_by_the_checkpoint(
    seed: int, kind: str, folder: Path, expected_alerts: list[bytes]
) -> None:
    random = Random(seed)
    changed = random.choice([path for path in files_of(folder / "job") if kind in ("any", path.suffix[1:])])
    change_a_byte(changed, random)
    for _ in range(LIVES_MAX):
        try:
            live(folder)
        except StateCorruptError:  # found during the run: the next start does not use the store
            continue
        break
    assert sorted(alerts(folder)) == expected_alerts, f"{changed.relative_to(folder)}"


@pytest.mark.parametrize("kind", ["log", "any"])
@pytest.mark.parametrize("seed", seeds(3, inner=0))
def test_without_a_checkpoint_a_changed_byte_is_told_if_it_matters(
    seed: int, kind: str, folder: Path, expected_alerts: list[bytes]
) -> None:
    random = Random(seed)
    shutil.rmtree(folder / "job" / "checkpoints")
    changed = random.choice([path for path in files_of(folder / "job") if kind in ("any", path.suffix[1:])])
    change_a_byte(changed, random)
    sent = alerts(folder)
    try:
        live(folder)
    except StateCorruptError:
        assert Counter(alerts(folder)) <= Counter(expected_alerts)
        assert Counter(sent) <= Counter(alerts(folder))
    else:
        assert sorted(alerts(folder)) == expected_alerts, f"{changed.relative_to(folder)}"

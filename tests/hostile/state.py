"""Manifests, entries, checkpoints, savepoints and payloads, damaged or forged with valid checksums."""

import hashlib
import json
import shutil
import struct
import zlib
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from cep.base.errors import CepError
from cep.rulebook.deploy import deploy
from cep.runners.handover.payload import Payload
from cep.state.checkpoints import Checkpoints, Part, restore
from cep.state.manifest import FOLDER, MANIFEST_FORMAT, Manifest, StoredFile, StoredPart
from cep.state.memory import MemoryStore
from cep.state.savepoints import NAME, load_savepoint, open_savepoint, read_entries, write_entries, write_savepoint
from cep.state.store import KeyRange, store_key
from cep.state.target import Target
from cep.step.event_time import PartitionTime, times_json
from cep.step.job import Job
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, Kind
from tests.hostile.mutate import broken_bytes, broken_value
from tests.runners.spark.live_cases import rules

_GROUPS = 4


def _signed(fields: Any) -> bytes:
    body = json.dumps(fields, indent=1).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def manifests(folder: Path) -> Feed:
    """A manifest as bytes, or forged with its checksum."""
    files = tuple(StoredFile(f"worker-0/{n:06}.sst", n, hashlib.sha256(b"%d" % n).hexdigest()) for n in range(4))
    good = Manifest("checkpoint", 3, 5, (StoredPart("worker-0", 0, 8), StoredPart("worker-1", 8, 16)), files)
    tree = {"format": MANIFEST_FORMAT, **json.loads(json.dumps(asdict(good)))}

    def feed(random: Random) -> str:
        is_forged = random.random() >= 0.3
        if not is_forged:
            data = broken_bytes(good.to_bytes(), random)
        elif random.random() < 0.5:
            body = broken_bytes(json.dumps(tree).encode(), random)
            data = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        else:
            data = _signed(broken_value(tree, random))
        try:
            manifest = Manifest.from_bytes(data, "m", "checkpoint")
        except CepError:
            return REFUSED
        for file in manifest.files:
            if ".." in file.name.split("/") or file.name.startswith("/"):
                raise DiffersError(f"{file.name} leads out")
        if not is_forged and manifest != good:
            raise DiffersError("a manifest is another one, and its checksum fits")
        return ACCEPTED

    return feed


def entries(folder: Path) -> Feed:
    """A file of entries with damaged bytes, or with bytes that are forged with their checksum."""
    path = folder / "entries"
    pairs = [(b"key-%03d" % n, bytes(range(n))) for n in range(60)]
    write_entries(path, pairs)
    data = path.read_bytes()
    (size,) = struct.unpack_from("<I", data)
    block = data[4 : 4 + size]

    def feed(random: Random) -> str:
        is_forged = random.random() >= 0.4
        if not is_forged:
            path.write_bytes(broken_bytes(data, random))
        else:
            body = broken_bytes(block[8:], random)
            forged = block[:4] + struct.pack("<I", zlib.crc32(body)) + body
            path.write_bytes(struct.pack("<I", len(forged)) + forged + bytes(4))
        try:
            decoded = [(bytes(key), bytes(value or b"")) for key, value in read_entries(path)]
        except CepError:
            return REFUSED
        if not is_forged and decoded != pairs:
            raise DiffersError("entries are others, and their checksums fit")
        return ACCEPTED

    return feed


def _store() -> MemoryStore:
    store = MemoryStore()
    for group in range(_GROUPS):
        for n in range(5):
            store.put(store_key(group, b"%d" % n, b"", b"n"), bytes(range(40)))
    return store


def _forge(target: Path, manifest: Path, random: Random) -> bool:
    """Change one file of a target, half of the time with a matching manifest. Return True if the manifest matches."""
    files = sorted(path for path in (target / FOLDER).iterdir() if path.is_file())
    victim = random.choice([*files, manifest])
    if victim == manifest:
        fields = json.loads(manifest.read_bytes().partition(b"\n")[2])
        manifest.write_bytes(_signed(broken_value(fields, random)))
        return True
    data = broken_bytes(victim.read_bytes(), random)
    if random.random() < 0.3:
        victim.write_bytes(data)
        return False
    digest = hashlib.sha256(data).hexdigest()
    (target / FOLDER / digest).write_bytes(data)
    fields = json.loads(manifest.read_bytes().partition(b"\n")[2])
    for file in fields["files"]:
        if file["sha256"] == victim.name:
            file.update(sha256=digest, size=len(data))
    manifest.write_bytes(_signed(fields))
    return True


def _content(store: MemoryStore) -> dict[bytes, bytes]:
    return dict(store.scan(KeyRange(b"", b"\xff" * 8)))


def _outside(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def checkpoints(folder: Path) -> Feed:
    """A checkpoint of a small store, restored."""
    good = folder / "good"
    writer = Checkpoints(Target(str(good)), folder / "work")
    copying = writer.begin([Part("store", _store(), 0, _GROUPS)], b'{"a": 1}', 5)
    assert copying is not None
    copying.result()
    writer.close()
    shutil.rmtree(folder / "work", ignore_errors=True)

    def feed(random: Random) -> str:
        bad, into = folder / "bad", folder / "into"
        for path in (bad, into):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(good, bad)
        is_forged = _forge(bad, next(bad.glob("*.manifest")), random)
        before = _outside(folder)
        try:
            restored = restore(Target(str(bad)), into)
            if restored is not None:
                store = MemoryStore.open(restored.path("store"))
                if not is_forged and _content(store) != _content(_store()):
                    raise DiffersError("a damaged checkpoint has come back as another one")
        except CepError:
            return REFUSED
        finally:
            if _outside(folder) - before - {"into", "into.part"}:
                raise DiffersError("a restore has written outside of its folder")
        return ACCEPTED

    return feed


def savepoints(folder: Path) -> Feed:
    """A savepoint of a small store, loaded into another."""
    good = folder / "good"
    write_savepoint(Target(str(good)), folder / "work", [Part("store", _store(), 0, _GROUPS)], b"{}", 5)

    def feed(random: Random) -> str:
        bad = folder / "bad"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        is_forged = _forge(bad, bad / NAME, random)
        before = _outside(folder)
        try:
            savepoint = open_savepoint(Target(str(bad)), folder / "work")
            with MemoryStore() as store:
                load_savepoint(savepoint, store, savepoint.groups, folder / "work")
                if not is_forged and _content(store) != _content(_store()):
                    raise DiffersError("a damaged savepoint has come back as another one")
        except CepError:
            return REFUSED
        finally:
            if _outside(folder) - before - {"work"}:
                raise DiffersError("a savepoint has written outside of its folder")
        return ACCEPTED

    return feed


def payloads(folder: Path) -> Feed:
    """The payload of a savepoint, without its entries."""
    deployment = deploy(rules().values())
    job = Job(deployment.schema, deployment.key_domains)
    engine = {"rulebook": "", "held_memory": [], "watermark_ms": 5, "times": times_json({"events/0": PartitionTime(5)})}
    records = [record.to_json().decode() for record in rules().values()]
    positions = {"events": {"0": 5}, "control": {}}
    good = Payload(job.to_json(), {"records": records}, 3, engine, positions, {"events": 5})
    tree = json.loads(good.to_bytes())

    def feed(random: Random) -> str:
        data = (
            broken_bytes(good.to_bytes(), random)
            if random.random() < 0.4
            else json.dumps(broken_value(tree, random)).encode()
        )
        try:
            payload = Payload.from_bytes(data, "here")
        except CepError:
            return REFUSED
        if Payload.from_bytes(payload.to_bytes(), "here") != payload:
            raise DiffersError("a payload that is written down is another one")
        return ACCEPTED

    return feed


KINDS = (
    Kind("manifests", 80, manifests), Kind("entries", 50, entries), Kind("checkpoints", 25, checkpoints),
    Kind("savepoints", 25, savepoints), Kind("payloads", 40, payloads),
)  # fmt: skip

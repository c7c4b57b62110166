"""Hostile inputs on their way through a whole job: honest events before and after them still give their alert.

A job file, a record of a topic, a packed history, a savepoint with links, a changelog, a rules repository. In addition
to the checks of the other kinds, a job must not read or write outside of its folder, let a file grow, or print raw
characters.
"""

import contextlib
import functools
import io
import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cep.base.errors import CepError
from cep.base.text import HIDDEN, utc_text
from cep.cli.main import main
from cep.columnar.decode import Decoded
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded import changelog
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import HEAD
from cep.runners.embedded.engine import Engine, Workers
from cep.sources.check import first_records
from cep.sources.inputs import Records
from cep.sources.live.base import Chunk, decode_chunks
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.state.memory import MemoryStore
from cep.state.savepoints import NAME, load_savepoint, open_savepoint, write_savepoint
from cep.state.store import STORE_GROUP, store_key
from cep.state.target import Target
from cep.step.event_time import read_time
from cep.step.job import Job
from cep.step.rejections import Examples, Rejections
from tests.columnar import common
from tests.hostile.events import hostile_json
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, Kind
from tests.hostile.mutate import broken_bytes, broken_source, broken_text
from tests.hostile.state import _content, _forge, _store
from tests.plain_avro import plain_avro
from tests.rule_files import rule_text
from tests.sources.registry.test_registry import AVRO

_SECRET = "TOP-SECRET-OF-ANOTHER-FOLDER"
_NOW_MS, _STEP_MS = 1_772_323_200_000, 10_000
_INPUTS_A_JOB = 300
_WIDE = 0.02  # of the Parquet files have thousands of columns
_TEXT_BYTES_MAX = 1 << 25  # of a column, written out in a Parquet file; a dictionary may stand for more
_RULE = """
event payment {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  status      enum(approved, declined)
  lat         float?
  retries     int?
  online      bool?
  took        duration?
}
pattern small_large() by card_id {
  seq    small -> large within 1 min
  where  small: payment  amount < 1.00
         large: payment  amount > 5.00
}
"""
_RECORD = UpsertRecord(
    id="small_large", version=1, pattern="small_large", source=_RULE, status="live", severity="low", owner="o",
    message="{key}",
)  # fmt: skip
_RULE_FILE = rule_text("ID", "../patterns/p.cep", pattern="small_large", message="{key}")
_FILLINGS = (b"\n", b" \n", b"x", b'{"a":"', b"[", b"\0", b"{}\n", b'"')
_ODD_NAMES = ["a\x1b[2Jb", "a\u202eb", "a\nb", "a b", "é", "\udcff", "-x", "a'b\"c", "{key}", "%s", "💳", "a\u200bb"]
_LOUD = ["\x1b[31m", "\x1b]0;title\x07", "\u202e", "\u2028", "\x00", "\x85"]


class _HonestJob:
    """A job that continues over many inputs; its clock moves with each. A new one begins after some hundred."""

    def __init__(self) -> None:
        deployed = deploy([_RECORD])
        self.job = Job(deployed.schema, deployed.key_domains, 2)
        self.now_ms, self.inputs = _NOW_MS, 0
        self.engine = self._begin()

    def _begin(self) -> Engine:
        return Engine(self.job, (_RECORD.to_json(),), MemoryStore(), Workers(1))

    def pair(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the next two honest events, which give an alert together."""
        if self.inputs >= _INPUTS_A_JOB:
            self.engine.close()
            self.engine, self.inputs = self._begin(), 0
        self.inputs += 1
        self.now_ms += _STEP_MS
        card = {**common.GOOD, "card_id": f"honest-{self.now_ms}", "status": "approved"}
        small = {**card, "tx_id": f"s{self.now_ms}", "amount": 0.5, "event_time": utc_text(self.now_ms - 2)}
        return small, {**card, "tx_id": f"l{self.now_ms}", "amount": 9.5, "event_time": utc_text(self.now_ms - 1)}

    def take(self, parts: Sequence[Decoded], times: dict[str, Any], *, is_behind: bool) -> tuple[set[str], list[bytes]]:
        """Do a micro-batch; return the keys of its alerts, and its letters."""
        read = {
            lane: read_time(time_ms, self.now_ms, self.job.ahead_ms, is_behind=is_behind)
            for lane, time_ms in times.items()
        }
        stepped = self.engine.step(parts, (), read, self.now_ms)
        _printed(stepped.dead_letters, stepped.counters)
        return set(stepped.alerts["key"].to_pylist()), list(stepped.dead_letters)

    def missed(self, fired: set[str]) -> None:
        """Raise DiffersError if the honest events have not given their alert."""
        if f"honest-{self.now_ms}" not in fired:
            raise DiffersError("honest events behind the hostile ones give no alert")


def _printed(letters: Sequence[bytes], counters: Any) -> None:
    """Check the output of a verb that prints letters. Raises DiffersError for a character that is printed raw."""
    examples = Examples()
    examples.add(letters)
    lines = Rejections.of({"records": 1, **counters}, examples).lines("--rejected-max", 0.0)
    _quiet("\n".join(lines))


def _quiet(text: str) -> None:
    if hidden := HIDDEN.search(text):
        raise DiffersError(f"{hidden[0]!r} is printed raw: {text[max(0, hidden.start() - 50) : hidden.end() + 50]!r}")


def _unread(data: bytes | str) -> None:
    if _SECRET in (data if isinstance(data, str) else data.decode("utf-8", "replace")):
        raise DiffersError("a file outside of the folder was read")


# -------------------------------------------------------------------------------------------------------------- files


def hostile_parquet(random: Random) -> bytes:
    """Return a hostile file of payments: odd types, dictionaries, encodings, and damaged bytes."""
    rows = random.choice((1, 3, 40, 2_000))
    good = {name: str(value) for name, value in common.GOOD.items()}
    columns: dict[str, pa.Array] = {}
    longest = 0
    for name, value in good.items():
        text = random.choice((value, value, "x" * random.choice((10, 3_000, 70_000)), "\x1b[2J", ""))
        longest = max(longest, len(text))
        same = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array([text]))
        columns[name] = random.choice((
            lambda same=same: same, lambda same=same: same, lambda: pa.nulls(rows),
            lambda text=text: pa.array([[text]] * min(rows, 40) + [None] * max(0, rows - 40)),
            lambda text=text: pa.array([{"a": text}] * min(rows, 40) + [None] * max(0, rows - 40)),
            lambda: pa.array([2**63 - 1] * rows, pa.uint64()), lambda: pa.array([float("nan")] * rows),
            lambda: pa.array([b"\xff\xfe"] * rows, pa.binary()), lambda: pa.array([-1] * rows, pa.timestamp("ns")),
        ))()  # fmt: skip
    if random.random() < 0.2:
        columns[random.choice(("a.b", "", "#1", "card_id.x", "\x1b[2J"))] = pa.nulls(rows)
    if random.random() < _WIDE:
        columns |= {f"wide {number}": pa.nulls(rows) for number in range(2_000)}
    group_rows = random.choice((1_000_000, 13, 500))
    if len(columns) > 1_000 and rows > 1_000:
        group_rows = max(group_rows, 500)  # the test itself would write smaller ones for seconds
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns), sink, compression=random.choice(("zstd", "gzip", "snappy", "none")),
        store_schema=random.random() < 0.5, use_dictionary=random.random() < 0.7 or rows * longest > _TEXT_BYTES_MAX,
        data_page_version=random.choice(("1.0", "2.0")), row_group_size=group_rows,
    )  # fmt: skip
    data = sink.getvalue()
    if random.random() < 0.6:
        damaged = bytearray(data)
        for _ in range(random.randrange(1, 5)):
            spot = random.choice((random.randrange(len(data)), random.randrange(min(len(data), 120)), -random.randrange(
                1, min(len(data), 400))))  # fmt: skip
            damaged[spot] = random.randrange(256)
        data = bytes(damaged)
    return broken_bytes(data, random) if random.random() < 0.2 else data


def _hostile_text(random: Random) -> bytes:
    good = orjson.dumps({**common.GOOD, "tx_id": f"h{random.randrange(10**6)}"})
    lines = [hostile_json(good, random) for _ in range(random.randrange(1, 4))]
    text = random.choice((b"\n", b"\r\n", b",", b"")).join(lines)
    return random.choice((
        lambda: text, lambda: b"[" + text, lambda: b"[" + text + b"]", lambda: b"\xff\xfe" + text,
        lambda: text.decode("utf-8", "replace").encode("utf-16"), lambda: b"\n" * random.randrange(200_000),
        lambda: b" \n" * random.randrange(20_000), lambda: b"{" * random.randrange(100_000),
        lambda: b'{"a":"' + b"x" * random.randrange(2_000_000), lambda: b"\0" * 5_000, lambda: b"",
    ))()  # fmt: skip


def _place(path: Path, secret: Path, random: Random) -> None:
    """Put something hostile at a path: a file, a link, a pipe or a folder."""
    match random.randrange(10):
        case 0:
            path.symlink_to(secret)
        case 1:
            others = (path, path.parent, path.parent / "gone", secret.parent)
            path.symlink_to(random.choice((Path("/dev/zero"), Path("/dev/tty"), Path("/proc/self/mem"), *others)))
        case 2:
            os.mkfifo(path)
        case 3:
            path.mkdir()
        case 4:
            with path.open("wb") as file:  # long runs of zeros, for a reader that reads all of them
                file.truncate(random.choice((1 << 20, 1 << 24)))
        case _:
            path.write_bytes(hostile_parquet(random) if path.suffix == ".parquet" else _hostile_text(random))


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def job_files(folder: Path) -> Feed:
    """Files in the folder of a job, between two honest ones."""
    job, secret = _HonestJob(), folder / "secret.jsonl"
    secret.write_text(_SECRET)

    def feed(random: Random) -> str:
        events = _fresh(folder / "events")
        first, second = job.pair()
        for name, event, time_s in (("first", first, 1), ("second", second, 9)):
            (events / f"{name}.jsonl").write_bytes(orjson.dumps(event))
            os.utime(events / f"{name}.jsonl", (time_s, time_s))
        for number in range(random.choice((1, 1, 3))):
            stem = random.choice(_ODD_NAMES) if random.random() < 0.3 else f"h{number}"
            suffix = random.choice((".parquet", ".parquet", ".jsonl", ".json", ".ndjson", ".gz", ".parquet.tmp"))
            path = events / f"{stem}{number}{suffix}"
            _place(path, secret, random)
            with contextlib.suppress(OSError):
                os.utime(path, (5, 5), follow_symlinks=False)
        source, fired, letters = FilesSource(events, follow=False), set[str](), list[bytes]()
        while not source.ended:
            chunks = source.poll(random.choice((7, 1_000)), 0.0)
            decoded = decode_chunks(job.job.schema, chunks)
            times = decoded.time_ms or {"files": np.zeros(0, np.int64)}
            keys, more = job.take(decoded.parts, times, is_behind=source.behind()["files"])
            fired |= keys
            letters += more
        for letter in letters:
            _unread(letter)
        job.missed(fired)
        return REFUSED if letters else ACCEPTED

    return feed


def packed_files(folder: Path) -> Feed:
    """Packed histories whose blocks unpack to much more: honest records before and after them are read."""
    honest = [orjson.dumps({**common.GOOD, "tx_id": f"honest{n}"}) for n in range(6)]

    def feed(random: Random) -> str:
        size, middle = random.choice((10, 10_000, 600_000)), random.choice(_FILLINGS)
        if random.random() < 0.03:
            size, middle = 17_000_000, b"x"  # more than the limit of a record
        count = size // len(middle) if middle != b"{}\n" else min(size, 3_000) // 3
        data = b"\n".join([*honest[:3], middle * count, *honest[3:]])
        codec = random.choice(("gzip", "zstd"))
        packed = bytes(pa.compress(data, codec, asbytes=True))
        if random.random() < 0.3:  # several members one after the other
            packed += bytes(pa.compress(b"\n" + orjson.dumps({**common.GOOD, "tx_id": "more"}), codec, asbytes=True))
        is_cut = random.random() < 0.2
        packed = broken_bytes(packed, random) if is_cut else packed
        path = folder / f"a.jsonl.{'gz' if codec == 'gzip' else 'zst'}"
        path.write_bytes(packed)
        try:
            list(first_records(path, common.ONE, Records.of(path).mapping))
            decoded = [piece.decode() for piece in read_pieces(path, common.ONE).pieces]
        except CepError:
            if not is_cut:
                raise DiffersError("a history that is whole is refused") from None
            return REFUSED
        finally:
            path.unlink()
        ids = [each for part in decoded for each in part.event_id.to_pylist()]
        if not is_cut and [each for each in ids if each.startswith("honest")] != [f"honest{n}" for n in range(6)]:
            raise DiffersError(f"of six honest records {ids} are left")
        return REFUSED if any(part.poison for part in decoded) else ACCEPTED

    return feed


def job_records(folder: Path) -> Feed:
    """Records of a topic in JSON, Avro and Protobuf, between two honest ones of the same micro-batches."""
    job = _HonestJob()
    schema_file = folder / "payment.avsc"
    schema_file.write_text(json.dumps(AVRO))
    avro = RecordFormat("avro", schema_file=str(schema_file))
    forms: tuple[tuple[RecordFormat, Callable[[dict[str, Any]], bytes]], ...] = (
        (RecordFormat(), orjson.dumps), (avro, functools.partial(_avro_of, folder)),
    )  # fmt: skip
    forms = (*forms, _protobuf_of(folder))

    def feed(random: Random) -> str:
        form, write = random.choice(forms)
        first, second = job.pair()
        good = write({**first, "tx_id": "h", "card_id": "hostile"})
        hostile = [
            hostile_json(good, random) if form.name == "json" else broken_bytes(good, random)
            for _ in range(random.choice((1, 5)))
        ]
        fired, letters = set[str](), list[bytes]()
        for values in ([write(first), *hostile[:2]], [*hostile[2:], write(second)]):
            chunk = Chunk("payments[0]", pa.array(values, pa.large_binary()))
            decoded = decode_chunks(
                job.job.schema, [chunk], lambda schema, record_values: decode(form, schema, record_values, "payments")
            )
            keys, more = job.take(decoded.parts, decoded.time_ms, is_behind=False)
            fired |= keys
            letters += more
        job.missed(fired)
        return REFUSED if letters else ACCEPTED

    return feed


def _numbers(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "event_time": datetime.fromisoformat(event["event_time"])}


def _avro_of(_folder: Path, event: dict[str, Any]) -> bytes:
    (value,) = plain_avro(
        AVRO, [{**_numbers(event), "amount": Decimal(str(event["amount"])).quantize(Decimal("0.01"))}]
    )
    return value


def _protobuf_of(folder: Path) -> tuple[RecordFormat, Callable[[dict[str, Any]], bytes]]:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer  # noqa: PLC0415 slow to import

    from cep.sources.registry.kafka import _message_class, client_of  # noqa: PLC0415
    from tests.sources.registry.test_registry import CONTEXT, descriptors  # noqa: PLC0415

    path = folder / "payment.desc"
    path.write_bytes(descriptors())
    form = RecordFormat("protobuf", (("url", f"mock://doors-{folder.name}"),), str(path), "shop.Payment")
    message = _message_class(str(path), "shop.Payment")
    serializer = ProtobufSerializer(message, client_of(form.registry), {"use.deprecated.format": False})
    names = {field.name for field in message.DESCRIPTOR.fields}

    def write(event: dict[str, Any]) -> bytes:
        numbers = {"event_time": round(_numbers(event)["event_time"].timestamp() * 1_000), "status": 1}
        fields = {**event, **numbers}
        chosen = {name: value for name, value in fields.items() if name in names and value is not None}
        return bytes(serializer(message(**chosen), CONTEXT) or b"")

    return form, write


# -------------------------------------------------------------------------------------------------------------- state


def linked_savepoints(folder: Path) -> Feed:
    """Savepoints in which a file is a link, a device, a pipe, or of another size than its manifest says."""
    good, secret = folder / "good", folder / "secret"
    write_savepoint(Target(str(good)), folder / "work", [_part()], b"{}", 5)
    secret.write_text(_SECRET)

    def feed(random: Random) -> str:
        bad = folder / "bad"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        is_forged = random.random() < 0.5 and _forge(bad, bad / NAME, random)
        victim = random.choice([path for path in bad.rglob("*") if path.is_file()])
        size = victim.stat().st_size
        victim.unlink()
        match random.randrange(6):
            case 0:
                victim.symlink_to(secret)
            case 1:
                victim.symlink_to(random.choice(("/dev/zero", "/dev/tty", "/proc/self/mem", victim.name, "..")))
            case 2:
                os.mkfifo(victim)
            case 3:
                victim.mkdir()
            case 4:
                with victim.open("wb") as file:
                    file.truncate(random.choice((0, size, size + 1, 1 << 40)))
            case _:
                shutil.rmtree(victim.parent) if victim.parent != bad else None
                victim.parent.mkdir(exist_ok=True) if random.random() < 0.5 else None
        try:
            savepoint = open_savepoint(Target(str(bad)), folder / "work")
            with MemoryStore() as store:
                load_savepoint(savepoint, store, savepoint.groups, folder / "work")
                if not is_forged and _content(store) != _content(_store()):
                    raise DiffersError("a savepoint with a file exchanged has come back as another one")
        except CepError as error:
            _unread(str(error))
            return REFUSED
        return ACCEPTED

    return feed


def _part() -> Any:
    from cep.state.checkpoints import Part  # noqa: PLC0415 its name is too plain here

    return Part("store", _store(), 0, 4)


def changelogs(folder: Path) -> Feed:
    """Records of a changelog: it is read, or refused; nothing is written outside of the folder of lists."""
    keys = [store_key(STORE_GROUP, b"", b"list", b"blocked", struct.pack(">I", part)) for part in (0, 1, 4_000_000_000)]
    keys += [store_key(STORE_GROUP, b"", b"list", name) for name in (b"../../x", b"\xff", b"a/b", b"")]
    keys += [
        store_key(STORE_GROUP, b"", b"part", b"k", b"\0\0\0\0"),
        store_key(1, b"card", b"n", b"x"),
        HEAD,
        b"",
    ]
    marks = [struct.pack(">12sHI", b"cep in parts", form, count) for form, count in ((1, 1), (1, 2**32 - 1), (9, 1))]
    values = [*marks, b"", b"x" * 1_000, None, b"cep in parts", b"[1, 2]"]
    outside = folder / "outside"
    outside.mkdir()

    def feed(random: Random) -> str:
        rows: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(random.randrange(1, 6)):
            key, value = random.choice(keys), random.choice(values)
            key = broken_bytes(key, random) if random.random() < 0.3 else key
            value = broken_bytes(value, random) if value and random.random() < 0.3 else value
            rows.append((None if random.random() < 0.02 else key, value))
        batch = pa.RecordBatch.from_pydict({
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
            "timestamp": pa.array([0] * len(rows), pa.int64()), "offset": pa.array(range(len(rows)), pa.int64()),
        })  # fmt: skip
        carrier = SimpleNamespace(open=lambda: None)
        log = Changelog("log", SimpleNamespace(), carrier, job="job")  # type: ignore[arg-type]
        offsets = {"log": {0: 0}}
        lists = _fresh(outside / "lists")
        with (
            MemoryStore() as store, patch.object(changelog, "read_range", lambda *_, **__: iter([batch])),
            patch.object(changelog, "earliest_offsets", lambda *_: offsets),
            patch.object(changelog, "latest_offsets", lambda *_: {"log": {0: len(rows)}}),
        ):  # fmt: skip
            try:
                log.replay(store, lists)
                outcome = ACCEPTED
            except CepError as error:
                _quiet(str(error))
                outcome = REFUSED
        if {path.name for path in outside.iterdir()} != {"lists"} or any(path.is_dir() for path in lists.iterdir()):
            raise DiffersError("a changelog has written outside of the folder of lists")
        if sum(path.stat().st_size for path in lists.iterdir()) > 8 << 30:
            raise DiffersError("a list of a changelog has become a giant")
        return outcome

    return feed


# -------------------------------------------------------------------------------------------------------------- rules


def repositories(folder: Path) -> Feed:
    """Repositories of rules with links and odd characters, read and written by verbs: nothing outside is touched."""
    secret = folder / "secret"
    secret.write_text(_SECRET)
    toml = _RULE_FILE
    verbs = (["check"], ["lint"], ["rules", "lock"], ["fmt"], ["fmt", "--check"], ["explain"], ["rules", "list"])

    def feed(random: Random) -> str:
        root = _fresh(folder / "repository")
        for name in (".git", "rules", "patterns"):
            (root / name).mkdir()
        pattern, rule = root / "patterns" / "p.cep", root / "rules" / "r.toml"
        pattern.write_text(_RULE)
        rule.write_text(toml.replace("ID", "r"))
        for _ in range(random.choice((1, 2))):
            match random.randrange(6):
                case 0:
                    victim = random.choice((pattern, rule))
                    victim.unlink(missing_ok=True)
                    victim.symlink_to(random.choice((secret, Path("/dev/zero"), victim, Path("/dev/tty"))))
                case 1:
                    name = random.choice((".p.cep.tmp", ".r.toml.tmp", "rules.lock", ".rules.lock.tmp", "x.cep"))
                    with contextlib.suppress(FileExistsError):
                        (random.choice((pattern, rule)).parent / name).symlink_to(secret)
                case 2:
                    odd = random.choice(_ODD_NAMES)
                    with contextlib.suppress(FileExistsError, ValueError, OSError):
                        (root / "rules" / f"{odd}.toml").write_text(toml.replace("ID", random.choice(_LOUD) + "x"))
                        (root / "patterns" / f"{odd}.cep").write_text(broken_source(_RULE, random))
                case 3 if not pattern.is_symlink():
                    offset = random.randrange(len(_RULE))
                    pattern.write_text(_RULE[:offset] + random.choice(_LOUD) + _RULE[offset:])
                case 4 if not rule.is_symlink():
                    rule.write_text(broken_text(toml, random).replace("ID", random.choice(("r", *_LOUD))))
                case _:
                    fifo = random.choice((root / "rules" / "f.toml", root / "patterns" / "f.cep"))
                    with contextlib.suppress(FileExistsError):
                        os.mkfifo(fifo)
        verb = random.choice(verbs)
        place = str(root / "rules") if verb[0] == "rules" else str(random.choice((pattern, root / "patterns")))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                code = main([*verb, place])
            except SystemExit as error:
                code = int(error.code or 0)
        _quiet(out.getvalue())
        _unread(out.getvalue())
        if secret.read_text() != _SECRET or secret.is_symlink():
            raise DiffersError(f"{verb} has written through a link")
        return ACCEPTED if code == 0 else REFUSED

    return feed


KINDS = (
    Kind("job files", 30, job_files), Kind("job records", 30, job_records), Kind("packed files", 8, packed_files),
    Kind("linked savepoints", 20, linked_savepoints), Kind("changelogs", 15, changelogs),
    Kind("repositories", 8, repositories),
)  # fmt: skip

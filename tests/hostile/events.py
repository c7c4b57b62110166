"""Events of every format: one record of many is made hostile, and all the others must be decoded as before."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from cep.base.errors import CepError
from cep.columnar.decode import Decoded, concat_decoded, decode_json
from cep.rulebook.deploy import deploy
from cep.runners.embedded import replay as embedded
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.step.job import Job
from tests.columnar import common
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, Kind
from tests.hostile.mutate import broken_bytes, broken_value, deep
from tests.plain_avro import plain_avro
from tests.runners.spark.live_cases import payments, rules
from tests.sources.registry.test_registry import AVRO, EVENTS, descriptors

_RECORDS = 40  # of one block; one of them is hostile
_TOPIC = "payments"
_OTHER_CARDS = 5  # of a replay, in addition to the ones with alerts
Row = tuple[object, ...]


def rows_of(decoded: Decoded) -> list[Row]:
    """Return each good record as values."""
    columns = [column.to_pylist() for column in decoded.columns.values()]
    return list(
        zip(decoded.event_id.to_pylist(), decoded.event_type.tolist(), decoded.time_ms.tolist(), *columns, strict=True)
    )


def others_are_equal(before: Sequence[Row], after: list[Row], place: int) -> None:
    """Raise DiffersError unless all records without the one at `place` are there, in their order."""
    without = [*before[:place], *before[place + 1 :]]
    if after != without and [*after[:place], *after[place + 1 :]] != without:
        raise DiffersError(f"{len(before)} records became {len(after)}, others than before")


def hostile_json(record: bytes, random: Random) -> bytes:
    if random.random() < 0.01:
        return deep(random).encode()
    if random.random() < 0.5:
        return json.dumps(broken_value(json.loads(record), random)).encode()
    return broken_bytes(record, random)


def json_events(folder: Path) -> Feed:
    """JSON objects of two event types, as in a topic."""
    schema = common.TWO
    login = {"event_type": "login", "event_time": "2026-03-01T00:00:00Z", "card_id": "c", "device": "d"}
    good = [
        json.dumps({**common.GOOD, "event_type": "payment", "tx_id": f"t{n}"}, default=str).encode()
        for n in range(_RECORDS - 8)
    ]
    good += [json.dumps({**login, "login_id": f"l{n}"}).encode() for n in range(8)]
    before = rows_of(decode_json(schema, pa.array(good, pa.large_binary())))
    assert len(before) == _RECORDS

    def feed(random: Random) -> str:
        place = random.randrange(_RECORDS)
        values = [*good[:place], hostile_json(good[place], random), *good[place + 1 :]]
        decoded = decode_json(schema, pa.array(values, pa.large_binary()))
        if decoded.records_count != _RECORDS:
            raise DiffersError("a record is neither decoded nor set aside")
        others_are_equal(before, rows_of(decoded), place)
        return REFUSED if decoded.poison else ACCEPTED

    return feed


def framed_json_events(folder: Path) -> Feed:
    """JSON records after the id of a registry's schema, which is skipped."""
    form = RecordFormat("json", (("url", f"mock://hostile-{folder.name}"),))
    frame = b"\0" + (1).to_bytes(4, "big")
    return _records(form, [frame + json.dumps({**common.GOOD, "tx_id": f"t{n}"}, default=str).encode()
                           for n in range(_RECORDS)])  # fmt: skip


def packed_events(folder: Path) -> Feed:
    """JSON lines and CSV, packed by gzip or zstd: one record is hostile, or the packed bytes are."""
    lines = [json.dumps({**common.GOOD, "tx_id": f"t{n}"}, default=str).encode() for n in range(_RECORDS)]
    sink = io.BytesIO()
    pa_csv.write_csv(_table(), sink)
    files = {
        "events.jsonl.gz": b"\n".join(lines), "events.jsonl.zst": b"\n".join(lines), "events.csv.gz": sink.getvalue(),
    }  # fmt: skip

    def read_packed(name: str, data: bytes) -> Decoded:
        path = folder / name
        path.write_bytes(data)
        try:
            return _read(path)
        finally:
            path.unlink()

    before = {name: rows_of(read_packed(name, _packed(name, data))) for name, data in files.items()}
    assert {len(rows) for rows in before.values()} == {_RECORDS}

    def feed(random: Random) -> str:
        name = random.choice(list(files))
        place = random.randrange(_RECORDS)
        is_line = name.startswith("events.jsonl") and random.random() < 0.5
        if is_line:
            hostile = hostile_json(lines[place], random).replace(b"\n", b" ").replace(b"\r", b" ")
            packed = _packed(name, b"\n".join([*lines[:place], hostile, *lines[place + 1 :]]))
        elif random.random() < 0.02:
            packed = _packed(name, files[name] + b"x" * _BOMB_BYTES)
        else:
            packed = broken_bytes(_packed(name, files[name]), random)
        try:
            decoded = read_packed(name, packed)
        except CepError:
            return REFUSED
        if is_line:
            others_are_equal(before[name], rows_of(decoded), place)
        elif (
            name.endswith(".gz")
            and not decoded.poison
            and len(decoded) == _RECORDS
            and rows_of(decoded) != before[name]
        ):
            raise DiffersError("a file whose checksum does not fit has other records")
        return REFUSED if decoded.poison else ACCEPTED

    return feed


_BOMB_BYTES = 32 << 20  # of one repeated byte: packed it is some kB


def _packed(name: str, data: bytes) -> bytes:
    return bytes(pa.compress(data, "gzip" if name.endswith(".gz") else "zstd", asbytes=True))


def avro_events(folder: Path) -> Feed:
    path = folder / "payment.avsc"
    path.write_text(json.dumps(AVRO))
    return _records(RecordFormat("avro", schema_file=str(path)), plain_avro(AVRO, EVENTS))


def framed_avro_events(folder: Path) -> Feed:
    """Avro records after a registry's frame, which names a schema."""
    from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: PLC0415 slow to import

    from cep.sources.registry.kafka import client_of  # noqa: PLC0415
    from tests.sources.registry.test_registry import CONTEXT  # noqa: PLC0415

    form = RecordFormat("avro", (("url", f"mock://hostile-{folder.name}"),))
    serializer = AvroSerializer(client_of(form.registry), json.dumps(AVRO))
    return _records(form, [serializer(event, CONTEXT) or b"" for event in EVENTS])


def protobuf_events(folder: Path) -> Feed:
    """Protobuf records after a registry's frame."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer  # noqa: PLC0415 slow to import

    from cep.sources.registry.kafka import _message_class, client_of  # noqa: PLC0415
    from tests.sources.registry.test_registry import CONTEXT  # noqa: PLC0415

    path = folder / "payment.desc"
    path.write_bytes(descriptors())
    form = RecordFormat("protobuf", (("url", f"mock://hostile-{folder.name}"),), str(path), "shop.Payment")
    message = _message_class(str(path), "shop.Payment")
    serializer = ProtobufSerializer(message, client_of(form.registry), {"use.deprecated.format": False})
    values = []
    for event in EVENTS:
        numbers = {"event_time": round(event["event_time"].timestamp() * 1_000), "amount": float(event["amount"])}
        payment_values = {name: value for name, value in {**event, **numbers, "status": 1}.items() if value is not None}
        values.append(serializer(message(**payment_values), CONTEXT) or b"")
    return _records(form, values)


def _records(form: RecordFormat, values: list[bytes]) -> Feed:
    schema = common.ONE
    before = rows_of(decode(form, schema, pa.array(values, pa.binary()), _TOPIC))
    assert len(before) == len(values)

    def feed(random: Random) -> str:
        place = random.randrange(len(values))
        records = [*values[:place], broken_bytes(values[place], random), *values[place + 1 :]]
        decoded = decode(form, schema, pa.array(records, pa.binary()), _TOPIC)
        if decoded.records_count != len(values):
            raise DiffersError("a record is neither decoded nor set aside")
        others_are_equal(before, rows_of(decoded), place)
        return REFUSED if decoded.poison else ACCEPTED

    return feed


def _table() -> pa.Table:
    rows = [{**common.GOOD, "tx_id": f"t{n}"} for n in range(_RECORDS)]
    return pa.Table.from_pylist(
        [{name: None if value is None else str(value) for name, value in row.items()} for row in rows]
    )


def _read(path: Path) -> Decoded:
    return concat_decoded(common.ONE, [piece.decode() for piece in read_pieces(path, common.ONE).pieces])


def csv_events(folder: Path) -> Feed:
    """A CSV file with one hostile line."""
    sink = io.BytesIO()
    pa_csv.write_csv(_table(), sink)
    lines = sink.getvalue().rstrip(b"\n").split(b"\n")
    path = folder / "events.csv"
    path.write_bytes(b"\n".join(lines))
    before = rows_of(_read(path))

    def feed(random: Random) -> str:
        place = random.randrange(len(lines))
        hostile = broken_bytes(lines[place], random)
        path.write_bytes(b"\n".join([*lines[:place], hostile, *lines[place + 1 :]]))
        try:
            decoded = _read(path)
        except CepError:
            return REFUSED
        if place > 0 and not set(hostile) & set(b'"\r\n') and decoded.records_count == _RECORDS:
            others_are_equal(before, rows_of(decoded), place - 1)
        return REFUSED if decoded.poison else ACCEPTED

    return feed


def parquet_events(folder: Path) -> Feed:
    """A Parquet file with hostile bytes."""
    sink = io.BytesIO()
    pq.write_table(_table(), sink, row_group_size=16)
    data = sink.getvalue()
    path = folder / "events.parquet"

    def feed(random: Random) -> str:
        path.write_bytes(broken_bytes(data, random))
        try:
            decoded = _read(path)
        except CepError:
            return REFUSED
        return REFUSED if decoded.poison else ACCEPTED

    return feed


def replays(folder: Path) -> Feed:
    """A history with one hostile record: the alerts of all other keys equal the alerts of the original history."""
    deployment = deploy(rules().values())
    job = Job(deployment.schema, deployment.key_domains)
    every = payments(1)
    path = folder / "history.jsonl"

    def alerts(history: Sequence[bytes]) -> list[tuple[str, bytes]]:
        path.write_bytes(b"\n".join(history))
        table = embedded.replay(job, deployment.rulebook, read_pieces(path, job.schema), 1).alerts
        return sorted(zip(table["key"].to_pylist(), json_lines(table), strict=True))

    cards = {key for key, _ in alerts(every)}
    cards |= set(sorted({json.loads(line)["card_id"] for line in every})[:_OTHER_CARDS])
    lines = [line for line in every if json.loads(line)["card_id"] in cards]
    whole = alerts(lines)
    assert whole, "a history without alerts shows nothing"
    keys = {json.loads(line)["card_id"] for line in lines}

    def feed(random: Random) -> str:
        place = random.randrange(len(lines))
        hostile = hostile_json(lines[place], random).replace(b"\n", b" ")
        touched = {value for line in (lines[place], hostile) for value in _texts(line)}
        after = alerts([*lines[:place], hostile, *lines[place + 1 :]])
        if [a for a in after if a[0] not in touched and a[0] in keys] != [a for a in whole if a[0] not in touched]:
            raise DiffersError("alerts of other keys have changed")
        return ACCEPTED

    return feed


def _texts(line: bytes) -> list[str]:
    """Return the texts in a record, valid or not; a record of several objects gives the texts of all."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [v for v in value.values() if isinstance(v, str)] if isinstance(value, dict) else []


KINDS = (
    Kind("JSON events", 160, json_events), Kind("framed JSON events", 15, framed_json_events),
    Kind("packed events", 15, packed_events), Kind("Avro events", 30, avro_events),
    Kind("framed Avro events", 25, framed_avro_events), Kind("Protobuf events", 25, protobuf_events),
    Kind("CSV events", 30, csv_events), Kind("Parquet events", 25, parquet_events), Kind("replays", 12, replays),
)  # fmt: skip

"""No file has an erased key or a card number."""

import itertools
import json
import random
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cep.base.exits import Exit
from cep.base.secrets import SecretKey, secret_keys
from cep.cli.erase import _copy_dead_letters, _files_with
from cep.cli.main import main
from cep.columnar.decode import key_of
from cep.model.rule import PauseRecord, SnoozeRecord
from cep.rulebook.files import change_path, read_rules, write_change
from cep.rulebook.trust import Signable, with_nonce
from cep.runners.embedded.opening import STORE_PART, StoreSettings, store_folder
from cep.runners.handover.erase import has_other_tokens, ways_to_write
from cep.runners.live_checkpoint import read_progress
from cep.runners.meanings import open_runs
from cep.state.savepoints import read_entries
from cep.state.store import KeyRange
from cep.step.rules import apply_records
from tests.columnar.protected import KEYS, card_numbers
from tests.output_of import OutputOf
from tests.real_kafka import KafkaCluster
from tests.rule_files import rule_text
from tests.rulebook.people import ROOT, by_two, signed_request, upsert_by_two, write_signers
from tests.rulebook.records import new_book, upsert
from tests.sinks.test_kafka import consumed

# No file of a run contains a card number, for good, malformed, late, repeated and poison records.
#
# The test also reads the state back, because its files are compressed.

START_MS = 1_767_225_600_000
# Texts around a number, and between its digits, as people write them.
FREE_TEXTS = (
    "much {0}", "{0} 2 calls", "2 calls, {0}", "12 {0} 34", "{1}_{2}_{3}", "{1}/{2}/{3} 2026", "{1}.{2}.{3};9", "n{0}n",
    "{1}\u00a0{2}\u00a0{3}", "{1}\t{2}\t{3} 7",
)  # fmt: skip
SEPARATORS = b" -_/.;\t"
PATTERNS = """\
event payment {
  tx_id       id
  event_time  time
  card        pan
  email       string? sensitive
  amount      decimal(2)
  note        string?
}

pattern pairs by card {
  seq    a -> b within 1 h
  where  a: payment  amount > 5
         b: payment  amount > 5 and count(payment over 2 h) > 1 and distinct(payment.email over 2 h) > 0
  emit   card = b.card, email = b.email, amount = b.amount
}
"""
RULE = rule_text("pairs", "../patterns/pairs.cep", message="{card} paid {amount}", suppress="10 min")


def wrong(number: str) -> str:
    """Return the number with another check digit."""
    return number[:-1] + str((int(number[-1]) + 1) % 10)


def records(seed: int, numbers: list[str]) -> list[bytes]:
    """Return a day with records of every kind; every one has a number or an address."""
    chosen = random.Random(seed)
    lines: list[bytes] = []
    for i in range(400):
        number = chosen.choice(numbers)
        ways = [number, int(number), f"{number[:4]} {number[4:8]} {number[8:]}", number, number]
        record = {
            "tx_id": f"t{i}", "event_time": START_MS + i * 20_000, "card": chosen.choice(ways), "amount": 9.5,
            "email": f"{number}@example.org",
        }  # fmt: skip
        kind = chosen.randrange(12)
        if kind == 0:
            record["event_time"] = START_MS - 3_600_000  # late
        elif kind == 1:
            record["amount"] = FREE_TEXTS[i % len(FREE_TEXTS)].format(number, number[:4], number[4:8], number[8:])
        elif kind == 2:
            record["card"] = wrong(number)
        elif kind == 3:
            record["card"], record["card_no"] = None, number
        elif kind == 4:
            record["card"], record["note"] = [number], f"card {number} refused"
        elif kind == 5:
            record["tx_id"] = f"t{max(0, i - 3)}"  # perhaps a repeat
        elif kind == 6:
            record["event_time"] = number
        line = orjson.dumps(record)
        lines.append(line[: chosen.randrange(40, len(line))] if kind == 7 else line)
    return lines


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CEP_SECRETS_FILE", raising=False)
    monkeypatch.setenv("CEP_SECRETS", KEYS)
    (tmp_path / "repository" / "patterns").mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (tmp_path / "repository" / "patterns" / "pairs.cep").write_text(PATTERNS)
    (tmp_path / "repository" / "rules").mkdir()
    (tmp_path / "repository" / "rules" / "pairs.toml").write_text(RULE)
    return tmp_path / "repository" / "rules"


def stored(job: Path) -> Iterator[bytes]:
    """Yield the keys and values of a job's store, whose files have compressed blocks."""
    for path in job.rglob("*.cep"):
        for key, value in read_entries(path):
            yield key + value
    with StoreSettings(job).open(store_folder(job) / STORE_PART) as store:
        for key, value in store.scan(KeyRange(b"", b"\xff" * 8)):
            yield key + value


def assert_absent(numbers: list[str], contents: Iterator[bytes]) -> None:
    for content in contents:
        plain = content.translate(None, SEPARATORS)
        for number in numbers:
            assert number.encode() not in plain
            assert number.encode().hex().encode() not in plain


def test_no_file_of_a_run_has_a_card_number(rules: Path, tmp_path: Path, output_of: OutputOf) -> None:
    numbers = card_numbers(11, 12)
    searched = [*numbers, *(wrong(number) for number in numbers)]
    out = tmp_path / "out"
    lines = records(1, numbers)
    (tmp_path / "events").mkdir()
    arguments = [
        "run", "--rules", str(rules), "--events", str(tmp_path / "events"), "--alerts", str(out / "alerts"),
        "--checkpoint", str(out / "job"), "--dedup", "1 d", "--available-now", "--log", "json",
        "--checkpoint-target", str(out / "target"), "--rejected-max", "1",
    ]  # fmt: skip
    for number, part in enumerate((lines[:200], lines[200:])):
        (tmp_path / "events" / f"{number}.jsonl").write_bytes(b"\n".join(part) + b"\n")
        assert main(arguments) == 0
    assert main(["job", "savepoint", "--checkpoint", str(out / "job"), "--to", str(out / "savepoint")]) == 0
    (tmp_path / "all.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    replay = ["replay", "--rules", str(rules), "--events", str(tmp_path / "all.jsonl")]
    replay += ["--rejected-max", "1", "--out"]
    assert main([*replay, str(out / "replayed.jsonl"), "--dedup", "1 d"]) == 0
    printed = output_of(main([*replay, str(out / "replayed.parquet"), "--dedup", "1 d"]))
    assert list((out / "target").iterdir())
    rows = pq.read_table(out / "replayed.parquet").to_pylist()
    assert len(rows) > 5
    assert_absent(searched, (repr(row).encode() for row in rows))  # the pages of the file are compressed
    files = [path for path in out.rglob("*") if path.is_file()]
    assert_absent(searched, (path.read_bytes() for path in files))
    assert_absent(searched, (str(path).encode() for path in files))
    assert_absent(searched, iter([printed.out.encode(), printed.err.encode()]))
    assert_absent(searched, stored(out / "job"))
    letters = b"".join(path.read_bytes() for path in (out / "job" / "dead_letters").glob("*.jsonl"))
    codes = {orjson.loads(line).get("code") for line in letters.splitlines()}
    assert codes >= {"late", "unreadable", "no_card_number"}
    written = b"".join(path.read_bytes() for path in (out / "alerts").glob("*.jsonl"))
    alerts = [orjson.loads(line) for line in written.splitlines()]
    assert len(alerts) > 5
    assert all(alert["key"].startswith("pan_k1_") and alert["key"] in alert["message"] for alert in alerts)


def test_no_topic_has_a_card_number(kafka_broker: KafkaCluster, rules: Path, tmp_path: Path) -> None:
    numbers, name = card_numbers(13, 6), f"cards-{uuid.uuid4().hex[:8]}"
    for part in ("events", "control", "alerts", "dead", "status", "changelog"):
        kafka_broker.create(f"{name}-{part}", 1)
    until = "2030-01-01T00:00:00Z"
    snoozes = [
        SnoozeRecord(id="pairs", version=1, until=until, key=numbers[0], by="Ada"),
        SnoozeRecord(id="none", version=1, until=until, key="k", by="Ada", reason=f"{numbers[1]} called"),
    ]
    snoozed = [snooze.to_json() for snooze in snoozes]
    snoozed.append(snoozed[0].replace(b'"version":1', b'"version":"1"'))
    kafka_broker.send(f"{name}-control", [{"value": value, "partition": 0} for value in snoozed])
    kafka_broker.send(f"{name}-events", [{"value": value, "partition": 0} for value in records(4, numbers)])
    assert main([
        "run", "--rules", str(rules), "--bootstrap-servers", kafka_broker.address, "--topic", f"{name}-events",
        "--control-topic", f"{name}-control", "--status-topic", f"{name}-status", "--alerts", f"kafka:{name}-alerts",
        "--dead-letter-topic", f"{name}-dead", "--checkpoint", str(tmp_path / "job"), "--available-now",
        "--changelog", f"{name}-changelog", "--rejected-max", "1",
    ]) == 0  # fmt: skip
    for part in ("alerts", "dead", "status", "changelog"):
        contents = [data for one in consumed(kafka_broker, f"{name}-{part}", 1) for data in (one.key(), one.value())]
        assert any(contents), part
        assert_absent(numbers, (data for data in contents if data))
    assert_absent(numbers, (path.read_bytes() for path in (tmp_path / "job").rglob("*") if path.is_file()))


def test_a_job_without_its_key_does_not_start(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_of: OutputOf
) -> None:
    monkeypatch.delenv("CEP_SECRETS")
    (tmp_path / "e.jsonl").write_bytes(records(1, card_numbers(1, 2))[0])
    events = ["--rules", str(rules), "--events", str(tmp_path / "e.jsonl")]
    assert main(["run", *events, "--checkpoint", str(tmp_path / "job"), "--available-now"]) == Exit.USAGE
    assert "--secrets" in output_of.read().err
    assert not (tmp_path / "job").exists()
    assert "--secrets" in output_of(main(["replay", *events, "--out", str(tmp_path / "a.jsonl")]), Exit.USAGE).err


# An erased key is in no file any more. All other keys have the alerts of a job that erased nothing.
#
# A replay gives them the same alerts, with the events of the key or without.

NUMBERS = card_numbers(21, 6)


def events(seed: int, first: int, count: int) -> bytes:
    """Return payments of some cards, a few seconds apart and out of order."""
    chosen = random.Random(seed)
    lines = [
        orjson.dumps({
            "tx_id": f"t{i}", "event_time": START_MS + i * 20_000 - chosen.randrange(60_000),
            "card": chosen.choice(NUMBERS), "amount": 9, "email": "jo@example.org",
        })
        for i in range(first, first + count)
    ]  # fmt: skip
    return b"\n".join(lines) + b"\n"


def last_event() -> bytes:
    """Return an event that completes no match: a job waits for it instead of others, a replay does not wait."""
    return orjson.dumps({**orjson.loads(events(2, 600, 1)), "card": NUMBERS[-1]})


def alerts_of(folder: Path) -> list[tuple[str, str]]:
    paths = [path for path in sorted(folder.glob("*.jsonl")) if not path.name.endswith(".held.jsonl")]
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    return sorted((str(orjson.loads(line)["key"]), str(orjson.loads(line)["alert_id"])) for line in lines)


def run(rules: Path, folder: Path) -> None:
    assert main([
        "run", "--rules", str(rules), "--events", str(folder / "events"), "--alerts", str(folder / "alerts"),
        "--checkpoint", str(folder / "job"), "--lateness", "2 min", "--dedup", "1 d", "--available-now",
    ]) == 0  # fmt: skip


def replayed(rules: Path, folder: Path, lines: list[bytes]) -> list[tuple[str, str]]:
    (folder / "sent").mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    arguments = ["--rules", str(rules), "--events", str(folder / "events.jsonl"), "--dedup", "1 d"]
    assert main(["replay", *arguments, "--out", str(folder / "sent" / "alerts.jsonl")]) == 0
    return alerts_of(folder / "sent")


def test_others_go_on_as_if_nothing_was_erased(rules: Path, tmp_path: Path, output_of: OutputOf) -> None:
    gone = [secret_keys()[0].token("pan", number.encode()) for number in NUMBERS[:2]]
    # Three events wait, of the erased card and of others: one of two is bound, and the other is to come.
    first = events(1, 0, 120) + b"".join(events(seed, 120, 1) for seed in (3, 4)) + events(1, 0, 3)
    for name in ("whole", "erased"):
        folder = tmp_path / name
        (folder / "events").mkdir(parents=True)
        (folder / "events" / "1.jsonl").write_bytes(first)
        run(rules, folder)
        if name == "erased":
            output_of.read()
            before = stored_portably(folder / "job", tmp_path / "proof")
            assert all(any(token.encode() in content for content in before) for token in gone)
            keys = ["--key", f"card={NUMBERS[0]}", "--key", f"card={gone[1]}"]
            printed = output_of(main(["job", "erase", *keys, "--checkpoint", str(folder / "job")])).out
            for part in ("runs by card", "keys with a past by card", "waiting events by card", "alerts remembered"):
                assert part in printed
            assert_absent([NUMBERS[0], *gone], iter([printed.encode()]))
            assert_absent(gone, (path.read_bytes() for path in (folder / "job").rglob("*") if path.is_file()))
            assert_absent(gone, iter(stored_portably(folder / "job", tmp_path / "proof-2")))
        (folder / "events" / "2.jsonl").write_bytes(events(2, 120, 120) + last_event() + b"\n")
        run(rules, folder)
        output_of.read()
        state = json.loads(output_of(main(["job", "state", "--checkpoint", str(folder / "job"), "--json"])).out)
        totals = read_progress(folder / "job")[1]
        assert totals["runs"] == state["runs"] == sum(open_runs(totals).values())
    whole, erased = alerts_of(tmp_path / "whole" / "alerts"), alerts_of(tmp_path / "erased" / "alerts")
    assert [alert for alert in whole if alert[0] not in gone] == [alert for alert in erased if alert[0] not in gone]
    assert len({key for key, _ in erased}) == len(NUMBERS)  # the erased keys begin again
    files = sorted((tmp_path / "erased" / "events").iterdir())
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    without = [line for line in lines if orjson.loads(line)["card"] not in NUMBERS[:2]]
    assert len(lines) - len(without) > 50
    everything = replayed(rules, tmp_path / "everything", lines)
    assert everything == whole
    never = replayed(rules, tmp_path / "never", without)
    assert never == [alert for alert in erased if alert[0] not in gone]
    assert len(never) > 20


def stored_portably(job: Path, into: Path) -> list[bytes]:
    """Return the entries of a job as a portable savepoint, whose texts are not compressed."""
    from cep.state.savepoints import read_entries  # noqa: PLC0415

    assert main(["job", "savepoint", "--checkpoint", str(job), "--to", str(into)]) == 0
    contents = [path.read_bytes() for path in into.rglob("*") if path.is_file()]
    for path in (into / "files").iterdir():
        try:
            contents += [key + value for key, value in read_entries(path)]
        except Exception:  # noqa: BLE001 a payload or a list
            continue
    return contents


TWO_KEYS = """\
event payment {
  tx_id       id
  event_time  time
  card        pan
  shop        string
  amount      decimal(2)
}

pattern pairs by (card, shop) {
  seq    a -> b within 1 h
  where  a: payment  amount > 5
         b: payment  amount > 5 and count(payment over 2 h) > 1
}
"""


SHOPS = ("s1", "s2")
PAIRS = [
    orjson.dumps({"tx_id": f"t{i}", "event_time": START_MS + i, "card": NUMBERS[i % 3], "shop": SHOPS[i % 2],
                  "amount": 9})
    for i in range(12)
]  # fmt: skip


@pytest.mark.parametrize("is_signed", [True, False])
def test_keys_of_several_fields_in_a_savepoint_of_an_audited_job(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_signed: bool
) -> None:
    """The job's audit continues with the erasure, in its folder and in a savepoint: how many keys of which type."""
    (rules.parent / "patterns" / "pairs.cep").write_text(TWO_KEYS)
    (rules / "pairs.toml").write_text(RULE.replace("{card} paid {amount}", "{key}"))
    (record,), _ = read_rules(rules)
    write_change(change_path(rules, record), [upsert_by_two(record)])
    signers = write_signers(rules / "signed" / "signers.toml")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(PAIRS) + b"\n")
    flags = ["--signers", str(signers), "--root-key", ROOT.public] if is_signed else []
    gone = [
        key_of((secret_keys()[0].token("pan", number.encode()), shop))
        for number, shop in zip(NUMBERS, SHOPS, strict=False)
    ]
    snoozes = [
        SnoozeRecord(id="pairs", version=1, until="2030-01-01T00:00:00Z", key=key, by="Ada", reason=f"{key} travels")
        for key in gone
    ]
    ways = [way.decode() for way in ways_to_write(gone)]
    changes: list[Signable] = [*snoozes, PauseRecord(id="pairs", version=1, by="Bob", reason="no key")]
    (tmp_path / "control").mkdir()
    sent = [*map(by_two if is_signed else with_nonce, changes), snoozes[0]]
    (tmp_path / "control" / "1.jsonl").write_bytes(b"".join(record.to_json() + b"\n" for record in sent))
    arguments = [
        "run", "--rules", str(rules), "--events", str(tmp_path / "events"), "--checkpoint", str(tmp_path / "job"),
        "--lateness", "2 min", "--available-now", "--control", str(tmp_path / "control"), *flags,
    ]  # fmt: skip
    assert main(arguments) == 0
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "job"), "--to", str(tmp_path / "saved")]) == 0
    shutil.copytree(tmp_path / "job" / "dead_letters", tmp_path / "trail")
    before = b"".join(path.read_bytes() for path in (tmp_path / "trail").iterdir())
    assert all(way in before for way in ways_to_write(gone) if way.isascii() and b"\\" in way)
    (tmp_path / "keys").write_text(f"card={NUMBERS[0]},shop=s1\n\n  shop=s2,card={NUMBERS[1]}  \n")
    for key in (f"card={NUMBERS[0]}", f"card={NUMBERS[0]},shop=s1,card={NUMBERS[1]}"):
        assert main(["job", "erase", "--key", key, "--savepoint", str(tmp_path / "saved")]) == Exit.USAGE
        assert "write card=…,shop=…" in capsys.readouterr().err
    (tmp_path / "trail" / "late.jsonl").write_bytes(letter({"key": gone[0]}) + b"\n")
    lines_of = {}
    for place_kind in ("savepoint", "checkpoint"):
        folder = tmp_path / ("saved" if place_kind == "savepoint" else "job")
        also = ["--audit", str(tmp_path / "trail")] if place_kind == "savepoint" else []
        link = tmp_path / f"link to {place_kind}"
        link.symlink_to(folder)
        words = ["job", "erase", "--keys-file", str(tmp_path / "keys"), f"--{place_kind}", str(link), *also]
        assert main([*words, *(signed_request(words, tmp_path, capsys) if is_signed else ())]) == 0
        printed = capsys.readouterr().out
        assert "removed: 2 snoozes" in printed
        assert "removed: 3 texts of the audit" in printed, "the refused one too, or the copy"
        letters_count = is_signed + (place_kind == "savepoint")  # the refused snooze, and the one written above
        assert (f"removed: {letters_count} lines of dead letters" in printed) == (letters_count > 0)
        assert_absent([*NUMBERS, *ways], iter([printed.encode()]))
        assert_absent(ways, (path.read_bytes() for path in folder.rglob("*") if path.is_file()))
        lines_of[place_kind] = printed.splitlines()
    (entry,) = (orjson.loads(line) for line in lines_of["savepoint"] if line.startswith("{"))
    assert (entry["what"], entry["keys"]) == ("erasure", {"card,shop": 2})
    assert entry["signers_version"] == (1 if is_signed else None)
    assert sum(entry["removed"].values()) >= 2
    assert (len(entry["lines"]), len(entry.get("digests", ()))) == (3, 2 if is_signed else 0)
    assert_absent(ways, (path.read_bytes() for path in (tmp_path / "trail").iterdir()))
    code = main(["rules", "audit", "verify", str(tmp_path / "trail")])
    assert code == Exit.FINDINGS, "texts are gone before a line says so"
    (tmp_path / "trail" / "batch-9.jsonl").write_bytes(orjson.dumps(entry) + b"\n")
    assert main(["rules", "audit", "verify", str(tmp_path / "trail")]) == 0
    assert_absent(ways, iter(stored_portably(tmp_path / "job", tmp_path / "proof")))
    trail, head = tmp_path / "job" / "dead_letters", f"{int(entry['number'])}:{entry['hash']}"
    assert main(["rules", "audit", "verify", str(trail), "--head", head]) == 0, "the same line in the folder"
    (tmp_path / "events" / "2.jsonl").write_bytes(PAIRS[0].replace(b"t0", b"t99") + b"\n")
    assert main(arguments) == 0
    assert main(["rules", "audit", "verify", str(trail), "--head", head]) == 0


def test_what_makes_no_sense_is_refused_without_a_value(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "erase", "--key", "card=1", "--checkpoint", str(tmp_path / "none")]) == Exit.USAGE
    assert main(["job", "erase", "--key", "card=1", "--checkpoint", str(rules)]) == Exit.USAGE
    assert "portable savepoint" in capsys.readouterr().err
    assert main(["job", "erase", "--checkpoint", str(rules)]) == Exit.USAGE
    (rules / "dead_letters").symlink_to(tmp_path)
    assert main(["job", "erase", "--key", "card=1", "--checkpoint", str(rules)]) == Exit.USAGE
    assert "dead_letters is a link" in capsys.readouterr().err
    assert stored is not None


# The lines of a job's folder that go with an erased key, and content that an erasure cannot search.

SEARCHED = ["e", "c1", "c17", "1", "applied", "why", "record", "card_id", '["c1","m3"]']


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.mark.parametrize("key", SEARCHED)
def test_the_audit_loses_the_texts_of_snoozes_of_the_key_alone(folder: Path, tmp_path: Path, key: str) -> None:
    book = new_book()
    book.is_audited = True
    snoozed = ("c1", "c17", "e")
    records: list[Signable] = [
        upsert(1),
        *(
            SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", key=one, by="Ada", reason="e c1 applied why")
            for one in snoozed
        ),
        PauseRecord(id="r", version=1, by="e", reason="c1 applied record"),
    ]
    lines, _, _ = apply_records(book, tuple(record.to_json() for record in records), 1_000)
    (folder / "a.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    copied = _copy_dead_letters(folder, tmp_path / "copy", {key})
    assert copied.emptied == {2 + snoozed.index(key)} if key in snoozed else copied.emptied == set()
    assert copied.left_out == 0


def letter(record: dict[str, object], cut: int | None = None) -> bytes:
    text = orjson.dumps(record).decode()
    return orjson.dumps({"code": "late_event", "reason": "field `amount`: much c1", "record": text[:cut]})


def test_a_dead_letter_goes_if_its_record_has_the_key_as_a_value(folder: Path, tmp_path: Path) -> None:
    """Compare with the definition, for random records of short values, whole and as a cut text."""
    chosen = random.Random(3)
    values = ["e", "ee", "c1", "c17", "xc1", "c1 ", "record", 1, 17, None, True, ["c1"], {"card": "c1"}]
    records = [{name: chosen.choice(values) for name in ("card_id", "shop", "n")} for _ in range(60)]
    (folder / "a.jsonl").write_bytes(b"".join(letter(record) + b"\n" for record in records))
    for key in ("e", "c1", "c17", "1", "17", "much", "late", "card", "shop"):

        def has_key(value: object, key: str = key) -> bool:
            if isinstance(value, dict | list):
                return any(map(has_key, value.values() if isinstance(value, dict) else value))
            return value is not None and value is not True and str(value) == key

        copied = _copy_dead_letters(folder, tmp_path / key, {key})
        assert copied.left_out == sum(map(has_key, records)), key
        lines = (tmp_path / key / "a.jsonl").read_bytes().splitlines()
        assert lines == [letter(record) for record in records if not has_key(record)]
    (folder / "a.jsonl").write_bytes(letter({"card_id": "c1", "note": "x" * 50}, 30) + b"\n")
    assert _copy_dead_letters(folder, tmp_path / "cut", {"c1"}).left_out == 1
    assert _copy_dead_letters(folder, tmp_path / "other", {"c"}).left_out == 0
    (folder / "a.jsonl").write_bytes(b'["c1"]\n"c1"\n[1]\nnull\n')
    assert _copy_dead_letters(folder, tmp_path / "no object", {"c1"}).left_out == 2


def test_a_key_is_found_as_an_escape_or_a_decimal(folder: Path, tmp_path: Path) -> None:
    """Most programs write other letters than ASCII as escapes, and a field of whole numbers reads 1.0 as 1."""
    cut = json.dumps({"card_id": "M\u00fcller", "note": "x" * 50})[:40]
    records = [cut, '{"card_id": "M\\u00fcller"}', '{"n": 17.0}', '{"n": 17.5}']
    (folder / "a.jsonl").write_bytes(b"".join(orjson.dumps({"code": "x", "record": r}) + b"\n" for r in records))
    assert _copy_dead_letters(folder, tmp_path / "name", {"M\u00fcller"}).left_out == 2
    assert _copy_dead_letters(folder, tmp_path / "number", {"17"}).left_out == 1


def test_tokens_of_a_secret_that_is_gone_are_named() -> None:
    """In every mixture of secrets: without the secret, cep cannot tell if such a token stands for the same value."""
    secrets = [SecretKey(name, name.encode() * 32) for name in ("k1", "k2", "k3")]
    tokens = {secret.id: secret.token("pan", b"4111111111111111") for secret in secrets}
    others = {secret.id: secret.token("pan", b"378282246310005") for secret in secrets}
    for names in itertools.chain.from_iterable(itertools.combinations(tokens, n) for n in range(4)):
        searched = ways_to_write([tokens[name] for name in names])
        for stored, token in tokens.items():
            for text in (token, others[stored]):
                assert has_other_tokens(f"x {text} y".encode(), searched) == (bool(names) and stored not in names)
    assert not has_other_tokens(tokens["k1"].encode(), ways_to_write(["c1"])), "a key without protected fields"


def test_a_file_that_cannot_be_searched_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (folder / name).write_bytes(b"c1" if name == "c.jsonl" else b"x")
    read = Path.read_bytes

    def refusing(path: Path) -> bytes:
        if path.name == "b.jsonl":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refusing)
    paths, unsearched = _files_with(folder, [b"c1"])
    assert [path.name for path in paths] == ["c.jsonl"]
    assert unsearched == [f"{folder / 'b.jsonl'}: Permission denied"]

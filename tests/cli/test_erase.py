"""An erased key is in no file any more. All other keys have the alerts of a job that erased nothing.

A replay gives them the same alerts, with the events of the key or without.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import orjson
import pytest

from cep.base.exits import Exit
from cep.base.secrets import secret_keys
from cep.cli.main import main
from cep.columnar.route import key_of
from cep.model.rule import PauseRecord, SnoozeRecord
from cep.rulebook.changes import change_path, write_change
from cep.rulebook.files import read_rules
from cep.rulebook.statement import Signable, with_nonce
from cep.runners.handover.erase import ways_to_write
from tests.cli.test_card_data import RULE, START_MS, assert_absent, rules, stored
from tests.columnar.protected import card_numbers
from tests.rulebook.people import ROOT, by_two, upsert_by_two, write_signers
from tests.rulebook.requests import signed_request

__all__ = ["rules"]
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
    """Return the alerts of a replay of these lines."""
    (folder / "sent").mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    arguments = ["--rules", str(rules), "--events", str(folder / "events.jsonl"), "--dedup", "1 d"]
    assert main(["replay", *arguments, "--out", str(folder / "sent" / "alerts.jsonl")]) == 0
    return alerts_of(folder / "sent")


@pytest.mark.slow
@pytest.mark.always
def test_others_go_on_as_if_nothing_was_erased(rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = [secret_keys()[0].token("pan", number.encode()) for number in NUMBERS[:2]]
    # Three events wait, of the erased card and of others: one of two is bound, and the other is to come.
    first = events(1, 0, 120) + b"".join(events(seed, 120, 1) for seed in (3, 4)) + events(1, 0, 3)
    for name in ("whole", "erased"):
        folder = tmp_path / name
        (folder / "events").mkdir(parents=True)
        (folder / "events" / "1.jsonl").write_bytes(first)
        run(rules, folder)
        if name == "erased":
            capsys.readouterr()
            before = stored_portably(folder / "job", tmp_path / "proof")
            assert all(any(token.encode() in content for content in before) for token in gone)
            keys = ["--key", f"card={NUMBERS[0]}", "--key", f"card={gone[1]}"]
            assert main(["job", "erase", *keys, "--checkpoint", str(folder / "job")]) == 0
            printed = capsys.readouterr().out
            for part in ("runs by card", "keys with a past by card", "waiting events by card", "alerts remembered"):
                assert part in printed
            assert_absent([NUMBERS[0], *gone], iter([printed.encode()]))
            assert_absent(gone, (path.read_bytes() for path in (folder / "job").rglob("*") if path.is_file()))
            assert_absent(gone, iter(stored_portably(folder / "job", tmp_path / "proof-2")))
        (folder / "events" / "2.jsonl").write_bytes(events(2, 120, 120) + last_event() + b"\n")
        run(rules, folder)
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
    from cep.state.entries import read_entries  # noqa: PLC0415

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


@pytest.mark.slow
@pytest.mark.always
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
    shops = ("s1", "s2")
    lines = [
        orjson.dumps({"tx_id": f"t{i}", "event_time": START_MS + i, "card": NUMBERS[i % 3], "shop": shops[i % 2],
                      "amount": 9})
        for i in range(12)
    ]  # fmt: skip
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    flags = ["--signers", str(signers), "--root-key", ROOT.public] if is_signed else []
    gone = [
        key_of((secret_keys()[0].token("pan", number.encode()), shop))
        for number, shop in zip(NUMBERS, shops, strict=False)
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
    assert main(["job", "erase", "--key", f"card={NUMBERS[0]}", "--savepoint", str(tmp_path / "saved")]) == Exit.USAGE
    assert "write card=…,shop=…" in capsys.readouterr().err
    lines_of = {}
    for place_kind in ("savepoint", "checkpoint"):
        folder = tmp_path / ("saved" if place_kind == "savepoint" else "job")
        also = ["--audit", str(tmp_path / "trail")] if place_kind == "savepoint" else []
        words = ["job", "erase", "--keys-file", str(tmp_path / "keys"), f"--{place_kind}", str(folder), *also]
        assert main([*words, *(signed_request(words, tmp_path, capsys) if is_signed else ())]) == 0
        printed = capsys.readouterr().out
        assert "removed: 2 snoozes" in printed
        assert "removed: 3 texts of the audit" in printed, "the refused one too, or the copy"
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
    (tmp_path / "events" / "2.jsonl").write_bytes(lines[0].replace(b"t0", b"t99") + b"\n")
    assert main(arguments) == 0
    assert main(["rules", "audit", "verify", str(trail), "--head", head]) == 0


def test_what_makes_no_sense_is_refused_without_a_value(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "erase", "--key", "card=1", "--checkpoint", str(tmp_path / "none")]) == Exit.USAGE
    assert main(["job", "erase", "--key", "card=1", "--checkpoint", str(rules)]) == Exit.USAGE
    assert "portable savepoint" in capsys.readouterr().err
    assert main(["job", "erase", "--checkpoint", str(rules)]) == Exit.USAGE
    assert stored is not None

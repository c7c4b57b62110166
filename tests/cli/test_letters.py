"""`cep job letters`: late events give the alerts of a job in which they were not late.

Old letters go, the audit stays.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import orjson
import pytest

from cep.cli.main import main
from tests.runners.embedded.test_future import PAST_MS, fraud, payment, rules_folder, written
from tests.step.contract import MINUTE_MS


def test_late_and_repaired_events_give_the_alerts_that_would_have_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Card 1 has a late large payment, card 2 an unreadable one; card 3 has all payments in time."""
    monkeypatch.chdir(tmp_path)
    rules_folder(tmp_path)
    (tmp_path / "events").mkdir()
    small, large = fraud(1, PAST_MS)
    unread, mended = fraud(2, PAST_MS + 10)
    first = [small, unread, *fraud(3, PAST_MS + 20), payment("later", "z", PAST_MS + 5 * MINUTE_MS, 1)]
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(first))
    run = ["run", "--rules", "rules", "--events", "events", "--checkpoint", "job", "--alerts", "alerts"]
    assert main([*run, "--available-now"]) == 0
    (tmp_path / "events" / "2.jsonl").write_bytes(b"\n".join([large, mended[:-5]]))
    assert main([*run, "--available-now"]) == 1, "all of the new records are rejected"
    assert [alert["key"] for alert in written(tmp_path / "alerts")] == ["c3"]
    (tmp_path / "mended.jsonl").write_bytes(mended)
    # Lines of the audit, which lie among the letters, are not letters.
    (tmp_path / "job" / "dead_letters" / "batch-9.jsonl").write_bytes(b'{"code":"audit","number":"000000000000"}\n')
    capsys.readouterr()
    again = ["job", "letters", "replay", "job/dead_letters", "--events", "events"]
    assert main(again) == 1
    printed = capsys.readouterr().out
    assert "1 late" in printed
    assert "audit" not in printed
    assert "1 events come back" in printed
    assert "kept 1, gained 1, lost 0" in printed
    assert "[small1, large1]" in printed
    assert main([*again, "--repaired", "mended.jsonl"]) == 1
    printed = capsys.readouterr().out
    assert "kept 1, gained 2, lost 0" in printed
    assert "[small2, large2]" in printed


def test_a_repaired_record_replaces_its_flawed_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Card 2 has a large payment with an unreadable amount, and a small one that counts once."""
    monkeypatch.chdir(tmp_path)
    rules_folder(tmp_path)
    (tmp_path / "events").mkdir()
    small, large = (orjson.loads(line) for line in fraud(2, PAST_MS))
    flawed = [orjson.dumps(small), orjson.dumps({**large, "amount": "?"}), *fraud(3, PAST_MS + 20)]
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(flawed))
    run = ["run", "--rules", "rules", "--events", "events", "--checkpoint", "job", "--alerts", "alerts"]
    assert main([*run, "--available-now", "--rejected-max", "0.5"]) == 0
    (letters,) = (tmp_path / "job" / "dead_letters").glob("*.jsonl")
    assert [letter["null_fields"] for letter in map(orjson.loads, letters.read_bytes().splitlines())
            if "null_fields" in letter] == [["amount"]]  # fmt: skip
    (tmp_path / "mended.jsonl").write_bytes(b"\n".join([orjson.dumps(small), orjson.dumps(large)]))
    capsys.readouterr()
    again = ["job", "letters", "replay", "job/dead_letters", "--events", "events", "--repaired", "mended.jsonl"]
    assert main(again) == 1
    printed = capsys.readouterr().out
    assert "kept 1, gained 1, lost 0" in printed
    assert "[small2, large2]" in printed
    assert "0 events come back" in printed


def test_what_is_no_letter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_bytes(b'{"code": "late"}\n[1]\n')
    assert main(["job", "letters", "replay", str(path), "--events", str(path)]) == 2
    assert "no dead letter" in capsys.readouterr().err
    path.write_bytes(b'{"code": "late", "event_id": ["e1"]}\n')
    assert main(["job", "letters", "replay", str(path), "--events", str(path)]) != 0
    assert "bug" not in capsys.readouterr().err
    assert main(["job", "letters", "replay", str(tmp_path / "none"), "--events", str(path)]) == 2
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert main(["job", "letters", "replay", str(tmp_path / "pipe.jsonl"), "--events", str(path)]) == 2
    assert "it is no regular file" in capsys.readouterr().err


def test_letters_of_old_go_and_the_audit_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters, held_folder = tmp_path / "dead_letters", tmp_path / "held"
    letters.mkdir()
    held_folder.mkdir()
    audit = b'{"code":"audit","number":"000000000000"}\n'
    files = {
        letters / "batch-1.jsonl": (b'{"code":"late"}\n{"code":"late"}\n', 91),
        letters / "batch-2.jsonl": (b'{"code":"late"}\n' + audit, 91),
        letters / "batch-3.jsonl": (b'{"code":"late"}\n', 89),
        held_folder / "batch-1.jsonl": (b'{"held":"snoozed","alert":{}}\n', 91),
    }
    for path, (data, days) in files.items():
        path.write_bytes(data)
        os.utime(path, (time.time() - 86_400 * days,) * 2)
    remove = ["job", "letters", "remove", str(letters), str(held_folder), "--older-than"]
    assert main([*remove, "90 d"]) == 0
    printed = capsys.readouterr().out
    assert f"{letters}: 3 letters removed, of 2 files" in printed
    assert f"{held_folder}: 1 letters removed, of 1 files" in printed
    content_by_path = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    assert content_by_path == {letters / "batch-2.jsonl": audit, letters / "batch-3.jsonl": b'{"code":"late"}\n'}
    assert main([*remove, "90 d"]) == 0
    assert f"{letters}: 0 letters removed, of 1 files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("older", "other"), [("90", b""), ("90 d", b'{"tx_id": 1}\n'), ("90 d", b"[1]\n"), ("1 d", None)]
)
def test_nothing_is_removed_of_what_may_be_something_else(
    older: str, other: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in (("a", b'{"code":"late"}\n'), ("b", other)):
        (tmp_path / f"{name}.jsonl").write_bytes(data or b"")
        os.utime(tmp_path / f"{name}.jsonl", (1, 1))
    folders = [str(tmp_path), *([str(tmp_path / "none")] if other is None else [])]
    assert main(["job", "letters", "remove", *folders, "--older-than", older]) == 2
    assert len(list(tmp_path.iterdir())) == 2
    assert capsys.readouterr().err

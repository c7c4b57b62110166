"""The folder of a job: its state, its letters, another runner, and hostile files."""

import json
import os
import time
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.base.exits import Exit
from cep.base.schema import Schema
from cep.base.text import utc_text
from cep.cli.docs import DOCS
from cep.cli.main import main
from cep.lang.load import load_text
from cep.runners.live_checkpoint import BEGINS_FOLDER, QUERY_FOLDER, open_checkpoint
from cep.sinks.base import TAKEN_OVER
from cep.step.job import Job
from tests.cli.test_outage import metrics, status, wait_for
from tests.cli.test_run import RULES, free_port
from tests.engine.rules import EVENTS
from tests.output_of import OutputOf
from tests.rule_files import rule_text
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_future import PAST_MS, fraud, payment, rules_folder, written
from tests.runners.embedded.test_run import ROOT, start
from tests.runners.spark.live_cases import payments
from tests.sources.test_parquet import pad
from tests.step.contract import MINUTE_MS

# `cep job state` refuses other folders than checkpoints early, and shows the state of all levels of a job.

CHAIN = """
event payment { tx_id id  event_time time  card string }
event flag { flag_id id  event_time time  card string }
pattern flags by card { seq a where a: payment emit card = a.card produce flag }
pattern paid by card { seq a -> b within 2 h where a: payment b: payment count(payment over 1 d) > 99 }
pattern flagged by card { seq a -> b within 1 h where a: flag b: flag count(flag over 1 h) > 99 }
"""


def test_a_folder_without_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "state", "--checkpoint", str(tmp_path)]) == Exit.USAGE
    assert "no checkpoint directory of a live job" in capsys.readouterr().err


def test_a_job_that_has_done_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema: Schema = load_text(EVENTS).schema
    open_checkpoint(tmp_path / "job", Job(schema, (("key",),)), ())
    assert main(["job", "state", "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    assert "no finished micro-batch" in capsys.readouterr().err


def test_an_idle_job_and_its_folder_have_the_same_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last checkpoint of a job with a silent stream has the whole state."""
    port, events = free_port(), tmp_path / "events"
    events.mkdir()
    (events / "1.jsonl").write_bytes(b"\n".join(morning()))
    process = start(
        "--rules", str(ROOT / "rules"), "--events", str(events), "--checkpoint", str(tmp_path / "job"),
        "--alerts", str(tmp_path / "alerts"), "--listen", str(port), "--checkpoint-interval", "1 s",
    )  # fmt: skip

    def in_folder() -> float:
        capsys.readouterr()
        if main(["job", "state", "--checkpoint", str(tmp_path / "job"), "--json"]) != 0:  # no checkpoint yet
            return -1.0
        return float(sum(rule["runs"] for rule in json.loads(capsys.readouterr().out)["rules"]))

    try:
        wait_for(lambda: status(port, "/ready") == 200 and f"cep_events_total {len(morning())}.0" in metrics(port))
        wait_for(lambda: f"cep_runs {in_folder()}" in metrics(port))
        assert in_folder() > 0
    finally:
        process.kill()
        process.communicate()


def test_what_all_levels_keep(tmp_path: Path, output_of: OutputOf) -> None:
    """The rule that reads derived events has runs and histories at its own level."""
    rules, events, job = (tmp_path / name for name in ("rules", "events.jsonl", "job"))
    rules.mkdir()
    (rules / "p.cep").write_text(CHAIN)
    for name in ("flags", "paid", "flagged"):
        (rules / f"{name}.toml").write_text(rule_text(name))
    times = [utc_text(1_700_000_000_000 + 60_000 * number) for number in range(4)]
    lines = [
        orjson.dumps({"event_type": "payment", "tx_id": f"t{number}", "event_time": time, "card": "x"})
        for number, time in enumerate(times)
    ]
    events.write_bytes(b"\n".join(lines))
    inputs = ["--rules", str(rules), "--events", str(events), "--checkpoint", str(job), "--alerts", str(tmp_path / "a")]
    assert main(["run", *inputs, "--available-now"]) == 0
    output_of.read()
    whole_state = json.loads(output_of(main(["job", "state", "--checkpoint", str(job), "--json"])).out)
    assert {rule["rule_id"]: rule["runs"] for rule in whole_state["rules"]} == {"paid": 4, "flagged": 3}
    rules_by_part = {part["of"]: part["rules"] for share in whole_state["histories"] for part in share["parts"]}
    assert rules_by_part["count(flag over 1 h)"] == ["flagged v1"]
    assert rules_by_part["count(payment over 1 d)"] == ["paid v1"]
    key_state = json.loads(output_of(main(["job", "state", "--checkpoint", str(job), "--key", "x", "--json"])).out)
    runs = [part["rule_id"] for part in key_state if "rule_id" in part]
    assert (runs.count("paid"), runs.count("flagged")) == (4, 3)
    counts = [tuple(map(tuple, part["tallies"])) for part in key_state if "tallies" in part]
    assert sorted(counts) == [(("count(flag over 1 h)", 3),), (("count(payment over 1 d)", 4),)], "each page once"
    assert main(["job", "state", "--checkpoint", str(job), "--key", "x"]) == 0
    assert "flagged v1 by card: waits for b" in output_of.read().out


# `cep job letters`: late events give the alerts of a job in which they were not late.
#
# Old letters go, the audit stays.


def test_late_and_repaired_events_give_the_alerts_that_would_have_been(
    tmp_path: Path, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch
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
    output_of.read()
    again = ["job", "letters", "replay", "job/dead_letters", "--events", "events"]
    printed = output_of(main(again), 1).out
    assert "1 late" in printed
    assert "audit" not in printed
    assert "1 events come back" in printed
    assert "kept 1, gained 1, lost 0" in printed
    assert "[small1, large1]" in printed
    printed = output_of(main([*again, "--repaired", "mended.jsonl"]), 1).out
    assert "kept 1, gained 2, lost 0" in printed
    assert "[small2, large2]" in printed


def test_a_repaired_record_replaces_its_flawed_event(
    tmp_path: Path, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch
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
    output_of.read()
    again = ["job", "letters", "replay", "job/dead_letters", "--events", "events", "--repaired", "mended.jsonl"]
    printed = output_of(main(again), 1).out
    assert "kept 1, gained 1, lost 0" in printed
    assert "[small2, large2]" in printed
    assert "0 events come back" in printed


def test_what_is_no_letter(tmp_path: Path, output_of: OutputOf) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_bytes(b'{"code": "late"}\n[1]\n')
    assert "no dead letter" in output_of(main(["job", "letters", "replay", str(path), "--events", str(path)]), 2).err
    path.write_bytes(b'{"code": "late", "event_id": ["e1"]}\n')
    assert main(["job", "letters", "replay", str(path), "--events", str(path)]) != 0
    assert "bug" not in output_of.read().err
    assert main(["job", "letters", "replay", str(tmp_path / "none"), "--events", str(path)]) == 2
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert main(["job", "letters", "replay", str(tmp_path / "pipe.jsonl"), "--events", str(path)]) == 2
    assert "it is no regular file" in output_of.read().err


def test_letters_of_old_go_and_the_audit_stays(tmp_path: Path, output_of: OutputOf) -> None:
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
    printed = output_of(main([*remove, "90 d"])).out
    assert f"{letters}: 3 letters removed, of 2 files" in printed
    assert f"{held_folder}: 1 letters removed, of 1 files" in printed
    content_by_path = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    assert content_by_path == {letters / "batch-2.jsonl": audit, letters / "batch-3.jsonl": b'{"code":"late"}\n'}
    assert f"{letters}: 0 letters removed, of 1 files" in output_of(main([*remove, "90 d"])).out


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


# A folder of one runner, given to a verb of the other: the message names the verb that works.

ROWS = {
    "rescale": (["job", "rescale", "--partitions", "3"], "`cep job savepoint` with `cep job restore --groups 0-15`"),
    "live": (["live", "--rules", RULES, "--events", "."], "`cep job savepoint` and `cep job restore --engine spark`"),
}


@pytest.mark.parametrize("verb", ROWS)
def test_a_folder_of_cep_run(verb: str, tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()[:50]))
    words = ["run", "--rules", RULES, "--events", str(tmp_path / "events.jsonl"), "--available-now"]
    assert main([*words, "--checkpoint", str(tmp_path / "job")]) == Exit.CLEAN
    arguments, advice = ROWS[verb]
    printed = output_of(main([*arguments, "--checkpoint", str(tmp_path / "job")]), Exit.USAGE).err
    assert "is of `cep run`" in printed
    assert advice in printed


@pytest.mark.parametrize("name", [QUERY_FOLDER, BEGINS_FOLDER])
def test_a_folder_of_cep_live(name: str, tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "job" / name).mkdir(parents=True)
    words = ["run", "--rules", RULES, "--events", "-", "--available-now", "--checkpoint", str(tmp_path / "job")]
    printed = output_of(main(words), Exit.USAGE).err
    assert "is of `cep live`" in printed
    assert "`cep job savepoint --portable` and `cep job restore`" in printed


def test_the_page_of_standbys_has_the_words_of_the_message() -> None:
    assert f"`{TAKEN_OVER}`" in (DOCS / "guides" / "standby.md").read_text(encoding="utf-8")


# Hostile files in the folder of a job are set aside with a letter; the honest files give the same alerts.

_FIELDS = ("tx_id", "card_id", "note")


def bomb(path: Path) -> None:
    """Write a file of 40 000 rows that refer to one long text: some kB, and 2.4 GB after expansion."""
    text = pa.DictionaryArray.from_arrays(pa.nulls(40_000, pa.int32()).fill_null(0), pa.array(["x" * 60_000]))
    pq.write_table(pa.table(dict.fromkeys(_FIELDS, text)), path, compression="zstd")
    pad(path, 10_000)


def alert_ids(folder: Path) -> list[str]:
    lines = [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return sorted(orjson.loads(line)["alert_id"] for line in lines)


def run(tmp_path: Path, name: str, events: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Run a job over a folder to its end; return its alerts and the letters about files."""
    job, alerts = tmp_path / f"{name}-job", tmp_path / f"{name}-alerts"
    arguments = ["run", "--rules", str(ROOT / "rules"), "--events", str(events), "--checkpoint", str(job)]
    arguments += ["--alerts", str(alerts), "--dead-letters", str(tmp_path / f"{name}-letters")]
    assert main([*arguments, "--key-groups", "4", "--available-now"]) in (0, 1)
    letters = [
        json.loads(line)
        for path in sorted((tmp_path / f"{name}-letters").rglob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    return alert_ids(alerts), [letter for letter in letters if letter["code"] == "unreadable_file"]


def test_a_job_goes_on_behind_files_that_cannot_be_read(tmp_path: Path) -> None:
    honest, hostile = tmp_path / "honest", tmp_path / "hostile"
    for folder in (honest, hostile):
        folder.mkdir()
        half = len(payments(1)) // 2
        for number, lines in enumerate((payments(1)[:half], payments(1)[half:])):
            path = folder / f"{number}.jsonl"
            path.write_bytes(b"\n".join(lines) + b"\n")
            os.utime(path, (number * 10 + 5,) * 2)
    (tmp_path / "secret.jsonl").write_text("root:secret")
    (hostile / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (hostile / "cut.parquet").write_bytes(b"PAR1 and no more")
    (hostile / "open.json").write_text('[{"tx_id": "')
    os.mkfifo(hostile / "pipe.jsonl")
    for name in ("link.jsonl", "cut.parquet", "open.json"):
        os.utime(hostile / name, (10, 10), follow_symlinks=False)
    expected, none = run(tmp_path, "honest", honest)
    alerts, letters = run(tmp_path, "hostile", hostile)
    assert expected
    assert none == []
    assert alerts == expected
    assert {letter["record"] for letter in letters} == {"link.jsonl", "cut.parquet", "open.json"}
    assert "secret" not in "".join(letter["reason"] for letter in letters)


def test_a_job_goes_on_behind_a_file_that_would_take_gigabytes(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    bomb(events / "0.parquet")
    os.utime(events / "0.parquet", (5, 5))
    (events / "1.jsonl").write_bytes(b"\n".join(payments(1)) + b"\n")
    alerts, letters = run(tmp_path, "bomb", events)
    assert alerts
    assert letters == []

"""RocksDB folders of `cep run`, its own files, and the checkpoint folder of `cep live`, with a file damaged."""

import argparse
import contextlib
import io
import json
import shutil
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

from cep.base.audit import Head, add_line, is_letter, without_texts
from cep.base.errors import CepError
from cep.cli import audit, erase, shadow, why
from cep.cli import letters as letters_verb
from cep.cli.main import main
from cep.cli.verbs import Parser
from cep.runners.embedded import savepoint
from cep.runners.handover.beginning import group_beginning, read_beginning
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER, job_id, open_checkpoint, read_job, read_progress
from cep.runners.rule_output import STATUS_FILE, SUPPRESSED_FOLDER, RuleOutput
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore
from cep.state.store import KeyRange
from cep.state.target import Target
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, Kind
from tests.hostile.mutate import broken_bytes, broken_value
from tests.runners.spark.live_cases import ROOT, payments

_EVENTS = 600
_QUERY = {
    "query/offsets/4": 'v1\n{"conf": {"spark.sql.shuffle.partitions": "2"}}\n{"logOffset": 1}\n-\n',
    "query/commits/4": 'v1\n{"nextBatchWatermarkMs": 0}\n',
    "query/sources/0/1": 'v1\n{"path": "file:///data/a.jsonl", "timestamp": 1, "batchId": 0}\n',
    "query/state/0/_metadata/v2/0": 'v2\n{"operatorPropertiesJson": "{\\"stateVariables\\": []}"}\n',
}


def rocks(folder: Path) -> Feed:
    """A store on disk: it is refused, or has every synced write unchanged."""
    settings = RocksSettings(RocksMemory(4 << 20, 1 << 20), background_jobs=1)
    good = {b"key-%04d" % n: bytes([n % 256]) * (n % 300) for n in range(1_000)}
    store = RocksStore(folder / "good", settings)
    for number, (key, value) in enumerate(good.items()):
        store.put(key, value)
        if number == len(good) // 2:
            store.checkpoint(folder / "flushed")
    store.sync()
    store.close()

    def feed(random: Random) -> str:
        bad = _copied(folder / "good", folder / "bad")
        _damage(bad, random)
        try:
            with RocksStore(bad, settings) as opened:
                entries = dict(opened.scan(KeyRange(b"", b"\xff" * 8)))
        except CepError:
            return REFUSED
        if entries != good:
            raise DiffersError(f"a damaged store opens with {len(entries)} of {len(good)} entries, or with others")
        return ACCEPTED

    return feed


def spark_folders(folder: Path) -> Feed:
    """The checkpoint folder of a job on Spark: every file of ours in it is read, or refused."""
    good = folder / "good"
    _make(folder, good)
    job = read_job(good)
    assert job is not None

    def feed(random: Random) -> str:
        # Imported here: modules that need Spark take a second, and other kinds do without.
        from cep.runners.spark.live_output import RetainedRulebooks  # noqa: PLC0415
        from cep.runners.spark.savepoint import read_positions  # noqa: PLC0415
        from cep.runners.spark.state import job_of, partitions_of, planned_batch  # noqa: PLC0415

        bad = _copied(good, folder / "bad")
        _damage(bad, random)
        refused = 0
        for door in (
            lambda: read_job(bad), lambda: open_checkpoint(bad, job, ()), lambda: job_id(bad),
            lambda: read_progress(bad), lambda: RuleOutput(bad, {"policies": {}}), lambda: job_of(bad),
            lambda: partitions_of(bad), lambda: planned_batch(bad), lambda: read_positions(bad / "query", 0, 4),
            lambda: RetainedRulebooks(bad / RULEBOOKS_FOLDER).note_end("d" * 64, 5),
        ):  # fmt: skip
            try:
                door()
            except CepError:
                refused += 1
        try:
            begins = read_beginning(bad)
            if begins is not None:
                for group in begins.groups:
                    group_beginning(bad, begins, job, 0, group)
        except CepError:
            refused += 1
        return REFUSED if refused else ACCEPTED

    return feed


def job_folders(folder: Path) -> Feed:
    """The files of a job of `cep run` next to its state: a verb that reads one answers, or names the fault."""
    job, alerts, rule = folder / "job", folder / "job" / "alerts" / "batch-1.jsonl", "a"
    _make_job(folder, job)
    status = {"rules": [{"rule_id": rule, "version": 2, "status": "shadow", "from_ms": 5}]}
    alert = {"alert_id": "abcd", "rule_id": rule, "version": 2, "severity": "low", "key": "c1", "message": "m",
             "events": [{"event_id": "e1"}], "content_hash": "d",
             **dict.fromkeys(("match_start", "detected_at"), "2026-03-01T10:00:00Z")}  # fmt: skip
    letter = {"code": "late", "key_domain": "card_id", "key": "c1", "event_id": "e1"}
    suppressed, letters = job / SUPPRESSED_FOLDER / "batch-1.jsonl", job / "late.jsonl"
    texts = {job / STATUS_FILE: status, alerts: alert, suppressed: {"held": "shadow", "alert": alert}, letters: letter}
    for path, document in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
    trail = job / "trail" / "batch-1.jsonl"
    head, written = _make_trail(trail)
    options = _parsed(shadow, ["report", rule, "--checkpoint", str(job), "--alerts", str(alerts.parent)])
    doors: tuple[tuple[Callable[[], object], tuple[Path, ...]], ...] = (
        (lambda: shadow.run(options),
         (job / STATUS_FILE, alerts, suppressed, job / "progress.json")),
        (lambda: why._alert(alerts, "abcd"), (alerts,)),
        (lambda: why._late_ids(letters, ("card_id",), "c1"), (letters,)),
        (lambda: letters_verb._read_dead_letters(letters), (letters,)),
        (lambda: _verify_trail(trail, head, written), (trail,)),
        (lambda: erase._copy_dead_letters(trail.parent, folder / "copied", {"Ada", "c1"}), (trail,)),
        (lambda: savepoint.save([job], Target(str(folder / "saved"))),
         tuple(job / name for name in ("job.json", "initial_rules.json", "delivered"))),
    )  # fmt: skip

    def feed(random: Random) -> str:
        door, files = random.choice(doors)
        victim = random.choice(files)
        good = victim.read_bytes()
        _damage_file(victim, random)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                door()
        except CepError:
            return REFUSED
        finally:
            victim.write_bytes(good)
            for folder_name in ("saved", "copied"):
                shutil.rmtree(folder / folder_name, ignore_errors=True)
        return ACCEPTED

    return feed


def _make_trail(path: Path) -> tuple[Head, list[bytes]]:
    """Write an audit of four lines; the last one says that the texts of the second were erased."""
    head, lines = Head(), []
    for number in range(3):
        head, line = add_line(head, {"what": "change", "of": f"r{number}"}, {"reason": "Ada said so"}, f"salt{number}")
        lines.append(without_texts(line)[1] if number == 1 else line)
    head, line = add_line(head, {"what": "erasure", "lines": [2]})
    lines.append(line)
    path.parent.mkdir()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return head, lines


def _verify_trail(path: Path, head: Head, written: list[bytes]) -> None:
    """Check that `cep rules audit` shows and verifies a trail: a changed trail must not count as whole."""
    audit.run(_parsed(audit, ["show", str(path.parent)]))
    outcome = audit.run(_parsed(audit, ["verify", str(path.parent), "--head", f"{head.count}:{head.hash}"]))
    lines = [line.rstrip(b"\r") for line in path.read_bytes().split(b"\n")]
    findings = [line for line, _ in groupby(line for line in lines if line.strip() and not is_letter(line))]
    if outcome == 0 and findings != written:
        raise DiffersError("a damaged audit is told whole")


def _parsed(verb: Any, arguments: list[str]) -> argparse.Namespace:
    parser = Parser()
    verb.add_arguments(parser)
    return parser.parse_args(arguments)


def _make_job(folder: Path, job: Path) -> None:
    (folder / "events").mkdir()
    (folder / "events" / "a.jsonl").write_bytes(b"\n".join(payments(1)[:_EVENTS]) + b"\n")
    run = ["run", "--rules", str(ROOT / "rules"), "--events", str(folder / "events"), "--checkpoint", str(job)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main([*run, "--key-groups", "4", "--available-now"]) == 0


def _make(folder: Path, into: Path) -> None:
    """Make the first folder of `cep live`, from a small job of `cep run`, with the files that Spark would add."""
    job, saved = str(folder / "job"), str(folder / "saved")
    _make_job(folder, Path(job))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["job", "savepoint", "--checkpoint", job, "--to", saved]) == 0
        assert main(["job", "restore", "--from", saved, "--checkpoint", str(into), "--engine", "spark"]) == 0
    for name, text in _QUERY.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_text(text)
    ledger = {"since": 1, "swept": 1, "rulebooks": [[1, "a" * 64], [3, "b" * 64]]}
    (into / RULEBOOKS_FOLDER / "kept.json").write_text(json.dumps(ledger))


def _copied(good: Path, bad: Path) -> Path:
    shutil.rmtree(bad, ignore_errors=True)
    return Path(shutil.copytree(good, bad))


def _damage(folder: Path, random: Random) -> None:
    """Change one file, half of the JSON files as a document; sometimes remove one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("LOG", "LOCK"))
    victim = random.choice(files)
    if random.random() < 0.05:
        victim.unlink()
    else:
        _damage_file(victim, random)


def _damage_file(victim: Path, random: Random) -> None:
    """Change a file, half of the JSON files as a document."""
    if victim.suffix == ".json" and random.random() < 0.6:
        victim.write_bytes(_broken_document(victim.read_bytes(), random))
    elif victim.suffix == ".jsonl" and random.random() < 0.6:
        lines = victim.read_bytes().splitlines()
        place = random.randrange(len(lines))
        victim.write_bytes(b"\n".join([*lines[:place], _broken_document(lines[place], random), *lines[place + 1 :]]))
    else:
        victim.write_bytes(broken_bytes(victim.read_bytes(), random))


def _broken_document(data: bytes, random: Random) -> bytes:
    return json.dumps(broken_value(json.loads(data), random)).encode()


KINDS = (
    Kind("rocksdb folders", 12, rocks), Kind("job folders", 12, job_folders),
    Kind("spark folders", 12, spark_folders),
)  # fmt: skip

"""A checkout of a release → the folders of its jobs, packed for tests/upgrade/test_upgrade.py.

    python -m tests.upgrade.make --build CHECKOUT --out tests/upgrade/0.2.0.tar.xz

Run it once for each release, with `git worktree add CHECKOUT TAG`. The interpreter is this one, so the checkout meets
the libraries of today. The script runs only commands of the release; from one small stream it makes

    rules/  events/  rest/  control/   the inputs of its jobs: rules, payments up to a moment and from there, changes
    topic.jsonl                        the same changes as the release writes them to a topic: key and value
    jobs/stopped   alerts/stopped      `cep run`, ended in order, and the alerts that it sent
    jobs/killed                        `cep run`, killed while no sink took its alerts
    jobs/memory    alerts/memory       `cep run --store memory`
    jobs/dedup     alerts/dedup        `cep run --dedup`
    savepoint                          of jobs/stopped
    spark          alerts/spark        a portable savepoint of `cep live`
    jobs/live      alerts/live         the folder of `cep live`
    warm           alerts/warm         `cep replay --savepoint`, up to a moment

Tested by: tests/upgrade/test_upgrade.py
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

TIMES = ("--lateness", "10 min", "--key-groups", "4")
EVENTS, FIRST, SECOND, CARDS = 420, 160, 260, 9
START_MS, STEP_MS, LATE_MS = 1_767_225_600_000, 170_000, 540_000  # 2026-01-01
_NOWHERE = "postgresql://cep@127.0.0.1:1/none"
_WAIT_S = 300

PATTERNS = """event payment {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  status      enum(approved, declined)
  country     string
  device_id   string?
}

event burst {
  burst_id    id
  event_time  time
  card_id     string
  total       decimal(2)
}

list watched: string = ["c3"]

## Declines, then an approval.
pattern testing(tries: int = 2) by card_id {
  seq    probe{tries,} greedy -> hit  within 90 min
  where  probe: payment  status == declined
         hit:   payment  status == approved and amount > 50.00
  skip   past last
  emit   probes = count(probe), probed = sum(probe.amount), amount = hit.amount
}

## A large payment and then nothing from the same card.
pattern silence by card_id {
  seq    large -> !other within 70 min
  where  large: payment  amount > 80.00
         other: payment  status == approved
  emit   amount = large.amount
}

## Much more than usual, and much of it at once.
pattern spree by card_id {
  seq    now
  where  now: payment  amount > 1.2 * avg(payment.amount over previous 12 h)
                       and count(payment over 3 h) >= 3
                       and amount >= approx_percentile(payment.amount over 1 d, 60)
  emit   amount = now.amount
}

## A country that the card has not paid in before, on a device that was last seen elsewhere.
pattern elsewhere by card_id {
  seq    now
  where  now: payment  first_seen(country) < 1 min
                       and last(payment over previous 1 d by device_id).country != country
  emit   country = now.country
}

pattern bursts by card_id {
  seq      one -> two  within 40 min
  where    one: payment  amount > 20.00
           two: payment  amount > 20.00
  emit     card_id = two.card_id, total = one.amount + two.amount
  produce  burst
}

## Two bursts.
pattern twice by card_id {
  seq    first -> second  within 4 h
  where  first: burst
         second: burst  total > first.total
  emit   total = second.total
}

## Payments, then one far from them. The conditions keep averages and spreads in the runs.
pattern outlier by card_id {
  seq    usual{2,} -> far  within 6 h
  where  usual: payment  amount > 1.00
         far:   payment  amount > 1.3 * avg(usual.amount) and amount > avg(usual.amount) + stddev(usual.amount)
                         and amount / 7 > avg(usual.amount / 7) + 1.1 * stddev(usual.amount / 7)
                         and device_id != first(usual).device_id
  skip   past last
  emit   usuals = count(usual), total = sum(usual.amount), amount = far.amount, since = first(usual).event_time
}

## A card that somebody watches.
pattern listed by card_id {
  seq    now
  where  now: payment  card_id in watched and amount > 60.00
  emit   amount = now.amount
}
"""
# Rule: pattern, extra lines of its file.
RULES = {
    "testing": ("testing", ""),
    "silence": ("silence", 'suppress = "5 h"\n'),
    "spree": ("spree", 'suppress = "3 h"\n'),
    "elsewhere": ("elsewhere", "priority = 5\n"),
    "bursts": ("bursts", ""),
    "twice": ("twice", ""),
    "listed": ("listed", ""),
    "outlier": ("outlier", ""),
    "strict": ("testing", 'status = "shadow"\n'),
}
# Run by the release itself: lines of records on standard input → lines of their keys and canonical values.
_TO_TOPIC = """
import json, sys
from cep.model.rule import parse_control, topic_key
for line in sys.stdin:
    record, problems = parse_control(line)
    assert record is not None, problems
    print(json.dumps({"key": topic_key(record), "value": record.to_json().decode()}))
"""


def time_of(event: float) -> str:
    """Return the time of an event by its number, in the form of records."""
    ms = START_MS + round(event * STEP_MS)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1_000)) + f".{ms % 1_000:03}Z"


def payments() -> list[str]:
    """Return the lines of the stream in order of arrival: some late, one twice, one unreadable."""
    chance = random.Random(20)
    lines = []
    for number in range(EVENTS):
        time_ms = START_MS + number * STEP_MS
        line = {
            "tx_id": f"t{number}", "event_time": time_of(number), "card_id": f"c{chance.randrange(CARDS)}",
            "amount": round(chance.choice((3, 30, 100)) * chance.random() + 0.5, 2),
            "status": chance.choice(("approved", "approved", "declined")),
            "country": chance.choice(("FR", "FR", "FR", "DE", "PT")), "device_id": f"d{chance.randrange(4)}",
        }  # fmt: skip
        lines.append((time_ms + LATE_MS * chance.random(), json.dumps(line, separators=(",", ":"))))
    arrived = [line for _, line in sorted(lines)]
    arrived.insert(100, "{")
    arrived.insert(200, arrived[20].replace('"tx_id":"t', '"tx_id":"late'))
    return arrived


def rule_text(rule_id: str, version: int = 1, params: str = "") -> str:
    pattern, more = RULES[rule_id]
    status = "" if "status" in more else 'status = "live"\n'
    return (
        f'id = "{rule_id}"\npattern = "{pattern}"\nfile = "all.cep"\nversion = {version}\n{status}'
        f'severity = "high"\nowner = "tests"\nmessage = "{{key}}"\n{more}{params}'
    )


def changes(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the changes: before the cut and after it, each with the event time from which it holds."""
    by_id = {rule["id"]: rule for rule in rules}
    second = {
        **by_id["testing"],
        "version": 2,
        "params": {"tries": 1},
        "effective_at": time_of(120),
        "on_update": "carry",
    }
    third = {**by_id["twice"], "version": 2, "severity": "low", "effective_at": time_of(330)}
    back = {"kind": "rollback", "id": "testing", "version": 3, "effective_at": time_of(350), "to_version": 1}
    return [
        second,
        third,
        {**back, "rule": by_id["testing"]},
        {"kind": "pause", "id": "spree", "version": 1, "effective_at": time_of(150), "reason": "too many"},
        {"kind": "resume", "id": "spree", "version": 2, "effective_at": time_of(300)},
        {"kind": "snooze", "id": "elsewhere", "version": 1, "until": time_of(320), "key": "c2", "by": "tests"},
        {"kind": "retire", "id": "strict", "version": 2, "effective_at": time_of(200)},
        {"kind": "list", "id": "watched", "version": 1, "of": "string", "change": "replace", "entries": ["c3"],
         "effective_at": time_of(60)},
        {"kind": "list", "id": "watched", "version": 2, "of": "string", "change": "add", "entries": ["c5"],
         "effective_at": time_of(310)},
    ]  # fmt: skip


class Release:
    """The commands of a checkout."""

    def __init__(self, build: Path, folder: Path) -> None:
        self._folder = folder
        # Matching so few events takes less time than compiling kernels.
        self._environment = {**os.environ, "PYTHONPATH": str(build), "NUMBA_DISABLE_JIT": "1"}
        self.version = self.python("import cep; print(cep.__version__)").strip()

    def python(self, script: str, text: str = "") -> str:
        """Run a script with the modules of the release; return its output."""
        return subprocess.run(
            [sys.executable, "-c", script], input=text, env=self._environment, cwd=self._folder, check=True,
            stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        script = "import sys; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
        # Spark starts a process that needs compiled kernels.
        environment = {**self._environment, "NUMBA_DISABLE_JIT": str(int(words[0] != "live"))}
        return subprocess.Popen([sys.executable, "-c", script, *words], env=environment, cwd=self._folder)

    def cep(self, *words: str) -> None:
        """Run a verb to its end."""
        code = self.begin(*words).wait(_WAIT_S)
        assert code == 0, f"cep {' '.join(words)} ended with {code}"


def write_inputs(release: Release, folder: Path) -> None:
    for name in ("rules", "events", "rest", "control", "jobs", "alerts"):
        (folder / name).mkdir()
    (folder / "rules" / "all.cep").write_text(PATTERNS)
    for rule_id in RULES:
        (folder / "rules" / f"{rule_id}.toml").write_text(rule_text(rule_id))
    lines = payments()
    (folder / "events" / "0.jsonl").write_text("\n".join(lines[:FIRST]) + "\n")
    (folder / "events" / "1.jsonl").write_text("\n".join(lines[FIRST:SECOND]) + "\n")
    (folder / "rest" / "2.jsonl").write_text("\n".join(lines[SECOND:]) + "\n")
    script = (
        "from pathlib import Path; from cep.rulebook.files import read_rules\n"
        "records, problems = read_rules(Path('rules')); assert not problems, problems\n"
        "for record in records: print(record.to_json().decode())"
    )
    rules = [json.loads(line) for line in release.python(script).splitlines()]
    topic_lines = "\n".join(json.dumps(change) for change in changes(rules)) + "\n"
    topic = release.python(_TO_TOPIC, topic_lines)
    (folder / "topic.jsonl").write_text(topic)
    values = [json.loads(line)["value"] for line in topic.splitlines()]
    (folder / "control" / "1.jsonl").write_text("\n".join(values) + "\n")


def run_jobs(release: Release, folder: Path) -> None:
    inputs = ("--rules", "rules", "--events", "events", "--control", "control", *TIMES)

    def run(name: str, *more: str, verb: str = "run") -> None:
        out = ("--alerts", f"alerts/{name}", "--checkpoint", f"jobs/{name}", "--available-now")
        release.cep(verb, *inputs, *out, *more)

    run("stopped", "--checkpoint-interval", "1 ms")
    run("memory", "--store", "memory")
    run("dedup", "--dedup", "2 h")
    release.cep("savepoint", "--checkpoint", "jobs/stopped", "--to", "savepoint")
    killed = release.begin(
        "run", *inputs, "--alerts", _NOWHERE, "--checkpoint", "jobs/killed", "--checkpoint-interval", "1 ms"
    )
    give_up_s = time.monotonic() + _WAIT_S
    while not list((folder / "jobs" / "killed").glob("checkpoints/*1.manifest")):
        assert time.monotonic() < give_up_s, "no commit"
        time.sleep(0.1)
    time.sleep(10)  # long enough for both files: the job tries the sink for half a minute
    killed.send_signal(signal.SIGKILL)
    killed.wait(_WAIT_S)
    whole = folder / "whole.jsonl"
    whole.write_text("\n".join(line for line in payments() if line != "{" and '"late' not in line))
    release.cep("replay", "--rules", "rules", "--events", "whole.jsonl", "--engine", "embedded",
                "--until", time_of(SECOND), "--out", "alerts/warm.jsonl", "--savepoint", "warm")  # fmt: skip
    whole.unlink()
    for number in range(2):  # Spark reads files in the order of their times, which may be the same millisecond
        os.utime(folder / "events" / f"{number}.jsonl", (1_000_000_000 + number,) * 2)
    run("live", "--max-files", "1", verb="live")
    release.cep("savepoint", "--checkpoint", "jobs/live", "--to", "spark", "--portable")


def pack(folder: Path, out: Path) -> None:
    """Write the archive: without logs and locks, with times and owners that do not identify the maker."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(member.name).name
        if name in ("LOCK", "lock") or name == "LOG" or name.startswith("LOG.old") or name.endswith(".crc"):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(out, "w:xz", preset=9) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=plain)


def main() -> None:
    """Make the archive, and print its size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True, help="checkout of the release")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        release = Release(options.build.resolve(), folder)
        write_inputs(release, folder)
        run_jobs(release, folder)
        pack(folder, options.out)
    print(f"{release.version}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

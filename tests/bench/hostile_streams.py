"""Streams made to do harm, compared with an honest one: seconds and memory of `cep run`, as ratios.

    python -m tests.bench.hostile_streams [EVENTS] [--rules FOLDER]

Each stream has as many events as the honest one and runs in its own process, with the five rules of this repository,
whose conditions are code. Seconds are processor seconds of a job in a process that has already run one job, less the
seconds for a hundred events: imports and the loading of kernels do not count. Memory is the peak of resident memory.
Twelve records with a field of 10 MB are compared by byte.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson

from tests.bench.peer_data import show
from tests.kernels.test_groups import colliding_keys

ROOT = Path(__file__).parents[2]
RATIO_MAX = 5.0
_GAP_MS = 20
_FAR_FUTURE_MS, _FAR_PAST_MS = 4_070_908_800_000, 315_532_800_000  # 2099 and 1980
_LONG_BYTES, _LONG_RECORDS = 10_000_000, 12
_START_EVENTS = 100
_BITS = 12
_HOURS_AGO_MS = int(time.time() * 1_000) - 3_600_000
# Each payment begins a run of the rules about small amounts; none ever ends.
PROBE = {"card_id": "c", "account_id": "a", "amount": 0.5, "status": "declined"}
# Three jobs of one process: the first loads modules and kernels, the second has few events, the third has all. The
# script prints the extra time of the third job. The peak of a child would begin with the memory of its parent, so the
# script reads the peak itself.
_JOBS = """
import sys, time
from cep.cli.main import main
def run(name):
    before = time.process_time()
    if main([word.replace("NAME", name) for word in sys.argv[1:]]):
        sys.exit(1)
    return time.process_time() - before
_, few, every = map(run, ("first", "few", "every"))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(every - few, peak)
"""
Change = Callable[[int, dict[str, object]], None]


def honest(count: int) -> list[dict[str, object]]:
    """Return payments of the last hours, ten per card."""
    random = np.random.default_rng(7)
    first_ms = int(time.time() * 1_000) - 3_600_000 - count * _GAP_MS
    cards = random.integers(0, max(count // 10, 1), count).tolist()
    amounts = np.round(random.gamma(0.4, 250.0, count) + 0.01, 2).tolist()
    declined = (random.random(count) < 0.2).tolist()
    places = random.integers(0, 5, count).tolist()
    return [
        {
            "tx_id": f"t{number}",
            "event_time": first_ms + number * _GAP_MS,
            "card_id": f"c{cards[number]}",
            "account_id": f"a{cards[number]}",
            "amount": amounts[number],
            "status": "declined" if declined[number] else "approved",
            "channel": "pos",
            "country": "DE" if places[number] else "FR",
            "lat": 48.0 + places[number],
            "lon": 9.0,
        }
        for number in range(count)
    ]


def _same(**values: object) -> Change:
    return lambda _, event: event.update(values)


def _all_new(number: int, event: dict[str, object]) -> None:
    event.update(card_id=f"c{number}", account_id=f"a{number}")


def _from(keys: list[str]) -> Change:
    return lambda number, event: event.update(card_id=keys[number % len(keys)])


def _dated(ms: int) -> Change:
    """Return a change that dates half of the events around this time; the honest half comes between them."""
    return lambda number, event: event.update(event_time=ms + number) if number % 2 else None


def streams(count: int) -> Iterator[tuple[str, list[dict[str, object]], Change]]:
    """Yield the streams: a title, honest events, and the change to each event."""
    keys = colliding_keys(count // 10, _BITS).to_pylist()
    yield "one key", honest(count), _same(card_id="c", account_id="a")
    yield "one key, each event begins runs", honest(count), _same(**PROBE)
    yield "all keys new", honest(count), _all_new
    yield f"keys with {_BITS} equal bits of a hash", honest(count), _from(keys)
    yield "equal times", honest(count), _same(event_time=_HOURS_AGO_MS)
    yield "one key, equal times", honest(count), _same(event_time=_HOURS_AGO_MS, **PROBE)
    yield "far future, every other event", honest(count), _dated(_FAR_FUTURE_MS)
    yield "far past, every other event", honest(count), _dated(_FAR_PAST_MS)


def measure(folder: Path, lines: list[bytes], rules: Path) -> tuple[float, float]:
    """Return the processor seconds and the peak MB of a job over these lines."""
    few = [orjson.dumps(event) for event in honest(_START_EVENTS)]
    # The last event ends the wait of all others.
    last = orjson.dumps({**honest(1)[0], "event_time": _HOURS_AGO_MS + 600_000})
    for name, content in (("first", few), ("few", few), ("every", lines)):
        (folder / f"{name}.jsonl").write_bytes(b"\n".join([*content, last]) + b"\n")
    words = ["run", "--rules", str(rules), "--events", str(folder / "NAME.jsonl"), "--alerts", str(folder / "NAME-out")]
    words += ["--checkpoint", str(folder / "NAME-job"), "--lateness", "1 min", "--available-now"]
    result = subprocess.run([sys.executable, "-c", _JOBS, *words], cwd=ROOT, capture_output=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr.decode())
    seconds, size = result.stdout.splitlines()[-1].split()
    return float(seconds), float(size) / 1_024


def measured(lines: list[bytes], rules: Path) -> tuple[float, float]:
    """Return the lesser of two runs."""
    runs = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measure(Path(folder), lines, rules))
    return min(seconds for seconds, _ in runs), min(size for _, size in runs)


def long_fields() -> list[bytes]:
    """Return records with a text of 10 MB in a field, every third of them in an undeclared field."""
    records = []
    for number, event in enumerate(honest(_LONG_RECORDS)):
        event[("card_id", "merchant_id", "note")[number % 3]] = "x" * _LONG_BYTES
        records.append(orjson.dumps(event))
    return records


def main() -> int:
    """Measure and print; return 1 if a row exceeds the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=int, nargs="?", default=100_000)
    parser.add_argument("--rules", type=Path, default=ROOT / "rules")
    options = parser.parse_args()
    count, rules = options.events, options.rules
    plain = [orjson.dumps(event) for event in honest(count)]
    base_s, base_mb = measured(plain, rules)
    rows, worst = [("honest", f"{count / base_s:,.0f}", "1.0", f"{base_mb:,.0f}", "1.0")], 1.0
    cases = [(name, [orjson.dumps(_changed(number, e, change)) for number, e in enumerate(events)], 1.0)
             for name, events, change in streams(count)]  # fmt: skip
    long = long_fields()
    cases.append(("fields of 10 MB, time by byte", long, sum(map(len, long)) / sum(map(len, plain))))
    for name, lines, share in cases:
        seconds, size = measured(lines, rules)
        seconds = max(seconds, 1e-3)
        times, memory = seconds / base_s / share, size / base_mb
        worst = max(worst, times, memory)
        rows.append((name, f"{len(lines) / seconds:,.0f}", f"{times:.1f}", f"{size:,.0f}", f"{memory:.1f}"))
    head = ("stream", "events/s", "time ÷ honest", "MB", "memory ÷ honest")
    show(f"{count:,} events, five rules, cep run on RocksDB", head, rows)
    return int(worst > RATIO_MAX)


def _changed(number: int, event: dict[str, object], change: Change) -> dict[str, object]:
    change(number, event)
    return event


if __name__ == "__main__":
    sys.exit(main())

"""Soak: `cep live` at a steady rate for an hour; state and memory must be flat once the windows are full.

    python -m tests.bench.soak [--minutes 60] [--rate 1000] [--keys 50000] [--window "60 s"] [-- OPTIONS OF cep live]

Ten minutes (`--minutes 10`) are the short form, one (`--minutes 1 --window "10 s"`) shows that it works. Events come
through Kafka as in the latency benchmark; runs end with the rule's window. Every few seconds it records runs and state
bytes from /metrics, the bytes of the checkpoint directory, and the resident memory of Java and of the job's Python
processes, and prints them on standard error. At the end it compares the medians of the third and of the last quarter of
the time; it exits with 1 if runs, state or memory have grown by more than a tenth, or if alerts stopped before the end.
The size of the checkpoint directory is printed and not judged: Spark keeps the last hundred micro-batches, which take a
while to fill.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from tests.bench.latency import ALERTS, EVENTS, OPTIONS, PATTERN, RULE, kafka, make_topics, measure, process
from tests.bench.metrics import Samples, metrics, resident_bytes, watch
from tests.bench.peer_data import show

GROWTH_MAX = 1.1
SAMPLES = 240
GAUGES = ("cep_runs", "cep_state_bytes")
JUDGED = (*GAUGES, "java_bytes", "python_bytes")


def parse() -> argparse.Namespace:
    """Parse the arguments; the ones after `--` go to `cep live`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=int, default=1_000, help="events a second")
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--window", default="60 s", help="of the rule")
    parser.add_argument("--mock", action="store_true", help="the mock cluster, not an Apache Kafka")
    parser.add_argument("live", nargs="*", default=list(OPTIONS), help="options of cep live, after --")
    return parser.parse_args()


def sample(address: str, leader: int, checkpoint: Path) -> dict[str, float]:
    """Take one sample of the job. Files of the checkpoint directory may go while they are counted."""
    values = {name: value for name, value in metrics(address).items() if name in GAUGES}
    sizes = []
    for path in checkpoint.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    values |= {"checkpoint_bytes": float(sum(sizes)), **resident_bytes(leader)}
    now = time.strftime("%H:%M:%S")
    print(now, *(f"{name} {value:,.0f}" for name, value in values.items()), file=sys.stderr, flush=True)
    return values


def main() -> None:
    """Run, print, judge."""
    options = parse()
    options.seconds = options.minutes * 60
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the processes that it has started end with it
    samples, ended = Samples(), threading.Event()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pair.cep").write_text(PATTERN.replace("1 h", options.window))
        (folder / "pair.toml").write_text(RULE)
        with kafka(folder, options.mock) as address:
            make_topics(address)
            command = "import sys; from cep.cli.main import main; sys.exit(main())"
            words = [
                "-c", command, "live", "--rules", str(folder), "--bootstrap-servers", address, "--topic", EVENTS,
                "--alerts", f"kafka:{ALERTS}", "--checkpoint", str(folder / "job"), "--listen", "0", *options.live,
            ]  # fmt: skip
            with process(words, folder / "log") as job:
                every_s = options.seconds / SAMPLES
                look = partial(sample, leader=job.pid, checkpoint=folder / "job")
                watcher = threading.Thread(target=watch, args=(folder / "log", every_s, ended, samples, look))
                watcher.start()
                started_s = time.perf_counter()
                measured = measure(address, ALERTS, options, job)
                ended.set()
                watcher.join()
        if not samples.found:
            sys.exit((folder / "log").read_text()[-4_000:])
    rows, is_flat = [], True
    for gauge in samples.found:
        third, last = samples.quarters(gauge)
        is_flat = is_flat and (gauge not in JUDGED or last <= third * GROWTH_MAX)
        rows.append((gauge, f"{third:,.0f}", f"{last:,.0f}", f"{last / third:.3f}" if third else "-"))
    show(f"{options.minutes} minutes, {options.rate:,} events/s, {options.keys:,} keys, windows of {options.window}",
         ("median of", "third quarter", "last quarter", "last ÷ third"), rows)  # fmt: skip
    late_s = time.perf_counter() - started_s - options.seconds
    tenth = measured.latencies_ms(options.seconds * 0.9)
    print(f"{len(tenth):,} alerts in the last tenth; the last of all came {late_s:.1f} s after the end")
    sys.exit(0 if is_flat and len(tenth) else 1)


if __name__ == "__main__":
    main()

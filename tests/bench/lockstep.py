"""`python -m tests.bench.lockstep OTHER`: cost of a small micro-batch of `cep run` here and in another checkout.

    python -m tests.bench.lockstep ../cep-before [--pairs 60] [--keys 20000] [--events 24]

On a shared machine, two runs one after the other differ by more than the builds do. Therefore one process of each build
runs: it does 100 micro-batches, hands a token to the other process and waits. Both meet the same conditions. It prints
the median and the quarters of the ratios of the pairs, in processor seconds. OTHER is a checkout of an earlier commit
(`git worktree add ../cep-before COMMIT`); both use the packages of this environment.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

MICRO_BATCHES = 100  # from one token to the next
WARM = 5  # pairs that are not counted: kernels are loaded, caches filled
_AT_ONCE = 10**12  # events a second: all are due at once, and the pace limits a micro-batch
_TOKEN = b"x"


class _Nowhere:
    """A sink that takes all alerts at once."""

    def write(self, alerts: object, batch_id: int) -> None:
        """Take the alerts."""

    def close(self) -> None:
        """Do nothing."""


def work(options: argparse.Namespace) -> None:
    """Be one of the two: do micro-batches whenever the token comes, and write the seconds of each turn."""
    # From the measured checkout: only this file is the same for both.
    from cep.runners.embedded.commit import Commits, Sources  # noqa: PLC0415
    from cep.runners.embedded.engine import Engine, Workers  # noqa: PLC0415
    from cep.runners.embedded.opening import StoreSettings  # noqa: PLC0415
    from cep.runners.embedded.outlets import Outlets  # noqa: PLC0415
    from cep.runners.embedded.run import Pace, Runner  # noqa: PLC0415
    from cep.step.job import Job  # noqa: PLC0415
    from tests.bench.embedded_latency import GIVEN, SELDOM, Paced, _fill, payments  # noqa: PLC0415  # noqa: PLC0415

    turns = options.pairs + WARM
    folder = Path(options.folder)
    commits = Commits(StoreSettings(folder / "job", cache_bytes=64 << 20))
    engine = Engine(Job(GIVEN.schema, GIVEN.key_domains, 32, 1), SELDOM, commits.store, Workers(1, 0, None, 64 << 20))
    first_ms = _fill(engine, commits, options.keys)
    count = turns * MICRO_BATCHES * options.events
    source = Paced(payments(count, options.keys, 1, first_ms), _AT_ONCE)
    pace = Pace(records_max=options.events)
    runner = Runner(engine, Sources(source, None), Outlets((_Nowhere(),), None), commits, pace)
    seconds = []
    with (folder / "in").open("r+b", buffering=0) as mine, Path(options.next).open("r+b", buffering=0) as others:
        for _ in range(turns):
            mine.read(len(_TOKEN))
            began_s = time.process_time()
            for _ in range(MICRO_BATCHES):
                runner.cycle(0.0)
            seconds.append(time.process_time() - began_s)
            others.write(_TOKEN)
    (folder / "seconds.json").write_text(json.dumps(seconds[WARM:]))
    os._exit(0)  # skip the last checkpoint and the flush of sinks


def compare(options: argparse.Namespace) -> None:
    """Start both, give the token to the first, and print the ratios."""
    checkouts = (Path(__file__).resolve().parents[2], Path(options.other).resolve())
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / which for which in ("here", "other")]
        for folder in folders:
            folder.mkdir()
            os.mkfifo(folder / "in")
        with (folders[0] / "in").open("r+b", buffering=0) as token:
            both = []
            for folder, following, checkout in zip(folders, folders[::-1], checkouts, strict=True):
                words = ["--work", "--folder", str(folder), "--next", str(following / "in"), "--pairs"]
                arguments = [str(options.pairs), "--keys", str(options.keys), "--events", str(options.events), "-"]
                environment = {**os.environ, "PYTHONPATH": str(checkout)}
                command = [sys.executable, __file__, *words, *arguments]
                both.append(subprocess.Popen(command, cwd=checkout, env=environment))
            token.write(_TOKEN)
            _wait_for(both)
        here, other = (json.loads((folder / "seconds.json").read_text()) for folder in folders)
    low, middle, high = quantiles([ours / theirs for ours, theirs in zip(here, other, strict=True)], n=4)
    each_ms = [quantiles(seconds, n=2)[0] * 1_000 / MICRO_BATCHES for seconds in (here, other)]
    print(f"{options.pairs} pairs of {MICRO_BATCHES} micro-batches of {options.events} events, {options.keys:,} keys")
    print(f"ms of the processor a micro-batch, medians: here {each_ms[0]:.2f}, other {each_ms[1]:.2f}")
    print(f"here over other: {middle:.3f}, half of the pairs from {low:.3f} to {high:.3f}")


def _wait_for(both: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the ends of both. If one fails, the other would wait for the token."""
    while None in (codes := [process.poll() for process in both]):
        if any(codes):
            for process in both:
                process.kill()
        time.sleep(0.1)
    if any(process.returncode for process in both):
        sys.exit("one of the two has failed: is the other checkout's runner put together as here?")


def main() -> None:
    """Compare, or be one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("other", help="a checkout of another commit")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=24, help="of a micro-batch")
    for name in ("--folder", "--next"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()

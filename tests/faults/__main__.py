"""`python -m tests.faults --seeds 1000`: faults in the simulation, compared with the replay; a table of the alarms.

    python -m tests.faults --seeds 1000 [--first 0] [--processes 2]

Each row is a fault: the number of its seeds, the alarms of `cep job monitor alerts` that rang after its begin, and
after how many minutes (median, most). The last line has the seeds that went wrong; the command ends with 1 if there are
any. Tested by: tests/faults/test_faults.py
"""

import argparse
import multiprocessing
import sys
import time

from tests.bench.peer_data import show
from tests.faults.simulation import run, table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began_s = time.process_time(), time.perf_counter()
    outcomes = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for outcome in pool.imap_unordered(run, range(options.first, options.first + options.seeds)):
            outcomes.append(outcome)
            if outcome.problem:
                print(f"seed {outcome.seed}, {', '.join(outcome.begun_ms)}: {outcome.problem}", flush=True)
    show(
        f"{options.seeds} seeds", ("fault", "seeds", "alarms that rang, after minutes: median (most)"), table(outcomes)
    )
    wrong = sorted(outcome.seed for outcome in outcomes if outcome.problem)
    lives = sum(outcome.lives for outcome in outcomes)
    print(f"{lives} lives of jobs in {time.perf_counter() - began_s[1]:.0f} s; wrong: {wrong or 'none'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

"""`cep live` in a process that kills its whole process group right after one step of the commit protocol.

    python -m tests.runners.spark.crash_job STEP BATCH ARGUMENTS…

STEP is a number of the protocol in cep/runners/spark/live_output.py, or a word for a place within its steps 3 and 4,
where sinks have no transaction with the job: insert, inserting, inserted for PostgreSQL; post and posted for a webhook.
Milliseconds may follow, as in 3+7: so much later, when the next step may be half done. 0 never kills. The process dies
in micro-batch BATCH, or the first later one that comes to the step: without alerts, steps 3 and 4 are left out.
Tested by: tests/runners/spark/test_live_crash.py
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from psycopg import Cursor

from cep.cli.main import main as cep_main
from cep.runners.spark import live_output
from cep.runners.spark.live_output import LiveOutput
from cep.sinks.kafka import Transactions
from cep.sinks.postgres import PostgresSink
from cep.sinks.webhook import WebhookSink


def die() -> None:
    """Die without a handler or clean-up, in Java too; the Python workers end as well."""
    os.killpg(0, signal.SIGKILL)


def before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Let `act` be called with the arguments of a function before it."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Let `act` be called with the arguments of a function after it."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act(*args)
        return result

    setattr(owner, name, wrapped)


# Step → the place of its end: before or after a function of the job.
PLACES: dict[str, tuple[Callable[..., None], Any, str]] = {
    "2": (before, LiveOutput, "take_table"),  # the rows are there when all tasks have committed their state
    "3": (before, Transactions, "_commit"),
    "4": (after, Transactions, "_commit"),
    "insert": (before, PostgresSink, "_insert"),
    "inserting": (after, Cursor, "executemany"),  # all rows are sent, and the transaction is not committed
    "inserted": (after, PostgresSink, "_insert"),
    "post": (before, WebhookSink, "_status"),
    "posted": (after, WebhookSink, "_status"),
    "5": (before, live_output, "write_progress"),
    "6": (after, live_output, "write_progress"),
}
OF_POSTGRES = ("insert", "inserting", "inserted")


def arm(step: str, delay_ms: int, first_batch_id: int) -> None:
    """Set the place of death. Errors: AssertionError for a step without a place."""
    assert step in ("0", "1") or step in PLACES, f"no step is called {step}"
    now = [-1]

    def die_in_time(*_: Any) -> None:
        if now[0] >= first_batch_id and delay_ms:
            threading.Timer(delay_ms / 1_000, die).start()
        elif now[0] >= first_batch_id:
            die()

    def entered(_: LiveOutput, __: Any, batch_id: int) -> None:
        now[0] = batch_id
        if step == "1":  # Spark calls this after it has written the plan of the micro-batch
            die_in_time()

    before(LiveOutput, "take", entered)
    if step in PLACES:
        wrap, owner, name = PLACES[step]
        wrap(owner, name, die_in_time)


if __name__ == "__main__":
    given_step, _, given_ms = sys.argv[1].partition("+")
    arm(given_step, int(given_ms or 0), int(sys.argv[2]))
    sys.argv = ["cep", *sys.argv[3:]]
    sys.exit(cep_main())

"""A job of `cep run` while it works → its gauges, a line per minute, and its rules on the status topic.

All of it runs in the thread of the job, between two micro-batches. runners/watch.py watches the parts around the job.
Tested by: tests/cli/test_run.py
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from cep.base.errors import SinkError
from cep.base.limits import EVENT_TIME_MS_MIN, PROGRESS_LINES_MS
from cep.base.text import utc_text
from cep.rulebook.kafka import StatusTopic
from cep.runners.assembly import JobStart, RuleNews
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine
from cep.runners.embedded.run import Runner
from cep.runners.live_checkpoint import write_progress
from cep.runners.meanings import forget_open_runs, is_in_lines, open_runs
from cep.runners.observe import CHECKPOINTS, Log, Observed
from cep.runners.output import BatchReport
from cep.runners.patience import Newest, Patience
from cep.runners.rule_output import write_status
from cep.step.rules import rule_status, sign_status

_MEASURE_S = 1.0
_WRITE_S = 60.0
_SETTLE_S = 0.2


@dataclass(slots=True)
class ProgressLines:
    """Prints progress: a line for the first micro-batch with records, then at most one every `every_ms`."""

    log: Log
    every_ms: int = PROGRESS_LINES_MS
    before: Counter[str] = field(default_factory=Counter)  # the totals when the last line was written, or at the start
    _printed_s: float | None = None

    def tell(self, observed: Observed, totals: Counter[str], now_s: float) -> None:
        """Write a line about the work since the last one, if it is due and there was any. `now_s`: time.monotonic()."""
        seconds = None if self._printed_s is None else now_s - self._printed_s
        if seconds is not None and seconds * 1_000 < self.every_ms:
            return  # not due
        added = Counter({name: count for name, count in totals.items() if count != self.before[name]})
        added.subtract({name: self.before[name] for name in added})  # left: the counts since the last line
        if not any(added[name] for name in ("records", "control_applied", "control_refused", "deliveries_retried")):
            return  # no work
        shown_counts = {name: n for name, n in sorted(added.items()) if is_in_lines(name) and n > 0}
        alerts = sum(n for name, n in added.items() if name.startswith("alerts["))
        lag = sum(observed.lags.values()) if observed.lags else None
        at_ms = observed.watermark_ms
        watermark = None if at_ms is None or at_ms < EVENT_TIME_MS_MIN else utc_text(at_ms)
        parts = [f"{added['events']:,} events" + ("" if seconds is None else f" in {seconds:.0f} s")]
        parts += [f"{alerts:,} alerts", *(f"{count:,} {name}" for name, count in shown_counts.items())]
        sentence = f"{', '.join(parts)}; {totals['events']:,} events so far, {totals['runs']:,} runs open"
        sentence += "" if lag is None else f", {lag:,} records wait"
        sentence += "" if watermark is None else f", watermark {watermark}"
        sentence += "".join(f", unhealthy: {part}" for part in observed.troubles)
        facts = {"events": added["events"], "alerts": alerts, "events_so_far": totals["events"], "runs": totals["runs"]}
        self.log.tell("progress", sentence, **facts, lag_records=lag, watermark=watermark, **shown_counts)
        self.before, self._printed_s = Counter(totals), now_s


@dataclass(slots=True)
class KeyAnswers:
    """Answers the request `/key?key=c17` with every open run of the key, as `cep job state --key` does."""

    # (pages, key, compiled rules by level) → runs
    runs_of_key: Callable[[Iterable[Any], str, Sequence[Any]], Iterable[Any]]
    runner: Runner | None = None  # without one, there is no answer

    def answer(self, parameters: Mapping[str, list[str]]) -> list[dict[str, Any]] | None:
        """Return the runs, or None without runs. Raises: TimeoutError if the job is too busy."""
        if self.runner is None:
            return None
        key = "".join(parameters.get("key", ()))
        pages, programs_by_level = self.runner.ask(lambda engine: engine.pages_of_key(key))  # stored runs of some keys
        return [asdict(run) for run in self.runs_of_key(pages, key, programs_by_level)] or None


class JobReports:
    """Turns the reports of a running job into metrics, lines of progress, and its rules on the `status` topic."""

    def __init__(
        self, start: JobStart, engine: Engine, commits: Commits, sources: Sources, status: StatusTopic | None,
        patience: Patience,
    ) -> None:  # fmt: skip
        """Begin with the totals of the last commit. `status`: the topic to which the status of the rules goes."""
        self._observed, self._log = start.observed, start.log
        self._rejections, self._traces = start.rejections, start.traces
        self._engine, self._commits, self._sources = engine, commits, sources
        self._status = None if status is None else Newest(status.name, status.publish, patience)  # tries again
        self._folder = start.settings.job.checkpoint
        self._patience = patience
        totals = commits.totals if commits.head is None else commits.head.totals  # head: the last commit
        self._lines = ProgressLines(self._log, before=Counter(totals))
        self._digest = ""  # of the rules that were published last
        # None: the first rules to come are not news. They are the rules of the last commit (`head`).
        self._rule_news = RuleNews(self._log, None if commits.head else engine.rulebook.rulebook.ledger.report())
        self._measured_s = self._totals_written_s = float("-inf")  # when, by time.monotonic()

    def report(self, batch: BatchReport) -> None:
        """Take a micro-batch. Raises: SinkError if the status topic refuses an earlier status."""
        self._rejections.add(batch.counters, batch.dead_letters)
        if self._traces is not None:
            timed = {phase: batch.phases_ms[phase] for phase in ("decoding", "matching")}
            self._traces.micro_batch(batch.batch_id, timed, batch.counters)
        self._begin(batch.batch_id)
        self._observed.finished(batch.batch_id, batch.totals, self._engine.watermark_ms, batch.phases_ms)
        self._update_metrics()

    def idle(self) -> None:
        """Report that the job waits for records. Raises: as `report`."""
        self._begin(self._commits.batch_id)
        self._observed.idle()
        self._update_metrics()

    def _begin(self, batch_id: int) -> None:
        """Note that the job has read its sources for the first time; `batch_id` is of its next micro-batch."""
        if not self._observed.has_begun:
            self._observed.finished(batch_id - 1, self._commits.totals, self._engine.watermark_ms)
            self._observed.begin()

    def _update_metrics(self) -> None:
        """Update the metrics; publish changed rules, print the progress and write the totals, each if it is due."""
        self._publish_rules()
        now_s = time.monotonic()
        self._count_failures()
        self._observed.positions = self._sources.events.positions()
        if now_s - self._measured_s >= _MEASURE_S:
            self._measured_s = now_s
            self._update_gauges()
        self._lines.tell(self._observed, self._commits.totals, now_s)
        if now_s - self._totals_written_s >= _WRITE_S:
            self._totals_written_s = now_s
            self.write_totals()

    def _count_failures(self) -> None:
        counts, totals = self._patience.counted(), self._commits.totals
        if any(count or name not in totals for name, count in counts.items()):
            totals.update(counts)
            self._observed.finished(self._commits.batch_id - 1, totals)

    def settle(self, stop: threading.Event) -> None:
        """Wait until the status topic has the rules, or a moment in a job that is to stop. Raises: SinkError."""
        while self._status is not None and not self._status.settle(_SETTLE_S) and not stop.is_set():
            self._observed.idle()

    def write_totals(self) -> None:
        """Write the totals into the job's folder for readers; the job itself does not restore them."""
        self._count_failures()
        if self._folder is not None:
            with suppress(SinkError):  # the next commit reports the fault of the disk
                commits = self._commits
                write_progress(self._folder, commits.batch_id - 1, commits.totals, commits.deliveries.undelivered_count)

    def _update_gauges(self) -> None:
        """Update the gauges of state, memory and waiting alerts."""
        commits, sizes = self._commits, self._commits.store.sizes()
        # Deliveries and failed checkpoints are counted between micro-batches, too.
        self._observed.finished(commits.batch_id - 1, commits.totals)  # `batch_id`: of the next micro-batch
        stored = sizes.disk_bytes + sizes.memory_bytes
        # A job without a folder does not commit: its state is in pages (packed runs) in memory, not in the store.
        gauges = {"state_bytes": float(max(stored, self._engine.page_bytes))}
        gauges["undelivered_alerts"] = float(commits.deliveries.undelivered_count)
        gauges["uncheckpointed_seconds"] = 0.0 if commits.checkpoints is None else commits.checkpoints.uncheckpointed_s
        self._observed.wait_for(commits.deliveries.backlogs)  # alerts that wait for each sink
        memory = {**self._engine.memory_bytes, "store": sizes.memory_bytes + sizes.cache_bytes}
        memory |= {"undelivered": commits.deliveries.undelivered_bytes, "changelog": commits.deliveries.unsent_bytes}
        self._observed.measured(gauges, {})
        self._observed.use_memory(memory)
        if self._folder is not None:
            error = None if commits.checkpoints is None else commits.checkpoints.error
            self._observed.note(CHECKPOINTS, None if error is None else "the last one failed", str(error))

    def _publish_rules(self) -> None:
        """Publish the rules in force if they have changed: in the job's folder, on the status topic, and in the log."""
        compiled = self._engine.rulebook
        if compiled.digest == self._digest:
            return
        status = sign_status(rule_status(compiled.rulebook))
        status["open_runs"] = open_runs(self._commits.totals)  # by version of a rule
        forget_open_runs(self._commits.totals, status)  # of versions that are gone
        if self._folder is not None:  # first, so that the files are right before others read the news
            write_status(self._folder, status)
        if self._status is not None:
            self._status.offer(orjson.dumps(status))
        self._rule_news.tell(status)
        self._digest = compiled.digest
        versions = [f"{rule['rule_id']} v{rule['version']} ({rule['status']})" for rule in status["rules"]]
        rules = ", ".join(sorted(versions))
        refused = len(status["refused"])
        sentence = f"rules at epoch {status['epoch']}: {rules or 'none'}" + (f"; {refused} refused" if refused else "")
        self._log.tell("rules", sentence, epoch=status["epoch"], rules=rules, refused=refused)

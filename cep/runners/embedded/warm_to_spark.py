"""The state at the end of a replay → the checkpoint directory of a new `cep live`.

    warm start (handover/warm_start.py)    checkpoint directory
    keyed state                         ─▶ begins/ (handover/beginning.py), in the job's own key groups and pages
    rules, who was alerted              ─▶ rulebooks/, rule_status.json, held_memory.json
    how many runs                       ─▶ progress.json

The embedded engine takes the state into memory and returns it as entries, the form with which both runners begin.
Tested by: tests/runners/handover/test_handover.py
"""

import shutil
from contextlib import closing
from pathlib import Path

from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import RulebookStore, save
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.handover.beginning import FOLDER, Beginning, write_beginning
from cep.runners.handover.warm_start import WarmStart
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER, write_progress
from cep.runners.rule_output import begin_rule_output
from cep.state.memory import MemoryStore
from cep.state.store import WriteBatch
from cep.step.job import Job
from cep.step.rules import rule_status


def begin_warm(warm: WarmStart, job: Job, rulebook: Rulebook, checkpoint: Path) -> None:
    """Write the state of a warm start (a replay of past events) and `rulebook` into a new checkpoint folder.

    Raises: UsageError if it does not fit the job; StateError, SinkError.
    """
    shutil.rmtree(checkpoint / FOLDER, ignore_errors=True)  # left by a start that was cut off
    rulebook = rulebook.copy()
    rulebook.assign_levels(job.levels_count)  # the order in which rules run
    about, saved = warm.about, save(rulebook)
    with closing(MemoryStore()) as store:
        engine = Engine(job, about.rules, store, Workers(1), rulebook.lists.store)
        runs = engine.begin(warm)
        batch = WriteBatch()  # `entries_of` reads histories from the store
        engine.save_whole(batch)
        store.write(batch)
        beginning = Beginning(saved.digest, about.until_ms - 1, {}, since_ms=about.since_ms)
        write_beginning(checkpoint, beginning, ((group, engine.entries_of(group)) for group in range(job.groups_count)))
        engine.close()
    RulebookStore(checkpoint / RULEBOOKS_FOLDER).put(saved)
    begin_rule_output(checkpoint, rule_status(rulebook), [list(entry) for entry in about.memory])  # memory: last alerts
    write_progress(checkpoint, -1, runs)  # -1: no micro-batch yet

"""A savepoint → the checkpoint directory of a new `cep live`, which goes on where the savepoint was made.

    savepoint                        checkpoint directory
    job, first rules              ─▶ job.json (under a new id), initial_rules.json
    rulebook                      ─▶ rulebooks/, rule_status.json
    who was alerted when, totals  ─▶ held_memory.json, progress.json
    entries by key group          ─▶ begins/ (beginning.py), with watermark, event times and positions

Tested by: tests/runners/spark/test_savepoint.py
"""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import orjson

from cep.base.errors import UsageError
from cep.base.files import replace_file
from cep.base.limits import TIME_MS_MIN
from cep.rulebook.saved import RulebookStore, rulebook_from_bytes
from cep.rulebook.saved import Saved as SavedRulebook
from cep.runners.handover.beginning import Beginning, write_beginning
from cep.runners.handover.payload import Payload, Saved, payload_in
from cep.runners.live_checkpoint import JOB_FILE, RULEBOOKS_FOLDER, RULES_FILE, new_checkpoint, write_progress
from cep.runners.rule_output import begin_rule_output
from cep.state.savepoints import entries_of_group, load_lists, open_savepoint
from cep.state.target import Target
from cep.step.event_time import times_from_json
from cep.step.job import Job
from cep.step.rules import rule_status


def load_for_spark(target: Target, checkpoint: Path, change: Callable[[Payload], Payload] = lambda p: p) -> Saved:
    """Create the checkpoint directory of a job on Spark from a whole savepoint. `change` may change its payload.

    Raises: UsageError if the folder is not empty or the savepoint is of some key groups only; StateError, StoreError.
    """
    with new_checkpoint(checkpoint) as folder:
        savepoint = open_savepoint(target, folder / "payload")
        payload = change(payload_in(savepoint))
        job, progress = Job.from_json(payload.job), payload.engine
        since_ms, heartbeat_ms, gap_ms = (
            progress.get(name, TIME_MS_MIN) for name in ("since_ms", "heartbeat_ms", "gap_ms")
        )
        rulebook_digest = SavedRulebook.from_bytes(progress["rulebook"].encode()).digest
        beginning = Beginning(  # `base`: the number of the last micro-batch that sinks have received
            rulebook_digest, progress["watermark_ms"], times_from_json(progress["times"]), payload.positions,
            first_number=payload.base + 1, since_ms=since_ms, heartbeat_ms=heartbeat_ms, topic_ids=payload.topic_ids,
            gap_ms=gap_ms,
        )  # fmt: skip
        if savepoint.groups != range(job.groups_count):
            groups = f"{savepoint.groups.start}-{savepoint.groups.stop - 1} of {job.groups_count}"
            raise UsageError(f"the savepoint has the key groups {groups}; make one of all processes together")
        store = RulebookStore(folder / RULEBOOKS_FOLDER)
        load_lists(savepoint, store.list_folder)
        rulebook = progress["rulebook"].encode()
        store.put(SavedRulebook.from_bytes(rulebook))
        status = rule_status(rulebook_from_bytes(rulebook, job.schema, job.domains, store.lists))
        begin_rule_output(folder, status, progress["held_memory"])  # with the last alerts, for suppression
        replace_file(folder / RULES_FILE, orjson.dumps(payload.rules))
        write_progress(folder, beginning.first_number - 1, payload.totals)
        fetched = folder / "fetched"
        by_group = ((group, entries_of_group(savepoint, group, fetched)) for group in savepoint.groups)
        entries = write_beginning(folder, beginning, by_group)  # the first micro-batch takes the keyed state from there
        shutil.rmtree(fetched, ignore_errors=True)
        replace_file(folder / JOB_FILE, orjson.dumps({**payload.job, "id": uuid.uuid4().hex}))
    return Saved(savepoint.groups, len(savepoint.manifest.files), entries)

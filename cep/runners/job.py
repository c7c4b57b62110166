"""Settings and rules → the job that a runner starts: its first rules, its terms, and its folder.

    rule files or a warm start ──read_beginning──▶ Beginning ──deploy──▶ Deployment ──describe_job──▶ Job
                                                                                         │ open_folder
                                                                                         ▼
                                                               the job and the rules that the folder has

Tested by: tests/cli/test_main.py, tests/cli/test_run.py, tests/runners/spark/test_match.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MIN
from cep.base.secrets import secret_keys
from cep.columnar.mapping import check_fields, mapping_of_settings
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, parse_control
from cep.model.settings import JobSettings, Settings
from cep.rulebook.deploy import Deployment, first_lists
from cep.rulebook.files import read_lists, read_rules, with_signatures
from cep.rulebook.rulebook import levels_needed
from cep.rulebook.signers import given_trust
from cep.rulebook.trust import Trust
from cep.runners.handover.warm_start import WarmStart, open_warm_start
from cep.runners.live_checkpoint import open_checkpoint, read_job
from cep.step.job import Job

if TYPE_CHECKING:
    from cep.runners.observe import Log  # the library needs no metrics


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first control records of a job and the problems of rule files. `warm`, if there is one, is a warm start: the
    state at the end of a replay, from which the job goes on.

    `lists` has the entries of the lists that the records name. `trust` says who must have signed the records.
    """

    records: tuple[ControlRecord, ...]
    problems: tuple[str, ...]
    warm: WarmStart | None
    lists: ListStore
    trust: Trust | None = None

    @property
    def initial(self) -> tuple[bytes, ...]:
        """The records as a job has them in its checkpoint."""
        return tuple(record.to_json() for record in self.records) if self.warm is None else self.warm.about.rules


def read_beginning(settings: Settings, log: Log) -> Beginning:
    """Read the first rules: from the folder, or from a warm start (a replay's end). Raises: UsageError, StateError."""
    folder, warm_start = settings.job.rules, settings.job.warm_start
    trust = given_trust(settings.control.signers, settings.control.root_key)
    if folder is None and warm_start is None:
        raise UsageError("give --rules, or the same in a settings file (`cep settings` prints one)")
    lists = ListStore()
    records: list[ControlRecord] = []
    problems: list[str] = []
    if folder is not None:
        records, problems = read_folder(folder, lists, trust)
    if warm_start is None:
        return Beginning(tuple(records), tuple(problems), None, lists, trust)
    warm = open_warm_start(warm_start)
    warm_records = [record for record, _ in map(parse_control, warm.about.rules) if record is not None]
    if folder is not None and records != warm_records:
        _tell_rules_differ(settings.job, log)  # the rules of the replay win
    warm.copy_lists(lists)
    return Beginning(tuple(warm_records), tuple(problems), warm, lists, trust)


def read_folder(folder: Path, lists: ListStore, trust: Trust | None) -> tuple[list[ControlRecord], list[str]]:
    """Read the lists and the rules of a folder, with their signatures if `trust` asks for them. Raises: UsageError.

    The entries of the lists go into `lists`. Returns: control records, and problems of the files.
    """
    files, problems = read_rules(folder)
    if trust is not None:
        files = with_signatures(folder, files)
    list_records, list_problems = read_lists(folder, lists)
    if trust is not None:  # keep the lists that signed rules read, or the newest signed change of each
        list_records = first_lists(folder, list_records, files)
    return [*list_records, *files], [*problems, *list_problems]


def describe_job(settings: Settings, deployment: Deployment, warm: WarmStart | None = None) -> Job:
    """Describe the job of these rules, which is audited if they can change while it runs. Raises: UsageError."""
    check_fields(mapping_of_settings(settings.events), deployment.schema)
    is_audited = settings.control.topic is not None or settings.control.folder is not None
    return replace(live_job(settings.job, deployment, warm), is_audited=is_audited)


def live_job(settings: JobSettings, deployment: Deployment, warm: WarmStart | None = None) -> Job:
    """Describe the job of these rules, with a new secret for hashes of events. Events also get the keys of later rules
    (`settings.keys`). A level has the rules that read events of lower levels. Raises: UsageError."""
    columns = deployment.schema.columns()
    if deployment.schema.protected:
        secret_keys()  # without them no event could be decoded, so the job is not to start
    extra = [tuple(field.strip() for field in text.split(",")) for text in settings.keys]  # for later rules
    for domain in extra:
        for field in domain:
            if field not in columns:
                raise UsageError(
                    f"--key {','.join(domain)}: the events have no field `{field}`, only {', '.join(columns)}"
                )
    warm_levels = 1 if warm is None else warm.about.job.levels_count
    return Job(
        deployment.schema,
        tuple(sorted({*deployment.key_domains, *extra})),
        settings.key_groups,
        settings.pages,
        settings.lateness,
        settings.order,
        settings.idle,
        settings.dedup,
        levels_count=max(settings.levels, warm_levels, levels_needed(deployment.rulebook.deployed())),
        begins_ms=TIME_MS_MIN if warm is None else warm.about.until_ms,  # earlier events are the replay's
        ahead_ms=settings.ahead_max,
        trust=deployment.rulebook.trust,
    ).begin()


def open_folder(
    settings: JobSettings, checkpoint: Path, job: Job, beginning: Beginning, log: Log
) -> tuple[Job, tuple[bytes, ...], bool]:
    """Open or create a checkpoint folder. Return the job with the folder's start time and secret for hashes of events,
    the rules that the job began with, and True if it continues. Raises: UsageError, also for another warm start."""
    initial, goes_on = open_checkpoint(checkpoint, job, beginning.initial)
    if goes_on and initial != beginning.initial:
        _tell_rules_differ(settings, log)
    stored = read_job(checkpoint)
    assert stored is not None, "open_checkpoint has written it"
    if beginning.warm is not None and stored.begins_ms != job.begins_ms:  # its state is of another replay
        raise UsageError(
            f"the job of {checkpoint} did not begin from {settings.warm_start}; give a new checkpoint folder"
        )
    return replace(job, begins_ms=stored.begins_ms, digest_key=stored.digest_key), initial, goes_on


def _tell_rules_differ(settings: JobSettings, log: Log) -> None:
    advice = f"publish changes of {settings.rules} as control records"
    log.tell("rules_differ", f"the job goes on with the rules it began with; {advice}")

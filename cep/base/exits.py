"""The exit codes of `cep`, in one table: for the command line, the reference page and the files for supervisors.

Tested by: tests/cli/test_main.py, tests/demo/test_operations.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from cep.base.errors import CepError, SourceGoneError, StateFormatError, UsageError


class Exit(IntEnum):
    """The exit code of a verb."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    FAILED = 3
    FINAL = 4
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an exit code, short for the help text and long, and whether a restart of a failed job may help."""

    summary: str
    text: str
    restart: bool | None


MEANINGS: Mapping[Exit, Meaning] = {
    Exit.CLEAN: Meaning(
        "clean", "The verb has done its work: a job was stopped on request, or has read everything.", None
    ),
    Exit.FINDINGS: Meaning(
        "findings", "There are findings: mistakes in files, a rule set aside, too many rejected records.", False
    ),
    Exit.USAGE: Meaning("usage", "Arguments, settings, rules or a folder do not fit together.", False),
    Exit.FAILED: Meaning("failed", "Something outside failed, such as brokers or a disk, or there is a bug.", True),
    Exit.FINAL: Meaning(
        "final",
        "A restart does the same again, so an operator decides: the topic was created again, its retention has deleted "
        "records before the job read them, or another build wrote the state.",
        False,
    ),
    Exit.INTERRUPTED: Meaning("interrupted", "A person interrupted the verb (Ctrl-C).", None),
}
_FINAL = (SourceGoneError, StateFormatError)


def exit_of(error: CepError) -> Exit:
    """Return the exit code of a verb that this error ends."""
    if isinstance(error, UsageError):
        return Exit.USAGE
    return Exit.FINAL if isinstance(error, _FINAL) else Exit.FAILED

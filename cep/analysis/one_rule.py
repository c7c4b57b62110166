"""A rule of a folder, or of records → the single rule with its lists: the input of tuning.

Tested by: tests/cli/test_quality.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cep.analysis.labels import read_labels
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.split import Part
from cep.analysis.sweep import Bench
from cep.base.errors import UsageError
from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.lang.show import show_duration
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_lists, read_rules
from cep.sources.inputs import Records

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class OneRule:
    """One rule to be tuned.

    `record` has the values of all parameters; `pattern` has them open, `bound` has them in place.
    """

    record: UpsertRecord
    lists: tuple[list[ListRecord], ListStore]
    deployment: Deployment
    pattern: PatternIR
    bound: PatternIR

    def measure(self, records: Records, labels: str, terms: Terms, errors: Console) -> Measured:
        """Measure the rule with its present parameters. Raises: UsageError, SourceError."""
        read = read_labels(labels, records, self.deployment.schema, terms.label_words)
        return measure(self.deployment, terms.period.reader(records), read, terms, errors)

    def bench(
        self, records: Records, measured: Measured, parts: Sequence[Part], terms: Terms, errors: Console
    ) -> Bench:
        """Collect the inputs for replays of the rule with other parameters."""
        pieces_of = terms.period.reader(records)
        return Bench(self.record, self.lists, pieces_of, measured.marks, tuple(parts), terms.cores, errors)

    @property
    def gap_ms(self) -> int:
        """The time that the parts of a history should be apart, so that no match spans two: the window, or a day."""
        within = self.bound.within_ms
        return within if isinstance(within, int) and len(self.bound.variables) > 1 else _DAY_MS


def one_rule(folder: Path, rule_id: str) -> OneRule:
    """Read a rule of a folder. Raises: UsageError for a rule that is not there, or cannot be tuned by itself."""
    return one_rule_of(*_rule(folder, rule_id))


def one_rule_of(record: UpsertRecord, lists: tuple[list[ListRecord], ListStore]) -> OneRule:
    """Deploy a rule by itself. Raises: UsageError for one that cannot be in force or tuned by itself."""
    deployment = deploy([*lists[0], record], lists[1])
    pattern, bound = _patterns(record, deployment)
    record = record.model_copy(update={"params": {**_defaults(pattern), **record.params}})
    return OneRule(record, lists, deployment, pattern, bound)


def _rule(folder: Path, rule_id: str) -> tuple[UpsertRecord, tuple[list[ListRecord], ListStore]]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of rules")
    records, problems = read_rules(folder)
    store = ListStore()
    list_records, _ = read_lists(folder, store)
    record = next((each for each in records if each.id == rule_id), None)
    if record is None:
        reasons = [problem for problem in problems if rule_id in problem]
        raise UsageError(reasons[0] if reasons else f"{folder} has no rule {rule_id}")
    return record, (list_records, store)


def _patterns(record: UpsertRecord, deployment: Deployment) -> tuple[PatternIR, PatternIR]:
    """Return the rule's pattern with open parameters, and with the rule's values in place. Raises: UsageError."""
    if deployment.set_aside:
        raise UsageError(f"{record.id} cannot be in force: {deployment.set_aside[0].reason}")
    pattern = load_text(record.source, record.id).patterns[record.pattern]
    schema = deployment.schema
    derived = [e.name for e in schema.event_types if e.derived and e.name in pattern.event_types]
    if derived or pattern.produces is not None:
        raise UsageError(f"{record.id} is part of a chain of patterns ({', '.join(derived) or pattern.produces}); tune "
                         "rules that read events of a source and give alerts")  # fmt: skip
    (rule,) = deployment.rulebook.deployed()
    return pattern, rule.pattern


def _defaults(pattern: PatternIR) -> dict[str, object]:
    """Return the defaults of the pattern's parameters, as a rule file writes them."""
    values: dict[str, object] = {}
    for param in pattern.params:
        if param.default is None:
            continue
        if param.type.kind.value == "decimal":
            values[param.name] = param.default / 10**param.type.scale
        elif param.type.kind.value == "duration":
            values[param.name] = show_duration(int(param.default))
        else:
            values[param.name] = param.default
    return values

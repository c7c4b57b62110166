"""A set of labelled data and rules → their alerts there, and the parameters that `cep tune` proposes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from cep.analysis.axes import axes_of
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.split import parts_of_time
from cep.analysis.sweep import Bench
from cep.analysis.tune import Aim, tune
from cep.base.schema import Kind
from cep.lang.ir import ParamDecl
from cep.lang.load import load_text
from cep.lang.show import show_duration
from cep.lists.store import ListStore
from cep.model.rule import ParamValue, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.bench.labelled import Given

_DAY_MS = 86_400_000
_SILENT = Console(quiet=True)


def measured_on(data: Given, rules: list[UpsertRecord], path: Path, fields: tuple[str, ...] = ()) -> Measured:
    """Replay some rules over the set."""
    deployment = deploy(rules)
    assert deployment.set_aside == (), deployment.set_aside
    labels = labels_of_table(data.labels.drop(["spell"]), deployment.schema, data.name)
    return measure(deployment, partial(read_pieces, path), labels, Terms(), _SILENT, fields)


def tuned(data: Given, record: UpsertRecord, path: Path) -> UpsertRecord:
    """Return the rule with the parameters of the candidate of `cep tune`, which the last part has no say in.

    `cep tune` itself proposes a candidate only if it is better on that part, so its proposal cannot be judged there.
    """
    measured = measured_on(data, [record], path)
    parts = parts_of_time(measured.history.events, measured.marks, data.gap_days * _DAY_MS, measured.marks_at)
    bench = Bench(record, ((), ListStore()), partial(read_pieces, path), measured.marks, parts, 2, _SILENT)
    pattern = load_text(record.source, record.pattern).patterns[record.pattern]
    (rule,) = measured.history.deployment.rulebook.deployed()
    present = {param.name: _written(param) for param in pattern.params if param.name in data.tries[record.id]}
    open_record = record.model_copy(update={"params": present})
    bench = Bench(open_record, bench.lists, bench.pieces_of, bench.marks, parts, 2, _SILENT)
    axes = axes_of(pattern, open_record.params, data.tries[record.id])
    best = tune(bench, pattern, rule.pattern, axes, Aim("f1"))
    return record.model_copy(update={"params": {**dict(best.candidate)}})


def _written(param: ParamDecl) -> ParamValue:
    """Return the default of a numeric parameter in the form of a rule file."""
    value = param.default
    assert isinstance(value, int | float), param.name
    match param.type.kind:
        case Kind.DURATION:
            return show_duration(int(value))
        case Kind.DECIMAL:
            return float(value / 10**param.type.scale)
        case _:
            return value

"""A set of labelled data and rules → their alerts there, and the parameters that `cep rules tune` proposes."""

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
from cep.base.errors import UsageError
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


def measured_on(
    data: Given, rules: list[UpsertRecord], path: Path, fields: tuple[str, ...] = (), as_of_ms: int | None = None
) -> Measured:
    """Replay some rules over the set. With a date, only the frauds that were known on it count."""
    deployment = deploy(rules)
    assert deployment.set_aside == (), deployment.set_aside
    labels = labels_of_table(data.labels.drop(["spell"]), deployment.schema, data.name)
    return measure(deployment, partial(read_pieces, path), labels, Terms(as_of_ms=as_of_ms), _SILENT, fields)


def tuned(data: Given, record: UpsertRecord, path: Path, until_ms: int) -> UpsertRecord | None:
    """Return the rule with the parameters that `cep rules tune` proposes to an analyst who knows the time before
    `until_ms`.

    Tune cuts that time into its own three parts, so the time from `until_ms` on does not influence the proposal. Return
    None if tune keeps the present setting, or has too few frauds to compare settings.
    """
    measured = measured_on(data, [record], path, as_of_ms=until_ms - 1)
    parts = parts_of_time(measured.history.events, measured.marks, data.gap_days * _DAY_MS, measured.marks_at)
    pattern = load_text(record.source, record.pattern).patterns[record.pattern]
    (rule,) = measured.history.deployment.rulebook.deployed()
    present = {param.name: _written(param) for param in pattern.params if param.name in data.tries[record.id]}
    open_record = record.model_copy(update={"params": present})
    bench = Bench(open_record, ((), ListStore()), partial(read_pieces, path), measured.marks, parts, 2, _SILENT)
    axes = axes_of(pattern, open_record.params, data.tries[record.id])
    try:
        best = tune(bench, pattern, rule.pattern, axes, Aim("f1"))
    except UsageError:  # a part without a fraud
        return None
    if best.proposed == best.present:
        return None
    return record.model_copy(update={"id": f"{record.id}, tuned", "params": {**dict(best.proposed)}})


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

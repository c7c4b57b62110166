"""Labels, rules and events → fields that say too much: the label itself, and fields that separate frauds by themselves.

A rule that reads the label finds each fraud, and nothing in production, where the label comes weeks later. A field that
separates frauds by itself is mostly a label in disguise. In a history in which most events are fraud, honest words were
probably taken for fraud.
Tested by: tests/analysis/test_labels.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.history import Events
from cep.analysis.labels import Labels
from cep.analysis.marks import Marks
from cep.base.errors import UsageError
from cep.base.schema import Kind
from cep.columnar.texts import encoded
from cep.lang.ir import CurrentField, VarField
from cep.lang.show import show_value
from cep.lang.walk import nodes
from cep.rulebook.deploy import Deployment

_FRAUDS_MIN = 10  # fewer frauds say nothing
_SEPARATES = 0.98  # F1 of one condition on one field
_VALUES_MAX = 30  # of a field whose values are tried one by one
_NUMBERS = (Kind.INT, Kind.FLOAT, Kind.DECIMAL)
_WORDS = (Kind.STRING, Kind.ENUM, Kind.BOOL)


def check_unread(deployment: Deployment, labels: Labels) -> None:
    """Refuse rules that read the column of the labels. Raises: UsageError with the rule and the field."""
    hidden = set(labels.fields)
    if not hidden:
        return
    for rule in deployment.rulebook.deployed():
        read = {node.field for node in nodes(rule.pattern) if isinstance(node, CurrentField | VarField)}
        read = (read | set(rule.pattern.key)) & hidden
        if read:
            raise UsageError(
                f"the rule {rule.rule_id} reads `{min(read)}`, the column of the labels, so its figures would only "
                "repeat the labels; leave the field out of the rule, or allow it with --allow-label"
            )


def warnings_of(events: Events, marks: Marks, names: Iterable[str], labels: Labels) -> Iterator[str]:
    """Yield a warning for each field that alone separates frauds from other events, and if most events are fraud."""
    is_fraud = marks.fraud >= 0
    if is_fraud.sum() * 2 > len(events) > 0:
        yield (
            f"{int(is_fraud.sum()):,} of {len(events):,} events are fraud by {labels.name or 'the labels'}: look at "
            "its values, and say with --label-words which of them mean honest"
        )
        return
    for name in dict.fromkeys(names):
        condition = separating_condition(events, is_fraud, name)
        if condition:
            yield (
                f"`{condition}` alone separates nearly all frauds from other events: if `{name}` is set after an event "
                "is known to be fraud, no rule may read it"
            )


def separating_condition(events: Events, is_fraud: NDArray[np.bool_], name: str) -> str:
    """Return the condition on one field that separates nearly all frauds from other events, "" if none does."""
    type_ = events.schema.columns()[name]
    column = events.columns[name]
    has_value = np.asarray(column.is_valid())
    frauds = int(is_fraud.sum())
    if frauds < _FRAUDS_MIN or not has_value.any():
        return ""
    for holds, condition in ((has_value, "is not null"), (~has_value, "is null")):
        if 2 * int((holds & is_fraud).sum()) >= _SEPARATES * (int(holds.sum()) + frauds):
            return f"{name} {condition}"
    if type_.kind in _NUMBERS:
        values = np.asarray(column.fill_null(0)).astype(np.float64)[has_value]
        limit = _limit(values, is_fraud[has_value], frauds)
        if limit is None:
            return ""
        value = limit[1] if type_.is_float else int(limit[1])
        return f"{name} {limit[0]} {show_value(value, type_)}"
    if type_.kind in _WORDS and not type_.protected:
        return _word(column, is_fraud, (name, frauds), events)
    return ""


def _limit(values: NDArray[np.float64], is_fraud: NDArray[np.bool_], frauds: int) -> tuple[str, float] | None:
    """Return the comparison and the limit that separate frauds from other values, None if none does. Cost: a sort."""
    for sign, op in ((-1, ">="), (1, "<=")):
        order = np.argsort(sign * values, kind="stable")
        ordered = values[order]
        is_last = np.append(ordered[1:] != ordered[:-1], True)
        hits, count = np.cumsum(is_fraud[order])[is_last], np.flatnonzero(is_last) + 1
        f1 = 2 * hits / (count + frauds)
        best = int(np.argmax(f1))
        if f1[best] >= _SEPARATES:
            return op, float(ordered[is_last][best])
    return None


def _word(column: pa.Array, is_fraud: NDArray[np.bool_], name_and_frauds: tuple[str, int], events: Events) -> str:
    """Return the condition `field == value` that separates frauds from other events, "" if none does."""
    name, frauds = name_and_frauds
    type_ = events.schema.columns()[name]
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    coded = encoded(column) if is_text else pc.dictionary_encode(column)
    words: Sequence[str | int | bool] = coded.dictionary.slice(0, _VALUES_MAX + 1).to_pylist()
    if len(words) > _VALUES_MAX:
        return ""
    codes = np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    for code, word in enumerate(words):
        holds = codes == code
        if 2 * int((holds & is_fraud).sum()) >= _SEPARATES * (int(holds.sum()) + frauds):
            return f"{name} == {show_value(word, type_)}"
    return ""

"""CEP712: a condition that reads a field whose name says that it is a label, such as `is_fraud`.

A label comes after the event, often weeks later. A rule that reads it is perfect on a history and finds nothing live.
Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.field_names import Role, role_of
from cep.lang.ir import CurrentField, VarField
from cep.lang.lint.never_true import place_of
from cep.lang.load import Checked
from cep.lang.walk import conditions, nodes

CODE = "CEP712"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find conditions that read a label."""
    for pattern in checked.patterns.values():
        for name, where in conditions(pattern):
            fields = {node.field for node in nodes(where) if isinstance(node, CurrentField | VarField)}
            for field in sorted(each for each in fields if role_of(each) is Role.LABEL):
                message = f"`{field}` looks like a label, which is known only after the event"
                help_line = "read a field that is known when the event comes, or say why it is known"
                yield Diagnostic(CODE, message, place_of(checked, pattern, name), (), help_line, Severity.WARNING)

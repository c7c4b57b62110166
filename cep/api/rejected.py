"""Rejected records of a history → a warning, or an error for a caller who asks for it by `strict`.

Tested by: tests/api/test_rejected.py
"""

from __future__ import annotations

import warnings

from cep.api.events import HistoryForms, ReplayForms
from cep.base.errors import RejectedRecordsError
from cep.runners.output import Replayed
from cep.step.rejections import Rejections, rejections_of


class RejectedRecordsWarning(UserWarning):
    """Records of a history were set aside, or have a value that cannot be read. The text has the top reason."""


def warn_of_replay(replayed: Replayed, forms: ReplayForms) -> None:
    """Warn of the rejected records of a replay. Raises: RejectedRecordsError if the caller asks for it."""
    warn_of(rejections_of(replayed.counters, replayed.dead_letters), forms, 4)


def warn_of(rejections: Rejections, forms: HistoryForms | ReplayForms, stacklevel: int = 3) -> None:
    """Warn of rejected records, in the line of the caller. Raises: RejectedRecordsError if the caller asks for it."""
    if not rejections.count:
        return
    if forms.get("strict"):
        raise RejectedRecordsError(
            f"{rejections.summary()}; mend these records or leave them out, or go on without them by strict=False"
        )
    warnings.warn(f"{rejections.summary()}; strict=True makes this an error", RejectedRecordsWarning, stacklevel)

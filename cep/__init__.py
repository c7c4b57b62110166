"""Complex event processing for fraud rules: `cep.load("rules").match(frame)`. Start at README.md.

The names below are loaded when they are asked for: numba and Arrow take a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cep.api.alerts import Alerts
    from cep.api.describe import describe
    from cep.api.events import RejectedRecordsWarning
    from cep.api.features import features
    from cep.api.rules import Rules, load, parse
    from cep.base.errors import CepError, PatternError, RejectedRecordsError

__version__ = "0.3.0"
__all__ = [
    "Alerts", "CepError", "PatternError", "RejectedRecordsError", "RejectedRecordsWarning", "Rules", "describe",
    "features", "load", "parse",
]  # fmt: skip

_HOMES = {
    "Alerts": "cep.api.alerts",
    "CepError": "cep.base.errors",
    "PatternError": "cep.base.errors",
    "RejectedRecordsError": "cep.base.errors",
    "RejectedRecordsWarning": "cep.api.events",
    "Rules": "cep.api.rules",
    "describe": "cep.api.describe",
    "features": "cep.api.features",
    "load": "cep.api.rules",
    "parse": "cep.api.rules",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cep' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

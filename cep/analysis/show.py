"""Figures → short texts, for the terminal and for pages.

Tested by: tests/cli/test_quality.py, tests/analysis/test_report.py
"""

from __future__ import annotations

from cep.analysis.backtest import Ratio


def with_interval(share: Ratio) -> str:
    """Return a share with its interval."""
    return "–" if share.value is None else f"{share.value:.3f} ({share.low:.3f}–{share.high:.3f})"


def percent(value: float | None) -> str:
    """Return a share in percent, with as many digits as a small one needs."""
    return "–" if value is None else f"{value:.1%}" if value >= 0.1 else f"{value:.3%}"


def time_text(seconds: float | None) -> str:
    """Return a time in the unit that suits: `45 s`, `12.5 min`, `3.2 h`, `8.1 d`."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"

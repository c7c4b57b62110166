"""An SVG text, and possibly a chart in Vega-Lite → the output of a notebook.

Tested by: tests/api/test_alerts.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VEGA_LITE = "application/vnd.vegalite.v5+json"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as SVG, its text for places without pictures, and its Vega-Lite if it is a chart."""

    svg: str
    text: str = ""
    spec: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.text or self.svg

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        chart = {} if self.spec is None else {VEGA_LITE: self.spec}
        return {**chart, "image/svg+xml": self.svg, "text/plain": str(self)}

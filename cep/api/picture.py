"""An SVG text → what a notebook shows.

Tested by: tests/api/test_alerts.py
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as SVG, and the text that stands for it where there are no pictures."""

    svg: str
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.svg

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": str(self)}

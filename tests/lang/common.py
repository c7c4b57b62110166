"""Shared parts of the tests of cep/lang: an event type, and short ways to check a text."""

from __future__ import annotations

from cep.lang.explain.render import render_text
from cep.lang.ir import PatternIR
from cep.lang.load import Checked, load_text

EVENTS = """
event transaction {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  status      enum(approved, declined, reversed)
  country     string?
  device_id   string?
  lat         float
  lon         float
  tries       int
  online      bool
}
"""


def checked_pattern(body: str, header: str = "pattern p by card_id", before: str = "") -> PatternIR:
    """Return the one pattern of a text that must be clean."""
    checked = load_text(f"{EVENTS}\n{before}\n{header} {{ {body} }}")
    assert checked.ok, render_text(checked.diagnostics, checked.sources)
    return next(iter(checked.patterns.values()))


def codes(text: str) -> list[str]:
    """Return the codes of all diagnostics of a text."""
    return [d.code for d in load_text(text).diagnostics]


def pattern_codes(body: str, header: str = "pattern p by card_id", before: str = "") -> list[str]:
    """Return the codes that a pattern over `transaction` gives."""
    return codes(f"{EVENTS}\n{before}\n{header} {{ {body} }}")


def shown(checked: Checked) -> str:
    """Return the diagnostics as text."""
    return render_text(checked.diagnostics, checked.sources)

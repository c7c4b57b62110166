"""The terminal's view of alerts."""

from __future__ import annotations

import io

from rich.console import Console

from cep.sinks.console import ConsoleSink
from tests.sinks.alerts import alert_table


def shown(**alert: str) -> str:
    output = io.StringIO()
    ConsoleSink(Console(file=output, width=200, highlight=False, soft_wrap=True)).write(alert_table(1, 1, **alert), 0)
    return output.getvalue()


def test_one_line_an_alert() -> None:
    assert shown() == "2026-03-01 00:00:01 high     card_testing v2  Card c1: 3 probes\n"


def test_a_shadow_alert_says_so() -> None:
    assert "card_testing v2 (shadow)" in shown(status="shadow")


def test_text_of_events_is_shown_as_text() -> None:
    text = shown(message="[bold]x[/bold] \x1b[2J\n")
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text
    assert text.count("\n") == 1

"""A bar is shown on a terminal only, and names the finished task."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cep.base.progress import shown_progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_for_terminals(is_terminal: bool) -> None:
    text = StringIO()
    with shown_progress(Console(file=text, force_terminal=is_terminal), "reading", None) as show:
        show("mining", 1, 4)
    assert ("mining" in text.getvalue()) is is_terminal

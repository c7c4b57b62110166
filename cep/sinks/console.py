"""Alerts → one line each on a terminal.

Tested by: tests/sinks/test_contract.py
"""

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from cep.base.terminal import Terminal
from cep.base.text import visible

_STYLES = {"low": "cyan", "medium": "yellow", "high": "red", "critical": "bold white on red"}


class ConsoleSink:
    """A sink that prints a line per alert: `time severity rule vVERSION message`. Shadow alerts are dimmed."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Terminal(highlight=False, soft_wrap=True)
        self._printed_batch_id = -1

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Print the alerts, unless this batch or a later one has been printed by this process."""
        if batch_id <= self._printed_batch_id:
            return
        columns = alerts.select(["match_end", "severity", "rule_id", "version", "status", "message"])
        for alert in columns.to_pylist():
            severity = alert["severity"]
            shadow = alert["status"] == "shadow"
            line = Text(style="dim" if shadow else "")
            line.append(f"{alert['match_end']:%Y-%m-%d %H:%M:%S} ")
            line.append(f"{severity:<8}", style=_STYLES.get(severity, ""))
            line.append(f" {alert['rule_id']} v{alert['version']}{' (shadow)' if shadow else ''}  ")
            line.append(visible(alert["message"]).replace("\n", "\\n"))
            self._console.print(line)
        self._printed_batch_id = batch_id

    def close(self) -> None:
        """Do nothing: the sink has no resources."""

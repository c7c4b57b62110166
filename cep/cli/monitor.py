"""`cep job monitor`: alert rules for Prometheus, or a dashboard for Grafana, over the metrics of jobs of this version.

Tested by: tests/cli/test_monitor.py
"""

from __future__ import annotations

import argparse

from cep.cli.doc_pages import DOCS

FILES = {"alerts": "alerts.yml", "dashboard": "dashboard.json"}
FOLDER = DOCS / "monitoring"

HELP = """\
Print alert rules for Prometheus, or a dashboard for Grafana. They hold for jobs of `cep run` and of `cep live`, whose
metrics have the same names. Thresholds are to begin with.

examples:
  cep job monitor alerts > /etc/prometheus/rules/cep.yml
  cep job monitor dashboard > cep.json                       (in Grafana: Dashboards, New, Import)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("what", choices=sorted(FILES), help="which file")


def run(options: argparse.Namespace) -> int:
    """Print the file; returns 0."""
    print((FOLDER / FILES[options.what]).read_text(encoding="utf-8"), end="")
    return 0

"""The metrics that alert rules and the dashboard name: tests look for them on the port of each runner."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from cep.cli.docs import MONITORING, MONITORING_FILES
from cep.runners.meanings import COUNTERS, GAUGES

_NAME = re.compile(r"\b(?:cep|process)_\w+")
_PARTS = re.compile(r"_(?:bucket|count|sum)$")


def rules() -> list[dict[str, Any]]:
    """Return the alert rules, as Prometheus reads them."""
    groups = yaml.safe_load((MONITORING / MONITORING_FILES["alerts"]).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana reads it."""
    parsed: dict[str, Any] = json.loads((MONITORING / MONITORING_FILES["dashboard"]).read_text(encoding="utf-8"))
    return parsed


def expressions() -> Iterator[str]:
    """Yield every expression of both."""
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ()))


def names_used() -> set[str]:
    """Return every metric that they name, histograms without the suffix of their parts."""
    return {_PARTS.sub("", name) for expression in expressions() for name in _NAME.findall(expression)}


def missing(metrics: str, *, is_embedded: bool) -> set[str]:
    """Return the names that a port lacks.

    Counters that do not begin at 0 come with their first count. Some gauges belong to `cep run` alone, and the gauge of
    a standby is there under `--standby` only.
    """
    there = {line.split(" ")[2] for line in metrics.splitlines() if line.startswith("# HELP ")}
    later = {f"cep_{name}_total" for name in COUNTERS}
    ours = {f"cep_{name}" for name, text in GAUGES.items() if "of `cep run`" in text}
    standby = {f"cep_{name}" for name, text in GAUGES.items() if "`cep run --standby`" in text}
    return names_used() - there - later - standby - (set() if is_embedded else ours)

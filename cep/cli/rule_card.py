"""One rule of a folder → its card, in Markdown: purpose, owner, versions, tests, limits, approvals, figures.

A part without data is left out. The card has no clock and follows the order of the files, so equal folders give equal
cards.
Tested by: tests/cli/test_rules.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.limits import FIGURES_FILE_BYTES_MAX
from cep.lang.load import Checked, load_files
from cep.model.rule import RollbackRecord, UpsertRecord
from cep.rulebook.files import SIGNED_FOLDER, read_change, read_rule_file
from cep.rulebook.lock import read_lock
from cep.rulebook.meaning import content_hash
from cep.rulebook.trust import Trust, reason_against
from cep.testing.harness import run_checked

_SHORT = 12
Row = tuple[object, ...]


def card_of(directory: Path, record: UpsertRecord, trust: Trust | None, figures: Path | None) -> str:
    """Write the card of a rule as Markdown: purpose, parameters, versions, tests and figures.

    `trust` names the signers; `figures` is a file with the last backtest. Raises: UsageError.
    """
    rule = read_rule_file(directory / f"{record.id}.toml")
    assert rule is not None, "it has been read before"
    checked = load_files([directory / rule.file])
    parts = [
        f"# {record.id}\n\n{_purpose(checked, record)}",
        _table("Rule", ("", ""), _facts(checked, record)),
        _table("Parameters", ("name", "value"), sorted((name, _shown(v)) for name, v in record.params.items())),
        _table("Versions", ("version", "meaning", "approvals"), _versions(directory, record, trust)),
        _table("Tests", ("test", "outcome"), _tests(checked, record.pattern)),
        _table("Figures", ("of the last backtest", ""), _figures(figures, record)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _purpose(checked: Checked, record: UpsertRecord) -> str:
    pattern = checked.patterns.get(record.pattern)
    doc = pattern.doc.strip() if pattern is not None else ""
    return doc or "The pattern says nothing of its purpose: write it above `pattern` with `##`."


def _facts(checked: Checked, record: UpsertRecord) -> list[Row]:
    """Return (name, value) of the facts about a rule that have a value."""
    pattern = checked.patterns.get(record.pattern)
    facts: dict[str, object] = {
        "owner": record.owner,
        "author": record.author,
        "status": f"version {record.version}, {record.status}",
        "severity": f"{record.severity}, score {record.score}, priority {record.priority}",
        "pattern": record.pattern,
        "key": None if pattern is None else ", ".join(pattern.key),
        "event types": None if pattern is None else ", ".join(pattern.event_types),
        "message": record.message,
        "runbook": record.runbook,
        "review": record.review_date,
        "starts": record.effective_at,
        "runs of the version before": record.on_update,
        "one alert in": record.suppress,
        "unless greater": record.escalate,
        "only one alert of the group": record.exclusive,
        "at most": None if pattern is None else _limits(pattern.within_ms, pattern.within_events, record),
    }
    return [(name, value) for name, value in facts.items() if value]


def _limits(within_ms: object, within_events: object, record: UpsertRecord) -> str:
    spans = []
    for span, unit in ((within_ms, "ms"), (within_events, "events")):
        if isinstance(span, int):
            spans.append(f"{span} {unit}")
        elif span is not None:
            name = str(getattr(span, "name", ""))
            spans.append(f"{name} = {_shown(record.params.get(name, 'its default'))}")
    return ", ".join(spans)


def _versions(directory: Path, record: UpsertRecord, trust: Trust | None) -> list[Row]:
    """Return (version, meaning, approvals) of each known version, the newest first."""
    meanings = dict(read_lock(directory).get(record.id, {}))
    meanings.setdefault(record.version, content_hash(record))
    approvals: dict[int, str] = {}
    for path in sorted((directory / SIGNED_FOLDER).glob(f"{record.id}.*.json")):
        if path.name.removeprefix(f"{record.id}.").removesuffix(".json").isdigit():
            signed = read_change(path)[0]
            meaning = meanings.get(signed.version, "")
            if isinstance(signed, UpsertRecord | RollbackRecord):
                upsert = signed.as_upsert() if isinstance(signed, RollbackRecord) else signed
                meaning = content_hash(upsert)
                if meanings.setdefault(signed.version, meaning) != meaning:
                    approvals[signed.version] = f"none: {path.name} is of another meaning"
                    continue
            meanings.setdefault(signed.version, signed.kind)
            approvals[signed.version] = _people(signed, trust)
    return [
        (version, meanings[version][:_SHORT], approvals.get(version, "none"))
        for version in sorted(meanings, reverse=True)
    ]


def _people(signed: Any, trust: Trust | None) -> str:
    if signed.signed is None:
        return "none"
    refusal = None if trust is None else reason_against(signed, trust)
    if refusal is not None:
        return f"do not count: {refusal.reason}"
    keys = [s.key for s in (signed.signed.author, signed.signed.approver) if s is not None]
    people = [None if trust is None else trust.signer(key) for key in keys]
    names = [key if person is None else person.name for key, person in zip(keys, people, strict=True)]
    return " and ".join(names) + ("" if trust is not None else " (not verified: no signers are given)")


def _tests(checked: Checked, pattern: str) -> list[Row]:
    suite = run_checked(checked)
    tested = [(v.test.name, v.outcome.name.lower()) for v in suite.tested if v.test.pattern.name == pattern]
    return [*tested, *((test.name, "refused") for test in suite.refused if test.pattern == pattern)]


def _figures(path: Path | None, record: UpsertRecord) -> list[Row]:
    """Read the figures of a rule: output of `cep backtest --json`, a JSON object of values, or one object per rule."""
    if path is None:
        return []
    try:
        data = json.loads(read_file(path, FIGURES_FILE_BYTES_MAX))
    except (UnreadableError, ValueError, RecursionError) as error:
        raise UsageError(f"--figures {path} cannot be read: {error}; give a JSON object of figures") from error
    if isinstance(data, Mapping) and isinstance(data.get("rules"), list):
        data = _of_backtest(data, record.id)
    values = data.get(record.id, data) if isinstance(data, Mapping) else None
    if not isinstance(values, Mapping) or any(isinstance(value, dict | list) for value in values.values()):
        raise UsageError(f"--figures {path} has no figures of {record.id}; give a JSON object of names and values")
    return [(name, value) for name, value in values.items()]


def _of_backtest(data: Mapping[str, Any], rule_id: str) -> Mapping[str, Any] | None:
    """Return the figures of a rule of a backtest in a readable form; None if the backtest does not have the rule."""
    of_rule = next((each for each in data["rules"] if isinstance(each, dict) and each.get("rule") == rule_id), None)
    about = data.get("about")
    if of_rule is None or not isinstance(about, dict):
        return None
    history = {f"history: {name}": about[name] for name in ("events", "days", "frauds", "as_of") if name in about}
    shown = {name.replace("_", " "): _figure(value) for name, value in of_rule.items() if name != "rule"}
    return history | {name: value for name, value in shown.items() if value is not None}


def _figure(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if not isinstance(value, Mapping):
        return value
    if value.get("value") is None or "low" not in value:
        return None  # nothing to divide by; or by kind of fraud
    low, middle, high = (_figure(float(value[name])) for name in ("low", "value", "high"))
    return f"{middle} ({low} to {high}; {value['part']} of {value['whole']})"


def _table(title: str, heads: tuple[str, ...], rows: Iterable[Row]) -> str:
    lines = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"## {title}\n", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *lines])


def _cell(value: object) -> str:
    return " ".join(str(value).replace("\\", "\\\\").replace("|", "\\|").split())


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

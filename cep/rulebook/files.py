"""A folder of rule files, or the history of a control topic in a file → control records.

Tested by: tests/rulebook/test_files.py
"""

from __future__ import annotations

from pathlib import Path

from cep.base.errors import UsageError
from cep.base.limits import RULE_FILE_BYTES_MAX
from cep.lang.load import bundle_source
from cep.model.rule import ControlRecord, RuleFile, UpsertRecord, parse_control, parse_rule_file, upsert_of


def read_rules(directory: Path) -> tuple[list[UpsertRecord], list[str]]:
    """Read every `*.toml` of the folder, in the order of their names.

    Returns: the records of the good files, and one line for each problem: `file: $.path: message`. Whether the
    patterns compile is for the rulebook to say. Raises: nothing for what is inside the folder.
    """
    records: list[UpsertRecord] = []
    problems: list[str] = []
    paths = sorted(directory.glob("*.toml"))
    if not paths:
        problems.append(f"{directory}: no rule files (*.toml) here")
    for path in paths:
        result = _read_rule(path)
        if isinstance(result, UpsertRecord):
            records.append(result)
        else:
            problems.extend(f"{path}: {problem}" for problem in result)
    return records, problems


def read_rule_file(path: Path) -> RuleFile | None:
    """One rule file as it is written, None if it is not one; `read_rules` says why."""
    try:
        return parse_rule_file(path.read_text(encoding="utf-8"))[0]
    except (OSError, UnicodeDecodeError):
        return None


def read_control(path: Path) -> tuple[list[ControlRecord], list[str]]:
    """Read control records, one JSON object a line, as a consumer of the topic would see them.

    Returns: the good records in their order, and one line for each problem: `file:line: $.path: message`.
    Raises: UsageError for a file that cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--control {path} cannot be read: {error}") from error
    records: list[ControlRecord] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record, found = parse_control(line)
        problems += [f"{path}:{number}: {problem}" for problem in found]
        if record is not None:
            records.append(record)
    return records, problems


def _read_rule(path: Path) -> UpsertRecord | list[str]:
    try:
        size = path.stat().st_size
        if size > RULE_FILE_BYTES_MAX:
            return [f"$: {size} bytes are over the limit of {RULE_FILE_BYTES_MAX}"]
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"$: cannot be read: {error}"]
    rule, found = parse_rule_file(text)
    if rule is None:
        return [str(problem) for problem in found]
    if rule.id != path.stem:
        # One file a rule: two files with the same id would fight over its versions.
        return [f"$.id: is `{rule.id}`, but the file is named `{path.name}`; they must agree"]
    pattern_path = path.parent / rule.file
    try:
        source = bundle_source(pattern_path)
    except UsageError as error:
        return [f"$.file: {error}"]
    return upsert_of(rule, source)

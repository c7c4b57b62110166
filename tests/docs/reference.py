"""The code → the reference pages that follow from it: `python -m tests.docs.reference` writes them.

    argparse of every verb        → reference/verbs.md
    model/settings.py             → reference/settings.md
    model/rule.py                 → reference/control-records.md
    runners/meanings.py           → reference/metrics.md, reference/logs.md
    the catalogue of diagnostics  → reference/diagnostics.md
    engine/alerts.py              → reference/alerts.md
    base/exits.py                 → reference/exit-codes.md
    base/limits.py                → reference/limits.md
    docstrings of cep/api/        → reference/api.md
    tests/columnar/conversions.py → reference/conversions.md
    tests/hostile/roles.py        → reference/roles.md

Tested by: tests/docs/test_reference.py
"""

import argparse
import ast
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import FunctionType
from typing import Any

import pyarrow as pa

import cep
import cep.base.limits as limits_module
from cep.analysis.backtest import Backtest, Figures, Matches, Ratio
from cep.analysis.prune import Pruned, Removed
from cep.analysis.suggest import MinedData, Rejected, Suggested, Suggestion
from cep.analysis.tune import Interval, Row, Span, Tuned
from cep.api.alerts import Alerts, Picture, Plot
from cep.api.describe import Draft
from cep.api.quality import Difference, Quality
from cep.api.rules import Rule, Rules
from cep.api.why import Why
from cep.base.exits import MEANINGS
from cep.cli.docs import DOCS
from cep.cli.main import parser_of
from cep.cli.verbs import TOP, Group, entries
from cep.columnar.times import TIME_FORMS
from cep.engine.alerts import ALERT_SCHEMA
from cep.lang.explain.catalogue import CATALOGUE
from cep.model.rule import _MODELS, HeartbeatRecord, UpsertRecord
from cep.model.settings import SECTIONS, extra_of
from cep.runners import meanings
from cep.runners.meanings import GAUGE_LABELS, LABELS
from tests.columnar.conversions import page as conversions_page
from tests.docs.meanings import ALERT_FIELDS
from tests.hostile.roles import page as roles_page

MADE = "Generated from the code of this version."
SAID_ONCE = {"changes", "by", "reason", "nonce", "signed"}  # fields that the page describes only for the first record
# The types that functions of `import cep` return, and the types that those contain or return.
KINDS: tuple[type, ...] = (
    Rules, Rule, Alerts, Why, Picture, Plot, Difference, Quality, Backtest, Matches, Figures, Ratio, Pruned, Removed,
    Tuned, Row, Span, Interval, Suggested, Suggestion, Rejected, MinedData, Draft,
)  # fmt: skip
_GROUPS = {
    "1": "Syntax", "2": "Names", "3": "Types", "4": "Structure", "5": "Parameters", "6": "Tests",
    "7": "Findings of `cep lint`", "8": "Lists",
}  # fmt: skip


def verbs() -> str:
    lines = ["# Verbs", "", f"{MADE} `cep VERB --help` prints the same."]
    for title, section in TOP.sections.items():
        lines += ["", f"## {title}", "", "| verb | does |", "| --- | --- |"]
        lines += [f"| [`cep {name}`](#cep-{name}) | {entry.line} |" for name, entry in section.items()]
    lines += ["", "What a verb ends with: [exit codes](exit-codes.md)."]
    for name, entry in entries():
        lines += ["", f"## `cep {name}`"]
        if isinstance(entry, Group):
            lines += [*_help(entry.text), *_listed(name, entry), *_help(entry.ending)]
        else:
            lines += [*_help(entry.part("HELP")), *_options(parser_of(name, entry))]
    return "\n".join(lines) + "\n"


def _listed(noun: str, group: Group) -> Iterator[str]:
    """Yield a table of the verbs of a group for each heading."""
    for title, section in group.sections.items():
        yield from ("", f"| {title} | |", "| --- | --- |")
        yield from (f"| [`cep {noun} {name}`](#cep-{noun}-{name}) | {entry.line} |" for name, entry in section.items())


def _help(text: str) -> Iterator[str]:
    """Yield paragraphs of a verb's help as prose, and a paragraph in columns unchanged."""
    for paragraph in text.strip().split("\n\n"):
        is_laid_out = any(line.startswith("  ") for line in paragraph.split("\n"))
        yield from ("", "```text", paragraph, "```") if is_laid_out else ("", _cell(paragraph, pipes=False))


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    actions = [action for action in shown if not isinstance(action, argparse._HelpAction)]
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                rows = list(_options(inner))
                yield from ("", f"`{parser.prog} {name}`" + ("" if rows else " has no options."), *rows)
            return
    if actions:
        yield from ("", "| argument | meaning |", "| --- | --- |")
    for action in actions:
        names = ", ".join(action.option_strings)
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else None
        value = action.metavar or choices or (action.dest.upper() if action.nargs != 0 else "")
        value = " ".join(value) if isinstance(value, tuple) else value
        written = f"{names} {value}".strip() if action.nargs != 0 else names
        meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
        yield f"| `{written.replace('|', '¦')}` | {_cell(meaning)} |"


def settings() -> str:
    lines = ["# Settings", "", MADE]
    lines += ["`cep settings` prints a file with all settings; `cep settings --check FILE` checks one."]
    lines += ["A flag of the command line overrides the file."]
    for section, model in SECTIONS.items():
        lines += ["", f"## `[{section}]`", "", (model.__doc__ or "").strip()]
        lines += ["", "| setting | flag | default | meaning |", "| --- | --- | --- | --- |"]
        for name, info in model.model_fields.items():
            extra = extra_of(info)
            default = info.get_default()
            shown = "" if default is None or default in ((), {}, "") else extra["example"] or json.dumps(default)
            flag = f"`{extra['flag']}`" if extra["flag"] else ""
            value = f"`{shown}`" if shown else ""
            example = f" Example: `{_cell(extra['example'])}`." if not shown and extra["example"] else ""
            lines.append(f"| `{name}` | {flag} | {value} | {_cell(info.description or '')}{example} |")
    return "\n".join(lines) + "\n"


def control_records() -> str:
    """Return the page of the records that change the rules of a job."""
    lines = ["# Control records", "", MADE]
    lines += ["A control record is one JSON object of the control topic, or one line of a"]
    lines += ["file in the control folder. `cep rules schema` prints the JSON schema."]
    for model in _MODELS:
        kind = model.model_fields["kind"].default
        lines += ["", f"## `{kind}`", *_prose(inspect.getdoc(model) or "")]
        if model is UpsertRecord:
            rule_file = "the names of a [rule file](rule-files.md), except `file`."
            lines += ["", f"In addition to `kind` and `source` it has {rule_file}"]
            continue
        lines += ["", "| name | required |", "| --- | --- |", f"| `kind` | yes: `{kind}` |"]
        for name, info in model.model_fields.items():
            is_said = name in SAID_ONCE and not info.is_required() and model is not HeartbeatRecord
            if name != "kind" and not is_said:
                lines.append(f"| `{name}` | {'yes' if info.is_required() else 'no'} |")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Return the page of counters and gauges."""
    lines = ["# Metrics", "", MADE, "A job started with `--listen 9464` answers `/metrics` in Prometheus' text format."]
    lines += [
        "Counters continue after restarts. `cep replay`, `cep run` and `cep live` print the same names at their end."
    ]
    lines += ["", "## Counters", "", "| metric | meaning |", "| --- | --- |"]
    for name, text in {**meanings.FROM_ZERO, **meanings.COUNTERS}.items():
        lines.append(f"| `cep_{name}_total{_labels(LABELS.get(name, ()))}` | {_cell(text)} |")
    lines += ["", "## Gauges", "", "| metric | meaning |", "| --- | --- |"]
    for name, text in {**meanings.TOTALS_THAT_FALL, **meanings.GAUGES}.items():
        lines.append(f"| `cep_{name}{_labels(GAUGE_LABELS.get(name, ()))}` | {_cell(text)} |")
    lines += ["", "## Histograms", "", "| metric | meaning |", "| --- | --- |"]
    lines += [f"| `cep_{name}` | {_cell(text)} |" for name, text in meanings.HISTOGRAMS.items()]
    lines += ["", "The process has further metrics, such as `process_resident_memory_bytes`, `process_open_fds`,"]
    lines += ["`process_cpu_seconds_total` and `python_info`. Both runners have one set of names. On Spark the process"]
    lines += ["is the driver's Python."]
    return "\n".join(lines) + "\n"


def _labels(names: tuple[str, ...]) -> str:
    return f"{{{', '.join(names)}}}" if names else ""


def logs() -> str:
    lines = ["# Log lines", "", MADE, "A job writes to standard error: with `--log text` a sentence, with `--log json`"]
    lines += ["an object with `time`, `event` and the numbers and names of that event, never a payload."]
    lines += ["", "| event | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in meanings.LOG_LINES.items()]
    return "\n".join(lines) + "\n"


def diagnostics() -> str:
    lines = ["# Diagnostics", "", MADE, "`cep explain CODE` prints one of them. A code keeps its meaning for ever."]
    for group, items in groupby(CATALOGUE.items(), key=lambda item: item[0][3]):
        lines += ["", f"## {_GROUPS[group]}"]
        for code, entry in items:
            lines += ["", f"### {code}: {entry.title}", "", _cell(entry.explanation, pipes=False)]
            lines += ["", "```text", entry.example.rstrip("\n"), "```"]
    return "\n".join(lines) + "\n"


def alerts() -> str:
    assert list(ALERT_FIELDS) == ALERT_SCHEMA.names, "tests/docs/meanings.py has to name each column of an alert"
    lines = ["# Alerts", "", MADE]
    lines += ["Every sink receives this table. Parquet files have these columns, JSON objects these"]
    lines += ["names. In JSON a time is ISO 8601 in UTC, and `measures` is an object."]
    lines += ["`origins`, `history_cut`, `history_folded`, `history_from`, `unconfirmed` and `flawed` are left out"]
    lines += ["where they say nothing."]
    lines += ["", "| field | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {_type(ALERT_SCHEMA.field(name).type)} | {text} |" for name, text in ALERT_FIELDS.items()]
    lines += ["", "Equal alerts have equal bytes, and an alert that is sent again has the id that it had."]
    return "\n".join(lines) + "\n"


def exit_codes() -> str:
    lines = ["# Exit codes", "", MADE, "Every verb ends with one of these. A supervisor starts a job again after the"]
    lines += ["codes of which the last column says so, and after no other one.", ""]
    lines += ["| code | name | meaning | restart |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "no", None: ""}
    for code, meaning in MEANINGS.items():
        lines.append(f"| {code:d} | {meaning.summary} | {_cell(meaning.text)} | {words[meaning.restart]} |")
    return "\n".join(lines) + "\n"


def _type(written: object) -> str:
    text = str(written)
    fields = written.value_type.fields if isinstance(written, pa.ListType) else ()
    return f"list of ({', '.join(field.name for field in fields)})" if fields else text


def limits() -> str:
    lines = ["# Limits", "", f"{MADE} Every limit has a reason, and a counter where something is lost."]
    lines += ["", "| limit | value | reason, and effect |", "| --- | --- | --- |"]
    for name, comment in _commented(Path(limits_module.__file__).read_text(encoding="utf-8")):
        lines.append(f"| `{name}` | {getattr(limits_module, name):,} | {_cell(comment)} |")
    return "\n".join(lines) + "\n"


def _commented(source: str) -> Iterator[tuple[str, str]]:
    """Yield the constants of a module with the comments above them and on their lines."""
    block: list[str] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    beside = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    for token in tokens:
        line = token.start[0]
        if token.type == tokenize.COMMENT and token.line.startswith("#"):
            block.append(beside[line])
        elif token.type == tokenize.NAME and token.start[1] == 0 and token.string.isupper():
            yield token.string, " ".join([*block, beside.get(line, "")]).strip() or "as above"
            block = []


def _cell(text: str, *, pipes: bool = True) -> str:
    """Return the text in one line; a pipe in a table is escaped."""
    line = re.sub(r"\s+", " ", text.strip())
    return line.replace("|", "\\|") if pipes else line


def python() -> str:
    """Return the page of `import cep`, from its docstrings."""
    lines = ["# Python", "", f"{MADE} How to use it: [the guide](../guides/python.md)."]
    names = [name for name in cep.__all__ if not name.endswith("Error")]
    functions = [name for name in names if inspect.isfunction(getattr(cep, name))]
    for name in functions:
        lines += _documented(f"cep.{name}", getattr(cep, name), 2)
    for kind in KINDS:
        lines += ["", f"## {kind.__name__}", *_prose(inspect.getdoc(kind) or ""), *_fields(kind)]
        for name, member in vars(kind).items():
            if not name.startswith("_") and isinstance(member, (property, cached_property, FunctionType)):
                lines += _documented(f"{kind.__name__}.{name}", member, 3)
    for error in (getattr(cep, name) for name in cep.__all__ if name not in names):
        lines += ["", f"## cep.{error.__name__}", *_prose(inspect.getdoc(error) or "")]
    codes = ", ".join(f"`{code}`" for code in sorted(_codes(cep.CepError)))
    lines += ["", f"The codes are {codes}."]
    return "\n".join(lines) + "\n"


def _codes(kind: type[cep.CepError]) -> set[str]:
    """Return the codes of an error and its subclasses from the same module."""
    below = [_codes(each) for each in kind.__subclasses__() if each.__module__ == kind.__module__]
    return {kind.code}.union(*below)


def _fields(kind: type) -> Iterator[str]:
    """Yield a row for each public field of a dataclass."""
    shown = [each for each in fields(kind) if not each.name.startswith("_")] if is_dataclass(kind) else []
    if shown:
        yield from ("", "| field | type |", "| --- | --- |")
    types = {name: text for base in kind.__mro__[-2::-1] for name, text in _written_types(base).items()}
    for each in shown:
        yield f"| `{each.name}` | `{types[each.name].replace('|', '¦')}` |"


def _written_types(member: Any) -> dict[str, str]:
    """Return the types of the fields of a class, or of the parameters and the result of a function, as its source has
    them: objects of types would have the names of their modules."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(member))).body
    inside = (
        node.body
        if isinstance(node, ast.ClassDef)
        else ast.walk(node.args)
        if isinstance(node, ast.FunctionDef)
        else ()
    )
    written = [(each.arg, each.annotation) for each in inside if isinstance(each, ast.arg)]
    written += [(ast.unparse(each.target), each.annotation) for each in inside if isinstance(each, ast.AnnAssign)]
    written += [("return", node.returns)] if isinstance(node, ast.FunctionDef) else []
    return {name: ast.unparse(annotation).strip("'") for name, annotation in written if annotation is not None}


def _documented(name: str, member: Any, depth: int) -> Iterator[str]:
    """Yield a heading with the signature, and the docstring below it."""
    signature = ""
    if inspect.isfunction(member):
        types, plain = _written_types(member), inspect.signature(member)
        parameters = [each.replace(annotation=types.get(each.name, each.empty)) for each in plain.parameters.values()]
        returned = types.get("return", plain.empty)
        signature = str(plain.replace(parameters=parameters, return_annotation=returned))
    signature = re.sub(r"\(self(, )?", "(", signature).replace("'", "")
    yield from ("", f"{'#' * depth} `{name}{signature}`")
    yield from _prose(inspect.getdoc(member) or "")


def _prose(text: str) -> Iterator[str]:
    """Yield paragraphs as prose, and examples and indented paragraphs unchanged."""
    for paragraph in text.split("\n\n"):
        is_laid_out = paragraph.startswith((">>>", "    "))
        yield from ("", "```text", paragraph, "```") if is_laid_out else ("", " ".join(paragraph.split()))


PAGES: Mapping[str, Callable[[], str]] = {
    "verbs": verbs,
    "settings": settings,
    "control-records": control_records,
    "metrics": metrics,
    "logs": logs,
    "diagnostics": diagnostics,
    "alerts": alerts,
    "exit-codes": exit_codes,
    "limits": limits,
    "api": python,
    "conversions": lambda: conversions_page(TIME_FORMS),
    "roles": roles_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / "reference" / f"{name}.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

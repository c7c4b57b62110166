"""`cep check`: pattern files and rule files → a list of their mistakes.

Tested by: tests/lang/test_diagnostics.py
"""

import json
import re
from pathlib import Path

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.limits import RULE_FILE_BYTES_MAX
from cep.cli.help_pages import RULE_FILES, read_on, with_page
from cep.cli.paths import printed
from cep.cli.verbs import Parser
from cep.lang.explain.render import render_text, summary, to_json
from cep.lang.load import load_files
from cep.lang.syntax import PatternSyntax
from cep.lists.store import ListStore
from cep.nfa.compile import compilable
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_lists, read_rule_file, read_rules, root_of_rules

HELP = """\
Check pattern files: every mistake of every file, with its place and the nearest valid name. In a folder, rule files are
checked, too: their fields, and that their parameters suit the patterns.

examples:
  cep check patterns rules
  cep check rules/card_testing.toml
  cep check --json patterns/cards.cep | jq .
"""
_NAMES_PATTERN = re.compile(r"^\s*pattern\s*=", re.MULTILINE)


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("files FILE", "a pattern file, a rule file (*.toml), or a folder", type=str, nargs="+")
    parser.declare("--json", "print diagnostics as JSON, for editors")
    parser.declare(
        "--color",
        "auto: when standard output is a terminal and NO_COLOR is not set",
        choices=("auto", "always", "never"),
        default="auto",
    )


def run(paths: list[str], as_json: bool, color: bool) -> int:
    """Check files and folders together and print the mistakes. Return 1 if there are mistakes, otherwise 0."""
    files, rule_files = _expanded(paths)
    checked = compilable(load_files(files))
    problems = [problem for folder, names in rule_files.items() for problem in _problems(folder, names)]
    ok = checked.ok and not problems
    if as_json:
        data = {
            "ok": ok,
            "patterns": sorted(checked.patterns),
            "diagnostics": [to_json(d, checked.sources) for d in checked.diagnostics],
            "dropped": checked.dropped,
            "rules": problems,
        }
        printed(json.dumps(data, indent=2))
        return 0 if ok else 1
    if checked.diagnostics:
        printed(render_text(checked.diagnostics, checked.sources, color=color), is_styled=True)
    for problem in problems:
        printed(problem)
    written = {p.name: None for file in checked.files for p in file.declarations if isinstance(p, PatternSyntax)}
    counts = [_counted(len(written), "pattern")] if files else []
    counts += [_counted(sum(map(len, rule_files.values())), "rule")] if rule_files else []
    more = f" ({checked.dropped} more not shown)" if checked.dropped else ""
    outcome = summary(checked.diagnostics, checked.dropped)
    if problems:
        in_rules = _counted(len(problems), "mistake") + " in rules"
        outcome = f"{outcome}, {in_rules}" if checked.diagnostics else in_rules
    printed(f"{', '.join(counts)}, {outcome}{more}")
    if line := read_on(checked.diagnostics):
        printed(line)
    if problems:
        printed(with_page("rule files are described on a page", RULE_FILES))
    return 0 if ok else 1


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _expanded(paths: list[str]) -> tuple[list[Path], dict[Path, list[str]]]:
    """List the pattern files of the arguments, and by folder the names of rule files. Raises: UsageError."""
    patterns: list[Path] = []
    rules: dict[Path, list[str]] = {}
    for path in map(Path, paths):
        if path.is_dir():
            here = sorted(path.rglob("*.cep"))
            tables = [table for table in sorted(path.rglob("*.toml")) if _is_rule_file(table)]
            if not here and not tables:
                raise UsageError(f"{path} holds no pattern files (*.cep) and no rule files (*.toml)")
        else:
            here, tables = ([], [path]) if path.suffix == ".toml" else ([path], [])
        patterns += here
        for table in tables:
            rules.setdefault(table.parent, []).append(table.name)
    return list(dict.fromkeys(patterns)), {folder: list(dict.fromkeys(names)) for folder, names in rules.items()}


def _is_rule_file(path: Path) -> bool:
    """Return True for a file that names a pattern, or cannot be read: reading the rules then says why."""
    try:
        text = read_file(path, RULE_FILE_BYTES_MAX, root_of_rules(path.parent))
    except UnreadableError:
        return True
    return _NAMES_PATTERN.search(text.decode("utf-8", "replace")) is not None


def _problems(folder: Path, names: list[str]) -> list[str]:
    """List the mistakes in the rule files of these names, one per line. Drafts are checked like live rules."""
    if missing := [name for name in names if not (folder / name).exists()]:
        return [f"{folder / name}: there is no such file" for name in missing]
    records, problems = read_rules(folder)
    store = ListStore()
    lists, list_problems = read_lists(folder, store)
    records = [r.model_copy(update={"status": "shadow"}) if r.status == "draft" else r for r in records]
    files = [folder / name for name in names]
    files += [folder / rule.file for file in files if (rule := read_rule_file(file)) is not None]  # declare lists
    beginnings = tuple(f"{file}: " for file in files)
    wrong = [problem for problem in dict.fromkeys([*problems, *list_problems]) if problem.startswith(beginnings)]
    refused = deploy([*lists, *records], store).set_aside
    return wrong + [f"{folder / r.rule_id}.toml: {r.full_reason}" for r in refused if f"{r.rule_id}.toml" in names]

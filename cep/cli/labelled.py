"""Flags of verbs that measure rules by labels: the rules, the events, the labels and the terms.

Tested by: tests/cli/test_quality.py
"""

import argparse
import re
from pathlib import Path
from typing import cast

import orjson
from rich.console import Console

from cep.analysis.backtest import DAY_MS
from cep.analysis.labels import label_words
from cep.analysis.measure import Terms, episodes_of
from cep.api.replay import GivenRules
from cep.base.errors import SinkError, UsageError
from cep.base.files import replace_file, repository_root
from cep.base.text import utc_ms
from cep.cli.given_events import add_events_arguments, add_period_arguments, add_to_the_end_argument, given_period
from cep.cli.settings import add_secrets_argument
from cep.cli.verbs import Parser
from cep.lists.store import ListStore
from cep.model.setting_types import duration_ms
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_lists, read_rules

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(?:/day)?")


def add_label_arguments(parser: Parser) -> None:
    """Declare the arguments for events, labels and terms."""
    add_events_arguments(parser)
    add_period_arguments(parser)
    add_to_the_end_argument(parser)
    parser.declare(
        "--labels FILE|COLUMN",
        "a file of labels, or a column of the events that is true, 1 or a kind of fraud for bad ones",
        required=True,
    )
    add_label_terms(parser)
    parser.declare(
        "--amount FIELD", "field of an event's money (default: amount, or the only field whose name says money)"
    )
    parser.declare("--as-of TIME", "use only events and reports from before this time, like 2026-03-01T00:00:00Z")
    parser.declare(
        "--maturity TIME",
        "age at which an event without a report counts as honest, like 30d (default: the age at which 95 "
        "of 100 frauds are reported; 0 s without reported_at in the labels)",
    )
    parser.declare(
        "--episodes [KEY:]TIME",
        "with a column of labels: labelled events of a key at most so far apart are one fraud, like 1d or "
        "card_id:12h; 0s for each event by itself (default: 1d, by the rules' key if all have the same)",
    )
    parser.declare("--cores N", "cores of this machine to use (default 2)", default=2)
    add_secrets_argument(parser)


def add_label_terms(parser: Parser) -> None:
    """Declare what words of labels mean, and whether rules may read the labels."""
    parser.declare(
        "--label-words WORD=fraud|honest",
        "meaning of a word of the labels; *=fraud or *=honest is for all words that no list knows (default: no, "
        "false, 0, none, legit, genuine, normal, OK and the like are honest, yes, true, 1, fraud and kinds such as "
        "stolen_card are fraud, any other word is an error that lists it)",
        action="append",
        default=[],
    )
    parser.declare("--allow-label", "measure rules although they read the column of the labels")


def terms_of(options: argparse.Namespace) -> Terms:
    """Return the terms of a backtest from the flags. Raises: UsageError."""
    try:
        as_of_ms = None if options.as_of is None else utc_ms(options.as_of)
        maturity_ms = None if options.maturity is None else duration_ms(options.maturity)
    except ValueError as error:
        raise UsageError(f"--as-of or --maturity: {error}") from error
    words = label_words(options.label_words)
    key, gap_ms = (None, DAY_MS) if options.episodes is None else episodes_of("--episodes", options.episodes)
    return Terms(
        options.amount, as_of_ms, maturity_ms, options.cores, given_period(options), words,
        allow_label=options.allow_label, episode_gap_ms=gap_ms, episode_key=key,
    )  # fmt: skip


def alerts_a_day(text: str) -> float:
    """Read a budget like `50/day`. Raises: UsageError."""
    written = _BUDGET.fullmatch(text.strip())
    if written is None:
        raise UsageError(f"--budget {text}: write the most alerts a day, like 50/day")
    return float(written[1])


def add_rules_argument(parser: Parser) -> None:
    """Declare where the rules are: a pattern file, or a folder of rule files."""
    parser.declare("patterns FILE.cep", "a pattern file: each of its patterns is a rule", nargs="?", type=Path)
    parser.declare("--rules FOLDER", "rule files (*.toml), in place of a pattern file")


def rules_path(options: argparse.Namespace) -> Path:
    """Return the pattern file or the folder that is meant. Raises: UsageError unless there is one of them."""
    paths = [path for path in (options.patterns, options.rules) if path is not None]
    if len(paths) != 1:
        raise UsageError("name a pattern file (*.cep), or a folder of rule files with --rules, and not both")
    return cast("Path", paths[0])


def deployed_folder(folder: Path, errors: Console, *, needs_rules: bool = True) -> Deployment:
    """Deploy the rules of a folder, or the patterns of a file. Print why rules are set aside: they are not in force.

    Raises: UsageError if no rule is in force. Without `needs_rules` a file may contain only event types.
    """
    if folder.suffix == ".cep" and folder.is_file():
        of_file = GivenRules.of_file(folder).deployment
        if not of_file.key_domains and (needs_rules or not of_file.schema.event_types):
            raise UsageError(f"{folder} has no pattern; write one, or name another file")
        return of_file
    if not folder.is_dir():
        raise UsageError(f"{folder} is neither a folder of rules nor a pattern file (*.cep)")
    records, problems = read_rules(folder)
    lists = ListStore()
    list_records, more = read_lists(folder, lists)
    problems += more
    deployment = deploy([*list_records, *records], lists)
    problems += [f"{folder}: {rule.rule_id} is set aside: {rule.reason}" for rule in deployment.set_aside]
    for problem in problems:
        errors.print(problem, markup=False)
    if not deployment.key_domains:  # each rule in force has one: the fields of its key
        raise UsageError(f"{folder} has no rule that can be in force")
    return deployment


def write_json(data: object, path: Path) -> None:
    """Write figures as JSON: the same bytes for the same figures. Raises: SinkError."""
    write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), path)


def write_bytes(data: bytes, path: Path) -> None:
    """Write a whole file, or leave the one before. A link in its repository is refused. Raises: SinkError."""
    try:
        replace_file(path, data, root=repository_root(path.parent))
    except OSError as error:
        raise SinkError(f"{path} cannot be written: {error}; make room or name another file") from error

"""The table of verbs: the words after `cep` → the line of a verb in the help, its module and its page.

    cep replay …           TOP ──"replay"──▶ Verb
    cep rules publish …    TOP ──"rules"──▶ Group ──"publish"──▶ Verb

A new verb is one row of the table, below the person who uses it or in the group of its noun. The top level has at most
25 names. Tested by: tests/cli/test_main.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cep.base.exits import MEANINGS, Exit
from cep.base.process import paused
from cep.base.text import nearest_name


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its line in the help, its module, its page, and the end of the names `run`, `HELP` and so on there.

    The module is imported when the verb is used: a job should not wait for the imports of other verbs. Its `run`
    returns the exit code, and raises CepErrors. An error about wrong arguments names the page, which is None if the
    messages of the verb name pages themselves.
    """

    line: str
    module: str
    page: str | None
    suffix: str = ""  # like `_prune` for `run_prune`, `add_arguments_prune` and `HELP_PRUNE`
    is_colored: bool = False
    is_private: bool = False  # its output contains events or state, and only the owner may read it

    def part(self, name: str) -> Any:
        """Return `run`, `add_arguments` or `HELP` of the verb; None if the module does not define it."""
        whole_name = name + (self.suffix.upper() if name.isupper() else self.suffix)
        with paused():  # Modules are never garbage, and the collector would take a tenth of the start time.
            module = import_module(f"cep.cli.{self.module}")
        return getattr(module, whole_name, None)


@dataclass(frozen=True, slots=True)
class Group:
    """The verbs of one noun, by heading. `text` stands before them in the help of the group, `ending` after them."""

    line: str
    text: str
    ending: str
    sections: Mapping[str, Mapping[str, Verb | Group]]

    def entries(self) -> dict[str, Verb | Group]:
        """Return the verbs and groups of all headings by name."""
        return {name: entry for section in self.sections.values() for name, entry in section.items()}

    def described(self) -> str:
        """Return the text and the verbs with their lines, by heading. An ellipsis follows the name of a group."""
        blocks = [self.text]
        for title, section in self.sections.items():
            names = {name: f"{name} …" if isinstance(entry, Group) else name for name, entry in section.items()}
            lines = [f"  {names[name]:<10} {entry.line}" for name, entry in section.items()]
            blocks.append("\n".join([f"{title}:", *lines]))
        return "\n\n".join(blocks)


_RULES = Group(
    "list, lock, sign, publish, pause and improve rules",
    """\
A rule puts a pattern in force. These verbs number and lock the rules of a folder, bring them into a running job, and
show who has changed them.""",
    """\
example: a changed rule on its way into a job
  cep rules bump card_testing
  cep rules publish --dry-run --conf cep.toml
  cep rules publish --conf cep.toml

`cep rules VERB --help` has the options and examples of a verb; `cep docs guides/deploy` shows the whole way""",
    {
        "The rules of a folder": {
            "list": Verb("all rules with version, status and mistakes", "rules", "guides/deploy", "_list"),
            "show": Verb("one rule: its meaning, key, parameters and text", "rules", "guides/deploy", "_show"),
            "history": Verb("the versions of a rule in git, the newest first", "rules", "guides/deploy", "_history"),
            "lock": Verb("write the new versions into rules.lock", "rules", "guides/deploy", "_lock"),
            "bump": Verb("raise the version of a rule in its file and lock it", "rules", "guides/deploy", "_bump"),
            "card": Verb("one rule as a page: purpose, versions, tests, approvals", "rules", "guides/deploy", "_card"),
            "schema": Verb("JSON schema of control records, or of rule files", "rules", "guides/deploy", "_schema"),
        },
        "The rules of a running job": {
            "publish": Verb("bring rules into a running job", "publish", "guides/deploy"),
            "rollback": Verb("put an earlier version of a rule in force", "rule_changes", "guides/deploy", "_rollback"),
            "pause": Verb("stop a rule of a running job", "rule_changes", "guides/deploy", "_pause"),
            "resume": Verb("let a paused rule continue", "rule_changes", "guides/deploy", "_resume"),
            "snooze": Verb("suppress a rule's alerts until a date", "rule_changes", "guides/deploy", "_snooze"),
            "shadow": Verb("compare a version in shadow with the live one", "shadow", "guides/tune"),
        },
        "The people who change rules": {
            "sign": Verb("sign a version of a rule as its author", "keys", "guides/approve", "_sign"),
            "approve": Verb("approve a change that another person has signed", "keys", "guides/approve", "_approve"),
            "audit": Verb("show or verify the history of changes", "audit", "guides/audit"),
        },
        "Better rules, by labelled events": {
            "tune": Verb("find the parameters of a rule that meet an aim best", "tune", "guides/tune", is_private=True),
            "prune": Verb(
                "name rules whose frauds other rules find, too", "backtest", "guides/suggest", "_prune", is_private=True
            ),
            "suggest": Verb("look for patterns in labelled events", "suggest", "guides/suggest", is_private=True),
        },
    },
)
_JOB = Group(
    "look into a job, copy, move and mend it",
    """\
`cep run` and `cep live` start a job. It keeps its progress and its keyed state in a checkpoint folder. These verbs look
into the folder, copy it and change it.""",
    """\
example: a copy of a stopped job, from which another job starts
  cep job savepoint --checkpoint /var/lib/cep/job --to /backup/cep
  cep job restore --from /backup/cep --checkpoint /var/lib/cep/job-2

`cep job VERB --help` has the options and examples of a verb; `cep docs guides/operate` is the runbook""",
    {
        "A running job": {
            "state": Verb("show the runs and histories that a job keeps", "state", "guides/operate", is_private=True),
            "letters": Verb(
                "send refused alerts again; say which alerts late events would have given", "letters",
                "guides/operate", is_private=True,
            ),
            "heartbeat": Verb("say that no earlier event will come", "rule_changes", "guides/live", "_heartbeat"),
            "monitor": Verb("print alert rules and a dashboard for jobs", "docs", "guides/watch", "_monitor"),
        },
        "A stopped job": {
            "savepoint": Verb("copy the state of a stopped job", "state", "guides/move", "_savepoint", is_private=True),
            "restore": Verb("make a job from a savepoint", "state", "guides/move", "_restore", is_private=True),
            "erase": Verb("remove keys from the state of a stopped job", "erase", "guides/erase", is_private=True),
            "rescale": Verb("change the number of matching tasks", "state", "guides/move", "_rescale", is_private=True),
        },
    },
)  # fmt: skip
_CODES = ", ".join(f"{code} {meaning.summary}" for code, meaning in MEANINGS.items() if code < Exit.INTERRUPTED)
# The verbs by the person who uses them, in the order in which that person meets them.
TOP = Group(
    "",
    """\
Complex event processing for fraud rules. A pattern describes fraud over several events of a card or an account. A rule
puts a pattern in force. A job matches rules against a stream, a replay against a history.""",
    f"""\
example: from nothing to an alert
  cep demo --into day
  cep test day/patterns
  cep replay --rules day/rules --events day/payments.parquet --out alerts.jsonl

`cep VERB --help` has the options and examples of a verb; `cep docs` lists the pages to read on.
exit codes: {_CODES}; `cep docs reference/exit-codes` has what they mean""",
    {
        "To begin": {
            "demo": Verb("show a simulated day: fraud found live, and again in a replay", "demo", "start/first-rule"),
            "docs": Verb("show the pages of this version", "docs", None),
        },
        "Rule author": {
            "new": Verb("write the skeleton of a pattern", "fmt", "guides/write", "_new"),
            "describe": Verb("draft the event declaration that fits records", "describe", "guides/map"),
            "check": Verb("report every mistake in pattern files", "check", "guides/write", is_colored=True),
            "test": Verb("run the tests of pattern files", "test", "guides/test", is_colored=True),
            "explain": Verb("explain a code or a word of the language", "fmt", "reference/diagnostics", "_explain"),
            "lint": Verb(
                "warn of code that is allowed but probably not meant", "lint", "guides/write", is_colored=True
            ),
            "fmt": Verb("bring pattern files into the canonical layout", "fmt", "guides/write"),
            "plan": Verb(
                "show the automaton of patterns and their cost", "lint", "guides/write", "_plan", is_colored=True
            ),
            "lsp": Verb("serve an editor", "lsp", "guides/write"),
            "rules": _RULES,
        },
        "Analyst": {
            "replay": Verb("match a finite history", "replay", "guides/replay", is_private=True),
            "diff": Verb("compare two sets of rules on a history", "diff", "guides/replay", is_private=True),
            "backtest": Verb("measure the alerts of rules by labels", "backtest", "guides/measure", is_private=True),
            "report": Verb("write a page about the alerts of rules", "report", "guides/measure", is_private=True),
            "features": Verb(
                "compute functions of past events at every event", "features", "guides/python", is_private=True
            ),
            "why": Verb("show how an alert came about", "why", "guides/tune", is_colored=True),
            "why-not": Verb("say why there is no alert", "why", "guides/tune", "_not", is_colored=True),
        },
        "Operations": {
            "run": Verb("match a stream in this process, without Java", "run", "guides/live", is_private=True),
            "live": Verb("match a stream on Spark", "live", "guides/live", is_private=True),
            "job": _JOB,
            "settings": Verb("print a settings file, or check one", "settings", "reference/settings"),
            "lists": Verb("show lists, and change the lists of a running job", "lists", "guides/lists"),
            "keys": Verb("make keys, and say who may sign changes", "keys", "guides/approve"),
        },
    },
)
# Names of 0.2 that stood at the top level. They still work, say their new name, and are in no help.
MOVED = {
    name: f"{noun} {name}"
    for noun, names in (
        ("rules", "publish rollback pause resume snooze shadow sign approve audit tune prune suggest"),
        ("job", "state savepoint restore erase rescale letters heartbeat monitor"),
    )
    for name in names.split()
}

_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("FILE", "FOLDER", "PATH"), Path),
    **dict.fromkeys(("N", "VERSION"), int),
    **dict.fromkeys(("FRAUDS", "MONEY", "SECONDS", "SHARE"), float),
}


class Parser(argparse.ArgumentParser):
    """The arguments of a verb, each in the form in which the help shows it."""

    def declare(
        self, written: str, text: str, group: argparse._MutuallyExclusiveGroup | None = None, **options: Any
    ) -> None:
        """Declare an argument as a user writes it, like `--out FILE`, `--dry-run` or `rule RULE`.

        The word for the value determines the type; a flag without one is a truth value. `text` is the line in the help,
        and `options` go to argparse.
        """
        *names, value = written.split()
        if names:
            options = {"metavar": value, "type": _TYPES.get(value), **options}
        elif value.startswith("-") and "choices" not in options:
            options["action"] = "store_true"
        (self if group is None else group).add_argument(*(names or [value]), help=text, **options)


def entries(group: Group = TOP, noun: str = "") -> Iterator[tuple[str, Verb | Group]]:
    """Yield all verbs and groups with their whole names, each group before its verbs."""
    for name, entry in group.entries().items():
        whole_name = f"{noun} {name}".strip()
        yield whole_name, entry
        if isinstance(entry, Group):
            yield from entries(entry, whole_name)


VERBS = {name: entry for name, entry in entries() if isinstance(entry, Verb)}


def find(words: Sequence[str]) -> tuple[str, Verb | Group]:
    """Return the verb or the group that the first words name, with its whole name; TOP has the name ""."""
    names: list[str] = []
    entry: Verb | Group = TOP
    for word in words:
        if isinstance(entry, Verb) or word not in entry.entries():
            break
        entry = entry.entries()[word]
        names.append(word)
    return " ".join(names), entry


def unknown(word: str, name: str, group: Group) -> str:
    """Return a message about an unknown word of a group. It names the nearest verb; at the top, the nearest of all."""
    below = {inner: f"{name} {inner}".strip() for inner in group.entries()}
    names = {**{whole.rsplit(" ", 1)[-1]: whole for whole in VERBS if group is TOP}, **below}
    nearest = nearest_name(word, names)
    hint = f"did you mean `cep {names[nearest]}`?" if nearest else f"`{f'cep {name}'.strip()} --help` lists the verbs"
    return f"there is no verb {word}; {hint}"

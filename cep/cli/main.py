"""`cep VERB …` → the verb's function, and its outcome → an exit code (base/exits.py).

Tested by: tests/cli/test_main.py
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cep import __version__
from cep.base.collection import paused
from cep.base.errors import CepError
from cep.base.exits import MEANINGS, Exit, exit_of
from cep.base.extras import missing_extra
from cep.base.private import private_files
from cep.base.visible import visible
from cep.cli.help_pages import page_of_error, with_page

_DEBUG = "CEP_DEBUG"  # the variable that asks for tracebacks


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb: its line in the help, its module, and the suffix of `run`, `add_arguments` and `HELP` there.

    The module is imported when the verb is used: a job should not wait for the imports of other verbs.
    """

    line: str
    module: str
    suffix: str = ""
    is_colored: bool = False
    is_private: bool = False  # its output contains events or state, and only the owner may read it

    def part(self, name: str) -> Any:
        """Return `run`, `add_arguments` or `HELP` of the verb; None if the module does not define it."""
        whole_name = name + (self.suffix.upper() if name.isupper() else self.suffix)
        with paused():  # Modules are never garbage, and the collector would take a tenth of the start time.
            module = import_module(f"cep.cli.{self.module}")
        return getattr(module, whole_name, None)


# Verbs by who uses them, in the order in which they are met.
_GROUPS = {
    "Begin": {
        "demo": _Verb("show a simulated day: fraud found live, and again in a replay", "demo"),
        "new": _Verb("write the skeleton of a pattern", "new"),
        "describe": _Verb("draft the event declaration that fits records", "describe"),
        "docs": _Verb("show the pages of this version", "docs"),
    },
    "Write patterns": {
        "check": _Verb("report every mistake in pattern files", "check", is_colored=True),
        "test": _Verb("run the tests of pattern files", "test", is_colored=True),
        "explain": _Verb("explain a diagnostic's code", "explain"),
        "lint": _Verb("warn of code that is allowed but probably not meant", "lint", is_colored=True),
        "fmt": _Verb("bring pattern files into the canonical layout", "fmt"),
        "plan": _Verb("show the automaton of patterns and their cost", "plan", is_colored=True),
        "lsp": _Verb("serve an editor", "lsp"),
    },
    "Find fraud in the past, and ask about alerts": {
        "replay": _Verb("match a finite history", "replay", is_private=True),
        "diff": _Verb("compare two sets of rules on a history", "diff", is_private=True),
        "backtest": _Verb("measure the alerts of rules by labels", "backtest", is_private=True),
        "report": _Verb("write a page about the alerts of rules", "report", is_private=True),
        "tune": _Verb("find the parameters of a rule that meet an aim best", "tune", is_private=True),
        "prune": _Verb("name rules whose frauds other rules find, too", "prune", is_private=True),
        "suggest": _Verb("look for patterns in labelled events", "suggest", is_private=True),
        "features": _Verb("compute functions of past events at every event", "features", is_private=True),
        "letters": _Verb(
            "send refused alerts again; say which alerts late events would have given", "letters", is_private=True
        ),
        "why": _Verb("show how an alert came about", "why", is_colored=True),
        "why-not": _Verb("say why there is no alert", "why", "_not", is_colored=True),
    },
    "Put rules in force": {
        "rules": _Verb("list, lock and number the rules of a folder", "rules"),
        "keys": _Verb("make keys, and say who may sign changes", "keys"),
        "sign": _Verb("sign a version of a rule as its author", "sign"),
        "approve": _Verb("approve a change that another person has signed", "sign", "_approve"),
        "audit": _Verb("show or verify the history of changes", "audit"),
        "lists": _Verb("show lists, and change the lists of a running job", "lists"),
        "publish": _Verb("bring rules into a running job", "publish"),
        "rollback": _Verb("put an earlier version of a rule in force", "rollback"),
        "pause": _Verb("stop a rule of a running job", "pause"),
        "resume": _Verb("let a paused rule continue", "pause", "_resume"),
        "snooze": _Verb("suppress a rule's alerts until a date", "snooze"),
        "heartbeat": _Verb("say that no earlier event will come", "heartbeat"),
        "shadow": _Verb("compare a version in shadow with the live one", "shadow"),
    },
    "Run jobs": {
        "run": _Verb("match a stream in this process, without Java", "run", is_private=True),
        "live": _Verb("match a stream on Spark", "live", is_private=True),
        "monitor": _Verb("print alert rules and a dashboard for jobs", "monitor"),
        "settings": _Verb("print a settings file, or check one", "settings"),
        "state": _Verb("show the runs and histories that a job keeps", "state", is_private=True),
        "savepoint": _Verb("copy the state of a stopped job", "savepoint", is_private=True),
        "restore": _Verb("make a job from a savepoint", "savepoint", "_restore", is_private=True),
        "erase": _Verb("remove keys from the state of a stopped job", "erase", is_private=True),
        "rescale": _Verb("change the number of matching tasks", "rescale", is_private=True),
    },
}
_VERBS = {name: verb for group in _GROUPS.values() for name, verb in group.items()}
_INTRODUCTION = """\
Complex event processing for fraud rules. A pattern describes fraud over several events of a card or an account. A rule
puts a pattern in force. A job matches rules against a stream, a replay against a history."""
_CODES = ", ".join(f"{code} {meaning.summary}" for code, meaning in MEANINGS.items() if code < Exit.INTERRUPTED)
_ENDING = f"""\
example: from nothing to an alert
  cep demo --into day
  cep test day/patterns
  cep replay --rules day/rules --events day/payments.parquet --out alerts.jsonl

`cep VERB --help` has the options and examples of a verb; `cep docs` lists the pages to read on.
exit codes: {_CODES}; `cep docs reference/exit-codes` has what they mean"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit code; errors are a line on standard error and one that names a page, bugs two."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options = _parser(given[0] if given else "").parse_args(given)
        code = _run(options)
        sys.stdout.flush()
    except CepError as error:
        _print_error(error, given[0])
        return exit_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # `cep check … | head` is not a failure; without this the interpreter reports an error when it flushes at the
        # end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.CLEAN
    except Exception as error:  # noqa: BLE001 Python's own exit code for a bug is 1, which here means findings
        missing = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            _print_error(missing, given[0])
            return Exit.USAGE
        _report_bug(error)
        return Exit.FAILED
    return code


def entry() -> None:
    """Run one verb as a program, and end the process with its exit code.

    The process ends without the destructors of C++ libraries: threads of Arrow's readers would sometimes abort it after
    its answer (apache/arrow#34314). Python's own handlers run.
    """
    code: int = Exit.FAILED
    try:
        code = main()
    except SystemExit as ended:  # argparse: help, or arguments that make no sense
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 there is no public name
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _print_error(error: CepError, verb: str) -> None:
    print(visible(with_page(f"cep: {error}", page_of_error(error, verb))), file=sys.stderr)


def _report_bug(error: Exception) -> None:
    """Print that this is a bug and how to report it. Only the owner can read the file with the traceback."""
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
        return
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = (
        f"cep: {type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {error}\n"
        f"this is a bug of cep {__version__}, not a mistake of yours; {_saved_traceback(error)}"
    )
    print(visible(text), file=sys.stderr)


def _saved_traceback(error: Exception) -> str:
    again = f"{_DEBUG}=1 prints the traceback"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="cep-bug-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"run it again and report what it prints: {again}"
    return f"report it with {file.name}, which has the traceback and may hold data of yours ({again} here)"


def _run(options: argparse.Namespace) -> int:
    verb = _VERBS[options.verb]
    if options.verb == "check":
        findings: int = verb.part("run")(options.files, options.json, _is_colored(options.color))
        return findings
    color = (_is_colored("auto"),) if verb.is_colored else ()
    run = verb.part("run")
    if "cep.kernels.jit" in sys.modules:
        import_module("cep.runners.compiling").announce_compiling()
    with private_files() if verb.is_private else nullcontext():
        code: int = run(options, *color)
    return code


def _is_colored(choice: str) -> bool:
    if choice == "auto":
        return sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return choice == "always"


def _parser(asked_verb: str) -> argparse.ArgumentParser:
    """Return a parser that has the arguments of the verb that is asked for, and the names of the others."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="cep", description=f"{_INTRODUCTION}\n\n{_listed_verbs()}", epilog=_ENDING, formatter_class=formatter
    )
    parser.add_argument("--version", action="version", version=f"cep {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, help="one of the verbs above")
    for name, verb in _VERBS.items():
        if name != asked_verb:
            verbs.add_parser(name)
            continue
        verb_parser = verbs.add_parser(name, description=verb.part("HELP"), formatter_class=formatter)
        add_arguments = verb.part("add_arguments")
        if add_arguments is not None:
            add_arguments(verb_parser)
    return parser


def _listed_verbs() -> str:
    """Return the verbs with their lines, by group."""
    lines = []
    for title, verbs in _GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<10} {verb.line}" for name, verb in verbs.items()), ""]
    return "\n".join(lines).rstrip()

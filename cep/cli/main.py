"""`cep VERB …` → the verb's function, and its outcome → an exit code.

    0  clean
    1  findings: mistakes in the files that were checked
    2  usage: arguments that make no sense
    3  internal: something outside failed (a broker, a disk), or a bug of ours

Tested by: tests/cli/test_main.py
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from cep import __version__
from cep.base.errors import CepError, UsageError

CLEAN = 0
FINDINGS = 1
USAGE = 2
INTERNAL = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb: its line in the help; its module, and the names there that differ from `run`, `add_arguments`, `HELP`.

    The module is imported when the verb is asked for: a job should not wait for what other verbs need.
    """

    line: str
    module: str
    suffix: str = ""
    is_colored: bool = False

    def part(self, name: str) -> Any:
        """`run`, `add_arguments` or `HELP` of the verb; None where it has none."""
        found = name + (self.suffix.upper() if name.isupper() else self.suffix)
        return getattr(import_module(f"cep.cli.{self.module}"), found, None)


_VERBS = {
    "check": _Verb("report every mistake in pattern files", "check", is_colored=True),
    "fmt": _Verb("bring pattern files into the canonical layout", "fmt"),
    "lint": _Verb("say what is probably not meant in pattern files", "lint", is_colored=True),
    "lsp": _Verb("serve an editor", "lsp"),
    "new": _Verb("write the skeleton of a pattern", "new"),
    "plan": _Verb("show the automaton of patterns and what they cost", "plan", is_colored=True),
    "explain": _Verb("explain a diagnostic's code", "explain"),
    "test": _Verb("run the tests of pattern files", "test", is_colored=True),
    "why": _Verb("show how an alert came about", "why", is_colored=True),
    "why-not": _Verb("say what stopped an alert", "why", "_not", is_colored=True),
    "conformance": _Verb("compare with another matcher's answers", "conformance"),
    "replay": _Verb("match a finite history", "replay"),
    "rules": _Verb("list, lock and number the rules of a folder", "rules"),
    "lists": _Verb("show lists, and change those of a job that runs", "lists"),
    "publish": _Verb("bring rules into a job that runs", "publish"),
    "rollback": _Verb("put an earlier version of a rule in force", "rollback"),
    "pause": _Verb("stop a rule of a job that runs", "pause"),
    "resume": _Verb("let a paused rule go on", "pause", "_resume"),
    "diff": _Verb("compare two sets of rules on a history", "diff"),
    "shadow": _Verb("compare a version in shadow with the live one", "shadow"),
    "snooze": _Verb("hold back a rule's alerts until a date", "snooze"),
    "settings": _Verb("print a settings file, or check one", "settings"),
    "run": _Verb("match a stream in this process, without Java", "run"),
    "state": _Verb("show what a live job keeps", "state"),
    "savepoint": _Verb("copy what a stopped live job keeps", "savepoint"),
    "restore": _Verb("make a live job from a savepoint", "savepoint", "_restore"),
    "rescale": _Verb("change the number of matching tasks", "rescale"),
    "live": _Verb("match a stream as it comes", "live"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit code; errors are one line on standard error, bugs a traceback."""
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        options = _parser(given[0] if given else "").parse_args(given)
        code = _run(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"cep: {error}", file=sys.stderr)
        return USAGE
    except CepError as error:
        print(f"cep: {error}", file=sys.stderr)
        return INTERNAL
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `cep check … | head` is no failure; without this the interpreter complains when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLEAN
    except Exception:  # noqa: BLE001 Python's own exit code for a bug is 1, which here means findings
        traceback.print_exc()
        return INTERNAL
    return code


def _run(options: argparse.Namespace) -> int:
    verb = _VERBS[options.verb]
    if options.verb == "check":
        checked: int = verb.part("run")(options.files, options.json, _is_colored(options.color))
        return checked
    color = (_is_colored("auto"),) if verb.is_colored else ()
    run = verb.part("run")
    if "cep.kernels.jit" in sys.modules:
        when_compiling: Any = import_module("cep.kernels.jit").when_compiling
        when_compiling(_tell_compiling)
    code: int = run(options, *color)
    return code


def _tell_compiling() -> None:
    """A minute without a word would look like a hang."""
    print("cep: compiling the matcher, once after an installation or a change: up to a minute", file=sys.stderr)


def _is_colored(choice: str) -> bool:
    if choice == "auto":
        return sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return choice == "always"


def _parser(asked: str) -> argparse.ArgumentParser:
    """With the arguments of the verb that is asked for."""
    parser = argparse.ArgumentParser(
        prog="cep",
        description="Complex event processing for fraud rules.",
        epilog="exit codes: 0 clean, 1 findings, 2 usage, 3 internal",
    )
    parser.add_argument("--version", action="version", version=f"cep {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in _VERBS.items():
        if name != asked:  # its line is all that is wanted of it
            verbs.add_parser(name, help=verb.line)
            continue
        formatter = argparse.RawDescriptionHelpFormatter
        own = verbs.add_parser(name, help=verb.line, description=verb.part("HELP"), formatter_class=formatter)
        add_arguments = verb.part("add_arguments")
        if add_arguments is not None:
            add_arguments(own)
    return parser

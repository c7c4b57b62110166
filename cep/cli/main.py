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

from cep import __version__
from cep.base.errors import CepError, UsageError
from cep.cli import (
    check,
    conformance,
    diff,
    explain,
    fmt,
    lint,
    live,
    lsp,
    new,
    pause,
    plan,
    publish,
    replay,
    rescale,
    rollback,
    rules,
    run,
    savepoint,
    settings,
    shadow,
    snooze,
    state,
    test,
    why,
)

CLEAN = 0
FINDINGS = 1
USAGE = 2
INTERNAL = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_CHECK_HELP = """\
Check pattern files: every mistake of every file, with its place and the nearest valid name.

examples:
  cep check patterns
  cep check --json patterns/cards.cep | jq .
"""
_REPLAY_HELP = """\
Match a finite history, with Spark in batch mode, and write its alerts. The same rules on the same events give the same
alerts as the live job.
"""
_LIVE_HELP = """\
Match a stream as it comes, with Spark Structured Streaming, until it is stopped. A job that starts again with the same
checkpoint directory goes on where it was.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit code; errors are one line on standard error, bugs a traceback."""
    try:
        options = _parser().parse_args(arguments)
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
    match options.verb:
        case "check":
            return check.run(options.files, options.json, _is_colored(options.color))
        case "fmt":
            return fmt.run(options)
        case "lint":
            return lint.run(options, _is_colored("auto"))
        case "plan":
            return plan.run(options, _is_colored("auto"))
        case "new":
            return new.run(options)
        case "lsp":
            return lsp.run()
        case "explain":
            return explain.run(options)
        case "test":
            return test.run(options, _is_colored("auto"))
        case "why":
            return why.run(options, _is_colored("auto"))
        case "why-not":
            return why.run_not(options, _is_colored("auto"))
        case "conformance":
            return conformance.run(options)
        case "replay":
            return replay.run(options)
        case "savepoint":
            return savepoint.run(options)
        case "restore":
            return savepoint.run_restore(options)
        case "rescale":
            return rescale.run(options)
        case "state":
            return state.run(options)
        case "settings":
            return settings.run(options)
        case "run":
            return run.run(options)
        case "rules":
            return rules.run(options)
        case "publish":
            return publish.run(options)
        case "rollback":
            return rollback.run(options)
        case "pause":
            return pause.run(options)
        case "resume":
            return pause.run_resume(options)
        case "snooze":
            return snooze.run(options)
        case "diff":
            return diff.run(options)
        case "shadow":
            return shadow.run(options)
        case _:
            return live.run(options)


def _is_colored(choice: str) -> bool:
    if choice == "auto":
        return sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return choice == "always"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cep",
        description="Complex event processing for fraud rules.",
        epilog="exit codes: 0 clean, 1 findings, 2 usage, 3 internal",
    )
    parser.add_argument("--version", action="version", version=f"cep {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    checker = _verb(verbs, "check", "report every mistake in pattern files", _CHECK_HELP)
    checker.add_argument("files", nargs="+", metavar="FILE", help="a pattern file, or a folder of them (*.cep)")
    checker.add_argument("--json", action="store_true", help="print diagnostics as JSON, for editors")
    checker.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: when standard output is a terminal and NO_COLOR is not set",
    )
    fmt.add_arguments(_verb(verbs, "fmt", "bring pattern files into the canonical layout", fmt.HELP))
    lint.add_arguments(_verb(verbs, "lint", "say what is probably not meant in pattern files", lint.HELP))
    _verb(verbs, "lsp", "serve an editor", lsp.HELP)
    new.add_arguments(_verb(verbs, "new", "write the skeleton of a pattern", new.HELP))
    plan.add_arguments(_verb(verbs, "plan", "show the automaton of patterns and what they cost", plan.HELP))
    explain.add_arguments(_verb(verbs, "explain", "explain a diagnostic's code", explain.HELP))
    test.add_arguments(_verb(verbs, "test", "run the tests of pattern files", test.HELP))
    why.add_arguments(_verb(verbs, "why", "show how an alert came about", why.HELP))
    why.add_arguments_not(_verb(verbs, "why-not", "say what stopped an alert", why.HELP_NOT))
    conformance.add_arguments(_verb(verbs, "conformance", "compare with another matcher's answers", conformance.HELP))
    replay.add_arguments(_verb(verbs, "replay", "match a finite history", _REPLAY_HELP))
    rules.add_arguments(_verb(verbs, "rules", "list, lock and number the rules of a folder", rules.HELP))
    publish.add_arguments(_verb(verbs, "publish", "bring rules into a job that runs", publish.HELP))
    rollback.add_arguments(_verb(verbs, "rollback", "put an earlier version of a rule in force", rollback.HELP))
    pause.add_arguments(_verb(verbs, "pause", "stop a rule of a job that runs", pause.HELP))
    pause.add_arguments_resume(_verb(verbs, "resume", "let a paused rule go on", pause.HELP_RESUME))
    diff.add_arguments(_verb(verbs, "diff", "compare two sets of rules on a history", diff.HELP))
    shadow.add_arguments(_verb(verbs, "shadow", "compare a version in shadow with the live one", shadow.HELP))
    snooze.add_arguments(_verb(verbs, "snooze", "hold back a rule's alerts until a date", snooze.HELP))
    settings.add_arguments(_verb(verbs, "settings", "print a settings file, or check one", settings.HELP))
    run.add_arguments(_verb(verbs, "run", "match a stream in this process, without Java", run.HELP))
    state.add_arguments(_verb(verbs, "state", "show what a live job keeps", state.HELP))
    savepoint.add_arguments(_verb(verbs, "savepoint", "copy what a stopped live job keeps", savepoint.HELP))
    savepoint.add_arguments_restore(_verb(verbs, "restore", "make a live job from a savepoint", savepoint.HELP_RESTORE))
    rescale.add_arguments(_verb(verbs, "rescale", "change the number of matching tasks", rescale.HELP))
    live.add_arguments(_verb(verbs, "live", "match a stream as it comes", _LIVE_HELP))
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, line: str, text: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=line, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)

"""`cep VERB …` → the verb's function, and its outcome → an exit code (base/exits.py).

Tested by: tests/cli/test_main.py
"""

import argparse
import atexit
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from cep import __version__
from cep.base.errors import CepError, UsageError
from cep.base.exits import Exit, exit_of
from cep.base.files import private_files
from cep.base.process import missing_extra
from cep.base.text import visible
from cep.cli.help_pages import page_of_error, with_page
from cep.cli.verbs import MOVED, TOP, Group, Parser, Verb, find, unknown

_DEBUG = "CEP_DEBUG"  # the variable that asks for tracebacks


class _PandasBlocker:
    """A finder that hides pandas while the modules of a verb are imported.

    Arrow imports pandas at the first array that it makes of a list. That takes a sixth of the start, and few verbs need
    it. Where Arrow or Spark needs pandas later, they import it again.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)

    @classmethod
    def remove(cls) -> None:
        """Let pandas be found from now on."""
        with suppress(ValueError):
            sys.meta_path.remove(cls)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Return the exit code. Print an error or a bug, and the page to read on, on standard error."""
    name = ""
    try:
        name, verb, flags = _asked(sys.argv[1:] if arguments is None else list(arguments))
        parser = parser_of(name, verb)
        if not flags and parser._subparsers is not None:  # noqa: SLF001 there is no public name
            _end_with_help(parser)
        code = _run(name, verb, parser.parse_args(flags))
        sys.stdout.flush()
    except CepError as error:
        _print_error(error, name)
        return exit_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # `cep check … | head` is not a failure; without this the interpreter would report an error at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.CLEAN
    except Exception as error:  # noqa: BLE001 Python's own exit code for a bug is 1, which here means findings
        missing = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            _print_error(missing, name)
            return Exit.USAGE
        if isinstance(error, OSError) and error.errno is not None and not os.environ.get(_DEBUG):
            # A path that cannot be written, too long a name, a full disk: no verb foresees this for each of its files.
            where = "" if error.filename is None else f"{error.filename}: "
            print(visible(f"cep: {where}{error.strerror}; {_DEBUG}=1 prints the traceback"), file=sys.stderr)
            return Exit.FAILED
        _report_bug(error)
        return Exit.FAILED
    return code


def entry() -> None:
    """Run one verb as a program, and end the process with its exit code.

    The process ends without the destructors of C++ libraries: threads of Arrow's readers would sometimes abort it after
    its answer (apache/arrow#34314). Python's own handlers run.
    """
    code: int = Exit.FAILED
    sys.meta_path.insert(0, _PandasBlocker)  # a verb's modules load faster without it
    mend_streams()
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


def mend_streams() -> None:
    """Open the streams without which this process was started. A character that standard output lacks is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


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


def _run(name: str, verb: Verb, options: argparse.Namespace) -> int:
    """Import a verb, run it and return its exit code. Only the owner can read the files that a private verb writes."""
    run = verb.part("run")
    _PandasBlocker.remove()  # the start is over, which pandas would have slowed; from now on Arrow may import it
    if name == "check":  # it takes its arguments one by one, because Python code calls it, too
        findings: int = run(options.files, options.json, _is_colored(options.color))
        return findings
    for flag in ("cores", "partitions"):
        value = getattr(options, flag, None)
        if value is not None and value < 1:
            raise UsageError(f"--{flag} is 1 or more, not {value}")
    color = (_is_colored("auto"),) if verb.is_colored else ()
    if "cep.kernels.jit" in sys.modules:  # the verb uses kernels, which are compiled when they first run
        import_module("cep.runners.compiling").announce_compiling()
    with private_files() if verb.is_private else nullcontext():
        code: int = run(options, *color)
    return code


def _is_colored(choice: str) -> bool:
    if choice == "auto":
        return sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return choice == "always"


def _asked(words: list[str]) -> tuple[str, Verb, list[str]]:
    """Return the whole name of the verb that the first words name, the verb, and the other words.

    A name of cep 0.2 counts as its new name. Without a verb, end with the group's help, or name the nearest verb.
    """
    if words and words[0] in MOVED:
        print(f"cep {words[0]} is now cep {MOVED[words[0]]}", file=sys.stderr)
        words = [*MOVED[words[0]].split(), *words[1:]]
    name, entry = find(words)
    rest = words[len(name.split()) :]
    return (name, entry, rest) if isinstance(entry, Verb) else _no_verb(name, entry, rest)


def _no_verb(name: str, group: Group, words: list[str]) -> NoReturn:
    parser = parser_of(name, group)
    if not words:
        _end_with_help(parser)
    parser.parse_known_args(words[:1])  # ends for --help and --version
    parser.error(visible(unknown(words[0], name, group)))


def _end_with_help(parser: argparse.ArgumentParser) -> NoReturn:
    """Print the verbs below a noun that stands alone, and end: a script that forgets the verb must not go on."""
    parser.print_help(sys.stderr)
    sys.exit(Exit.USAGE)


def parser_of(name: str, entry: Verb | Group) -> Parser:
    """Return a parser with the arguments of a verb, or with the help of a group."""
    parser = Parser(prog=f"cep {name}".strip(), formatter_class=argparse.RawDescriptionHelpFormatter)
    if isinstance(entry, Group):
        parser.usage, parser.description, parser.epilog = f"{parser.prog} VERB …", entry.described(), entry.ending
        if entry is TOP:
            parser.add_argument("--version", action="version", version=f"cep {__version__}")
        return parser
    parser.description = entry.part("HELP")
    add_arguments = entry.part("add_arguments")
    if add_arguments is not None:
        add_arguments(parser)
    return parser

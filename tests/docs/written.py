"""A page or a verb's help → the commands of cep that are written there, as words.

A command begins a line with `cep` or `$ cep`, in a block of code or in the indented lines of a help text. A line that
ends in a backslash continues. Variables before the command, redirections and the text after a pipe are left out.

Tested by: tests/docs/test_written.py
"""

import re
import shlex
from collections.abc import Iterator

_BEGINS = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(cep [a-z-].*)$")
_REMARK = re.compile(r"\s{2,}\S|\s\([a-z]")
_ENDS = {"|", "||", "&&", ";", "&", "<", ">", ">>", "2>", "2>&1", "&>"}
_PUNCTUATION = ";|&<>"


def commands_in(code: str) -> Iterator[tuple[str, ...]]:
    """Yield the words after `cep` of each command. A variable that a shell would replace (`$x`) is an ordinary word."""
    lines = re.sub(r"\\\n\s*", "", code).split("\n")
    for number, line in enumerate(lines):
        begun = _BEGINS.match(line)
        if begun is None:
            continue
        command = _without_remark(begun[1])
        for following in lines[number + 1 :]:  # a text in quotes may go over several lines
            if _is_closed(command):
                break
            command += f"\n{following}"
        yield words_of(command)[1:]


def _without_remark(line: str) -> str:
    """Cut off the remark of a help text next to a command: in a column of its own, or in brackets."""
    remarks = (remark.start() for remark in _REMARK.finditer(line) if _is_closed(line[: remark.start()]))
    return line[: next(remarks, len(line))]


def _is_closed(text: str) -> bool:
    """Return True if every quotation mark has its closing mark."""
    return text.count("'") % 2 == 0 and text.count('"') % 2 == 0


def words_of(command: str) -> tuple[str, ...]:
    """Cut a command into words as a shell does, up to the first redirection, pipe or comment."""
    lexer = shlex.shlex(re.sub(r"\s\d>", " >", command), posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in _ENDS or set(word) <= set(_PUNCTUATION):
            break
        words.append(word)
    return tuple(words)

"""A page → its code blocks, and running them in order in a folder of their own.

    ```sh       commands of a reader, run by bash; the exit code is 0
    ```output   the output of the block before, where … stands for anything
    ```python   a program
    ```cep      a whole pattern file without mistakes
    ```text     an excerpt or a drawing; not run

A comment before a block names the servers that it needs: `<!-- needs: kafka -->`. `<!-- after: start/first-rule -->`
begins in a copy of the folder that the other page leaves. `kafka:9092` in a block becomes the broker of the tests.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cep.cli.docs import page_paths

_BLOCK = re.compile(r"(?:^<!-- needs: ([\w ]+) -->\n\n?)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_AFTER = re.compile(r"^<!-- after: (\S+) -->$", re.MULTILINE)
RUN = ("sh", "python", "cep")
TAGS = {*RUN, "output", "text", "toml", "json", "ebnf"}
_BROKER = "kafka:9092"
_ANYTHING = "…"
_SECONDS_MAX = 240


@dataclass(frozen=True)
class Block:
    """One block of code. `needs` names servers; `expected` is the output that the page shows."""

    tag: str
    code: str
    line: int
    needs: frozenset[str] = frozenset()
    expected: str | None = None


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page in order; the output that a page shows belongs to the block before it."""
    blocks: list[Block] = []
    for block in _BLOCK.finditer(text):
        needs, tag, code = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        if tag == "output":
            assert blocks, f"line {line} shows the output of nothing"
            before = blocks.pop()
            blocks.append(Block(before.tag, before.code, before.line, before.needs, code))
        else:
            blocks.append(Block(tag, code, line, frozenset((needs or "").split())))
    return blocks


def beginning_of(text: str) -> str | None:
    """Return the name of the page whose folder this page continues with."""
    named = _AFTER.search(text)
    return None if named is None else named[1]


def run_page(name: str, folder: Path, servers: Mapping[str, str], tools: Path) -> Iterator[str]:
    """Run the blocks that need only these servers, with `tools` first on the PATH.

    If the page begins with the folder of another page, the other page runs once, next to `tools`. Yields a message for
    each block that does not do as the page says.
    """
    text = page_paths()[name].read_text(encoding="utf-8")
    before = beginning_of(text)
    folder.mkdir(parents=True)
    if before is not None:
        earlier = tools.parent / f"before-{before.replace('/', '-')}"
        if not earlier.exists():
            yield from run_page(before, earlier, {}, tools)
        shutil.copytree(earlier, folder, dirs_exist_ok=True)
    for block in blocks_of(text):
        if block.tag in RUN and block.needs <= servers.keys():
            yield from (f"{name}.md:{block.line} {problem}" for problem in _problems(block, folder, servers, tools))


def _problems(block: Block, folder: Path, servers: Mapping[str, str], tools: Path) -> Iterator[str]:
    code = block.code.replace(_BROKER, servers.get("kafka", _BROKER))
    if block.tag == "cep":
        (folder / "block.cep").write_text(code)
        code = "cep check block.cep && rm block.cep"
    command = [sys.executable, "-c", code] if block.tag == "python" else ["bash", "-euo", "pipefail", "-c", code]
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "120", "NO_COLOR": "1"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if process.returncode:
        yield f"exit code {process.returncode}\n{process.stdout}{process.stderr}"
    elif block.expected is not None and not agrees(block.expected, process.stdout):
        yield f"shows\n{block.expected}but prints\n{process.stdout}{process.stderr}"


def agrees(shown: str, printed: str) -> bool:
    """Return True if the output agrees with the page. `…` alone on a line is any lines, in a line any text.

    The width of columns, blanks at the end of lines, and empty lines at the end do not count.
    """
    pattern = ""
    for line in _lines(shown):
        words = r"[^\n]*".join(re.escape(part) for part in line.split(_ANYTHING))
        pattern += r"(?:[^\n]*\n)*?" if line == _ANYTHING else rf"{words}\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [re.sub(r"  +", "  ", line.rstrip()) for line in text.rstrip().split("\n")]

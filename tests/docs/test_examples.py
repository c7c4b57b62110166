"""Every command and example of pages and READMEs works as written."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cep.cli.docs import DOCS, page_paths
from cep.cli.main import main
from tests.docs.commands import ROOT, commands
from tests.docs.pages import RUN, TAGS, agrees, beginning_of, blocks_of, run_page
from tests.real_kafka import MockCluster, RealKafka

# Every command and example of the pages works as its page says.

PAGES = {name: path.read_text(encoding="utf-8") for name, path in page_paths().items() if DOCS in path.parents}
BLOCKS = {name: blocks_of(text) for name, text in PAGES.items()}
ALONE = [name for name, blocks in BLOCKS.items() if any(b.tag in RUN and not b.needs for b in blocks)]
SERVED = [name for name, blocks in BLOCKS.items() if any(b.tag in RUN and b.needs for b in blocks)]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with commands(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.mark.parametrize("name", ALONE)
def test_commands_do_what_the_page_says(name: str, tmp_path: Path, tools: Path) -> None:
    if problems := list(run_page(name, tmp_path / "reader", {}, tools)):
        pytest.fail("\n".join(problems), pytrace=False)
    if name == "start/first-rule":
        drawn = (tmp_path / "reader" / "rapid_refunds.svg").read_text()
        assert drawn == (DOCS / "start" / "rapid_refunds.svg").read_text()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("name", SERVED)
def test_commands_that_need_servers(
    name: str, tmp_path: Path, tools: Path, kafka_broker: RealKafka | MockCluster
) -> None:
    servers = {"spark": "local", "kafka": kafka_broker.address}
    if problems := list(run_page(name, tmp_path / "reader", servers, tools)):
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_block_says_what_it_is(name: str) -> None:
    assert [f"{name}.md:{b.line} ```{b.tag}" for b in BLOCKS[name] if b.tag not in TAGS] == []
    assert beginning_of(PAGES[name]) in {None, *PAGES}


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a\nb\n", "a\nb\n\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n…\n", "a\nb\nc\n", True),
        ("…\nc\n", "a\nb\nc\n", True),
        ("took … s\n", "took 0.3 s\n", True),
        ("took … s\n", "took 0.3 min\n", False),
        ("a.\n", "ab\n", False),
        ("a   1\n", "a      1\n", True),
    ],
)
def test_output_is_compared(shown: str, printed: str, expected: bool) -> None:
    assert agrees(shown, printed) is expected


@pytest.mark.parametrize("name", ["guides/write"])
def test_the_tests_of_whole_patterns_pass(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner of pages checks patterns; a guide's tests have to pass too."""
    with_tests = [block.code for block in BLOCKS[name] if block.tag == "cep" and "\ntest " in block.code]
    assert with_tests
    for number, code in enumerate(with_tests):
        file = tmp_path / f"{number}.cep"
        file.write_text(code)
        assert main(["test", str(file)]) == 0, capsys.readouterr().out


# The patterns and commands in the READMEs of code folders work as the READMEs say.

READMES = {name: blocks_of((ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "patterns/README.md")}


def _pattern_of(name: str) -> str:
    (code,) = [block.code for block in READMES[name] if "\npattern " in block.code]
    return code


def test_the_pattern_of_the_first_page_has_no_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "patterns" / "events.cep", tmp_path)
    (tmp_path / "first.cep").write_text(f'import "events.cep"\n\n{_pattern_of("README.md")}')
    assert main(["check", str(tmp_path / "first.cep")]) == 0, capsys.readouterr().out


def test_the_first_pattern_passes_its_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.cep").write_text(_pattern_of("patterns/README.md"))
    assert main(["test", str(tmp_path / "first.cep")]) == 0, capsys.readouterr().out


def test_the_work_on_a_pattern_goes_as_it_says(tmp_path: Path) -> None:
    (work,) = [block.code for block in READMES["patterns/README.md"] if block.tag == "sh"]
    shutil.copytree(ROOT / "patterns", tmp_path / "patterns")
    with commands(tmp_path) as tools:
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        words = ["bash", "-euo", "pipefail", "-c", work]
        process = subprocess.run(
            words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
    assert process.returncode == 0, process.stdout + process.stderr
    assert (tmp_path / "patterns" / "tried_out.cep").exists()


def test_the_two_commands_are_there() -> None:
    (block,) = [block.code for block in READMES["README.md"] if block.tag == "sh"]
    files = [ROOT / line.split()[0] for line in block.splitlines()]
    assert [file.name for file in files] == ["run", "run"]
    assert all(os.access(file, os.X_OK) for file in files)

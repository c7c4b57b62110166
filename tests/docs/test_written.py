"""Commands, settings and Python of pages and help texts that are not run are checked as far as possible."""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cep
from cep.api.rules import Rules
from cep.api.spark import StreamTerms
from cep.cli.docs import DOCS, page_paths
from cep.cli.main import main, parser_of
from cep.cli.verbs import TOP, VERBS, Verb, entries, find
from cep.model.rule import RuleFile
from cep.rulebook.signers import _File
from tests.docs.pages import RUN, Block, blocks_of
from tests.docs.written import commands_in, words_of
from tests.tidy.source import ROOT

PAGES = {name: path.read_text(encoding="utf-8") for name, path in page_paths().items() if DOCS in path.parents}
READMES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
HELP = {"(all)": TOP.ending}
HELP |= {name: entry.part("HELP") if isinstance(entry, Verb) else entry.ending for name, entry in entries()}
# Servers that tests have. A block that needs another server is checked by its form alone, and says why.
SERVERS = {"kafka", "spark"}
_DRAWING = re.compile(r"[─│┌└▶▼├┬┴┐┘]|-->")
# Generated pages show the output and help texts of verbs, which have their own tests.
GENERATED = {"reference/verbs", "reference/diagnostics", "reference/api"}
# Excerpts of patterns leave this declaration out, so that a reader sees the point.
_EVENT = """event transaction { tx_id id  event_time time  card_id string  bin string  ip string }"""
# A block that is not run (page, first words) → why. Its commands go through the parser of `cep` all the same.
NOT_RUN: dict[tuple[str, str], str] = {
    ("guides/audit", "cep rules audit"): "needs topics; the page runs the same verb above",
    ("guides/approve", "cep keys withdraw"): "the ellipsis stands for a key that the reader makes",
    ("guides/approve", "cep keys rotate"): "the ellipsis stands for a key that the reader makes",
    ("guides/card-data", "k2 8c41…"): "two lines of a file of secrets, cut short",
    ("guides/operate-spark", "cep live --conf"): "runs until it is stopped; guides/live runs it on two topics",
    ("guides/platform", "docker build -f"): "needs a registry of images and a cluster",
    ("guides/platform", "cep job letters"): "needs the folders of a job that has run for months",
    ("guides/spark", "pip install 'cep[spark]'"): "needs the network",
    ("guides/standby", "cep run --rules"): "two processes that go on until they are stopped",
    ("guides/standby", "lease brokers give"): "a table of three lines",
    ("reference/language/changing-lists", "list blocked:"): "an excerpt, which a test below checks",
    ("guides/tune", "git worktree add"): "needs a repository of the reader; the page runs the same verb above",
    ("guides/tune", "cep rules tune"): "needs months of labelled events",
    ("guides/tune", "cep rules shadow"): "needs days of a job",
    ("guides/watch", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"): "needs a collector",
}  # fmt: skip
# A server that no test has → why, and its substitute.
NOT_SERVED = {"delta": "its packages come from the network; a test compares the calls with what the library has"}


def _blocks(tag: str) -> Iterator[tuple[str, Block]]:
    return ((name, block) for name, text in PAGES.items() for block in blocks_of(text) if block.tag == tag)


def _first_words(code: str) -> str:
    words = code.split()
    count = 1 if "=" in words[0] else 3 if words[0] in ("cep", "docker", "git", "pip", "lease") else 2
    return " ".join(words[:count])


def _parse(words: tuple[str, ...]) -> None:
    """Let the parser of `cep` read the words. An ellipsis stands for more options."""
    name, entry = find(words)
    if isinstance(entry, Verb):
        parser_of(name, entry).parse_args([word for word in words[len(name.split()) :] if word != "…"])
    else:
        main(words)  # ends with a message


def _all_commands() -> list[tuple[str, tuple[str, ...]]]:
    commands = [(name, words) for name, text in HELP.items() for words in commands_in(text)]
    for name, text in {**PAGES, **READMES}.items():
        if name not in GENERATED:
            code = [block.code for block in blocks_of(text) if block.tag in ("sh", "text", "")]
            commands += [(name, words) for words in commands_in("\n".join(code))]
    return commands


COMMANDS = _all_commands()


@pytest.mark.parametrize("name", sorted({name for name, _ in COMMANDS}))
def test_every_command_is_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for words in [words for place, words in COMMANDS if place == name]:
        try:
            _parse(words)
        except SystemExit as ended:
            if ended.code != 0:
                refused.append(f"cep {' '.join(words)}: {capsys.readouterr().err.splitlines()[-1]}")
    assert refused == []


def test_verbs_with_options_have_an_example() -> None:
    assert len(COMMANDS) > 200
    shown = {find(words)[0] for _, words in COMMANDS}
    assert VERBS.keys() - shown == {"lsp"}  # which an editor starts


@pytest.mark.parametrize(
    ("name", "block"),
    [pytest.param(*named_block, id=f"{named_block[0]}:{named_block[1].line}") for named_block in _blocks("toml")],
)
def test_every_toml_is_read_by_its_model(name: str, block: Block) -> None:
    values = tomllib.loads(block.code)
    if "signer" in values:
        for signer in values["signer"]:
            signer["key"] = signer["key"].replace("…", 64 * "0")
        assert _File.model_validate({"rule_set": "cards", "version": 1, **values}).signer
    else:
        assert RuleFile.model_validate(values).id


@pytest.mark.parametrize(
    ("name", "block"),
    [pytest.param(*named_block, id=f"{named_block[0]}:{named_block[1].line}") for named_block in _blocks("text")],
)
def test_a_text_is_a_drawing_or_says_why_it_is_not_run(name: str, block: Block) -> None:
    if name not in GENERATED and not _DRAWING.search(block.code):
        assert NOT_RUN.get((name, _first_words(block.code)))


def test_what_is_not_run_is_still_there() -> None:
    shown = {(name, _first_words(block.code)) for name, block in _blocks("text")}
    assert NOT_RUN.keys() - shown == set()
    needed = {need for text in PAGES.values() for block in blocks_of(text) if block.tag in RUN for need in block.needs}
    assert needed - SERVERS == NOT_SERVED.keys()


def _calls(code: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the calls of methods of `rules` and functions of `cep` in a program, with their keywords."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="rules" | "cep" as owner), attr=name)):
                yield f"{owner}.{name}", [word.arg for word in node.keywords if word.arg]


@pytest.mark.parametrize(
    ("name", "block"),
    [pytest.param(*named_block, id=f"{named_block[0]}:{named_block[1].line}") for named_block in _blocks("python")],
)
def test_python_calls_what_is_there(name: str, block: Block) -> None:
    for call, keywords in _calls(block.code):
        owner: Any = cep if call.startswith("cep.") else Rules
        parameters = inspect.signature(getattr(owner, call.split(".")[1])).parameters
        terms = StreamTerms.__annotations__.keys() if "terms" in parameters else set()
        assert set(keywords) <= parameters.keys() | terms, f"{name}.md:{block.line} {call}"


def test_excerpts_are_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [block.code for name, block in _blocks("text") if name not in GENERATED]
    excerpts = [code for code in texts if "\npattern " in code]
    assert excerpts
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "blocked.csv").write_text("blocked\nc1\n")
    for code in excerpts:
        file = tmp_path / "excerpt.cep"
        file.write_text(f"{_EVENT}\n{code}")
        assert main(["check", str(file)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cep run --events - < in.jsonl > out.jsonl", ["cep", "run", "--events", "-"]),
        ("cep check a.cep && rm a.cep", ["cep", "check", "a.cep"]),
        ('cep diff a b || echo "exit $?"', ["cep", "diff", "a", "b"]),
        ("cep rules list # all of them", ["cep", "rules", "list"]),
        ("cep why x 2>&1 | grep y", ["cep", "why", "x"]),
        ("cep features 'count(e over 1 h)'", ["cep", "features", "count(e over 1 h)"]),
    ],
)  # fmt: skip
def test_a_command_is_cut_into_words(command: str, words: list[str]) -> None:
    assert list(words_of(command)) == words


def test_commands_are_recognised() -> None:
    code = "A=b cep run --conf x\n  cep why \\\n    y\nprinted by cep run\n$ cep docs\n"
    assert list(commands_in(code)) == [("run", "--conf", "x"), ("why", "y"), ("docs",)]


@pytest.mark.parametrize("words", [("run", "--no-such-option"), ("no-such-verb",), ("job", "erase", "--checkpoint")])
def test_a_wrong_command_is_seen(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(words)
    assert "usage:" in capsys.readouterr().err

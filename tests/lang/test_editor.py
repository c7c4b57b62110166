"""The editor's extension: its files are well-formed, and its grammar knows the words of the language."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cep.lang.parse.cursor import DECLARATIONS, RESERVED
from cep.lang.parse.lexer import UNITS_MS

EDITOR = Path(__file__).parents[2] / "patterns" / "editor"
GRAMMAR: dict[str, Any] = json.loads((EDITOR / "syntaxes" / "cep.tmLanguage.json").read_text(encoding="utf-8"))


def rules(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every rule of the grammar."""
    if isinstance(node, dict):
        if "match" in node or "begin" in node:
            yield node
        for part in node.values():
            yield from rules(part)
    elif isinstance(node, list):
        for part in node:
            yield from rules(part)


def scope(text: str) -> str:
    """Return the scope of the first rule that takes the whole word, in the order of the grammar."""
    for include in GRAMMAR["patterns"]:
        for rule in rules(GRAMMAR["repository"][include["include"].removeprefix("#")]):
            match = re.match(rule["match"] if "match" in rule else rule["begin"], text)
            if match is not None and match.end() >= len(text.split(maxsplit=1)[0]):
                captures = rule.get("captures", {"1": {"name": ""}})
                return str(rule.get("name", captures["1"]["name"]))
    return ""


def test_every_expression_compiles() -> None:
    expressions = [rule[key] for rule in rules(GRAMMAR) for key in ("match", "begin", "end") if key in rule]
    assert len(expressions) > 12
    for expression in expressions:
        re.compile(expression)


def test_every_include_is_there() -> None:
    assert {p["include"].removeprefix("#") for p in GRAMMAR["patterns"]} == GRAMMAR["repository"].keys()


def test_it_knows_the_words_of_the_language() -> None:
    for word in RESERVED:
        assert scope(word).startswith(("keyword.", "constant.language")), word
    for word in DECLARATIONS:
        assert scope(f"{word} x") == "keyword.declaration.cep", word
    for unit in UNITS_MS:
        assert scope(f"5{unit}") == "constant.numeric.duration.cep", unit


def test_the_manifest_names_files_that_are_there() -> None:
    manifest = json.loads((EDITOR / "package.json").read_text(encoding="utf-8"))
    contributes = manifest["contributes"]
    names = [manifest["main"], contributes["grammars"][0]["path"], contributes["languages"][0]["configuration"]]
    for name in names:
        assert (EDITOR / name).is_file(), name
    json.loads((EDITOR / "language-configuration.json").read_text(encoding="utf-8"))
    assert contributes["grammars"][0]["scopeName"] == GRAMMAR["scopeName"]


def test_no_workspace_chooses_the_program_that_the_editor_starts() -> None:
    manifest = json.loads((EDITOR / "package.json").read_text(encoding="utf-8"))
    properties = manifest["contributes"]["configuration"]["properties"]
    assert {name: value.get("scope") for name, value in properties.items()} == {"cep.command": "machine"}
    assert manifest["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"] == ["cep.command"]
    # `get` gives the value of a workspace in editors that do not know the scope.
    assert '.get("command")' not in (EDITOR / manifest["main"]).read_text(encoding="utf-8")

"""The grammar for editors in the editors' own engine: the scopes of pattern files against our own tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cep.lang.diagnostics import Collector
from cep.lang.parse.cursor import RESERVED
from cep.lang.parse.lexer import TokenKind, lex
from tests.lang.generate import random_file
from tests.node_packages import EDITOR, NoNodeError, node_modules, run

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "patterns").rglob("*.cep"), *(Path(__file__).parent / "golden").glob("*/*.cep")])
SCOPES = {
    TokenKind.STRING: "string.quoted.double.cep",
    TokenKind.INT: "constant.numeric",
    TokenKind.DECIMAL: "constant.numeric",
    TokenKind.FLOAT: "constant.numeric",
    TokenKind.DURATION: "constant.numeric.duration.cep",
}
EVERYTHING = r"""
## A line of documentation, "not a text" and 5 min
event t { tx_id id  event_time time  card_id string  amount decimal(2)  ok bool  status enum(a, b) }  # a comment
list odd = ["a # no comment", "a \" quote", "5 min", "\\"]  ## behind something it is a comment too
pattern p(n: int = 1_000 in 1..2_000, w: duration = 1.5 h) by card_id {
  seq    a{2,} -> (b | c) -> !d ->[500ms .. 2 min] e ->> f  within w
  where  a: t  amount > 2.50 and not (amount * 1e3 < 5) or ok is null
         b: t  if ok then true else amount between 1 and 2
}
test "of \"p\"" of p { c1: 0s t amount=1.00 x5 every 20s  1h t  expect none }
"""


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return node_modules()
    except NoNodeError as error:
        raise pytest.skip.Exception(str(error)) from error  # the project itself needs only Java and Python


def scopes_of(texts: dict[str, str], modules: Path, folder: Path) -> dict[str, list[list[str]]]:
    """Return for each text the scopes of each character, by VS Code's engine."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    grammar = EDITOR / "syntaxes" / "cep.tmLanguage.json"
    script = Path(__file__).parent / "textmate.js"
    output = json.loads(run(["node", str(script), str(modules), str(grammar), *texts], folder))
    result: dict[str, list[list[str]]] = {}
    for name, text in texts.items():
        units = [index for index, character in enumerate(text) for _ in range(len(character.encode("utf-16-le")) // 2)]
        characters: list[list[str]] = [[] for _ in text]
        for start, end, scopes in output[name]:
            for unit in units[start:end]:
                characters[unit] = scopes
        result[name] = characters
    return result


@pytest.mark.slow
@pytest.mark.always
def test_our_tokens_have_the_scopes_of_their_kinds(modules: Path, tmp_path: Path) -> None:
    paths = [path for path in FILES if path.name != "CEP110_not_utf8.cep" and not path.name.startswith("CEP10")]
    texts = {f"{i}.cep": path.read_text(encoding="utf-8") for i, path in enumerate(paths)}
    texts |= {f"random{seed}.cep": random_file(seed) for seed in range(20)}
    texts["everything.cep"] = EVERYTHING
    counts = dict.fromkeys(("comment", "reserved", *(kind.value for kind in SCOPES)), 0)
    for name, scopes in scopes_of(texts, modules, tmp_path).items():
        text = texts[name]
        lexed = lex(text, name, Collector())
        for comment in lexed.comments:
            for index in range(comment.span.start, comment.span.end):
                if not text[index].isspace():
                    assert scopes[index][0].startswith("comment.line."), (name, comment.text, scopes[index])
            counts["comment"] += 1
        for token in lexed.tokens:
            token_scopes = scopes[token.span.start : token.span.end]
            if token.kind in SCOPES:
                assert all(s and s[0].startswith(SCOPES[token.kind]) for s in token_scopes), (name, token, token_scopes)
                counts[token.kind.value] += 1
            elif token.kind is TokenKind.NAME and token.text in RESERVED:
                assert all(s[0].startswith(("keyword.", "constant.language.")) for s in token_scopes), (
                    name,
                    token,
                    token_scopes,
                )
                counts["reserved"] += 1
    assert min(counts.values()) > 5, counts


def test_the_scopes_of_a_line(modules: Path, tmp_path: Path) -> None:
    text = 'pattern p by card_id {\n  where  hit: transaction  amount >= count(a) and "x\\n" != null\n'
    (scopes,) = scopes_of({"x.cep": text}, modules, tmp_path).values()
    expected = {
        "pattern": "keyword.declaration.cep",
        "p ": "entity.name.type.cep",
        "by": "keyword.control.cep",
        "hit": "variable.parameter.cep",
        "transaction": "entity.name.type.cep",
        "amount": "variable.other.cep",
        ">=": "keyword.operator.comparison.cep",
        "count": "support.function.cep",
        "and": "keyword.operator.word.cep",
        '"x': "string.quoted.double.cep",
        "null": "constant.language.cep",
    }
    for part, scope in expected.items():
        assert scopes[text.index(part)] == [scope], part
    assert scopes[text.index("\\n")] == ["string.quoted.double.cep", "constant.character.escape.cep"]

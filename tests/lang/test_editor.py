"""What an editor needs: the extension's files, the scopes of its grammar, the meaning of names, and completions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cep.lang.diagnostics import Collector
from cep.lang.edit.assist import meaning, words_at
from cep.lang.edit.heads import focused, heads
from cep.lang.edit.symbols import Named, place_at, places
from cep.lang.functions import FUNCTIONS
from cep.lang.load import TEXT as FILE
from cep.lang.load import load_text
from cep.lang.parse.lexer import DECLARATIONS, RESERVED, UNITS_MS, TokenKind, lex
from cep.lang.syntax import ImportSyntax
from tests.lang.common import EVENTS
from tests.lang.generate import random_file
from tests.node_packages import EDITOR, NoNodeError, node_modules, run

GRAMMAR: dict[str, Any] = json.loads((EDITOR / "syntaxes" / "cep.tmLanguage.json").read_text(encoding="utf-8"))


def rules(node: Any) -> Iterator[dict[str, Any]]:
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


TEXT = (
    EVENTS
    + """list bad = ["KP", "IR"]
list many: string = ["x"]
event ordered { id id  event_time time  seq_no int  order by seq_no }
define small(limit) = amount < limit and country in bad
## What it is for.
pattern p(cut: decimal = 2.00, of: list of string = many) by card_id {
  seq a -> b -> !c within 1 h
  where a: transaction small(cut)
        b: transaction status == approved and amount > a.amount and status not in [approved, declined]
        c: transaction country in of
  skip to first b
  emit n = b.amount, m = 1
  on timeout emit late = 1
}
test "t" of p with (cut = 3.00) {
  c: 0s transaction amount=1 status=approved
  expect match { n: 1.00 }
}
"""
)


def words(part: str) -> list[str]:
    """Return the completions after a part of the text."""
    checked = load_text(TEXT)
    return [w.text for w in words_at(checked, "<text>", TEXT, TEXT.index(part) + len(part))]


def test_every_function_is_described() -> None:
    for name, function in FUNCTIONS.items():
        assert function.shown.startswith(f"{name}("), name


def test_each_name_is_found_where_it_stands() -> None:
    checked = load_text(TEXT)
    symbols = places(checked.files, checked.resolved)
    for place in symbols:
        assert TEXT[place.span.start : place.span.end] == place.named.name
    counts = {
        Named("variable", "b", "p"): 4,
        Named("parameter", "cut", "p"): 3,
        Named("argument", "limit", "small"): 2,
        Named("list", "bad"): 2,
        Named("list", "many"): 2,
        Named("field", "seq_no"): 2,
        Named("definition", "small"): 2,
        Named("value", "n", "p"): 2,
        Named("pattern", "p"): 2,
        Named("symbol", "approved"): 4,
        Named("event", "transaction"): 5,
    }
    assert {named: sum(p.named == named for p in symbols) for named in counts} == counts


def test_every_name_of_random_files_has_a_declaration() -> None:
    for seed in range(30):
        checked = load_text(random_file(seed))
        symbols = places(checked.files, checked.resolved)
        declared = {p.named for p in symbols if p.declares}
        loose = {p.named for p in symbols if not p.declares and p.named.kind not in ("function", "value")}
        assert loose <= declared, seed


def test_meanings() -> None:
    checked = load_text(TEXT)
    assert "define small(limit) = amount < limit and country in bad" in meaning(checked, Named("definition", "small"))
    assert '["KP", "IR"]' in meaning(checked, Named("list", "bad"))
    assert "What it is for." in meaning(checked, Named("pattern", "p"))
    assert "symbol of `status`" in meaning(checked, Named("symbol", "approved"))
    assert "event transaction" in meaning(checked, Named("event", "transaction"))
    assert "late: int" in meaning(checked, Named("value", "late", "p"))
    assert meaning(checked, Named("field", "nothing")) == ""


def test_a_place_is_found_at_both_of_its_ends() -> None:
    checked = load_text(TEXT)
    start = TEXT.index("small(cut)")
    symbols = places(checked.files, checked.resolved)
    for offset in (start, start + 5):
        place = place_at(symbols, "<text>", offset)
        assert place is not None
        assert place.named == Named("definition", "small")


def test_what_is_offered() -> None:
    assert words("amount > a.")[:3] == ["tx_id", "event_time", "card_id"]
    assert words("status == ")[:3] == ["approved", "declined", "reversed"]
    assert words("not in [approved,")[:3] == ["approved", "declined", "reversed"]
    assert "approved" not in words("n = b.amount,")
    assert words("  where a:") == ["transaction", "ordered"]
    assert {"pattern", "event", "list"} <= set(words("late = 1\n}\n"))
    assert {"cut", "small", "amount", "b"} <= set(words("status == approved and "))


# A large text: a question about one place is answered from the declarations that matter there.

MANY = f"""{EVENTS}
list risky = ["FR", "DE"]
define large(x) = x > 500.00

""" + "\n".join(
    f"""## Pattern {number}. {{ a brace, and a quote: \"
pattern p{number}(least: int = 2)
  by card_id
{{
  seq    probe{{least,}} greedy -> hit  within 1 h
  where  probe: transaction  status == declined and country in risky
         hit:   transaction  amount > probe.amount and large(amount) and country != "{{"
  emit   total = sum(probe.amount)
}}

test "fires \\"{number}\\"" of p{number} {{
  c: 0s transaction amount=1.00 status=declined x2 every 1s  5s transaction amount=900.00
  expect match {{ total: 2.00 }}
}}
"""
    for number in range(40)
)


def test_a_large_text_is_checked_near_a_place_and_answers_as_the_whole() -> None:
    whole = load_text(MANY)
    every = {p.span: p for p in places(whole.files, whole.resolved)}
    in_text = [p for p in every.values() if p.span.start > MANY.index("pattern p7(")][::7]
    assert len(in_text) > 100
    for place in in_text:
        text = focused(MANY, place.span.start)
        assert len(text) == len(MANY)
        assert text.count("\n") == MANY.count("\n")
        near = load_text(text)
        assert not near.diagnostics
        assert len(near.patterns) == 1
        nearby = place_at(places(near.files, near.resolved), FILE, place.span.start)
        assert nearby is not None
        assert nearby.named == every[nearby.span].named
        assert meaning(near, nearby.named) == meaning(whole, nearby.named)
        assert words_at(near, FILE, text, place.span.start) == [
            word for word in words_at(whole, FILE, MANY, place.span.start) if word.kind != "pattern"
            or word.text in near.patterns
        ]  # fmt: skip


def test_a_text_that_is_being_written_is_checked_as_a_whole() -> None:
    """A word in an open declaration may begin a line, and look like a declaration."""
    text = MANY.replace("  emit   total = sum(probe.amount)\n}", "  emit   total = sum(probe.amount)\n", 1)
    assert focused(text, text.index("pattern p0(")) == text
    assert focused(text, text.index("pattern p9(")) != text


def test_heads_are_the_declarations_of_the_parser() -> None:
    (file,) = load_text(MANY).files
    names = [(type(d).__name__, d.name, d.span.start) for d in file.declarations if not isinstance(d, ImportSyntax)]
    words = {"pattern": "PatternSyntax", "test": "PatternTestSyntax", "event": "EventSyntax", "list": "ListSyntax",
             "define": "DefineSyntax"}  # fmt: skip
    assert [(words[head.word], head.name, head.name_start) for head in heads(MANY)] == names

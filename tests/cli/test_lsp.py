"""A session with the real server over its pipes: open, break, fix, hover, complete, define, rename, format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.lsp_client import Client
from tests.lang.common import EVENTS

pytestmark = [pytest.mark.slow, pytest.mark.always]  # they start a process

PATTERN = """import "events.cep"

## Small ones, then a large one. 💳
pattern p(least: int = 2)
  by card_id
{
  seq    probe{least,} greedy -> hit  within 1 h
  where  probe: transaction  status == declined
         hit:   transaction  amount > probe.amount
  emit   total = sum(probe.amount)
}
"""


class Session:
    """One open document of a workspace with two files."""

    def __init__(self, client: Client, path: Path) -> None:
        self.client, self.path, self.uri = client, path, path.as_uri()
        self.text = ""
        self.version = 0

    def open(self, text: str) -> list[dict[str, Any]]:
        self.text = text
        document = {"uri": self.uri, "languageId": "cep", "version": 0, "text": text}
        self.client.tell("textDocument/didOpen", {"textDocument": document})
        return self.client.diagnostics()

    def change(self, old: str, new: str) -> list[dict[str, Any]]:
        """Replace a part of the text, as an editor does during typing."""
        place = self.place(old)
        self.text = self.text.replace(old, new, 1)
        self.version += 1
        change = {"range": {"start": place, "end": self.after(place, old)}, "text": new}
        document = {"uri": self.uri, "version": self.version}
        self.client.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})
        return self.client.diagnostics()

    def place(self, part: str, into: int = 0) -> dict[str, int]:
        """Return the position of a part of the text; characters count as in UTF-16."""
        before = self.text[: self.text.index(part) + into]
        line = before.rpartition("\n")[2]
        return {"line": before.count("\n"), "character": len(line.encode("utf-16-le")) // 2}

    @staticmethod
    def after(place: dict[str, int], text: str) -> dict[str, int]:
        return {"line": place["line"], "character": place["character"] + len(text)}

    def ask(self, method: str, part: str, into: int = 0, **more: Any) -> Any:
        params = {"textDocument": {"uri": self.uri}, "position": self.place(part, into), **more}
        return self.client.ask(f"textDocument/{method}", params)

    def words(self, part: str) -> list[str]:
        """Return the completions after a part of the text."""
        return [item["label"] for item in self.ask("completion", part, len(part))["items"]]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield one server for all sessions: its start takes a second."""
    with Client(tmp_path_factory.mktemp("workspace")) as client:
        yield client


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    """Yield a session with a workspace of two files, and empty the workspace afterwards."""
    events, path = client.root / "events.cep", client.root / "p.cep"
    events.write_text(EVENTS, encoding="utf-8")
    path.write_text(PATTERN, encoding="utf-8")
    client.notes.clear()
    yield Session(client, path)
    client.tell("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
    events.unlink()
    path.unlink()


def codes(diagnostics: list[dict[str, Any]]) -> list[str]:
    return [d["code"] for d in diagnostics if d["severity"] == 1]


def applied(text: str, edits: list[dict[str, Any]]) -> str:
    """Return the text after the edits of one file."""
    lines = text.split("\n")
    for edit in sorted(
        edits, key=lambda e: (e["range"]["start"]["line"], e["range"]["start"]["character"]), reverse=True
    ):
        start, end = edit["range"]["start"], edit["range"]["end"]
        head = "\n".join([*lines[: start["line"]], lines[start["line"]][: start["character"]]])
        tail = "\n".join([lines[end["line"]][end["character"] :], *lines[end["line"] + 1 :]])
        lines = (head + edit["newText"] + tail).split("\n")
    return "\n".join(lines)


def test_a_session(session: Session) -> None:
    # open, break, fix
    assert codes(session.open(PATTERN)) == []
    broken = session.change("amount > probe.amount", "amont > probe.amount")
    assert codes(broken) == ["CEP201"]
    place = broken[0]["range"]
    action = session.client.ask(
        "textDocument/codeAction",
        {"textDocument": {"uri": session.uri}, "range": place, "context": {"diagnostics": broken}},
    )[0]
    assert applied(session.text, action["edit"]["changes"][session.uri]) == PATTERN
    assert codes(session.change("amont", "amount")) == []
    # hover
    assert "amount  decimal(2)" in session.ask("hover", "amount > probe", 2)["contents"]["value"]
    assert "probe: transaction  status == declined" in session.ask("hover", "probe{", 1)["contents"]["value"]
    assert "least: int = 2" in session.ask("hover", "least,}", 1)["contents"]["value"]
    assert "total: decimal(2)" in session.ask("hover", "total =", 1)["contents"]["value"]
    assert "sum(x.field)" in session.ask("hover", "sum(", 1)["contents"]["value"]
    assert "without the row under test" in session.ask("hover", "sum(", 1)["contents"]["value"]
    assert "gives none back" in session.ask("hover", "greedy", 1)["contents"]["value"]
    assert session.ask("hover", "within", 1) is None
    # go to definition, also into another file
    (target,) = session.ask("definition", "transaction  status", 3)
    assert target["uri"].endswith("events.cep")
    (target,) = session.ask("definition", "least,}", 1)
    assert target["range"]["start"] == session.place("least: int")
    # rename
    edit = session.ask("rename", "probe{", 1, newName="attempt")
    renamed = applied(session.text, edit["changes"][session.uri])
    assert renamed == PATTERN.replace("probe", "attempt")
    assert session.ask("rename", "probe{", 1, newName="where") is None
    assert session.ask("rename", "probe{", 1, newName="hit") is None
    # format
    session.change("  seq    probe", "seq probe")
    (edit,) = session.client.ask(
        "textDocument/formatting",
        {"textDocument": {"uri": session.uri}, "options": {"tabSize": 2, "insertSpaces": True}},
    )
    assert edit["newText"] == PATTERN


def test_completion(session: Session) -> None:
    session.open(PATTERN)
    session.change("status == declined", "status == ")
    assert session.words("status == ")[:3] == ["approved", "declined", "reversed"]
    session.change("status == ", "")
    assert {"amount", "least", "probe", "count"} <= set(session.words("probe: transaction  "))
    session.change("amount > probe.amount", "amount > probe.")
    assert session.words("amount > probe.")[:3] == ["tx_id", "event_time", "card_id"]
    session.change("hit:   transaction  amount > probe.", "hit: ")
    assert session.words("hit: ") == ["transaction"]


def test_a_field_is_renamed_in_every_file(session: Session) -> None:
    session.open(PATTERN)
    edit = session.ask("rename", "amount > probe", 1, newName="value_of_it")
    assert len(edit["changes"]) == 2
    other = next(uri for uri in edit["changes"] if uri.endswith("events.cep"))
    assert "value_of_it      decimal(2)" in applied(EVENTS, edit["changes"][other])


def test_positions_behind_a_character_outside_of_the_basic_plane(session: Session) -> None:
    text = PATTERN.replace("status == declined", '"💳" == cuntry')
    broken = session.open(text)
    (diagnostic,) = [d for d in broken if d["code"] == "CEP201"]
    assert diagnostic["range"]["start"] == session.place("cuntry")


def test_lints_are_warnings_and_tests_have_a_lens(session: Session) -> None:
    diagnostics = session.open(PATTERN + 'test "t" of p { c: 0s transaction\n expect none }\n')
    assert [d["code"] for d in diagnostics] == ["CEP704"]
    lenses = session.client.ask("textDocument/codeLens", {"textDocument": {"uri": session.uri}})
    assert [lens["command"]["title"] for lens in lenses] == ["Run 1 test", "Run test"]


def test_a_lens_runs_its_test_on_the_text_of_the_editor(session: Session) -> None:
    tests = """test "fires" of p {
  c: 0s transaction amount=1.00 status=declined x2 every 1s  5s transaction amount=9.00
  expect match { total: 2.00 }
}
test "fires not" of p { c: 0s transaction  expect matches 1 }
test "is wrong" of p { c: 0s transactio  expect none }
"""
    session.open(PATTERN + tests)
    lenses = session.client.ask("textDocument/codeLens", {"textDocument": {"uri": session.uri}})
    outcomes = {}
    for lens in lenses:
        command = {key: lens["command"][key] for key in ("command", "arguments")}
        outcomes[command["arguments"][1]] = session.client.ask("workspace/executeCommand", command)
    assert outcomes["p: fires"] == {"ok": True, "text": "PASS  fires"}
    assert outcomes["p: fires not"]["text"].startswith("FAIL  fires not\n                expected 1 match, got 0\n")
    assert "is no probe: status == declined is not true (status = approved)" in outcomes["p: fires not"]["text"]
    assert outcomes["p: is wrong"] == {"ok": False, "text": "ERROR is wrong: it or its pattern has mistakes"}
    assert [line.split("  ")[0] for line in outcomes["p"]["text"].splitlines() if line[0] != " "][:2] == [
        "PASS",
        "FAIL",
    ]
    shown = [note["message"] for method, note in session.client.notes if method == "window/showMessage"]
    assert shown[1] == "p: fires: 1 of 1 passed"
    assert shown[0] == "p: 1 of 3 passed, not: fires not, is wrong"
    gone = session.client.ask("workspace/executeCommand", {"command": "cep.test", "arguments": [session.uri, "gone"]})
    assert gone["ok"] is False


@pytest.mark.slow
@pytest.mark.always
def test_what_only_the_compiler_knows_is_told_while_typing(session: Session) -> None:
    session.open(PATTERN)
    diagnostics = session.change("probe{least,} greedy -> hit", "(probe -> hit){9} -> ((x -> y){90} -> z){90}")
    assert "CEP425" in codes(diagnostics)

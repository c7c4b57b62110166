"""`cep lsp`: sessions over its pipes, hostile editors, and the extension for VS Code."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from lsprotocol import types

from cep.base.limits import EDITOR_MESSAGE_BYTES_MAX
from cep.cli import editor_texts
from cep.cli.editor_texts import pattern_files
from cep.cli.lsp import BoundedInput, server
from cep.lang.load import Checked, load_overlaid
from tests.lang.common import EVENTS
from tests.node_packages import EDITOR, NoNodeError, node_modules, run

# A client for tests: starts `cep lsp` as a process and speaks the protocol to it over its pipes.

_WAIT_SECONDS = 30


class Client:
    """One session. It stores notifications of the server by method."""

    def __init__(self, root: Path) -> None:
        code = "import sys; from cep.cli.main import main; sys.exit(main(['lsp']))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self.notes: list[tuple[str, Any]] = []
        self.last_id = 0
        self.root = root
        self.capabilities = self.ask(
            "initialize", {"processId": None, "rootUri": root.as_uri(), "capabilities": {}}
        )["capabilities"]  # fmt: skip
        self.tell("initialized", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask("shutdown", None)
        self.tell("exit", None)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(_WAIT_SECONDS)
        assert code == 0, code
        self.process.stdout.close()

    def tell(self, method: str, params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        """Send a request and wait for its answer."""
        answer = self._answer(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    def refused(self, method: str, params: Any) -> str:
        """Send a request that is refused, and return the reason."""
        return str(self._answer(method, params)["error"]["message"])

    def _answer(self, method: str, params: Any) -> dict[str, Any]:
        self.last_id += 1
        self._send({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self.last_id and "method" not in message:
                return message
            self.notes.append((message["method"], message["params"]))

    def diagnostics(self) -> list[dict[str, Any]]:
        """Return the next diagnostics that the server publishes."""
        while True:
            for index, (method, params) in enumerate(self.notes):
                if method == "textDocument/publishDiagnostics":
                    del self.notes[index]
                    return list(params["diagnostics"])
            message = self._receive()
            self.notes.append((message["method"], message["params"]))

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        size = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        assert size, "the server is gone"
        message: dict[str, Any] = json.loads(self.process.stdout.read(size))
        return message


# A session with the real server over its pipes: open, break, fix, hover, complete, define, rename, format.

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


TEST = """
test "fires" of p {
  c: 0s transaction amount=1.00 status=declined x2 every 1s  5s transaction amount=9.00
  expect match { total: 2.00 }
}
"""


class Session:
    """One open document of a workspace with two files."""

    def __init__(self, language_server: Client, path: Path) -> None:
        self.client, self.path, self.uri = language_server, path, path.as_uri()
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

    def refused(self, method: str, part: str, into: int = 0, **more: Any) -> str:
        params = {"textDocument": {"uri": self.uri}, "position": self.place(part, into), **more}
        return self.client.refused(f"textDocument/{method}", params)

    def of_document(self, method: str, **more: Any) -> Any:
        return self.client.ask(f"textDocument/{method}", {"textDocument": {"uri": self.uri}, **more})

    def words(self, part: str) -> list[str]:
        """Return the completions after a part of the text."""
        return [item["label"] for item in self.ask("completion", part, len(part))["items"]]


@pytest.fixture(scope="module")
def language_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield one server for all sessions: its start takes a second."""
    with Client(tmp_path_factory.mktemp("workspace")) as started:
        yield started


@pytest.fixture
def session(language_server: Client) -> Iterator[Session]:
    """Yield a session with a workspace of two files, and empty the workspace afterwards."""
    events, path = language_server.root / "events.cep", language_server.root / "p.cep"
    events.write_text(EVENTS, encoding="utf-8")
    path.write_text(PATTERN, encoding="utf-8")
    language_server.notes.clear()
    yield Session(language_server, path)
    language_server.tell("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
    events.unlink()
    path.unlink()


def codes(diagnostics: list[dict[str, Any]]) -> list[str]:
    return [d["code"] for d in diagnostics if d["severity"] == 1]


def applied(text: str, edits: list[dict[str, Any]]) -> str:
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
    assert "longest time from the first event" in session.ask("hover", "within", 1)["contents"]["value"]
    assert session.ask("hover", "Small ones", 1) is None
    # go to definition, also into another file
    (target,) = session.ask("definition", "transaction  status", 3)
    assert target["uri"].endswith("events.cep")
    (target,) = session.ask("definition", "least,}", 1)
    assert target["range"]["start"] == session.place("least: int")
    # rename
    edit = session.ask("rename", "probe{", 1, newName="attempt")
    renamed = applied(session.text, edit["changes"][session.uri])
    assert renamed == PATTERN.replace("probe", "attempt")
    assert session.refused("rename", "probe{", 1, newName="where") == "`where` is a word of the language"
    assert session.refused("rename", "probe{", 1, newName="hit") == "there is a variable `hit` already"
    assert session.refused("rename", "probe{", 1, newName="2x").startswith("`2x` is not a name")
    assert session.refused("rename", "sum(", 1, newName="total") == "`sum` is a function of the language"
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


def test_keywords_are_those_of_the_clause(session: Session) -> None:
    session.open(PATTERN)
    assert {"greedy", "within", "emit"} <= set(session.words("probe{least,} "))
    assert not {"like", "between"} & set(session.words("probe{least,} "))
    assert {"like", "between"} <= set(session.words("status == declined"))
    assert session.words('import "eve') == []
    items = session.ask("completion", PATTERN[-2:] + "", 2)["items"]
    assert next(item for item in items if item["label"] == "test")["insertText"].startswith('test "${1:fires}" of ')


def test_views_of_a_document(session: Session) -> None:
    text = PATTERN + TEST
    session.open(text)
    outline = session.of_document("documentSymbol")
    assert [item["name"] + item["detail"] for item in outline] == ["events.cep", "p", "firesof p"]
    assert outline[1]["range"]["start"] == session.place("## Small")
    assert outline[1]["selectionRange"]["start"] == session.place("p(least")
    (symbol,) = session.client.ask("workspace/symbol", {"query": "TRANS"})
    assert symbol["location"]["uri"].endswith("/events.cep")
    folds = session.of_document("foldingRange")
    assert (folds[0]["startLine"], folds[0]["endLine"]) == (3, 10)
    (link,) = session.of_document("documentLink")
    assert link["target"].endswith("/events.cep")
    (target,) = session.ask("definition", "events.cep", 3)
    assert target["uri"] == link["target"]
    marks = session.ask("documentHighlight", "probe{", 1)
    assert sorted(mark["range"]["start"]["line"] for mark in marks) == [6, 7, 8, 9]
    assert [mark["kind"] for mark in marks].count(3) == 1  # one place declares it
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 50, "character": 0}}
    (hint,) = session.of_document("inlayHint", range=whole)
    assert (hint["label"], hint["position"]) == (": decimal(2)", session.place("total =", 5))
    (selection,) = session.of_document("selectionRange", positions=[session.place("probe.amount)", 7)])
    starts = []
    while selection is not None:
        starts.append(selection["range"]["start"])
        selection = selection.get("parent")
    assert starts == [
        session.place("amount)"), session.place("probe.amount)"), session.after(session.place("{\n  seq"), "{"),
        session.place("## Small"), whole["start"],
    ]  # fmt: skip


def test_semantic_tokens_have_the_kind_of_each_name(session: Session) -> None:
    session.open(PATTERN)
    kinds = session.client.capabilities["semanticTokensProvider"]["legend"]["tokenTypes"]
    data = session.of_document("semanticTokens/full")["data"]
    lines, tokens, line, character = PATTERN.split("\n"), [], 0, 0
    for index in range(0, len(data), 5):
        line_step, step, length, kind, _ = data[index : index + 5]
        line, character = line + line_step, step if line_step else character + step
        tokens.append((lines[line][character : character + length], kinds[kind]))
    assert tokens[:6] == [
        ("p", "class"), ("least", "parameter"), ("card_id", "property"), ("probe", "variable"), ("least", "parameter"),
        ("hit", "variable"),
    ]  # fmt: skip
    assert ("declined", "enumMember") in tokens
    assert ("sum", "function") in tokens


def test_a_call_shows_its_signature(session: Session) -> None:
    session.open(PATTERN)
    help_ = session.ask("signatureHelp", "sum(", 4)
    assert help_["signatures"][0]["label"] == "sum(x.field)"
    session.change("amount > probe.amount", "round(amount, 1) > probe.amount")
    help_ = session.ask("signatureHelp", "round(amount, ", 14)
    assert help_["activeParameter"] == 1
    assert help_["signatures"][0]["label"].startswith("round(x)")
    assert session.ask("signatureHelp", "seq", 1) is None


def test_one_declaration_is_formatted(session: Session) -> None:
    ugly = PATTERN.replace("  seq    probe", "seq probe")
    session.open(ugly + TEST.replace("  expect", "expect"))
    line = session.place("seq probe")
    edits = session.client.ask(
        "textDocument/rangeFormatting",
        {"textDocument": {"uri": session.uri}, "range": {"start": line, "end": line},
         "options": {"tabSize": 2, "insertSpaces": True}},
    )  # fmt: skip
    assert applied(session.text, edits) == PATTERN + TEST.replace("  expect", "expect")


def test_a_pattern_and_its_parameters_are_renamed_in_rules(session: Session) -> None:
    folder = session.client.root / "rules"
    folder.mkdir()
    rule = 'id = "a"\npattern = "p"\nleast = 5\n\n[params]\nleast = 3\n\n[more]\nleast = 2\n'
    (folder / "a.toml").write_text(rule)
    (folder / "b.toml").write_text(rule.replace('"p"', '"other"'))
    try:
        session.open(PATTERN)
        edit = session.ask("rename", "p(least", 0, newName="q")
        (changed,) = [uri for uri in edit["changes"] if uri.endswith(".toml")]
        assert applied(rule, edit["changes"][changed]) == rule.replace('"p"', '"q"')
        edit = session.ask("rename", "least:", 1, newName="most")
        (changed,) = [uri for uri in edit["changes"] if uri.endswith(".toml")]
        assert applied(rule, edit["changes"][changed]) == rule.replace("[params]\nleast", "[params]\nmost")
    finally:
        shutil.rmtree(folder)


def test_diagnostics_come_once_for_a_burst_of_changes(session: Session) -> None:
    session.open(PATTERN)
    for number in range(5):
        session.version += 1
        text = PATTERN.replace("probe.amount)", f"probe.amont{number})")
        document = {"uri": session.uri, "version": session.version}
        session.client.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
    assert "amont4" in session.client.diagnostics()[0]["message"]


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


def test_what_only_the_compiler_knows_is_told_while_typing(session: Session) -> None:
    session.open(PATTERN)
    diagnostics = session.change("probe{least,} greedy -> hit", "(probe -> hit){9} -> ((x -> y){90} -> z){90}")
    assert "CEP425" in codes(diagnostics)


# A broken or hostile editor: every request gets an answer, and the session continues.


class Wire:
    """A server in this process, which gets messages as they come over the wire."""

    def __init__(self, root: Path) -> None:
        self.served = server()
        self.answers: list[dict[str, Any]] = []
        self.served.protocol.set_writer(self, include_headers=False)
        self.ask("initialize", {"processId": None, "rootUri": root.as_uri(), "capabilities": {}})

    def write(self, data: bytes) -> None:
        """Take a message of the server."""
        self.answers.append(json.loads(data))

    def close(self) -> None:
        """There is nothing to close."""

    def send(self, message: object) -> list[dict[str, Any]]:
        self.answers.clear()
        body = BoundedInput(io.BytesIO(json.dumps(message).encode())).read(1_000_000)
        protocol = self.served.protocol
        protocol.handle_message(json.loads(body, object_hook=protocol.structure_message))
        return list(self.answers)

    def ask(self, method: str, params: object) -> dict[str, Any]:
        """Send a request and return its one answer."""
        answers = self.send({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        (answer,) = [a for a in answers if a.get("id") == 7 and "method" not in a]
        return answer

    def open(self, uri: str, text: str) -> list[dict[str, Any]]:
        document = {"uri": uri, "languageId": "cep", "version": 1, "text": text}
        return self.send({"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": document}})


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    (tmp_path / "root").mkdir()
    return Wire(tmp_path / "root")


def names_in(folder: Path, *, below: bool = True) -> list[str]:
    return [str(path.relative_to(folder)) for path in pattern_files(folder, below=below)]


def test_so_many_files_of_a_workspace_are_looked_at_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.cep", "b/c.cep", "b/d/e.cep", ".hidden/f.cep", "z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(EVENTS)
    (tmp_path / "link").symlink_to(tmp_path / "b")
    assert names_in(tmp_path) == ["a.cep", "b/c.cep", "b/d/e.cep"]
    assert names_in(tmp_path, below=False) == ["a.cep"]
    assert names_in(tmp_path / "none") == []
    monkeypatch.setattr(editor_texts, "FOLDER_ENTRIES_MAX", 5 + 2)  # `d` is not opened
    assert names_in(tmp_path) == ["a.cep", "b/c.cep"]


@pytest.mark.parametrize(("method", "more"), [("references", {"context": {"includeDeclaration": True}}),
                                              ("rename", {"newName": "other"})])  # fmt: skip
def test_a_document_outside_of_the_workspace_has_the_files_beside_it_alone(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, more: dict[str, Any]
) -> None:
    (tmp_path / "beside.cep").write_text(EVENTS)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.cep").write_text(EVENTS)
    opened: list[str] = []

    def loaded(paths: Iterable[Path], *others: Any) -> Checked:
        files = list(paths)
        opened.extend(path.name for path in files)
        return load_overlaid(files, *others)

    monkeypatch.setattr(editor_texts, "load_overlaid", loaded)
    place = {"textDocument": {"uri": (tmp_path / "none").as_uri()}, "position": {"line": 0, "character": 0}}
    assert "error" not in wire.ask(f"textDocument/{method}", {**place, **more})
    assert set(opened) == {"none", "beside.cep"}


PLACES = ("hover", "completion", "definition", "prepareRename")


@pytest.mark.parametrize("method", PLACES)
@pytest.mark.parametrize("line", [-1, -(2**40), 2**40, "x", None])
def test_a_place_that_is_none_is_answered(wire: Wire, method: str, line: object) -> None:
    uri = (Path(wire.served.workspace.root_path or "") / "x.cep").as_uri()
    wire.open(uri, EVENTS)
    for position in ({"line": line, "character": 0}, {"line": 0, "character": line}):
        answer = wire.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": position})
        assert answer["error"]["code"] == -32602
        assert "Traceback" not in json.dumps(answer)
    answer = wire.ask(
        f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": {"line": 9_999, "character": 0}}
    )
    assert "error" not in answer


@pytest.mark.parametrize(
    "uri",
    ["file:///a%00b.cep", "file:///a\0b.cep", "untitled:Untitled-1", "", "file://", "file:///etc/passwd",
     "http://x/y.cep", "file:///" + "x" * 5_000, "%00", "file:///dev/zero"],
)  # fmt: skip
def test_a_document_that_is_no_file_is_answered(wire: Wire, uri: str) -> None:
    place = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
    for method in PLACES:  # not open: the content of a file is read, if allowed
        answer = wire.ask(f"textDocument/{method}", place)
        assert "error" not in answer, answer
        assert "root:" not in json.dumps(answer)
    notes = wire.open(uri, EVENTS + 'import "/etc/passwd"\n')
    assert any(note["method"] == "textDocument/publishDiagnostics" for note in notes)
    assert "root:" not in json.dumps(notes)
    for method in (*PLACES, "formatting", "codeLens", "references"):
        params: dict[str, Any] = {**place, "options": {"tabSize": 2, "insertSpaces": True}}
        if method == "references":
            params["context"] = {"includeDeclaration": True}
        assert "error" not in wire.ask(f"textDocument/{method}", params)


def test_a_uri_that_is_none_is_refused(wire: Wire) -> None:
    place = {"textDocument": {"uri": "file://[x/y"}, "position": {"line": 0, "character": 0}}
    for method in PLACES:
        assert wire.ask(f"textDocument/{method}", place)["error"]["code"] == -32602
    assert wire.open("file://[x/y", EVENTS) == []


def test_a_pipe_and_a_link_out_are_empty_documents(wire: Wire, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "secret.cep").write_text("event secret_name { }")
    os.mkfifo(root / "pipe.cep")
    (root / "link.cep").symlink_to(tmp_path / "secret.cep")
    for name in ("pipe.cep", "link.cep"):
        place = {"textDocument": {"uri": (root / name).as_uri()}, "position": {"line": 0, "character": 8}}
        for method in PLACES:
            assert "secret_name" not in json.dumps(wire.ask(f"textDocument/{method}", place))


@pytest.mark.parametrize(
    "message",
    [
        [], 1, "x", None, {}, {"jsonrpc": "2.0"}, {"jsonrpc": "1.0", "id": 1, "method": "shutdown"},
        {"jsonrpc": "2.0", "id": [1], "method": "textDocument/hover", "params": {}},
        {"jsonrpc": "2.0", "id": None, "method": "textDocument/hover"},
        {"jsonrpc": "2.0", "id": 1, "method": 5}, {"jsonrpc": "2.0", "method": {}},
        {"jsonrpc": "2.0", "id": {"jsonrpc": "2.0"}, "method": "x"},
        {"jsonrpc": "2.0", "id": 1, "method": "no/such"}, {"jsonrpc": "2.0", "method": "no/such"},
        {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": {
            "textDocument": {"uri": "file:///none", "version": 1}, "contentChanges": [{"text": "x"}]}},
        {"jsonrpc": "2.0", "method": "textDocument/didClose", "params": {"textDocument": {"uri": "file:///none"}}},
        {"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": 5}},
        {"jsonrpc": "2.0", "id": 99, "result": []}, {"jsonrpc": "2.0", "id": 99, "error": 5},
        {"jsonrpc": "2.0", "id": 1, "method": "workspace/executeCommand", "params": {"command": "cep.test"}},
        {"jsonrpc": "2.0", "id": 1, "method": "workspace/executeCommand",
         "params": {"command": "cep.test", "arguments": [1, 2]}},
        {"jsonrpc": "2.0", "id": 1, "method": "workspace/executeCommand", "params": {"command": "rm"}},
    ],
)  # fmt: skip
def test_what_is_no_message_does_not_end_the_session(wire: Wire, message: Any) -> None:
    answers = wire.send(message)
    assert "Traceback" not in json.dumps(answers)
    if isinstance(message, dict) and message.get("jsonrpc") == "2.0" and message.get("id") == 1:
        assert [a for a in answers if "id" in a and ("error" in a or "result" in a)]
    uri = (Path(wire.served.workspace.root_path or "") / "x.cep").as_uri()
    wire.open(uri, EVENTS)
    line = next(number for number, text in enumerate(EVENTS.splitlines()) if text.startswith("event "))
    place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": 7}}
    assert wire.ask("textDocument/hover", place)["result"] is not None


@pytest.mark.parametrize(
    ("head", "answered"),
    [
        ({"jsonrpc": "2.1", "id": 4}, 4), ({"jsonrpc": ["2.0"], "id": "a"}, "a"), ({"id": 4}, 4),
        ({"jsonrpc": "2.0", "id": {"x": 4}}, None), ({"jsonrpc": "2.0", "id": 4.5}, None),
        ({"jsonrpc": None, "id": [4]}, None), ({"jsonrpc": "2.0", "id": 4, "method": ""}, 4),
        ({"jsonrpc": "2.0", "id": None}, None),
    ],
)  # fmt: skip
def test_a_request_gets_one_answer_by_its_id(wire: Wire, head: dict[str, Any], answered: object) -> None:
    params = {"textDocument": {"uri": "file:///x"}, "position": {"line": 0, "character": 0}}
    (answer,) = wire.send({"method": "textDocument/hover", **head, "params": params})
    assert (answer["id"], answer["jsonrpc"]) == (answered, "2.0")
    assert answer["error"]["code"] in {-32600, -32700}


def test_a_request_before_the_session_begins_is_refused() -> None:
    wire = Wire.__new__(Wire)
    wire.served, wire.answers = server(), []
    wire.served.protocol.set_writer(wire, include_headers=False)
    place = {"textDocument": {"uri": "file:///x"}, "position": {"line": 0, "character": 0}}
    assert wire.ask("textDocument/hover", place)["error"]["code"] == -32002
    assert wire.open("file:///x", "") == []


def test_bytes_are_bounded() -> None:
    assert BoundedInput(io.BytesIO(b"Content-Length: " + b"9" * 5_000 + b"\r\n")).readline() == b""
    assert BoundedInput(io.BytesIO(b"Content-Length: 5\r\n")).readline() == b"Content-Length: 5\r\n"
    assert BoundedInput(io.BytesIO(b"{}")).read(EDITOR_MESSAGE_BYTES_MAX + 1) == b""
    for body in (b"[" * 100_000, b"{", b"\xff\xfe", b"9" * 5_000, b'{"a":' * 20_000):
        answered = BoundedInput(io.BytesIO(body)).read(len(body))
        assert json.loads(answered)["id"] is None
    assert types.INITIALIZE == "initialize"


# The extension for VS Code: its client's own protocol library against our server, and its package.


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return node_modules()
    except NoNodeError as error:
        raise pytest.skip.Exception(str(error)) from error  # Java and Python are enough for the project itself


def test_a_session_of_the_clients_library(modules: Path, tmp_path: Path) -> None:
    (tmp_path / "events.cep").write_text(EVENTS, encoding="utf-8")
    (tmp_path / "p.cep").write_text(PATTERN + TEST, encoding="utf-8")
    script = Path(__file__).parent / "editor_client.js"
    code = "import sys; from cep.cli.main import main; sys.exit(main(['lsp']))"
    root = str(Path(__file__).parents[2])
    server = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"]
    session = json.loads(run(["node", str(script), str(modules), str(tmp_path), *server], tmp_path))
    assert session["code"] == 0
    assert session["published"] == [["CEP704"], ["CEP305", "CEP704"], ["CEP704"]]
    assert "probe: transaction  status == declined" in session["hover"]["contents"]["value"]
    assert [item["label"] for item in session["completion"]["items"]][:3] == ["approved", "declined", "reversed"]
    assert len(session["definition"]) == 1
    (edits,) = session["rename"]["changes"].values()
    assert {edit["newText"] for edit in edits} == {"attempt"}
    assert len(session["formatting"]) == 1
    assert [lens["command"]["title"] for lens in session["lenses"]] == ["Run 1 test", "Run test"]
    # The client turns each command of the server into a command of the editor: the extension declares none itself.
    assert session["capabilities"]["executeCommandProvider"]["commands"] == [session["lenses"][0]["command"]["command"]]
    assert session["run"] == {"ok": True, "text": "PASS  fires"}
    assert session["messages"] == ["p: fires: 1 of 1 passed"]


@pytest.mark.slow
def test_the_extension_is_packaged(modules: Path, tmp_path: Path) -> None:
    folder = tmp_path / "editor"
    shutil.copytree(EDITOR, folder, ignore=shutil.ignore_patterns("node_modules", "*.vsix"))
    run(["npm", "install", "--omit=dev", "--prefer-offline", "--no-audit", "--no-fund"], folder)
    vsce = modules / "@vscode" / "vsce" / "vsce"
    package = ["node", str(vsce), "package", "--allow-missing-repository", "--skip-license", "--out", "x.vsix"]
    run(package, folder)
    names = zipfile.ZipFile(folder / "x.vsix").namelist()
    packed_names = ("extension.js", "package.json", "language-configuration.json", "syntaxes/cep.tmLanguage.json")
    for name in (*packed_names, "node_modules/vscode-languageclient/node.js"):
        assert f"extension/{name}" in names
    assert not [name for name in names if "vsce" in name or "textmate" in name.removeprefix("extension/syntaxes")]

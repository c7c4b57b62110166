"""A broken or hostile editor: every request gets an answer, and the session continues."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from cep.base.limits import EDITOR_MESSAGE_BYTES_MAX
from cep.cli import lsp
from cep.cli.lsp import pattern_files, server
from cep.cli.lsp_wire import BoundedInput
from cep.lang.load import Checked, load_overlaid
from tests.lang.common import EVENTS


class Session:
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
        """Send one message, and return the answers."""
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
def session(tmp_path: Path) -> Session:
    (tmp_path / "root").mkdir()
    return Session(tmp_path / "root")


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
    monkeypatch.setattr(lsp, "FOLDER_ENTRIES_MAX", 5 + 2)  # `d` is not opened
    assert names_in(tmp_path) == ["a.cep", "b/c.cep"]


@pytest.mark.parametrize(("method", "more"), [("references", {"context": {"includeDeclaration": True}}),
                                              ("rename", {"newName": "other"})])  # fmt: skip
def test_a_document_outside_of_the_workspace_has_the_files_beside_it_alone(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, more: dict[str, Any]
) -> None:
    (tmp_path / "beside.cep").write_text(EVENTS)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.cep").write_text(EVENTS)
    opened: list[str] = []

    def loaded(paths: Iterable[Path], *others: Any) -> Checked:
        files = list(paths)
        opened.extend(path.name for path in files)
        return load_overlaid(files, *others)

    monkeypatch.setattr(lsp, "load_overlaid", loaded)
    place = {"textDocument": {"uri": (tmp_path / "none").as_uri()}, "position": {"line": 0, "character": 0}}
    assert "error" not in session.ask(f"textDocument/{method}", {**place, **more})
    assert opened == ["none", "beside.cep"]


PLACES = ("hover", "completion", "definition", "prepareRename")


@pytest.mark.parametrize("method", PLACES)
@pytest.mark.parametrize("line", [-1, -(2**40), 2**40, "x", None])
def test_a_place_that_is_none_is_answered(session: Session, method: str, line: object) -> None:
    uri = (Path(session.served.workspace.root_path or "") / "x.cep").as_uri()
    session.open(uri, EVENTS)
    for position in ({"line": line, "character": 0}, {"line": 0, "character": line}):
        answer = session.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": position})
        assert answer["error"]["code"] == -32602
        assert "Traceback" not in json.dumps(answer)
    answer = session.ask(
        f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": {"line": 9_999, "character": 0}}
    )
    assert "error" not in answer


@pytest.mark.parametrize(
    "uri",
    ["file:///a%00b.cep", "file:///a\0b.cep", "untitled:Untitled-1", "", "file://", "file:///etc/passwd",
     "http://x/y.cep", "file:///" + "x" * 5_000, "%00", "file:///dev/zero"],
)  # fmt: skip
def test_a_document_that_is_no_file_is_answered(session: Session, uri: str) -> None:
    place = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
    for method in PLACES:  # not open: the content of a file is read, if allowed
        answer = session.ask(f"textDocument/{method}", place)
        assert "error" not in answer, answer
        assert "root:" not in json.dumps(answer)
    notes = session.open(uri, EVENTS + 'import "/etc/passwd"\n')
    assert any(note["method"] == "textDocument/publishDiagnostics" for note in notes)
    assert "root:" not in json.dumps(notes)
    for method in (*PLACES, "formatting", "codeLens", "references"):
        params: dict[str, Any] = {**place, "options": {"tabSize": 2, "insertSpaces": True}}
        if method == "references":
            params["context"] = {"includeDeclaration": True}
        assert "error" not in session.ask(f"textDocument/{method}", params)


def test_a_uri_that_is_none_is_refused(session: Session) -> None:
    place = {"textDocument": {"uri": "file://[x/y"}, "position": {"line": 0, "character": 0}}
    for method in PLACES:
        assert session.ask(f"textDocument/{method}", place)["error"]["code"] == -32602
    assert session.open("file://[x/y", EVENTS) == []


def test_a_pipe_and_a_link_out_are_empty_documents(session: Session, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "secret.cep").write_text("event secret_name { }")
    os.mkfifo(root / "pipe.cep")
    (root / "link.cep").symlink_to(tmp_path / "secret.cep")
    for name in ("pipe.cep", "link.cep"):
        place = {"textDocument": {"uri": (root / name).as_uri()}, "position": {"line": 0, "character": 8}}
        for method in PLACES:
            assert "secret_name" not in json.dumps(session.ask(f"textDocument/{method}", place))


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
def test_what_is_no_message_does_not_end_the_session(session: Session, message: Any) -> None:
    answers = session.send(message)
    assert "Traceback" not in json.dumps(answers)
    if isinstance(message, dict) and message.get("jsonrpc") == "2.0" and message.get("id") == 1:
        assert [a for a in answers if "id" in a and ("error" in a or "result" in a)]
    uri = (Path(session.served.workspace.root_path or "") / "x.cep").as_uri()
    session.open(uri, EVENTS)
    line = next(number for number, text in enumerate(EVENTS.splitlines()) if text.startswith("event "))
    place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": 7}}
    assert session.ask("textDocument/hover", place)["result"] is not None


@pytest.mark.parametrize(
    ("head", "answered"),
    [
        ({"jsonrpc": "2.1", "id": 4}, 4), ({"jsonrpc": ["2.0"], "id": "a"}, "a"), ({"id": 4}, 4),
        ({"jsonrpc": "2.0", "id": {"x": 4}}, None), ({"jsonrpc": "2.0", "id": 4.5}, None),
        ({"jsonrpc": None, "id": [4]}, None), ({"jsonrpc": "2.0", "id": 4, "method": ""}, 4),
        ({"jsonrpc": "2.0", "id": None}, None),
    ],
)  # fmt: skip
def test_a_request_gets_one_answer_by_its_id(session: Session, head: dict[str, Any], answered: object) -> None:
    params = {"textDocument": {"uri": "file:///x"}, "position": {"line": 0, "character": 0}}
    (answer,) = session.send({"method": "textDocument/hover", **head, "params": params})
    assert (answer["id"], answer["jsonrpc"]) == (answered, "2.0")
    assert answer["error"]["code"] in {-32600, -32700}


def test_a_request_before_the_session_begins_is_refused() -> None:
    session = Session.__new__(Session)
    session.served, session.answers = server(), []
    session.served.protocol.set_writer(session, include_headers=False)
    place = {"textDocument": {"uri": "file:///x"}, "position": {"line": 0, "character": 0}}
    assert session.ask("textDocument/hover", place)["error"]["code"] == -32002
    assert session.open("file:///x", "") == []


def test_bytes_are_bounded() -> None:
    assert BoundedInput(io.BytesIO(b"Content-Length: " + b"9" * 5_000 + b"\r\n")).readline() == b""
    assert BoundedInput(io.BytesIO(b"Content-Length: 5\r\n")).readline() == b"Content-Length: 5\r\n"
    assert BoundedInput(io.BytesIO(b"{}")).read(EDITOR_MESSAGE_BYTES_MAX + 1) == b""
    for body in (b"[" * 100_000, b"{", b"\xff\xfe", b"9" * 5_000, b'{"a":' * 20_000):
        answered = BoundedInput(io.BytesIO(body)).read(len(body))
        assert json.loads(answered)["id"] is None
    assert types.INITIALIZE == "initialize"

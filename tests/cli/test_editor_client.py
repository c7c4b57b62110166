"""The extension for VS Code: its client's own protocol library against our server, and its package."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.test_lsp import PATTERN
from tests.lang.common import EVENTS
from tests.node_packages import EDITOR, NoNodeError, node_modules, run

TEST = """
test "fires" of p {
  c: 0s transaction amount=1.00 status=declined x2 every 1s  5s transaction amount=9.00
  expect match { total: 2.00 }
}
"""


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return node_modules()
    except NoNodeError as error:
        raise pytest.skip.Exception(str(error)) from error  # Java and Python are enough for the project itself


@pytest.mark.slow
@pytest.mark.always
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

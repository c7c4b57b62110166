"""Errors and diagnostics name an existing page."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base import errors
from cep.base.errors import CepError, SinkError, StateCorruptError, StateFormatError, UsageError
from cep.cli.doc_pages import page_paths
from cep.cli.help_pages import CODE_PAGES, ERROR_PAGES, RULE_FILES, page_of_code, page_of_error
from cep.cli.main import main
from cep.cli.verbs import VERBS
from cep.lang.explain.catalogue import CATALOGUE


def test_every_page_is_there() -> None:
    pages = {verb.page for verb in VERBS.values() if verb.page is not None}
    named = {*pages, *ERROR_PAGES.values(), *CODE_PAGES.values(), RULE_FILES}
    assert named - page_paths().keys() == set()


def test_every_verb_has_a_page_but_the_one_of_pages() -> None:
    assert [name for name, verb in VERBS.items() if verb.page is None] == ["docs"]


def test_every_error_has_a_page() -> None:
    classes = [class_ for class_ in vars(errors).values() if isinstance(class_, type) and issubclass(class_, CepError)]
    without = [class_ for class_ in classes if page_of_error(class_.__new__(class_), "replay") is None]
    assert without == [CepError]
    assert page_of_error(StateFormatError(), "run") == "guides/move"
    assert page_of_error(StateCorruptError(), "run") == "guides/operate"
    assert page_of_error(UsageError(), "docs") is None


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_has_a_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 0
    assert f"`cep docs {page_of_code(code)}`" in capsys.readouterr().out.splitlines()[-1]


def test_an_error_ends_with_its_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*_: object) -> int:
        raise SinkError("disk full")

    monkeypatch.setattr("cep.cli.check.run", run)
    assert main(["check", "x.cep"]) == 3
    assert capsys.readouterr().err.splitlines() == ["cep: disk full", "read on: `cep docs guides/operate`"]


@pytest.mark.parametrize("verb", ["check", "lint", "test"])
def test_a_mistake_names_the_code_and_the_page(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.cep"
    file.write_text("event e { id id  event_time time  k string }\npattern p by k { seq a where a: e amont > 2 }\n")
    assert main([verb, str(file)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "read on: `cep explain CEP201`, `cep docs reference/language/declarations`"

"""Files, imports and bundles. Files below the root only are read, and messages quote no outside file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.base.limits import IMPORTS_MAX, SOURCE_BYTES_MAX
from cep.cli.main import main
from cep.lang.load import bundle_checked, bundle_source, load_files, load_overlaid, load_text
from cep.nfa.compile import compilable
from cep.rulebook.files import declared_lists, read_rule_file, read_rules
from tests.lang.common import EVENTS, shown
from tests.output_of import OutputOf
from tests.rule_files import rule_text

USES = 'import "events.cep"\nimport "lists.cep"\npattern p by card_id { seq a where a: transaction country in bad }\n'
_PATTERN = "pattern p by card_id { seq a where a: transaction }\n"
_OTHER = _PATTERN.replace("pattern p", "pattern q")
LISTS = 'import "events.cep"\nlist bad = ["KP", "IR"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events.cep").write_text("# the events\n" + EVENTS, encoding="utf-8")
    (tmp_path / "lists.cep").write_text(LISTS, encoding="utf-8")
    (tmp_path / "p.cep").write_text(USES, encoding="utf-8")
    return tmp_path


def test_imports_are_relative_and_read_once(folder: Path) -> None:
    checked = load_files([folder / "p.cep"])
    assert checked.ok, shown(checked)
    assert [Path(name).name for name in checked.sources] == ["p.cep", "events.cep", "lists.cep"]
    assert checked.lists == {"bad": ("KP", "IR")}
    assert [e.name for e in checked.schema.event_types] == ["transaction"]


def test_files_are_checked_together(folder: Path) -> None:
    (folder / "q.cep").write_text(USES.replace("pattern p", "pattern q"), encoding="utf-8")
    checked = load_files([folder / "p.cep", folder / "q.cep", folder / ".." / folder.name / "p.cep"])
    assert checked.ok, shown(checked)
    assert list(checked.patterns) == ["p", "q"]


def test_a_duplicate_in_two_files_points_at_both(folder: Path) -> None:
    (folder / "q.cep").write_text(USES, encoding="utf-8")
    (diagnostic,) = load_files([folder / "p.cep", folder / "q.cep"]).diagnostics
    assert diagnostic.code == "CEP207"
    assert diagnostic.span is not None
    assert diagnostic.span.file.endswith("q.cep")
    assert diagnostic.labels[0].span.file.endswith("p.cep")


def test_a_bundle_has_everything_once_and_means_the_same(folder: Path) -> None:
    (folder / "lists.cep").write_text("\ufeff" + LISTS, encoding="utf-8")
    text = bundle_source(folder / "p.cep")
    assert text.count("event transaction") == 1
    assert "import" not in text
    assert load_text(text).ok
    assert load_text(text).patterns == load_files([folder / "p.cep"]).patterns


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "patterns").glob("*.cep")), ids=lambda p: p.stem)
def test_a_bundle_is_checked_from_the_syntax_of_its_files(path: Path) -> None:
    bundle = bundle_checked(path)
    assert bundle.text == bundle_source(path)
    assert bundle.checked == load_text(bundle.text).without_syntax()


@pytest.mark.parametrize(
    "text",
    [
        '## Of the import.\nimport "events.cep"\n' + _PATTERN,
        '## Of the import.\n# A comment.\n\nimport "events.cep"\n' + _PATTERN,
        '\ufeff## Of the import.\nimport "pattern.cep"\n' + _PATTERN,
        'import "events.cep" ' + _PATTERN,
        'import "events.cep"\n' + _PATTERN + '## Of the test.\ntest "t" of p { events { } expect { } }\n' + _OTHER,
        'import "ends.cep"\n' + _PATTERN,
        'import "events.cep"\n' + _PATTERN + "pattern { }",
        'import "events.cep"\n' + _PATTERN.replace("card_id", "card_idd"),
    ],
)
def test_a_bundle_that_may_read_otherwise_than_its_files_says_nothing_else(tmp_path: Path, text: str) -> None:
    """A doc comment may end up before another declaration, and a warning has its place only in the text."""
    (tmp_path / "events.cep").write_text(EVENTS, encoding="utf-8")
    (tmp_path / "pattern.cep").write_text(_OTHER + EVENTS, encoding="utf-8")
    (tmp_path / "ends.cep").write_text(EVENTS + "## Of what follows.\n", encoding="utf-8")
    (tmp_path / "p.cep").write_text(text, encoding="utf-8")
    try:
        bundle = bundle_checked(tmp_path / "p.cep")
    except UsageError:
        with pytest.raises(UsageError):
            bundle_source(tmp_path / "p.cep")
        return
    assert bundle.checked in (None, load_text(bundle.text).without_syntax())


def test_a_bundle_of_a_circle_or_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cep").write_text('import "b.cep"\n', encoding="utf-8")
    (tmp_path / "b.cep").write_text('import "a.cep"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="CEP209"):
        bundle_source(tmp_path / "a.cep")
    with pytest.raises(UsageError, match="no such file"):
        bundle_source(tmp_path / "none.cep")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff\xfe", "not UTF-8"), (b" " * (SOURCE_BYTES_MAX + 1), "larger than"), (None, "no such file")],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "x.cep"
    if content is not None:
        path.write_bytes(content)
    (diagnostic,) = load_files([path]).diagnostics
    assert diagnostic.code == "CEP110"
    assert reason in diagnostic.message


def test_strange_paths_are_refused() -> None:
    for path in ("", "\0", "/" * 5_000, "x" * 5_000, "."):
        assert not load_files([path]).ok
        diagnostic = load_text(f'import "{path}"', "x.cep").diagnostics[-1]
        assert diagnostic.code in ("CEP208", "CEP101")


def test_a_text_alone_imports_nothing_but_a_resolver_may_say_otherwise() -> None:
    assert [d.code for d in load_text('import "events.cep"').diagnostics] == ["CEP208"]
    checked = load_text('import "e"\npattern p by card_id { seq a }', resolver=lambda _, path: (path, EVENTS))
    assert checked.ok
    assert list(checked.sources) == ["<text>", "e"]


def test_a_text_that_is_too_large_is_refused() -> None:
    assert [d.code for d in load_text("#" * (SOURCE_BYTES_MAX + 1)).diagnostics] == ["CEP110"]


def test_a_long_chain_of_imports_ends() -> None:
    checked = load_text('import "1"', resolver=lambda _, path: (path, f'import "{int(path) + 1}"'))
    assert "CEP208" in [d.code for d in checked.diagnostics]


def test_the_last_file_may_import_one_that_was_read() -> None:
    texts = {f"{n}": f"list l{n} = [{n}]" for n in range(IMPORTS_MAX)}
    texts[f"{IMPORTS_MAX - 2}"] = 'import "0"'
    text = "".join(f'import "{n}"\n' for n in range(IMPORTS_MAX - 1))
    assert load_text(text, resolver=lambda _, path: (path, texts[path])).ok
    more = load_text(text + f'import "{IMPORTS_MAX - 1}"', resolver=lambda _, path: (path, texts[path]))
    assert [d.code for d in more.diagnostics] == ["CEP208"]


def test_an_empty_text_is_clean() -> None:
    checked = load_text("")
    assert checked.ok
    assert not checked.patterns


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    text = ("\ufeff" + EVENTS + "pattern p by card_id { seq a }").replace("\n", "\r\n")
    assert load_text(text).ok


SECRET = "root:x:0:0:a-secret-line"


@pytest.fixture
def patterns_folder(tmp_path: Path) -> Path:
    """Make a folder for the job, next to a secret outside it."""
    (tmp_path / "secret.cep").write_text(SECRET)
    (tmp_path / "secret.csv").write_text(f"blocked\n{SECRET}\n")
    patterns = tmp_path / "given" / "patterns"
    patterns.mkdir(parents=True)
    (patterns / "linked.cep").symlink_to(tmp_path / "secret.cep")
    (patterns / "linked.csv").symlink_to(tmp_path / "secret.csv")
    os.mkfifo(patterns / "pipe")
    return patterns


def _import(name: str) -> str:
    return f'import "{name}"\n{EVENTS}\npattern p by card_id {{ seq a where a: transaction }}\n'


def _list(name: str) -> str:
    text = 'list blocked: int from "NAME"\npattern p by card_id { seq a where a: transaction amount in blocked }\n'
    return EVENTS + text.replace("NAME", name)


@pytest.mark.parametrize("write", [_import, _list])
@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../../secret.cep", "../../secret.csv", "linked.cep", "linked.csv", "/dev/zero", "pipe", "."],
)
def test_nothing_outside_is_read_or_quoted(patterns_folder: Path, write: Callable[[str], str], name: str) -> None:
    (patterns_folder / "x.cep").write_text(write(name))
    for checked in (
        compilable(load_files([patterns_folder / "x.cep"])),
        compilable(load_overlaid([patterns_folder / "x.cep"], {})),
    ):
        text = shown(checked)
        assert any(d.code in ("CEP208", "CEP801") for d in checked.diagnostics), text
        assert "root:" not in text
        assert SECRET not in "".join(checked.sources.values())


def test_a_link_among_the_files_of_a_folder_is_refused(
    patterns_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (patterns_folder / "pipe").unlink()
    for verb in ("check", "lint", "fmt", "test", "plan"):
        assert main([verb, str(patterns_folder)]) != 0
        output = capsys.readouterr()
        assert "not below" in output.out + output.err
        assert "a-secret" not in output.out + output.err


def test_a_pipe_named_like_a_pattern_does_not_stop_a_verb(patterns_folder: Path, output_of: OutputOf) -> None:
    (patterns_folder / "pipe").rename(patterns_folder / "pipe.cep")
    assert "no regular file" in output_of(main(["check", str(patterns_folder / "pipe.cep")]), 1).out


def test_a_repository_is_the_root_of_all_that_is_in_it(patterns_folder: Path) -> None:
    (patterns_folder.parent / "common").mkdir()
    (patterns_folder.parent / "common" / "events.cep").write_text(EVENTS)
    (patterns_folder / "x.cep").write_text('import "../common/events.cep"\n')
    (diagnostic,) = load_files([patterns_folder / "x.cep"]).diagnostics
    assert "not below" in diagnostic.message
    (patterns_folder.parent / ".git").mkdir()
    assert load_files([patterns_folder / "x.cep"]).ok
    assert "event transaction" in bundle_source(patterns_folder / "x.cep")


def test_rules_name_patterns_beside_their_folder_and_no_further(patterns_folder: Path) -> None:
    rules = patterns_folder.parent / "rules"
    rules.mkdir()
    (patterns_folder / "x.cep").write_text(EVENTS + "pattern p by card_id { seq a where a: transaction }\n")
    (rules / "good.toml").write_text(rule_text("good", "../patterns/x.cep", pattern="p"))
    assert [record.id for record in read_rules(rules)[0]] == ["good"]
    for name in ("../../secret.cep", "/etc/passwd", "../patterns/linked.cep", "../patterns/pipe"):
        (rules / "good.toml").write_text(rule_text("good", name, pattern="p"))
        records, problems = read_rules(rules)
        assert records == []
        assert "not below" in problems[0] or "no regular file" in problems[0]
        assert "root:" not in "".join(problems)
        assert declared_lists(rules)[0] == []
    (rules / "good.toml").unlink()
    (rules / "good.toml").symlink_to(patterns_folder.parent.parent / "secret.cep")
    assert "not below" in "".join(read_rules(rules)[1])
    assert read_rule_file(rules / "good.toml") is None

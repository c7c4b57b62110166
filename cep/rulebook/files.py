"""Control records from a folder of rule files, or from a file with the history of a control topic.

The folder `rules/signed/` has a file for each signed change, in the form of the control topic:

    rules/signed/card_testing.2.json     version 2 of a rule, also as a retirement or a rollback
    rules/signed/card_testing.pause.1.json

Such a file has a record per line; a list may need several. It is published as it was signed, byte for byte.
Tested by: tests/rulebook/test_files.py.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import Folder, read_file, repository_of, repository_root, write_file
from cep.base.limits import (
    CONTROL_FILE_BYTES_MAX,
    CONTROL_RECORD_BYTES_MAX,
    IMPORTS_MAX,
    LIST_PARTS_MAX,
    RULE_FILE_BYTES_MAX,
)
from cep.base.process import paused
from cep.lang.load import bundle_checked, load_files, read_source
from cep.lang.parse.lexer import without_comments
from cep.lists.store import ListStore, given_name
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    ListRecord,
    RetireRecord,
    RollbackRecord,
    RuleFile,
    SnoozeRecord,
    UpsertRecord,
    name_problem,
    parse_control,
    parse_rule_file,
    upsert_of,
)
from cep.model.setting_types import Problem
from cep.nfa.lists import GivenList, given_lists
from cep.rulebook.compatible import cache_checked
from cep.rulebook.lock import oldest_first, read_lock
from cep.rulebook.meaning import content_hash
from cep.rulebook.trust import Signable, digest_of, version_line

_TEXTS_CACHED = 4_096  # rules and the lists of their patterns are read one after the other
_LIST = re.compile(r"\blist\b")
_IMPORT = re.compile(r'\bimport\b[^"]*"((?:[^"\\]|\\.)*)"')


def read_rules(directory: Path) -> tuple[list[UpsertRecord], list[str]]:
    """Read all rule files (`*.toml`) of a folder.

    Returns: the valid records, in the order of rules.lock, and `file: $.path: message` of each problem.
    """
    records: list[UpsertRecord] = []
    problems: list[str] = []
    names = _rule_names(directory)
    if not names:
        problems.append(f"{directory}: no rule files (*.toml) here")
    root = root_of_rules(directory)
    texts = _PatternTexts(directory, root)
    with paused(), Folder(directory, root) as folder:  # `paused`: without Python's cyclic garbage collector
        for name in names:
            result = _read_rule(name, folder, texts)
            if isinstance(result, UpsertRecord):
                records.append(result)
            else:
                problems.extend(f"{directory / name}: {problem}" for problem in result)
    return oldest_first(records, directory), problems


class _PatternTexts:
    """The pattern files that rules of a folder name, with imports in their place, each read once."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.directory, self.root = directory, root
        self._texts: dict[str, str | UsageError] = {}

    def text(self, file: str) -> str:
        """Return a pattern file with its imports in their place. Raises: UsageError as `bundle_checked`."""
        if file not in self._texts:
            try:
                bundle = bundle_checked(self.directory / file, self.root)
                cache_checked(bundle)  # the text is checked already, so that the compiler need not check it again
                self._texts[file] = bundle.text
            except UsageError as error:
                self._texts[file] = error  # for the next rule of this file
        text = self._texts[file]
        if isinstance(text, UsageError):
            raise text
        return text


def declared_lists(directory: Path) -> tuple[list[GivenList], list[str]]:
    """Return the lists with entries that the pattern files of a folder's rules declare, and a line for each problem."""
    lists: dict[tuple[str, str], tuple[GivenList, Path]] = {}
    problems: list[str] = []
    root = root_of_rules(directory)
    files = {rule.file for rule in _rule_files(directory, root)}
    quick_search = _QuickListSearch(root)
    for path in sorted({directory / file for file in files}):
        if not quick_search.may_declare(path):  # most files declare none: it takes long to compile them
            continue
        declared_lists = given_lists(load_files([path], root))
        problems += [f"{path}: {d.code} {d.message}" for d in declared_lists.diagnostics if d.is_error]
        for list_key, declared in declared_lists.lists.items():
            if (problem := name_problem("list", list_key[0])) is not None:
                problems.append(f"{path}: $: {problem}")
                continue
            first, elsewhere = lists.setdefault(list_key, (declared, path))
            if first.content.digest != declared.content.digest:
                problems.append(f"{path}: $: the list `{list_key[0]}` holds something else in {elsewhere}")
    return [declared for _, (declared, _) in sorted(lists.items())], problems


def read_lists(directory: Path, store: ListStore) -> tuple[list[ListRecord], list[str]]:
    """Return a record for each declared list, whose entries go into `store`, and a line for each problem."""
    lists, problems = declared_lists(directory)
    return [list_record(declared, store) for declared in lists], problems


def list_record(source: GivenList, store: ListStore) -> ListRecord:
    """Return the first version of a declared list; its entries go into `store`."""
    name = given_name(source.kind, source.content.digest)
    store.put(name, lambda: source.content.base)
    return ListRecord(id=source.name, of=source.kind, version=1, change="replace", stored=name)


def _rule_names(directory: Path) -> list[str]:
    """Return the names of the rule files of a folder in order; empty if it is not a readable folder."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(".toml"))
    except OSError:
        return []


def _rule_files(directory: Path, root: Path) -> Iterator[RuleFile]:
    with Folder(directory, root) as folder:
        for name in _rule_names(directory):
            with suppress(UnreadableError):  # `read_rules` says why
                rule, _ = _parsed(folder.read(name, RULE_FILE_BYTES_MAX))
                if rule is not None:
                    yield rule


def root_of_rules(directory: Path) -> Path:
    """Return the folder below which rules may name files: their repository, or the parent of their folder.

    Rules and patterns are in sibling folders. A folder below the root of the file system is itself the limit.
    """
    real = Path(os.path.realpath(directory))
    above = real.parent
    return repository_of(real) or (real if above == Path(above.anchor) else above)


class _QuickListSearch:
    """A quick look for pattern files that may declare lists: reading all of them completely is slow."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: dict[Path, tuple[bool, set[Path]]] = {}

    def may_declare(self, path: Path) -> bool:
        """Return True if a pattern file, or one that it imports, may declare a list."""
        waiting, visited = [path], {path}
        while waiting:
            declares, imported = self._look(waiting.pop())
            if declares:
                return True
            new = imported - visited
            visited |= new
            waiting += new if len(visited) <= IMPORTS_MAX else ()
        return False

    def _look(self, path: Path) -> tuple[bool, set[Path]]:
        if path not in self._seen:
            try:
                text = without_comments(read_source(path, self._root))
            except UnreadableError:
                text = ""  # `read_rules` reports the error
            names = _IMPORT.findall(text)
            declares = _LIST.search(text) is not None or any("\\" in name for name in names)  # escapes stay unread
            self._seen[path] = declares, {path.parent / name for name in names}
        return self._seen[path]


def read_rule_file(path: Path, root: Path | None = None) -> RuleFile | None:
    """Read one rule file as it is written; None if it is invalid. `read_rules` reports the reason."""
    try:
        return _parsed(read_file(path, RULE_FILE_BYTES_MAX, root or root_of_rules(path.parent)))[0]
    except UnreadableError:
        return None


def read_control(path: Path) -> tuple[list[ControlRecord], list[str]]:
    """Read a file of control records, one JSON object per line, as a consumer of the topic would.

    Returns: the valid records in order, and `file:line: $.path: message` of each problem. Raises: UsageError.
    """
    try:
        lines = read_file(path, CONTROL_FILE_BYTES_MAX).split(b"\n")  # as a job divides a file of a folder
    except UnreadableError as error:
        raise UsageError(f"--control {path} cannot be read: {error}") from error
    records: list[ControlRecord] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record, mistakes = parse_control(line)
        problems += [f"{path}:{number}: {problem}" for problem in mistakes]
        if record is not None:
            records.append(record)
    return records, problems


@lru_cache(_TEXTS_CACHED)
def _parsed(text: bytes) -> tuple[RuleFile | None, list[Problem]]:
    return parse_rule_file(text)


def _read_rule(name: str, folder: Folder, texts: _PatternTexts) -> UpsertRecord | list[str]:
    """Read a rule file and the pattern file that it names. Return the rule's record, or the problems."""
    try:
        text = folder.read(name, RULE_FILE_BYTES_MAX)
    except UnreadableError as error:
        return [f"$: cannot be read: {error}"]
    rule, mistakes = _parsed(text)
    if rule is None:
        return [str(problem) for problem in mistakes]
    if f"{rule.id}.toml" != name:  # otherwise two files could have different rules under one id and version
        return [f"$.id: is `{rule.id}`, but the file is named `{name}`; name the file `{rule.id}.toml`"]
    try:
        source = texts.text(rule.file)
    except UsageError as error:
        return [f"$.file: {error}"]
    return upsert_of(rule, source)


_GIT_S = 60
_COMMITS_MAX = 1_000


def history(directory: Path, rule_id: str) -> list[str]:
    """Return `HASH date author: subject` of each commit of a rule's file, the newest first; none without git."""
    log = _git(directory, "log", f"-{_COMMITS_MAX}", "--format=%H %as %an: %s", "--", f"{rule_id}.toml")
    return log.decode(errors="replace").splitlines()


def at_commit(directory: Path, commit: str, rule_id: str) -> UpsertRecord | None:
    """Read a rule and its pattern as of a commit; None if it was missing or wrong. Cost: as `folder_at`."""
    with folder_at(directory, commit) as folder:
        if folder is None:
            return None
        records, _ = read_rules(folder)
    return next((record for record in records if record.id == rule_id), None)


def in_git(directory: Path, rule_id: str, version: int) -> UpsertRecord | None:
    """Return the version from the newest commit that has it, or None."""
    for commit in history(directory, rule_id):
        record = at_commit(directory, commit.split(" ", 1)[0], rule_id)
        if record is not None and record.version == version:
            return record
    return None


@contextmanager
def folder_at(directory: Path, commit: str) -> Iterator[Path | None]:
    """Unpack a whole commit, because patterns may import any file. Yield the folder there, None without the commit."""
    top = _git(directory, "rev-parse", "--show-toplevel").decode().strip() if directory.is_dir() else ""
    archive = _git(Path(top), "archive", "--format=zip", commit) if top else b""
    if not archive:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder)  # no links, nothing outside of the folder
        yield Path(folder) / directory.resolve().relative_to(Path(top).resolve())


def _git(directory: Path, *arguments: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        return b""
    command = [git, "-C", str(directory), *arguments]
    process = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_S)  # noqa: S603 no shell, our arguments
    return process.stdout if process.returncode == 0 else b""


SIGNED_FOLDER = "signed"
_ENDING = ".json"
_SHORT = 12
_BYTES_MAX = CONTROL_RECORD_BYTES_MAX * LIST_PARTS_MAX
Version = tuple[int, str]  # a version and the hash by which a later change names it


def change_path(directory: Path, record: Signable) -> Path:
    """Return the file of a change below a folder of rules."""
    line = version_line(record)
    if isinstance(record, SnoozeRecord) and record.key is not None:
        line = f"{record.id}.snooze.{hashlib.sha256(record.key.encode()).hexdigest()[:_SHORT]}"
    if isinstance(record, ListRecord):
        line = f"list.{record.id}.{record.of.rstrip(')').replace('(', '_')}"
    if isinstance(record, UpsertRecord | RetireRecord | RollbackRecord):
        line = record.id  # those in shadow count with the others
    return directory / SIGNED_FOLDER / f"{line.replace('/', '.')}.{record.version}{_ENDING}"


def write_change(path: Path, records: Sequence[Signable]) -> None:
    """Write the records of one change. Raises: UsageError."""
    lines = b"".join(record.to_json() + b"\n" for record in records)
    write_file(path, lines, repository_root(path.parent.parent))


def read_change(path: Path) -> list[Signable]:
    """Read the one or more records of a change. Raises: UsageError with the line that is wrong."""
    try:
        data = read_file(path, _BYTES_MAX)
    except UnreadableError as error:
        raise UsageError(f"{path} cannot be read: {error}; `cep rules sign` writes such files") from error
    records: list[Signable] = []
    for number, line in enumerate(data.splitlines(), start=1):
        record, problems = parse_control(line)
        if record is None or isinstance(record, HeartbeatRecord):
            why = "; ".join(map(str, problems)) or "a heartbeat is no change"
            raise UsageError(f"{path}:{number}: {why}; restore it from version control, or sign the change again")
        records.append(record)
    if not records or len({(version_line(record), record.version) for record in records}) > 1:
        raise UsageError(f"{path} is not one change; restore it from version control, or sign the change again")
    return records


def with_signatures(directory: Path, records: Iterable[UpsertRecord]) -> list[UpsertRecord]:
    """Replace records by signed ones of the same version and meaning. A damaged file counts as missing."""
    return [signed_version(directory, record) or record for record in records]


def signed_version(directory: Path, record: UpsertRecord) -> UpsertRecord | None:
    """Return the signed record of a rule's version; None if it is missing or has another meaning."""
    path = change_path(directory, record)
    if not path.exists():
        return None
    try:
        signed = read_change(path)[0]
    except UsageError:
        return None
    if not isinstance(signed, UpsertRecord) or (signed.id, signed.version) != (record.id, record.version):
        return None
    return signed if content_hash(signed) == content_hash(record) else None


def version_before(directory: Path, record: UpsertRecord | RetireRecord | RollbackRecord) -> Version:
    """Return the version that a change of a rule follows, from rules.lock and the signed changes; (0, "") if none."""
    before = dict(read_lock(directory).get(record.id, {}))
    for path in (directory / SIGNED_FOLDER).glob(f"{record.id}.*{_ENDING}"):
        if path.name.removeprefix(f"{record.id}.").removesuffix(_ENDING).isdigit():
            signed = read_change(path)[0]
            before[signed.version] = digest_of(signed)
    return max((place for place in before.items() if place[0] < record.version), default=(0, ""))


def last_of(records: Iterable[Signable], record: Signable) -> Version:
    """Return the version that a change follows among the records of a control topic; (0, "") if it is the first."""
    line = version_line(record)
    versions = {
        other.version: digest_of(other)
        for other in records
        if not isinstance(other, HeartbeatRecord) and version_line(other) == line and other.version < record.version
    }
    return max(versions.items(), default=(0, ""))

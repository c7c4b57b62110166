"""The signers file and the root key's signature next to it → who may sign what (trust.py).

    rule_set = "payments"
    version = 3

    [people]
    pause = 1

    [[signer]]
    name = "Ada"
    key = "ed25519:…"
    may = ["author", "approve"]
    rules = ["card_*", "list:blocked"]
    groups = ["cards"]
    produces = ["card_*"]
    events = ["payment", "card_*"]
    priority_min = 50
    expires = 2027-06-30
    only = ["5a0c…"]

`people` sets the number of people who must sign; the default is two, and one for `resume`. Without `rules` a person may
sign changes of all rules. The next four names are a trust.Scope. After the day `expires` a key signs no new record.
`only` withdraws a key: it counts for the records with these hashes. The file's signature is in FILE.sig. A job gets the
root key separately. FILE.roots has a line for each rotation of the root key, signed by the old one.
Tested by: tests/rulebook/test_signers.py
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file, write_file
from cep.base.limits import (
    KEY_FILE_BYTES_MAX,
    RULE_PRIORITY_MAX,
    RULE_TEXT_CHARS_MAX,
    SIGNED_LINES_MAX,
    SIGNERS_FILE_BYTES_MAX,
    SIGNERS_MAX,
)
from cep.base.signing import SigningKey, is_public_key, is_signed
from cep.base.text import HIDDEN, visible
from cep.base.toml import parse_toml
from cep.model.setting_types import problems_of
from cep.rulebook.files import read_change
from cep.rulebook.trust import PEOPLE, Scope, Signer, Trust, body_hash

_HEAD = b"cep signers 1\n"
_WITHOUT_MARKS = {"LATIN", "GREEK", "CYRILLIC"}  # scripts that have each accented letter as one character
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"}
# Letters and digits that look like others, after `casefold`; a large I looks like an l.
_LOOK_ALIKE = (("1", "l"), ("0", "o"), ("5", "s"), ("8", "b"), ("2", "z"), ("rn", "m"), ("cl", "d"), ("vv", "w"),
    ("\u0131", "i"), ("\u0237", "j"), ("\u0138", "k"), ("\u01bf", "p"), ("\u0280", "r"), ("\u028b", "v"),
    ("\u0269", "l"), ("\u04cf", "\u0456"),
)  # fmt: skip
# Latin letters that names have: without phonetic letters, small capitals and clicks, which look like the others.
_LATIN_NAMES = re.compile("[A-Za-z\u00aa-\u01bf\u01c4-\u024f\u1e00-\u1eff]")
_NO_SIGNS = re.compile(r"[^\w\s]|_")
_VERSION_MAX = 2**31 - 1
_Text = Annotated[str, Field(min_length=1, max_length=RULE_TEXT_CHARS_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _People(_Strict):
    upsert: Literal[1, 2] = 2
    rollback: Literal[1, 2] = 2
    retire: Literal[1, 2] = 2
    pause: Literal[1, 2] = 2
    resume: Literal[1, 2] = 1
    snooze: Literal[1, 2] = 2
    list: Literal[1, 2] = 2


class _Signer(_Strict):
    """A person of the signers file: the public key, and which changes of which rules they may sign or approve."""

    name: _Text
    key: Annotated[str, Field(pattern=r"^ed25519:[0-9a-f]{64}$")]
    may: Annotated[list[Literal["author", "approve"]], Field(min_length=1, max_length=2)]
    rules: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] = ["*"]
    groups: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] | None = None  # exclusive groups that rules may join
    produces: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] | None = None  # event types; None: as `rules`
    events: Annotated[list[_Text], Field(max_length=SIGNERS_MAX)] = ["*"]  # event types that rules may read
    priority_min: Annotated[int, Field(ge=0, le=RULE_PRIORITY_MAX)] = 0
    expires: date | None = None
    only: (  # hashes of the records for which a withdrawn key still counts
        Annotated[list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]], Field(max_length=SIGNED_LINES_MAX)] | None
    ) = None


class _File(_Strict):
    rule_set: _Text
    version: Annotated[int, Field(ge=1, le=_VERSION_MAX)]
    people: _People = _People()
    signer: Annotated[list[_Signer], Field(min_length=1, max_length=SIGNERS_MAX)]


def signature_path(path: Path) -> Path:
    """Return where the signature of a signers file is."""
    return path.with_name(path.name + ".sig")


def read_trust(path: Path, root_key: str) -> Trust:
    """Read a signers file whose signature fits. Raises: UsageError with the next step."""
    if not is_public_key(root_key):
        raise UsageError("the root key is no public key; give the text `ed25519:…` of a .pub file")
    data = _bytes(path)
    try:
        signature = read_file(signature_path(path), KEY_FILE_BYTES_MAX).decode("ascii").strip()
    except (UnreadableError, ValueError) as error:
        raise UsageError(
            f"{path} is not signed ({error}); whoever has the root key runs `cep keys trust {path} --sign-with ROOT`"
        ) from error
    if not is_signed(_HEAD + data, signature, root_key):
        raise UsageError(
            f"{path} is not what the root key has signed; restore it from version control, or whoever has the root "
            f"key checks it and runs `cep keys trust {path} --sign-with ROOT`"
        )
    trust = _trust(path, data, root_key)
    return replace(trust, earlier_roots=_earlier_roots(path, trust))


def given_trust(path: Path | None, root_key: str | None) -> Trust | None:
    """Read who may sign changes; None without both arguments. Raises: UsageError, also if only one of them is given."""
    if path is None and root_key is None:
        return None
    if path is None or root_key is None:
        raise UsageError("signed changes need both --signers and --root-key; see `cep docs approve`")
    return read_trust(path, root_key)


def sign_signers(path: Path, key: SigningKey) -> Trust:
    """Sign a signers file with the root key. Raises: UsageError for an invalid file."""
    data = _bytes(path)
    trust = _trust(path, data, key.public)
    write_file(signature_path(path), f"{key.sign(_HEAD + data)}\n".encode())
    return trust


def rotate_root(path: Path, new_root: str, old: SigningKey) -> None:
    """Sign a change of the root key with the old key; the new one signs the signers file next. Raises: UsageError."""
    if not is_public_key(new_root) or new_root == old.public:
        raise UsageError("the new root key is no other public key; give the text `ed25519:…` of its .pub file")
    trust = read_trust(path, old.public)
    rotations = roots_path(path)
    before = read_file(rotations, SIGNERS_FILE_BYTES_MAX) if rotations.exists() else b""
    line = f"{old.public} {new_root} {old.sign(_rotation(trust.rule_set, old.public, new_root))}\n"
    write_file(rotations, before + line.encode())


def roots_path(path: Path) -> Path:
    """Return where the rotations of the root key of a signers file are."""
    return path.with_name(path.name + ".roots")


def _rotation(rule_set: str, old: str, new: str) -> bytes:
    return b"cep root 1\n" + f"{rule_set}\n{old}\n{new}".encode()


def _earlier_roots(path: Path, trust: Trust) -> tuple[str, ...]:
    """Return the root keys before today's key, the last one first: each has signed the key that replaced it."""
    try:
        lines = read_file(roots_path(path), SIGNERS_FILE_BYTES_MAX).decode("ascii").splitlines()
    except (UnreadableError, ValueError):
        return ()  # without a file, the root key was never replaced
    roots = [trust.root_key]
    for line in reversed(lines):  # each is `OLD NEW SIGNATURE`; the newest replacement comes first
        old, _, rest = line.partition(" ")
        new, _, signature = rest.partition(" ")
        if new == roots[-1] and old not in roots and is_signed(_rotation(trust.rule_set, old, new), signature, old):
            roots.append(old)
    return tuple(roots[1:])


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path, SIGNERS_FILE_BYTES_MAX)
    except UnreadableError as error:
        raise UsageError(f"the signers file {path} cannot be read: {error}; see `cep docs approve`") from error


def _trust(path: Path, data: bytes, root_key: str) -> Trust:
    """Parse and check a signers file. Raises: UsageError with the next step."""
    try:
        table: dict[str, Any] = parse_toml(data, SIGNERS_FILE_BYTES_MAX)
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; see `cep docs approve`") from error
    if any("until" in signer for signer in table.get("signer", ()) if isinstance(signer, dict)):
        raise UsageError(
            f"{path} withdraws a key by version numbers (`until`), which another text can have; write `only = []` in "
            "its place, sign the file, and run `cep keys withdraw`, which names the hashes of the signed records"
        )
    try:
        file = _File.model_validate(table)
    except ValidationError as error:
        problems = "; ".join(map(str, problems_of(error, tuple({*_File.model_fields, *_Signer.model_fields}))))
        raise UsageError(f"{path} is no signers file: {problems}; see `cep docs approve`") from error
    names = [_one_spelling(signer.name) for signer in file.signer]
    _check_names(path, names)
    keys = [signer.key for signer in file.signer]
    bad = next((key for key in keys if not is_public_key(key)), None)
    if bad is not None:
        raise UsageError(f"{path} has a key that anybody can sign for: {bad}; its person makes another one")
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:  # one key under two names would let one person be two
        raise UsageError(f"{path} has the key {twice[0]} twice; each key belongs to one person")
    if root_key in keys:
        raise UsageError(f"{path} has the root key among the signers; it signs this file and nothing else")
    people = tuple((kind, getattr(file.people, kind)) for kind in PEOPLE)
    signers = tuple(map(_signer, file.signer))
    return Trust(
        file.rule_set, file.version, root_key, people, signers, file_digest=hashlib.sha256(_HEAD + data).hexdigest()
    )


def _signer(signer: _Signer) -> Signer:
    only = None if signer.only is None else tuple(signer.only)
    expires = None if signer.expires is None else signer.expires.isoformat()
    if expires is not None and only is None and _today() > expires:
        only = ()
    groups, produces = (None if names is None else tuple(names) for names in (signer.groups, signer.produces))
    scope = Scope(groups, produces, tuple(signer.events), signer.priority_min)
    return Signer(_one_spelling(signer.name), signer.key, tuple(signer.may), tuple(signer.rules), only, scope, expires)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse names that look alike but differ, and names with letters that could hide this. Raises: UsageError."""
    scripts: dict[str, str] = {}  # by script, such as LATIN: a name with letters of this script
    for name in names:  # categories of characters begin with C (control), Z (space) or M (accent)
        hidden = [c for c in name if c != " " and (unicodedata.category(c)[0] in "CZ" or HIDDEN.match(c))]
        if hidden or not any(map(str.isalpha, name)):
            shown = " ".join(f"U+{ord(c):04X}" for c in hidden) or "no letter"
            raise UsageError(f"{path} has a name with {shown}: {visible(name)}; write it with letters alone")
        for char in filter(str.isalpha, name):
            if _script(char) == "LATIN" and not _LATIN_NAMES.match(char):
                text = f"{path} has a name with a letter of phonetics, U+{ord(char):04X}: {visible(name)}"
                raise UsageError(f"{text}; write it with the letters of a language")
            scripts.setdefault(_script(char), name)
        marks = [c for c in name if unicodedata.category(c)[0] == "M"]
        if marks and scripts.keys() & _WITHOUT_MARKS:
            raise UsageError(
                f"{path} has a name with a loose accent: {visible(name)}; write each letter as one character"
            )
    if len(scripts) > 1:
        shown = ", ".join(f"{script} in `{visible(name)}`" for script, name in scripts.items())
        raise UsageError(f"{path} has names in several scripts, which can look alike: {shown}; use one script")
    looks: dict[str, str] = {}  # by the look of a name: the first name with this look
    for name in names:
        other = looks.setdefault(_look(name), name)
        if other.casefold() != name.casefold():
            raise UsageError(f"{path} has names that look alike: {other} and {name}; write one of them in full")


def _look(name: str) -> str:
    """Return a text that is equal for names that look alike: Al and AI, Bern and Bem, and the same with other signs."""
    look = _NO_SIGNS.sub("", name).replace("I", "l").casefold()
    for letters, others in _LOOK_ALIKE:
        look = look.replace(letters, others)
    return look


def _script(char: str) -> str:
    """Return the script of a letter: the first word of its name. Chinese, Japanese and Korean count as one."""
    word = unicodedata.name(char, "UNNAMED").split(" ")[0].split("-")[0]
    return "CJK" if word in _EAST_ASIAN else word


def _one_spelling(name: str) -> str:
    """Return a person's name so that two spellings of it are equal."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


_HEADER = re.compile(r"^\s*\[\[\s*signer\s*\]\]", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_ONLY = re.compile(r"^\s*only\s*=\s*\[[^\]]*\]\n?", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*\d+", re.MULTILINE)


def withdraw(path: Path, key: str, root: SigningKey) -> tuple[Trust, list[str]]:
    """Withdraw a person's key in the signers file, and sign the file again with the next version.

    The key still counts for the records that it has signed so far: `only` has their hashes. Returns: the new signers,
    and these hashes. Raises: UsageError.
    """
    read_trust(path, root.public)  # the file must be signed already
    text = _bytes(path).decode()
    before: dict[str, Any] = parse_toml(text, SIGNERS_FILE_BYTES_MAX)
    only = _signed_digests(path.parent, key)
    changed = _with_only(text, key, only)
    if changed is None:
        raise UsageError(f"{path} has no signer with the key {key}; `cep keys check` prints them")
    changed = _VERSION.sub(f"version = {before['version'] + 1}", changed, count=1)
    signers = [{**signer, "only": only} if signer["key"] == key else signer for signer in before["signer"]]
    try:
        after = parse_toml(changed, SIGNERS_FILE_BYTES_MAX)
    except ValueError:
        after = {}
    if after != {**before, "version": before["version"] + 1, "signer": signers}:
        raise UsageError(f"{path} is written in a way that this verb cannot change; add `only` yourself and sign it")
    write_file(path, changed.encode())
    return sign_signers(path, root), only


def _signed_digests(folder: Path, key: str) -> list[str]:
    digests: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        for record in read_change(path):
            signed = record.signed
            if signed is not None and key in (signed.author.key, signed.approver and signed.approver.key):
                digests.add(body_hash(record))
    return sorted(digests)


def _with_only(text: str, key: str, only: list[str]) -> str | None:
    """Set `only` (hashes of records) in the `[[signer]]` table of a TOML text that has a key; None without a table."""
    for header in _HEADER.finditer(text):
        following = _TABLE.search(text, header.end())
        end = len(text) if following is None else following.start()
        block = text[header.end() : end]  # the signer's table, up to the next table
        if f'"{key}"' not in block:
            continue
        rest = _ONLY.sub("", block).rstrip("\n")  # without an earlier `only`
        entries = "".join(f'\n  "{digest}",' for digest in only) + ("\n" if only else "")
        between = "\n\n" if following is not None else "\n"
        return f"{text[: header.end()]}{rest}\nonly = [{entries}]{between}{text[end:].lstrip()}"
    return None

"""The types and sections of settings, and the errors of pydantic as problems that a person can read.

Tested by: tests/model/test_settings.py, tests/model/test_rule.py
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.limits import SECRET_FILE_BYTES_MAX
from cep.base.secrets import check_registry
from cep.base.text import hint_at_nearest, utc_ms

_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|min|h|d)")
_ADDRESS = re.compile(r"(?:(\[[0-9a-fA-F:]+\]|[\w.-]+):)?(\d{1,5})")
_LOOPBACK = "127.0.0.1"
_FROM_ENVIRONMENT, _FROM_FILE = "env:", "file:"
OFF = "off"
_PORT_MAX = 65_535
# An offset by topic and partition; -2 is earliest, -1 latest.
_OFFSETS = TypeAdapter(
    dict[str, dict[Annotated[str, Field(pattern=r"^\d+$")], Annotated[int, Field(ge=-2, strict=True)]]]
)


def duration_ms(text: str) -> int:
    """`10 s` in milliseconds. Raises: ValueError with a sentence for the author."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is no time such as `500 ms`, `10 s`, `5 min`, `2 h`, `1 d`")
    return int(parts[1]) * _UNITS_MS[parts[2]]


def length_ms(name: str, text: str) -> int:
    """Return a length of time in milliseconds. Raises: UsageError for another text."""
    try:
        return duration_ms(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def moment_ms(name: str, text: str) -> int:
    """Return a time in milliseconds UTC. Raises: UsageError for another text."""
    try:
        return utc_ms(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def range_of(text: str) -> range:
    """Read `0-15` as key groups. Raises: UsageError."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise UsageError(f"--groups {text}: give first-last, as 0-15")
    return range(int(first), int(last) + 1)


def _duration(value: object) -> int:
    if isinstance(value, str):
        return duration_ms(value)
    raise ValueError(f"{value!r} is no time; write a text such as `10 s`")


def _place(value: object) -> str:
    """Check a place in a topic: earliest, latest, a time or offsets. In a file, offsets may be a table."""
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    try:
        if text in ("earliest", "latest") or _OFFSETS.validate_json(text):
            return text
    except ValueError:
        pass
    try:
        utc_ms(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no place in a topic; write earliest, latest, a time such as 2026-03-01T00:00:00Z, or "
            '{"topic": {"0": 17}}'
        ) from error
    return text


def _address(value: str) -> tuple[str, int] | None:
    if not value:
        return None
    parts = _ADDRESS.fullmatch(value)
    if parts is None or int(parts[2]) > _PORT_MAX:
        raise ValueError(f"{value!r} is no port or address such as 9464 or 0.0.0.0:9464; empty listens nowhere")
    return (parts[1] or _LOOPBACK).strip("[]"), int(parts[2])


def from_environment(values: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Replace each `env:NAME` by its variable and each `file:PATH` by the file's content. Raises: ValueError."""
    return {name: _resolve(f"`{name}`", value) for name, value in values.items()}


def registry_client(values: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Check the address of a schema registry. Raises: ValueError, which does not show it."""
    if "url" in values:
        try:
            check_registry(values["url"].get_secret_value())
        except UsageError as error:
            raise ValueError(str(error)) from None
    return values


def secret_from_environment(value: SecretStr | None) -> SecretStr | None:
    """Replace `env:NAME` or `file:PATH` as `from_environment` does. Raises: ValueError."""
    return None if value is None else _resolve("the value", value)


def _resolve(name: str, value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text.startswith(_FROM_FILE):
        return SecretStr(_secret_of(name, Path(text.removeprefix(_FROM_FILE))))
    if not text.startswith(_FROM_ENVIRONMENT):
        return value
    variable = text.removeprefix(_FROM_ENVIRONMENT)
    if variable not in os.environ:
        raise ValueError(f"{name} is to come from the environment, which has no {variable}")
    return SecretStr(os.environ[variable])


def _secret_of(name: str, path: Path) -> str:
    """Read a secret as platforms mount it: a line end from an editor does not belong to it."""
    try:
        text = read_file(path, SECRET_FILE_BYTES_MAX).decode("utf-8").rstrip("\r\n")
    except (UnreadableError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is to come from the file {path}, which cannot be read: {error}") from None
    if not text:
        raise ValueError(f"{name} is to come from the file {path}, which is empty")
    return text


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the host. A name other than localhost may mean any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(text: str) -> Path:
    if not text:
        raise ValueError("the path is empty; give a path, or leave the setting out")
    return Path(text)


DurationMs = Annotated[int, BeforeValidator(_duration)]
DurationMsOrOff = Annotated[int | None, BeforeValidator(lambda v: None if v == OFF else _duration(v))]
PathText = Annotated[Path, BeforeValidator(lambda v: _path(v) if isinstance(v, str) else v)]
Place = Annotated[str, BeforeValidator(_place)]
Positive = Annotated[int, Field(ge=1, strict=True)]
Address = Annotated[tuple[str, int] | None, BeforeValidator(lambda v: _address(v) if isinstance(v, str) else v)]
Texts = tuple[str, ...]


def setting(default: Any, description: str, usage: str = "", example: str = "") -> Any:
    """Declare a setting with its flag, like `--lag TIME`. `example` is shown in the file if there is no default."""
    flag, _, metavar = usage.partition(" ")
    extra: dict[str, Any] = {"flag": flag or None, "metavar": metavar, "example": example}
    return Field(default, description=description, json_schema_extra=extra)


class Section(BaseModel):
    """Settings that stand together in the file."""

    # Not strict as a whole: TOML has arrays where we want tuples. Numbers are strict by their field.
    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretsSettings(Section):
    """The keys that protected values (`pan`, `sensitive`) are replaced with."""

    file: PathText | None = setting(
        None,
        "File of keys, a line each: an id, a secret of 32 characters or more, and optionally the event time from which "
        "it counts. Without it CEP_SECRETS_FILE names the file, or CEP_SECRETS has its text.",
        "--secrets FILE",
        '"/run/secrets/cep-keys"',
    )


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `path` says where: `$.params.small`, or `$` for the whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def problems_of(error: ValidationError, valid_names: tuple[str, ...], tags: tuple[str, ...] = ()) -> list[Problem]:
    """Turn a validation error into problems, in the order of the fields.

    `valid_names` are offered when an unknown name is close to one. `tags` are the tags of a discriminated union, which
    pydantic puts in front of every path and which no author has written.
    """
    return [_problem(detail, valid_names, tags) for detail in error.errors(include_url=False)]


def _problem(detail: ErrorDetails, valid_names: tuple[str, ...], tags: tuple[str, ...]) -> Problem:
    location = detail["loc"]
    if location and location[0] in tags:  # pydantic's name of a member of a union, which is not in the text
        location = location[1:]
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    match detail["type"]:
        case "extra_forbidden":
            return Problem(path, f"no such name here{hint_at_nearest(str(location[-1]), valid_names)}")
        case "missing":
            return Problem(path, "is missing")
        case "value_error":
            return Problem(path, str(detail["ctx"]["error"]))
        case _:
            message = detail["msg"]
            return Problem(path, message[:1].lower() + message[1:])

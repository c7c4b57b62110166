"""A section of the settings, how a setting is declared, and the section of keys.

Tested by: tests/model/test_settings.py
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cep.model.setting_types import PathText


def setting(default: Any, description: str, flag: str | None = None, metavar: str = "", example: str = "") -> Any:
    """Declare a field for the command line and the commented file. `example` is shown if there is no default."""
    extra: dict[str, Any] = {"flag": flag, "metavar": metavar, "example": example}
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
        "--secrets",
        "FILE",
        '"/run/secrets/cep-keys"',
    )

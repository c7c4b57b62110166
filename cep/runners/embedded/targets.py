"""The folder of a job → the place of its checkpoints: the folder itself, or the configured target.

    FOLDER/checkpoints/    unless something else was asked for; what a savepoint is restored into in any case
    FOLDER/target          the place that was asked for, so that `cep job state` and `cep job savepoint` find it

Tested by: tests/runners/embedded/test_savepoint.py
"""

from __future__ import annotations

from pathlib import Path

from cep.base.durable import replace_file
from cep.base.errors import StateCorruptError, StoreError
from cep.state.target import Target

_CHECKPOINTS, _ASKED = "checkpoints", "target"


def default_target(folder: Path) -> Target:
    """Return the place inside the folder."""
    return Target(str(folder / _CHECKPOINTS))


def is_embedded(folder: Path) -> bool:
    """Return True if the folder is of a process of `cep run`."""
    return (folder / _CHECKPOINTS).is_dir() or (folder / _ASKED).exists()


def remembered_target(folder: Path, target_text: str | None) -> Target:
    """Return the target that a starting job uses: the named one, or the one inside its folder for None.

    Raises: StoreError.
    """
    if target_text is not None and ":" not in target_text:
        target_text = str(Path(target_text).resolve())
    target = default_target(folder) if target_text is None else Target(target_text)
    path = folder / _ASKED
    try:
        if target_text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_bytes() != target_text.encode():
            replace_file(path, target_text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; make room on the disk, then start again") from error
    return target


def target_of(folder: Path) -> Target:
    """Return the target of a job that has run in the folder. Raises: StoreError, StateCorruptError."""
    path = folder / _ASKED
    try:
        return Target(path.read_text(encoding="utf-8")) if path.exists() else default_target(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise StateCorruptError(
            f"{path} names no place of checkpoints ({error}); write there what `--checkpoint-target` had, or restore it"
        ) from error

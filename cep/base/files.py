"""Reading and writing of files: whole or not at all, only below a root, and private to their owner.

`replace_file` is the only writer of files of the project. Its file is there whole or not at all, even after a power
cut:

    1  create a new file under another name in the same folder; a name that exists, also as a link, is not opened
    2  sync the bytes
    3  rename
    4  sync the folder: before that a power cut may undo the rename

The folder is opened once and every step names the file relative to it, so a folder that is exchanged for a link between
two steps changes nothing. In a folder that other people write to, such as a repository of rules, give `root`: no folder
between it and the file may be a link, and the file may not be one.

A pattern, a rule or a list may come from anyone who can propose one, and so may the paths in it. They are read only
below a root: the repository of the given file, or the given folder. `..` and links that lead out are refused before
anything is opened. Devices, pipes and folders are refused, so that opening never blocks.

Files that a job writes have data about customers, so only their owner can read them. Processes that Spark starts here
inherit the setting; workers on other machines set it themselves (`make_private`).
Tested by: tests/base/test_durable.py, tests/cli/test_rules.py, tests/base/test_reading.py, tests/cli/test_run.py,
tests/runners/spark/test_live_process.py
"""

import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from cep.base.errors import LinkedPathError, StateCorruptError, UnreadableError, UsageError
from cep.base.limits import JOB_FILE_BYTES_MAX, LINE_BYTES_MAX
from cep.base.process import Closing

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPOSITORY = ".git"


def replace_file(
    path: Path,
    content: bytes | Callable[[BinaryIO], object],
    *,
    many_writers: bool = False,
    is_last: bool = True,
    root: Path | None = None,
) -> None:
    """Write a file, in place of the one with the same name if there is one. Missing folders are made.

    `content` is the bytes, or a function that writes them. With `many_writers` several processes may write the same
    file at once. If several files are written to one folder, only the last one needs step 4: pass `is_last=False` for
    the others. With `root` the file keeps its permissions. Raises: OSError, and the errors of `content`;
    LinkedPathError, an OSError, for a link. The file is then unchanged.
    """
    if root is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, _FOLDER) if root is None else _open_parent(path, root)
    # Outside of a repository a single writer always takes the same name, so the next write removes the file of a writer
    # that was killed. In a repository other people write, and they must not know the name.
    is_random = many_writers or root is not None
    temporary = f".{path.name}.{uuid.uuid4().hex if is_random else 'tmp'}"
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        try:
            with os.fdopen(os.open(temporary, _NEW, 0o666, dir_fd=folder), "wb") as file:
                if root is not None:
                    _copy_permissions(path.name, folder, file.fileno())
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        if is_last:
            os.fsync(folder)
    finally:
        os.close(folder)


def write_file(path: Path, data: bytes, root: Path | None = None) -> None:
    """Replace a file of rules below `root`, or below its repository. Raises: UsageError; the file is then unchanged."""
    try:
        replace_file(path, data, root=root or repository_root(path.parent))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def repository_root(folder: Path) -> Path:
    """Return the nearest folder with a `.git` above a folder, as the path names it; the folder itself without one."""
    return _nearest_repository(folder.absolute()) or folder.absolute()


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_parent(path: Path, root: Path) -> int:
    """Open the folder of a file, step by step from the root. Make missing folders, and refuse a link at any step."""
    folder, outermost = os.path.normpath(path.parent.absolute()), os.path.normpath(root.absolute())
    parts = Path(folder).relative_to(outermost).parts
    descriptor = os.open(root, _FOLDER)
    for part in parts:
        outer = descriptor
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=outer)
            _refuse_link(part, outer)
            descriptor = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    try:
        _refuse_link(path.name, descriptor)  # the file itself may not be a link either
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_link(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkedPathError(f"{name} is a link, and cep writes through none; put a file or folder in its place")


def _copy_permissions(name: str, folder: int, descriptor: int) -> None:
    with suppress(FileNotFoundError):
        os.fchmod(descriptor, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))


# A pipe without a writer must not stop the caller, and a terminal must not become the process's own.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_file(path: Path, bytes_max: int, root: Path | None = None) -> bytes:
    """Return the bytes of a regular file of at most `bytes_max` bytes, below `root` if it is given.

    Raises: UnreadableError with the reason only, which reveals nothing about files outside.
    """
    with _refused():
        return _read_and_close(_open(path, root), bytes_max)


class Folder(Closing):
    """A folder below a root that stays open, so that only a file's own name is looked up to read it."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._root = path, root
        self._descriptor: int | None = None
        with suppress(OSError, ValueError, UnreadableError):  # `read` says why
            self._descriptor = _open_below(path, root)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None  # the system gives the number to the next open file
        if descriptor is not None:
            os.close(descriptor)

    def read(self, name: str, bytes_max: int) -> bytes:
        if self._descriptor is not None and os.sep not in name:
            # After a fault, or for a link, `read_file` decides: it follows links below the root, and names each fault.
            with suppress(OSError, UnreadableError):
                return _read_and_close(os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=self._descriptor), bytes_max)
        return read_file(self._path / name, bytes_max, self._root)


def _read_and_close(descriptor: int, bytes_max: int) -> bytes:
    try:
        _check_regular(descriptor)
        return _read_bounded(descriptor, bytes_max)
    finally:
        os.close(descriptor)


def open_file(path: Path, root: Path | None = None) -> BinaryIO:
    """Open a regular file of any size, with a root only one below it. Raises: UnreadableError with the reason alone."""
    descriptor = _open(path, root)
    try:
        _check_regular(descriptor)
    except UnreadableError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


@contextmanager
def _refused() -> Iterator[None]:
    """Convert the errors of the system in the block to UnreadableError with the reason alone."""
    try:
        yield
    except FileNotFoundError:
        raise UnreadableError("there is no such file") from None
    except OSError as error:
        raise UnreadableError((error.strerror or type(error).__name__).lower()) from None
    except ValueError:
        raise UnreadableError("its path holds a character that no path has") from None


def _open(path: Path, root: Path | None) -> int:
    with _refused():
        return os.open(path, _FLAGS) if root is None else _open_below(path, root)


def read_lines(path: Path, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """Yield each line of a regular file, without its end; one at a time is in memory. Raises: UnreadableError."""
    with open_file(path) as file, _refused():
        while line := file.readline(bytes_max + 1):
            if len(line) > bytes_max:
                raise UnreadableError(f"a line of it is longer than {bytes_max} bytes, which is the limit")
            yield line.rstrip(b"\r\n")


def root_of(files: Iterable[Path]) -> Path:
    """Return the root for files that were given together: their repository, or the common folder of all of them."""
    folders = sorted({_real(path.parent) for path in files}) or [_real(Path())]
    common = Path(os.path.commonpath(folders))
    return repository_of(common) or common


def repository_of(folder: Path) -> Path | None:
    """Return the nearest folder with a `.git`, this one or one above it; None without one."""
    return _nearest_repository(Path(_real(folder)))


def _nearest_repository(folder: Path) -> Path | None:
    for above in (folder, *folder.parents):
        with suppress(OSError):  # a name that is too long, a folder that may not be looked into
            if above != Path(above.anchor) and (above / _REPOSITORY).exists():
                return above
    return None


def _real(folder: Path) -> str:
    try:
        return os.path.realpath(folder)
    except ValueError:
        return os.path.realpath(".")


def check_below(path: Path, root: Path) -> Path:
    """Resolve all links of a path that must then be below the root. Raises: UnreadableError.

    The root of the whole file system would confine nothing: only files directly in it count as below it.
    """
    with _refused():
        real = Path(os.path.realpath(path))
    count = len(root.parts)
    if real.parts[:count] == root.parts and (count > 1 or len(real.parts) <= 2):
        return real
    raise UnreadableError(f"it is not below {root}; only what is there may be read")


def _open_below(path: Path, root: Path) -> int:
    """Open a file below the root, folder by folder, so that the system refuses one that has become a link."""
    *folders, name = check_below(path, root).parts[len(root.parts) :] or (".",)
    descriptor = os.open(root, _FLAGS | os.O_DIRECTORY)
    for folder in folders:
        outer = descriptor
        try:
            descriptor = os.open(folder, _FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    try:
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _check_regular(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise UnreadableError("it is a folder")
    if not stat.S_ISREG(mode):
        raise UnreadableError("it is no regular file but a device, a pipe or a socket")


def _read_bounded(descriptor: int, bytes_max: int) -> bytes:
    expected = os.fstat(descriptor).st_size
    if expected > bytes_max:
        raise UnreadableError(f"it is larger than it may be: {expected} bytes are over the limit of {bytes_max}")
    parts: list[bytes] = []
    size = 0
    while size <= bytes_max:
        part = os.read(descriptor, min(max(expected - size, 0), bytes_max - size) + 1)  # + 1: to see if it has grown
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise UnreadableError(f"it is larger than {bytes_max} bytes, which is the limit")


def read_document(path: Path) -> dict[str, Any]:
    """Read one of the JSON files of a checkpoint directory. Raises: StateCorruptError."""
    try:
        document = orjson.loads(read_file(path, JOB_FILE_BYTES_MAX))
    except (UnreadableError, ValueError) as error:
        raise StateCorruptError(
            f"{path} cannot be read ({error}); restore it, or give a new checkpoint directory"
        ) from error
    if not isinstance(document, dict):
        raise StateCorruptError(f"{path} is not what was written there; restore it, or give a new checkpoint directory")
    return document


_OWNER_ONLY = 0o077  # permissions removed from groups and others


@contextmanager
def private_files() -> Iterator[None]:
    """Make files and folders that come into being in the block, in all threads, private. Others stay as they are."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


def is_ours(folder: Path) -> bool:
    """Return True if no other user but root can put a file into a folder, or another folder in its place.

    So only this user or root may own each folder up to the root, or write to it. Others may write to a folder above if
    its sticky bit protects our files. A group with the number of this user has no other user.
    """
    place, user = Path(os.path.realpath(folder)), os.geteuid()
    for number, above in enumerate((place, *place.parents)):
        try:
            status = above.stat()
        except OSError:
            return False
        is_alone = status.st_gid in (0, user)
        others = status.st_mode & (stat.S_IWOTH if is_alone else stat.S_IWOTH | stat.S_IWGRP)
        is_sticky = number > 0 and status.st_mode & stat.S_ISVTX  # number 0 is the folder itself
        if status.st_uid not in (0, user) or (others and not is_sticky):
            return False
    return True


def make_private() -> None:
    """Make all files and folders private that this process makes from now on."""
    os.umask(_OWNER_ONLY)

"""The place of checkpoints and savepoints: a local directory, or an object store that fsspec knows.

A file gets its name when all of its bytes are there: locally by a rename after a sync, in object stores by themselves.
On a file system without renames, the checksum shows a torn file. If source and target are on one disk, files that never
change again are linked. Credentials come from the environment, under the names of the object store's own tools: for S3
AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and the like, for others FSSPEC_SFTP_PASSWORD and the like.
Tested by: tests/state/test_savepoints.py
"""

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.asyn import sync as sync_in_loop
from fsspec.implementations.local import LocalFileSystem

from cep.base.errors import StateCorruptError, StateError, StoreAwayError, StoreError, UnreadableError, UsageError
from cep.base.files import open_file, read_file, sync
from cep.base.limits import JOB_FILE_BYTES_MAX
from cep.base.secrets import check_place

PARTIAL = ".part"
_COPY_BYTES = 1 << 20
# A store that hangs or answers 503 is noticed within half a minute. Its client alone would try for several minutes, and
# a job tries its checkpoint again every ten seconds.
_S3_TRY = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 10, "retries": {"max_attempts": 1}}}
_UPLOAD_MIN_S, _UPLOAD_BYTES_PER_S = 20.0, 1 << 20  # of a file: at least, and the rate at which a large one must go
_VARIABLES = {"s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"}
_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Target:
    """A folder of flat names, `files/ab12` and the like.

    Every method may raise StoreError; methods that read raise StateCorruptError if the file is gone or its disk fails.
    """

    def __init__(self, url: str) -> None:
        """Open the folder at `url`: a path, or an address of fsspec (`s3://bucket/folder` with s3fs installed).

        Raises: StoreError if the protocol is unknown or its package is missing; UsageError for an empty text, and
        for an address with a user, a password or a query, which messages would show.
        """
        if not url:
            raise UsageError("an empty text is no place; give a folder or an address")
        variables = _VARIABLES.get(url.partition(":")[0], "FSSPEC_SFTP_USERNAME and FSSPEC_SFTP_PASSWORD")
        check_place(url, f"give them in the environment, as {variables}")
        self.url = url
        try:
            self._files, root = fsspec.core.url_to_fs(url, **(_S3_TRY if url.startswith(("s3:", "s3a:")) else {}))
        except (ImportError, ValueError) as error:
            package = "`pip install 'cep[s3]'`" if url.startswith("s3:") else "the package"
            raise StoreError(f"cannot reach {url}: {error}; install {package}, or give a local directory") from error
        self._root = str(root).rstrip("/")
        self._is_local = isinstance(self._files, LocalFileSystem)
        if hasattr(self._files, "retries"):
            self._files.retries = 1  # one attempt: s3fs would repeat the attempts of its own library

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Map the name of each file of a folder to its bytes, including unfinished files. An absent folder is empty."""
        with self._telling("list", folder):
            self._files.invalidate_cache()
            try:
                listed = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            return {entry["name"].rsplit("/", 1)[-1]: int(entry["size"]) for entry in listed if entry["type"] == "file"}

    def read(self, name: str, bytes_max: int = JOB_FILE_BYTES_MAX) -> bytes:
        """Return the bytes of a regular file of at most so many bytes."""
        with self._telling("read", name):
            if self._is_local:
                return read_file(Path(self._path(name)), bytes_max, self._real_root())
            self._check_size(name, int(self._files.size(self._path(name))), bytes_max)
            data: bytes = self._files.cat_file(self._path(name))
            return data

    def create(self, name: str, data: bytes) -> None:
        """Make a small file, whole or not at all. Raises: StoreError also if the name is taken."""
        with self._telling("write", name):
            if self._is_local:
                self._create_local(Path(self._path(name)), data)
            elif self._files.exists(self._path(name)):
                raise FileExistsError(errno.EEXIST, "")
            else:
                self._upload("pipe_file", self._path(name), data, size=len(data), mode="create")  # of two one may fail

    def put(self, source: Path, name: str, may_link: bool = False) -> None:
        """Copy a local file here, and replace the file of that name. Pass `may_link` if it never changes again."""
        with self._telling("write", name):
            if self._is_local:
                self._put_local(source, Path(self._path(name)), may_link)
            else:
                self._upload("put_file", str(source), self._path(name), size=source.stat().st_size)

    def get(self, name: str, into: Path, size: int, may_link: bool = False) -> None:
        """Copy a file of exactly `size` bytes to the local disk. `may_link` allows a hard link: do not change it then.

        Refused before the copy: a link that leads out of the target, a device, a pipe, another size, and a full disk.
        """
        with self._telling("read", name):
            into.parent.mkdir(parents=True, exist_ok=True)
            if self._is_local:
                self._get_local(name, into, size, may_link)
                return
            self._check_size(name, int(self._files.size(self._path(name))), size, size)
            self._check_room(name, size, into)
            self._files.get_file(self._path(name), str(into))

    def remove(self, name: str) -> None:
        """Remove a file; a missing file is ignored."""
        with self._telling("remove", name), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _upload(self, method: str, *arguments: Any, size: int, **options: Any) -> None:
        """Call a method that uploads `size` bytes, with a time limit: S3 may wait for ever, and fsspec's synchronous
        methods lack a limit, so its coroutine (`_` before the name) is called. Raises: ConnectionError."""
        if not isinstance(self._files, AsyncFileSystem):
            getattr(self._files, method)(*arguments, **options)
            return
        wait_s = _UPLOAD_MIN_S + size / _UPLOAD_BYTES_PER_S
        upload = getattr(self._files, f"_{method}")

        async def within_time() -> None:
            try:
                await asyncio.wait_for(upload(*arguments, **options), wait_s)
            except TimeoutError as error:
                raise ConnectionError(f"no answer within {wait_s:.0f} s") from error

        sync_in_loop(self._files.loop, within_time)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _real_root(self) -> Path:
        return Path(os.path.realpath(self._root))

    def _get_local(self, name: str, into: Path, size: int, may_link: bool) -> None:
        """Link or copy a file of a local target."""
        path = Path(self._path(name))
        with open_file(path, self._real_root()) as file:
            opened = os.fstat(file.fileno())
            self._check_size(name, opened.st_size, size, size)
            if may_link and _linked(path, into):
                if os.path.samestat(opened, into.lstat()):
                    return
                into.unlink()  # another file has taken the name since
            self._check_room(name, size, into)
            with into.open("wb") as copy:
                shutil.copyfileobj(file, copy, _COPY_BYTES)

    def _check_size(self, name: str, size: int, bytes_max: int, bytes_min: int = 0) -> None:
        if not bytes_min <= size <= bytes_max:
            expected = f"instead of {bytes_min}" if bytes_min else f"and may have {bytes_max}"
            raise StateCorruptError(f"{name} in {self.url} has {size} bytes {expected}; take another copy")

    def _check_room(self, name: str, size: int, into: Path) -> None:
        free = shutil.disk_usage(into.parent).free
        if size > free:
            raise StoreError(
                f"{name} in {self.url} has {size} bytes, and the disk of {into.parent} has room for {free}; make room "
                "there, or take another copy"
            )

    def _create_local(self, path: Path, data: bytes) -> None:
        """Write a new file to a local target and sync it. Raises: FileExistsError if the name is taken."""
        with _unfinished(path) as partial:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not _linked(partial, path):  # unlike a rename, a link fails where the name is taken
                if path.exists():  # on a disk without links another process could still come in between
                    raise FileExistsError(errno.EEXIST, "", str(path))
                partial.replace(path)

    def _put_local(self, source: Path, path: Path, may_link: bool) -> None:
        """Link or copy a file to a local target and sync it, in place of an earlier file."""
        with _unfinished(path) as partial:
            if not (may_link and _linked(source, partial)):
                shutil.copyfile(source, partial)
            sync(partial)
            partial.replace(path)

    @contextmanager
    def _telling(self, doing: str, name: str) -> Iterator[None]:
        """Convert the errors of a block of file operations to our errors, with the operation and the file's name."""
        try:
            yield
        except StateError:
            raise
        except UnreadableError as error:
            raise StateCorruptError(f"cannot {doing} {name} in {self.url}: {error}; take another copy") from error
        except FileExistsError as error:
            raise StoreError(
                f"{name} in {self.url} is there already: another process writes there too; stop one of the two"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            text = f"cannot {doing} {name or 'files'} in {self.url}: {reason}"
            if doing == "read" and (isinstance(error, FileNotFoundError) or error.errno == errno.EIO):
                raise StateCorruptError(text) from error
            full = "; make room there, or keep fewer checkpoints" if error.errno in _FULL_CODES else ""
            raise (StoreError if self._is_local else StoreAwayError)(text + full) from error
        except Exception as error:
            # Not every package has its errors from OSError: botocore has a tree of its own.
            raise StoreAwayError(
                f"cannot {doing} {name or 'files'} in {self.url}: {type(error).__name__}: {error}; check the address, "
                "the credentials and the network"
            ) from error


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Yield a free name in the folder of a file, which the block may use; then sync the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    partial.unlink(missing_ok=True)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def _linked(source: Path, path: Path) -> bool:
    """Create a hard link. Return False across disks, where links are refused, and for a symbolic link: it leads out."""
    if source.is_symlink():
        return False
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            return False
        raise
    return True

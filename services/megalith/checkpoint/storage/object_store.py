"""Object stores through fsspec: each call is tried a few times, and fails with an OSError.

FileNotFoundError means that an object is not there, and nothing else: a bucket that is missing or a
store that cannot be reached is another error, so that nobody takes it for an empty directory.
"""

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import tenacity

from megalith.errors import InvalidSetting
from megalith.errors.extras import how_to_install
from megalith.runtime import disk

T = TypeVar("T")

_TRIES = 4
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 3.0
_CONNECT_S = 5.0
_READ_S = 60.0
_PART_BYTES = 16 << 20  # of one request of an upload or a download
_REQUESTS = 8  # of one file at once

# No try after these changes anything
_FINAL = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError)


class Child(NamedTuple):
    """An object or a folder directly below another one. A folder has no size and no time."""

    name: str
    is_folder: bool
    size: int
    changed_at_s: float


class StorageFailed(OSError):
    """An object store did not do what it was asked, however often."""


class ObjectStore:
    """One kind of store. URLs are whole ones; calls may come from any thread.

    `failures` are the errors of its library that are no OSError.
    """

    def __init__(self, system: Any, failures: tuple[type[Exception], ...] = ()) -> None:
        self._system = system
        self._failures: tuple[type[Exception], ...] = (OSError, *failures)

    # --- looking ---

    def children(self, url: str) -> list[Child]:
        """What is directly below, by name; nothing if there is no such folder."""
        try:
            found = self._tried(url, lambda: self._system.ls(url, detail=True, refresh=True))
        except FileNotFoundError:
            return []

        children = []
        itself = self._system._strip_protocol(url)
        for about in found:
            name = about["name"].rstrip("/")
            if name != itself:
                children.append(_child(name.rpartition("/")[2], about))

        return sorted(children)

    def about(self, url: str) -> Child:
        """An object; a folder is a FileNotFoundError too."""
        found = self._tried(url, lambda: self._system.info(url, refresh=True))
        if found["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "no such object", url)

        return _child(url.rpartition("/")[2], found)

    # --- whole objects ---

    def read(self, url: str) -> bytes:
        content: bytes = self._tried(url, lambda: self._system.cat_file(url))
        return content

    def write(self, url: str, content: bytes) -> None:
        """Put an object: readers see the old content or the new."""
        self._tried(url, lambda: self._system.pipe_file(url, content))

    def create(self, url: str, content: bytes) -> None:
        """Put an object that must not exist; FileExistsError if another one is there."""
        try:
            self._tried(url, lambda: self._system.pipe_file(url, content, mode="create"))
        except FileExistsError:
            # The answer to an earlier try may have been lost.
            if self.read(url) != content:
                raise

    def remove(self, url: str) -> None:
        self._tried(url, lambda: self._system.rm_file(url))

    def copy(self, url: str, to: str) -> None:
        self._tried(url, lambda: self._system.cp_file(url, to))

    # --- large ones ---

    def upload(self, path: Path, url: str) -> None:
        """Put a file, in parts at once if it is large; there is no object until all are there."""
        self._tried(
            url,
            lambda: self._system.put_file(
                str(path), url, chunksize=_PART_BYTES, max_concurrency=_REQUESTS
            ),
        )

    def download(self, url: str, path: Path) -> None:
        self._tried(
            url,
            lambda: self._system.get_file(
                url, str(path), chunksize=_PART_BYTES, max_concurrency=_REQUESTS
            ),
        )

    def read_part(self, url: str, offset: int, size: int) -> bytes:
        """So many bytes from `offset` on; fewer where the object ends."""
        end = offset + size
        part: bytes = self._tried(url, lambda: self._system.cat_file(url, start=offset, end=end))
        return part

    def open(self, url: str) -> IO[bytes]:
        """For reading here and there."""
        opened: IO[bytes] = self._tried(url, lambda: self._system.open(url, "rb"))
        return opened

    def abandon_uploads(self, url: str) -> int:
        """Drop the parts of uploads below `url` that nobody ended; how many uploads."""
        if not hasattr(self._system, "list_multipart_uploads"):
            return 0

        bucket, _, prefix = self._system._strip_protocol(url).partition("/")
        found = self._tried(url, lambda: self._system.list_multipart_uploads(bucket))
        own = [upload for upload in found if upload["Key"].startswith(f"{prefix}/")]
        for upload in own:
            self._tried(url, functools.partial(self._abandon, bucket, upload))

        return len(own)

    def _abandon(self, bucket: str, upload: dict[str, Any]) -> None:
        self._system.call_s3(
            "abort_multipart_upload",
            Bucket=bucket,
            Key=upload["Key"],
            UploadId=upload["UploadId"],
        )

    def _tried(self, url: str, call: Callable[[], T]) -> T:
        """Do it, several times if need be: every call is one that may be repeated."""
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random_exponential(_FIRST_WAIT_S, _LONGEST_WAIT_S),
            retry=tenacity.retry_if_exception(self._may_pass),
            reraise=True,
        )
        try:
            return tries(call)
        except self._failures as error:
            raise _said(error, url) from error

    def _may_pass(self, error: BaseException) -> bool:
        if _code(error) in _FINAL_CODES or type(error).__name__ in _FINAL_NAMES:
            return False
        if disk.is_full(error):
            return False

        return isinstance(error, self._failures) and not isinstance(error, _FINAL)


# Of answers of S3, and of errors of its library
_FINAL_CODES = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_FINAL_NAMES = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError")


def _child(name: str, about: dict[str, Any]) -> Child:
    changed_at = about.get("LastModified") or about.get("created") or 0.0
    changed_at_s = changed_at if isinstance(changed_at, float) else changed_at.timestamp()
    return Child(name, about["type"] == "directory", int(about.get("size") or 0), changed_at_s)


def _code(error: BaseException) -> str:
    """What S3 calls an error; empty if it does not say it."""
    response = getattr(error.__cause__ or error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _said(error: Exception, url: str) -> OSError:
    """The same error in words for people, with the URL."""
    if isinstance(error, OSError) and disk.is_full(error):
        return error  # a disk of this machine: no store says so

    code = _code(error)
    if code == "NoSuchBucket":
        return StorageFailed(errno.ENODEV, "the bucket does not exist; make it first", url)
    if code == "PreconditionFailed" or isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, "there is such an object already", url)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such object", url)
    if isinstance(error, PermissionError) or code in _FINAL_CODES:
        return PermissionError(errno.EACCES, f"the object store refuses it: {error}", url)
    if type(error).__name__ in _FINAL_NAMES:
        return PermissionError(errno.EACCES, f"{error}; give the credentials of the store", url)

    return StorageFailed(errno.EIO, f"the object store failed {_TRIES} times: {error}", url)


# --- which stores there are ---


def store_of(scheme: str) -> ObjectStore:
    """InvalidSetting for one that checkpoints cannot be on."""
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return _s3(endpoint)
    if scheme == "memory":
        return _memory()

    raise InvalidSetting(
        f"{scheme}: checkpoints can be on a path of the file system or on s3://bucket/prefix"
    )


@functools.cache
def _s3(endpoint: str | None) -> ObjectStore:
    try:
        import s3fs
        from botocore.exceptions import BotoCoreError
        from s3fs.core import S3_RETRYABLE_ERRORS
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"s3: {how_to_install('s3', error)}") from error

    # All retries are made here: those of the libraries below would multiply them.
    system = s3fs.S3FileSystem(
        endpoint_url=endpoint,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "retries": {"total_max_attempts": 1},
        },
    )
    system.retries = 1
    return ObjectStore(system, (BotoCoreError, *S3_RETRYABLE_ERRORS))


@functools.cache
def _memory() -> ObjectStore:
    """Of this process only, for tests."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"memory: {how_to_install('s3', error)}") from error

    return ObjectStore(fsspec.filesystem("memory"))

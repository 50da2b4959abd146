"""Discovery through a directory that all processes share: one small file per process."""

import contextlib
import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from megalith.runtime import files
from megalith.runtime.discovery.interface import NAMES, Discovery, Entries, parse_index
from megalith.wire.errors import DiscoveryFailed

_LOCK_FILE = ".lock"
_MAX_BYTES = 512  # an address is shorter; what is longer is not read whole


class FileDiscovery(Discovery):
    """`<directory>/<name>/<index>` holds an address for as long as the process that wrote it lives.

    A writer keeps its file open under a lock, which the kernel releases when the process dies, however it dies. Whoever
    finds a file unlocked removes it; no clock and no process id is asked. The reference leaves such files for ever.
    On a file system without locks dead entries stay until they are replaced.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._lock = threading.Lock()  # guards `_held`
        self._held: dict[tuple[str, int], tuple[str, IO[bytes]]] = {}

    def _register(self, name: str, index: int, address: str) -> None:
        path = self._directory / name / str(index)
        temporary = path.with_name(f".{index}-tmp-{secrets.token_hex(4)}")
        with _translated(path), self._lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(temporary, "xb")  # noqa: SIM115  # held open for as long as the entry stands
            try:
                file.write(address.encode())
                file.flush()
                _lock_if_possible(file.fileno())
                with self._changing():
                    os.replace(temporary, path)
            except BaseException:
                file.close()
                temporary.unlink(missing_ok=True)
                raise
            _, replaced = self._held.pop((name, index), (None, None))
            self._held[name, index] = (address, file)
            if replaced is not None:
                replaced.close()

    def _deregister(self, name: str, index: int, address: str) -> None:
        path = self._directory / name / str(index)
        with _translated(path), self._lock:
            if path.parent.is_dir():
                with self._changing():
                    if _read(path) == address:
                        path.unlink(missing_ok=True)
            if self._held.get((name, index), ("",))[0] == address:
                self._held.pop((name, index))[1].close()

    def _query_all(self) -> dict[str, Entries]:
        found: dict[str, Entries] = {}
        for name in NAMES:
            with _translated(self._directory / name):
                for path in self._paths(name):
                    text = self._read_live(path)
                    if (
                        text is not None
                        and (address := self._readable(str(path), text)) is not None
                    ):
                        found.setdefault(name, {})[int(path.name)] = address
        return found

    def deregister_all(self) -> None:
        with _translated(self._directory):
            for path in [path for name in NAMES for path in self._paths(name)]:
                with self._changing():
                    path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        with self._lock:
            held = {key: address for key, (address, _) in self._held.items()}
        for (name, index), address in held.items():
            with contextlib.suppress(DiscoveryFailed):
                self._deregister(name, index, address)

    def _paths(self, name: str) -> list[Path]:
        try:
            return [
                path
                for path in (self._directory / name).iterdir()
                if parse_index(path.name) is not None
            ]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _read_live(self, path: Path) -> str | None:
        """The content, or None if its writer is dead; then the file is removed."""
        try:
            with files.open_plain(path, "rb") as file:
                content = file.read(_MAX_BYTES).decode(errors="replace").strip()
                if not _is_abandoned(file.fileno()):
                    return content
                with self._changing():
                    if os.path.samestat(
                        os.fstat(file.fileno()), path.stat()
                    ):  # not replaced meanwhile
                        path.unlink()
        except (FileNotFoundError, IsADirectoryError):
            pass
        except files.NotPlainFile as error:
            self._ignore(str(path), "", str(error.strerror))
        return None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change of names at a time, among all processes: a new entry is never removed in place of an old one."""
        with files.open_plain(self._directory / _LOCK_FILE, "r+b") as file:
            _lock_if_possible(file.fileno(), wait=True)
            yield


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:_MAX_BYTES].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _lock_if_possible(descriptor: int, wait: bool = False) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise


def _is_abandoned(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiscoveryFailed(f"discovery directory: {path}: {error.strerror}") from error

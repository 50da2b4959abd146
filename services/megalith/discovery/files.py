"""Discovery through a directory that all processes share: `<directory>/<name>/<index>` is a file.

Its writer keeps it locked, so an entry vanishes with the process, however the process dies.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from megalith.discovery.back_end import Opener, Site
from megalith.discovery.interface import NAMES, AddressByIndex, Discovery, parse_index
from megalith.discovery.url import DiscoveryUrl
from megalith.errors import DiscoveryFailed, InvalidSetting
from megalith.runtime import files

_LOCK_FILE = ".lock"
_MAX_BYTES = 512  # an address is shorter; what is longer is not read whole
_FOLDER = "discovery"  # in the model directory, if the URL names no directory
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # of a file system that has none


class FileDiscovery(Discovery):
    """`<directory>/<name>/<index>` holds an address for as long as the process that wrote it lives.

    A writer keeps its file open under a lock, which the kernel releases when the process dies,
    however it dies. Whoever finds a file unlocked removes it; no clock and no process id is asked.
    Monolith leaves such files for ever. On a file system without locks dead entries stay until
    they are replaced.
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
            # Held open for as long as the entry stands
            file = open(temporary, "xb")  # noqa: SIM115

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

            held_address, file = self._held.get((name, index), (None, None))
            if held_address == address and file is not None:
                del self._held[name, index]
                file.close()

    def _query_all(self) -> dict[str, AddressByIndex]:
        found: dict[str, AddressByIndex] = {}
        for name in NAMES:
            with _translated(self._directory / name):
                for path in self._paths(name):
                    text = self._read_live(path)
                    if text is None:
                        continue

                    address = self._readable(str(path), text)
                    if address is None:
                        continue

                    entries = found.setdefault(name, {})
                    entries[int(path.name)] = address

        return found

    def deregister_all(self) -> None:
        with _translated(self._directory):
            for name in NAMES:
                for path in self._paths(name):
                    with self._changing():
                        path.unlink(missing_ok=True)

        self.close()

    def close(self) -> None:
        with self._lock:
            held = dict(self._held)

        for (name, index), (address, _) in held.items():
            with contextlib.suppress(DiscoveryFailed):
                self._deregister(name, index, address)

    def _paths(self, name: str) -> list[Path]:
        try:
            folder = self._directory / name
            paths = list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

        return [path for path in paths if parse_index(path.name) is not None]

    def _read_live(self, path: Path) -> str | None:
        """The content, or None if its writer is dead; then the file is removed."""
        try:
            with files.open_plain(path, "rb") as file:
                content = file.read(_MAX_BYTES)
                if not _is_abandoned(file.fileno()):
                    return content.decode(errors="replace").strip()

                with self._changing():
                    is_same_file = os.path.samestat(os.fstat(file.fileno()), path.stat())
                    if is_same_file:  # not replaced meanwhile
                        path.unlink()
        except (FileNotFoundError, IsADirectoryError):
            pass
        except files.NotPlainFile as error:
            self._ignore(str(path), "", str(error.strerror))

        return None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change of names at a time, among all processes.

        So a new entry is never removed in place of an old one.
        """
        with files.open_plain(self._directory / _LOCK_FILE, "r+b") as file:
            _lock_if_possible(file.fileno(), wait=True)
            yield


def opener(url: DiscoveryUrl, site: Site) -> Opener:
    """`file:///directory`, or `file:` for discovery/ in the model directory."""
    url.take_options()
    if url.servers:
        # Somebody wrote file://directory.
        raise url.wrong(f"file://{url.servers} names a machine; a directory has a third slash")

    if url.path and not url.path.startswith("/"):
        raise url.wrong(f"the directory {url.path} is not absolute")

    if not url.path and not site.model_dir:
        raise InvalidSetting(
            f"--discovery={url.text} needs --model-dir, or the directory in the URL: {url.example}"
        )

    default = Path(site.model_dir) / _FOLDER
    directory = Path(url.path or default).absolute()
    complete = f"file://{quote(str(directory))}"
    return Opener(open=lambda: FileDiscovery(directory), url=complete, job=site.job)


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()[:_MAX_BYTES]
    except FileNotFoundError:
        return ""

    return content.decode(errors="replace").strip()


def _lock_if_possible(descriptor: int, wait: bool = False) -> None:
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
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

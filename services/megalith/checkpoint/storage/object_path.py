"""A place in an object store, with those methods of pathlib.Path that checkpoints need.

A store has objects and no folders: what is called a folder here are the objects whose names begin
alike. It is there as soon as one of them is, and gone with the last one.
"""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from megalith.checkpoint.storage.object_store import ObjectStore, store_of
from megalith.errors import InvalidSetting

_EXAMPLE = "give a URL like s3://bucket/models/ctr"


class ObjectStat(NamedTuple):
    """As os.stat_result names it."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """An object, or a folder of them. `url` has no slash at its end."""

    url: str

    @classmethod
    def parse(cls, text: str) -> "ObjectPath":
        """InvalidSetting if no checkpoint can be there."""
        scheme, mark, rest = text.partition("://")
        parts = rest.rstrip("/").split("/")
        if not mark or not all(parts):
            raise InvalidSetting(f"{text} names no place for checkpoints; {_EXAMPLE}")
        if {".", ".."} & set(parts):
            raise InvalidSetting(f"{text}: an object store knows no . and no ..; {_EXAMPLE}")

        store_of(scheme)  # refuses one that nobody can open
        return cls(f"{scheme}://{'/'.join(parts)}")

    @property
    def store(self) -> ObjectStore:
        return store_of(self.url.partition("://")[0])

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        return ObjectPath(self.url.rpartition("/")[0])

    def with_name(self, name: str) -> "ObjectPath":
        return self.parent / name

    def absolute(self) -> "ObjectPath":
        return self

    # --- looking ---

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        try:
            self.store.about(self.url)
        except FileNotFoundError:
            return False

        return True

    def is_dir(self) -> bool:
        return bool(self.store.children(self.url))

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> ObjectStat:
        """Of an object; a folder has none."""
        about = self.store.about(self.url)
        return ObjectStat(about.size, about.changed_at_s)

    def iterdir(self) -> Iterator["ObjectPath"]:
        for child in self.store.children(self.url):
            yield self / child.name

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """Those directly below whose names fit; the pattern has no slash."""
        for path in self.iterdir():
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path

    # --- reading and changing ---

    def read_bytes(self) -> bytes:
        return self.store.read(self.url)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """A folder is there with its first object: nothing has to be made."""

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.store.remove(self.url)
        except FileNotFoundError:
            if not missing_ok:
                raise

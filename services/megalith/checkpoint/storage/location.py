"""Where checkpoints live: a path of this machine, or a URL of an object store.

Both are used alike, as far as an object store allows it: ObjectPath has those methods of
pathlib.Path that checkpoints need. What differs is in `files.py` and `object_folders.py`.
"""

import os
import re
from pathlib import Path
from typing import TypeAlias

from megalith.checkpoint.storage.object_path import ObjectPath

Location: TypeAlias = Path | ObjectPath

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")


def locate(text: str) -> Location:
    """The location that a setting, an order or a state file names; InvalidSetting if it is none."""
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))

    return ObjectPath.parse(text) if is_url(text) else Path(text)


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def resolved(directory: Location, name: str) -> Location:
    """What a state file of `directory` means by a name: an absolute one is taken as it is.

    A URL is absolute, and so is Monolith's "hdfs:/...".
    """
    return locate(name) if is_absolute(name) else directory / name


def is_absolute(text: str) -> bool:
    return is_url(text) or os.path.isabs(text)


def absolute(text: str) -> str:
    """A path as another process may use it; a URL means the same everywhere."""
    return text if is_url(text) else os.path.abspath(text)


def name_of(text: str) -> str:
    """The last part of a path or URL."""
    return text.rstrip("/").rpartition("/")[2]

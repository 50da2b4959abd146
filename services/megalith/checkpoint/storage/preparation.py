"""Before the first save: whether checkpoints can be written where somebody wants them."""

import secrets
from pathlib import Path

from megalith.checkpoint.storage import files
from megalith.checkpoint.storage.location import Location, locate
from megalith.errors import InvalidSetting
from megalith.runtime.files import prepare_model_dir

_PROBE = ".write-probe-"


def prepared(text: str) -> Location:
    """A directory to save into, proven writable; InvalidSetting otherwise."""
    directory = locate(text)
    if isinstance(directory, Path):
        return prepare_model_dir(text)

    probe = directory / f"{_PROBE}{secrets.token_hex(4)}"
    try:
        files.write(probe, b"")
        probe.unlink()
    except OSError as error:
        raise InvalidSetting(
            f"{text}: checkpoints cannot be written there: {error.strerror}; correct the URL, the "
            "credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or AWS_ENDPOINT_URL"
        ) from error

    return directory

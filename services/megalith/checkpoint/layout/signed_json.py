"""JSON that says whether it is as it was written.

Its last field is its own checksum: the sha256 of the text with nothing between the quotes of that
field.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged

_NO_CHECKSUM = '"checksum": ""'


def encode(content: Mapping[str, Any]) -> bytes:
    """The text, with its checksum."""
    text = json.dumps({**content, "checksum": ""}, indent=1)
    digest = hashlib.sha256(text.encode())
    field = _checksum_field(digest.hexdigest())

    signed = text.replace(_NO_CHECKSUM, field)
    return signed.encode()


def check_whole(path: Location, data: bytes, stated: Any) -> None:
    """CheckpointDamaged unless the text is as it was written; early ones do not say it."""
    if stated is None:
        return

    unsigned = data.replace(_checksum_field(stated).encode(), _NO_CHECKSUM.encode())
    digest = hashlib.sha256(unsigned).hexdigest()
    if digest != stated:
        raise CheckpointDamaged(
            f"{path} was changed after it was written: its sha256 is {digest}, "
            f"its field checksum says {stated}"
        )


def _checksum_field(digest: str) -> str:
    return f'"checksum": "{digest}"'

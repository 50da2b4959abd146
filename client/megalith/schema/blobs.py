"""What a blob may be called."""

from typing import Any

from megalith.errors import InvalidRequest

MAX_NAME_BYTES = 256


def check_blob_name(name: Any) -> None:
    """InvalidRequest unless it is a text of 1 to 256 bytes in UTF-8."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of a blob is {name!r:.100}, expected a text")

    if not name:
        raise InvalidRequest("the name of a blob is empty")

    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"the name of a blob is {name!r:.100}, which is not UTF-8") from None

    if nbytes > MAX_NAME_BYTES:
        raise InvalidRequest(
            f"the name of a blob has {nbytes} bytes, the most is {MAX_NAME_BYTES}: {name!r:.60}"
        )

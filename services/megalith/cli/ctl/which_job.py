"""Which job a command means, if several places may say it."""

from collections.abc import Mapping

DEFAULT_MODEL_DIR = "model"


def first_named(*sources: tuple[str, str]) -> tuple[str | None, str | None] | None:
    """(address, model directory), one of them None, from the first source that names either.

    None if no source does.
    """
    for address, directory in sources:
        if address:
            return address, None
        if directory:
            return None, directory

    return None


def named_in(environ: Mapping[str, str], service: str) -> tuple[str, str]:
    """The address of that service and the model directory, as variables say them."""
    address = environ.get(f"MEGALITH_CTL_{service.upper()}", "")
    directory = environ.get("MEGALITH_CTL_MODEL_DIR", "")
    return address, directory

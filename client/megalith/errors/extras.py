"""What pip installs besides the SDK comes in extras: how to say that one of them is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


def how_to_install(extra: str, error: ModuleNotFoundError) -> str:
    """One line: what is missing, and the command that brings it."""
    package = (error.name or "").partition(".")[0]
    return (
        f"No module named {package!r}: it comes with the extra [{extra}]; "
        f"install it with pip install 'megalith[{extra}]', or in a clone pip install '.[{extra}]'"
    )


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Around the imports of a program.

    A missing module that the extra brings ends the program with one line.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "megalith":
            raise  # a mistake in this package, not a missing extra

        raise SystemExit(f"megalith: {how_to_install(extra, error)}") from None

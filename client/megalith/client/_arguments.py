"""What callers hand to the SDK, looked at before anything else happens.

A wrong argument is an InvalidRequest. Each message names the argument, what it was and what is
expected there.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from megalith.errors import InvalidRequest

T = TypeVar("T")

_SHOWN = 60  # characters of a wrong value that a message shows


def by_name(given: Any, what: str, expected: str) -> Mapping[str, Any]:
    """A mapping from names; None is an empty one.

    `expected` says what the values are, for the message.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidRequest(f"{what} are {_shown(given)}, expected a dict of {expected} by name")

    return given


def pair(given: Any, where: str, expected: str) -> tuple[Any, Any]:
    """Two things that belong together, such as (ids, gradients)."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidRequest(f"{where}: {_shown(given)}, expected a pair {expected}")

    first, second = given
    return first, second


def names(given: Any, what: str) -> list[str]:
    """A list of names; a string is a mistake, not a list of its letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{what} are {_shown(given)}, expected a list of names")

    listed = list(given)
    for name in listed:
        if not isinstance(name, str):
            raise InvalidRequest(f"{what} are {_shown(listed)}, expected a list of names")

    return listed


def iterator(given: Iterable[T], what: str) -> Iterator[T]:
    try:
        return iter(given)
    except TypeError:
        raise InvalidRequest(
            f"{what} are {_shown(given)}, expected something to iterate over"
        ) from None


def function(given: Any, name: str, expected: str) -> None:
    """`expected` says what it is to return, for the message."""
    if not callable(given):
        raise InvalidRequest(
            f"{name}={_shown(given)} is not a function; expected one that {expected}"
        )


def integer(given: Any, name: str) -> int:
    """An integer that 64 bits hold; what it may be is for the server to say."""
    try:
        value = operator.index(given)
    except TypeError:
        raise InvalidRequest(f"{name}={_shown(given)} is not an integer") from None

    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidRequest(f"{name}={value} does not fit 64 bits")

    return value


def rates(given: Any, table: str) -> tuple[float, ...]:
    """Learning rates of a table's segments; an empty tuple = its own."""
    try:
        return tuple(float(rate) for rate in given)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"table {table}: learning rates are {_shown(given)}, expected one number per segment"
        ) from None


def instances(given: Iterable[Any], kind: type[T], call: str) -> list[T]:
    """Positional arguments that are all of one class."""
    listed = list(given)
    for each in listed:
        if not isinstance(each, kind):
            raise InvalidRequest(
                f"{call} got {_shown(each)}, expected {kind.__name__}; "
                "several are given one after the other, not as a list"
            )

    return listed


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "..."

    return f"{type(value).__name__} {text}"

"""Checks that every schema class shares.

A failed one names the class, the field, the value and the rule.
"""

import math
from collections.abc import Iterable
from types import UnionType
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidRequest, InvalidSetting

FLOAT32_MAX = 3.4028234663852886e38


class Named(Protocol):
    """A schema class: `name` is what configurations and error messages call it."""

    name: ClassVar[str]


class KnowsKinds(Protocol):
    """A base class of schema classes: `kinds` has all of them, by name."""

    kinds: ClassVar[dict[str, Any]]


NamedT = TypeVar("NamedT", bound=Named)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSetting(message)


def _refuse(config: Named, field: str, rule: str) -> NoReturn:
    value = getattr(config, field)
    raise InvalidSetting(f"{config.name}: {field} {value!r} {rule}")


def check_finite(config: Named, *fields: str) -> None:
    """Each field is a number that float32, in which kernels compute, can hold."""
    for field in fields:
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(config, field, "is not a number")

        if not math.isfinite(value):
            _refuse(config, field, "is not finite")

        if abs(value) > FLOAT32_MAX:
            _refuse(config, field, "does not fit float32")


def check_at_least(config: Named, bound: float, *fields: str) -> None:
    check_finite(config, *fields)

    for field in fields:
        value = getattr(config, field)
        if value < bound:
            _refuse(config, field, f"must be {bound} or more")


def check_above(config: Named, bound: float, *fields: str) -> None:
    check_finite(config, *fields)

    for field in fields:
        value = getattr(config, field)
        if value <= bound:
            _refuse(config, field, f"must be above {bound}")


def check_fraction(config: Named, *fields: str) -> None:
    """Each field lies in [0, 1).

    A decay rate of 1 would never forget, and adam's correction would divide by zero.
    """
    check_at_least(config, 0, *fields)

    for field in fields:
        value = getattr(config, field)
        if value >= 1:
            _refuse(config, field, "must be below 1")


def check_count(config: Named, bound: int, *fields: str) -> None:
    """Each field is an integer of at least `bound`."""
    for field in fields:
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int):
            _refuse(config, field, "is not an integer")

        if value < bound:
            _refuse(config, field, f"must be {bound} or more")


def check_flag(config: Named, *fields: str) -> None:
    for field in fields:
        value = getattr(config, field)
        if not isinstance(value, bool):
            _refuse(config, field, "must be true or false")


def kinds_of(kind: UnionType | type[KnowsKinds]) -> tuple[Any, ...]:
    """The classes that a field of this type may have.

    Those are the members of a union, or all subclasses of a base class.
    """
    if isinstance(kind, UnionType):
        return get_args(kind)

    return tuple(kind.kinds.values())


def check_kind(owner: str, field: str, value: object, kind: UnionType | type[KnowsKinds]) -> None:
    """`value` is an object of one of the classes of `kind`.

    It is neither a name nor a class that was never called.
    """
    if isinstance(value, kind):
        return

    known = ", ".join(each.__name__ for each in kinds_of(kind))
    raise InvalidSetting(f"{owner}: {field} {value!r} is none of {known}")


def build_named(
    kind: str, classes: Iterable[type[NamedT]], name: str, settings: dict[str, object]
) -> NamedT:
    """The class of that name with those settings.

    InvalidSetting lists the known names or settings.
    """
    by_name = {candidate.name: candidate for candidate in classes}
    if name not in by_name:
        known_names = ", ".join(sorted(by_name))
        raise InvalidSetting(f"unknown {kind} {name!r}; known are {known_names}")

    chosen = by_name[name]
    known = getattr(chosen, "__match_args__", ())

    unknown = sorted(set(settings) - set(known))
    if unknown:
        names = ", ".join(unknown)
        it_has = ", ".join(known) or "none"
        raise InvalidSetting(f"{name}: unknown settings {names}; it has {it_has}")

    try:
        return chosen(**settings)
    except TypeError as error:  # a required setting is missing; the dataclass says which
        raise InvalidSetting(f"{name}: {error}") from error


def as_array(value: object, what: str) -> NDArray[Any]:
    """What a caller gave as an array.

    InvalidRequest, naming `what`, if NumPy cannot make one of it.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        # Such as rows of different lengths
        raise InvalidRequest(f"{what}: not an array of numbers: {error}") from error

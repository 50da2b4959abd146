"""Checks of settings that many configurations have, for their `__post_init__`."""

from megalith.errors import InvalidSetting
from megalith.runtime.settings import flag_of


def check_above_0(settings: object, *names: str) -> None:
    """InvalidSetting if one of these settings is 0, below 0 or not a number."""
    for name in names:
        value = getattr(settings, name)
        if not value > 0:
            raise InvalidSetting(f"{flag_of(name)}={value}: must be above 0")


def check_not_below_0(settings: object, *names: str) -> None:
    """InvalidSetting if one of these settings is below 0 or not a number."""
    for name in names:
        value = getattr(settings, name)
        if not value >= 0:
            raise InvalidSetting(f"{flag_of(name)}={value}: below 0")


def check_one_of(settings: object, name: str, *choices: str) -> None:
    """InvalidSetting if the setting is none of these."""
    value = getattr(settings, name)
    if value not in choices:
        *others, last = choices
        most = ", ".join(others)
        raise InvalidSetting(f"{flag_of(name)}={value}: expected {most} or {last}")

"""The command line of a service: one option for each of its settings."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import click

from megalith.errors import InvalidSetting
from megalith.runtime.commands import Command, Option
from megalith.runtime.settings import Setting, flag_of, leaves, load, refuse_removed

T = TypeVar("T")
_FIRST = "first"  # the argument that needs no flag
_MOST_USED = "Most used"


def main(
    name: str,
    cls: type[T],
    run: Callable[[T], int],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """`python -m megalith.<name>`: read the settings, run, and end the process."""
    service = service_command(name, cls, run, environ)
    status: int = service.main(argv, prog_name=f"megalith {name}")
    return status


def service_command(
    name: str, cls: type[T], run: Callable[[T], int], environ: Mapping[str, str] = os.environ
) -> Command:
    """`megalith <name>`: the settings of a service, then its run.

    The flags go before the variables MEGALITH_<NAME>_*, and those before the defaults.
    """
    docstring = cls.__doc__ or ""
    summary, *_ = docstring.strip().splitlines()
    prefix = f"MEGALITH_{name.upper()}_"
    return SettingsCommand(name, cls, run, environ, prefix=prefix, help=summary)


class SettingsCommand(Command, Generic[T]):
    """A command whose options are the settings of a dataclass.

    It runs with a checked object of that class; a bad setting is one line and exit status 2. The
    command line goes before the environment, and the environment before `defaults`.

    `first` names the settings that most people need: the help shows them before all others. The
    setting `positional`, if any, may also be given as the first argument. `shown` has texts for
    defaults that differ from one minute to the next.
    """

    def __init__(
        self,
        name: str,
        cls: type[T],
        run: Callable[[T], int],
        environ: Mapping[str, str] = os.environ,
        *,
        prefix: str,
        help: str,
        first: Sequence[str] = (),
        examples: Sequence[str] = (),
        positional: str = "",
        defaults: Callable[[], Mapping[str, Any]] = dict,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = cls
        self._run = run
        self._environ = environ
        self._prefix = prefix
        self._positional = positional
        self._defaults = defaults

        shown = shown or {}
        by_name = {leaf.name: leaf for leaf in leaves(cls)}
        others = [name for name in by_name if name not in first]
        params: list[click.Parameter] = []
        if positional:
            params.append(click.Argument([_FIRST], required=False, metavar=positional.upper()))

        values = defaults()
        for setting in (*first, *others):
            leaf = by_name[setting]
            section = _MOST_USED if setting in first else "Options"
            default = shown.get(setting) or _default(values.get(setting, leaf.default))
            params.append(_option(leaf, section, default))

        epilog = (
            f"Every option is also an environment variable: {prefix}{first_name(by_name)} for "
            f"{flag_of(next(iter(by_name)))}. An option wins over the variable."
        )
        super().__init__(
            name, params=params, help=help, callback=self._call, examples=examples, epilog=epilog
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            refuse_removed(self._settings, self._prefix, args, self._environ)
        except InvalidSetting as error:
            raise click.UsageError(str(error), ctx) from None

        return super().parse_args(ctx, args)

    def _call(self, **given: str | None) -> int:
        flags = {name: text for name, text in given.items() if text is not None}
        try:
            config = self._load(flags)
        except InvalidSetting as error:
            raise click.UsageError(str(error), click.get_current_context()) from None

        return self._run(config)

    def _load(self, flags: dict[str, str]) -> T:
        first = flags.pop(_FIRST, None)
        if first is not None:
            if self._positional in flags:
                flag = f"--{self._positional}={flags[self._positional]}"
                raise InvalidSetting(f"{first!r}: {flag} is given as well")

            flags[self._positional] = first

        return load(
            self._settings,
            self._prefix,
            flags=flags,
            environ=self._environ,
            defaults=self._defaults(),
        )


def first_name(by_name: Mapping[str, Setting]) -> str:
    return next(iter(by_name)).upper()


def _option(leaf: Setting, section: str, default: str) -> Option:
    names = [leaf.flag, leaf.alias] if leaf.alias else [leaf.flag]
    # `--stay-up` alone is `--stay-up=true`.
    alone = {"is_flag": False, "flag_value": "true"} if leaf.type is bool else {}
    return Option(
        [*names, leaf.name],
        section=section,
        help=f"{leaf.help}  [{default}]",
        metavar=_metavar(leaf),
        **alone,
    )


def _metavar(leaf: Setting) -> str:
    if leaf.type is bool:
        return "[true|false]"
    if leaf.type is str:
        return "TEXT"

    return "SECONDS" if leaf.name.endswith("_s") else "N"


def _default(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value == "":
        return "default: empty"
    if isinstance(value, bool):
        return f"default: {str(value).lower()}"
    if isinstance(value, float):
        return f"default: {value:g}"

    return f"default: {value}"


def to_flags(values: Mapping[str, Any]) -> list[str]:
    """The command line that sets these values, for starting a service as a process."""
    return [f"{flag_of(name)}={value}" for name, value in values.items()]

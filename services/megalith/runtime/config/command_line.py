"""The command line of a service: one option for each of its settings."""

import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import click
from click.shell_completion import CompletionItem

from megalith.errors import InvalidSetting
from megalith.runtime.config.commands import OPTIONS, Command, Option
from megalith.runtime.config.settings import Setting, flag_of, leaves, load, refuse_removed

T = TypeVar("T")
_WRITTEN = "megalith.written"  # in a context: the options of the line, as they are written
_FIRST = "first"  # the argument that needs no flag
_METAVARS = {
    "model_dir": "DIR",
    "state_file": "FILE",
    "controller": "HOST:PORT",
    "host": "HOST",
    "advertise_host": "HOST",
    "discovery": "URL",
    "job": "NAME",
    "set": "SERVICE.NAME=VALUE",
}
_UNITS = {"s": "SECONDS", "bytes": "BYTES", "hours": "HOURS", "port": "PORT"}
MOST_USED = "Most used"


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

    The flags go before the variables MEGALITH_<NAME>_*, and those before the defaults. The class
    may have FIRST, the settings that most people need, and EXAMPLES.
    """
    docstring = cls.__doc__ or ""
    summary, *_ = docstring.strip().splitlines()
    prefix = f"MEGALITH_{name.upper()}_"
    return SettingsCommand(
        name,
        cls,
        run,
        environ,
        prefix=prefix,
        help=summary,
        first=getattr(cls, "FIRST", ()),
        examples=getattr(cls, "EXAMPLES", ()),
    )


class SettingsCommand(Command, Generic[T]):
    """A command whose options are the settings of a dataclass.

    It runs with a checked object of that class; a bad setting is one line and exit status 2. The
    command line goes before the environment, and the environment before `defaults`.

    `first` names the settings that most people need: the help shows them before all others. The
    setting `positional`, if any, may also be given as the first argument. `shown` has texts for
    defaults that differ from one minute to the next. The settings in `decided` are no options: the
    command itself says what they are.
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
        decided: Collection[str] = (),
    ) -> None:
        self._settings = cls
        self._run = run
        self._environ = environ
        self._prefix = prefix
        self._positional = positional
        self._defaults = defaults

        shown = shown or {}
        by_name = {leaf.name: leaf for leaf in leaves(cls)}
        others = [name for name in by_name if name not in first and name not in decided]
        params: list[click.Parameter] = []

        if positional:
            params.append(click.Argument([_FIRST], required=False, metavar=positional.upper()))

        values = defaults()
        for setting in (*first, *others):
            leaf = by_name[setting]
            section = leaf.section or OPTIONS
            if setting in first:
                section = MOST_USED

            default = _default(values.get(setting, leaf.default))

            if setting in shown:
                default = f"  [{shown[setting]}]"

            params.append(_option(leaf, section, default))

        example, *_ = first or by_name
        epilog = (
            f"Every option is also an environment variable, {prefix}{example.upper()} for "
            f"{flag_of(example)}. What is on the command line wins."
        )

        super().__init__(
            name, params=params, help=help, callback=self._call, examples=examples, epilog=epilog
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            refuse_removed(self._settings, self._prefix, args, self._environ)
        except InvalidSetting as error:
            raise click.UsageError(str(error), ctx) from None

        ctx.meta[_WRITTEN] = {word.partition("=")[0] for word in args}
        return super().parse_args(ctx, args)

    def _call(self, **given: str | tuple[str, ...] | None) -> int:
        flags = {}
        for name, text in given.items():
            if isinstance(text, tuple):
                text = shlex.join(text) or None
            if text is not None:
                flags[name] = text

        try:
            config = self._load(flags)
        except InvalidSetting as error:
            context = click.get_current_context()
            message = self._as_written(str(error), context.meta[_WRITTEN])
            raise click.UsageError(message, context) from None

        return self._run(config)

    def _as_written(self, message: str, written: Collection[str]) -> str:
        """The message with --workers for --num-workers, if that is how the line calls it."""
        for leaf in leaves(self._settings):
            if leaf.alias in written:
                message = re.sub(rf"{leaf.flag}(?![\w-])", leaf.alias, message)

        return message

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


def _option(leaf: Setting, section: str, default: str) -> Option:
    names = [leaf.flag, leaf.alias] if leaf.alias else [leaf.flag]
    # `--stay-up` alone is `--stay-up=true`.
    alone = {"is_flag": False, "flag_value": "true"} if leaf.type is bool else {}
    return Option(
        [*names, leaf.name],
        section=section,
        help=f"{leaf.help}{default}",
        metavar=_metavar(leaf),
        shell_complete=partial(_complete, leaf),
        multiple=leaf.is_repeated,
        **alone,
    )


def _complete(
    leaf: Setting, _context: click.Context, _option: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """What a shell proposes for the value."""
    if leaf.name.endswith("_dir"):
        return [CompletionItem(incomplete, type="dir")]

    choices = ("true", "false") if leaf.type is bool else leaf.choices
    items = []
    for choice in choices:
        if choice.startswith(incomplete):
            items.append(CompletionItem(choice))

    return items


def _metavar(leaf: Setting) -> str:
    """What stands for the value: its choices, its unit, or what kind of text it is."""
    if leaf.choices:
        choices = "|".join(leaf.choices)
        return f"[{choices}]"

    if leaf.type is bool:
        return "[true|false]"
    if leaf.type is str:
        return _METAVARS.get(leaf.name, "TEXT")

    _, _, unit = leaf.name.rpartition("_")
    return _UNITS.get(unit, "N")


def _default(value: Any) -> str:
    """What follows the help of a setting."""
    if value is dataclasses.MISSING:
        return "  [required]"
    if value == "":
        return ""
    if isinstance(value, bool):
        return f"  [default: {str(value).lower()}]"
    if isinstance(value, float):
        return f"  [default: {value:g}]"

    return f"  [default: {value}]"


def to_flags(values: Mapping[str, Any]) -> list[str]:
    """The command line that sets these values, for starting a service as a process."""
    flags = []
    for name, value in values.items():
        flag = flag_of(name)
        flags.append(f"{flag}={value}")

    return flags

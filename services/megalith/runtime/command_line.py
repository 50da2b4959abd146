"""The command line of a service: one flag for each of its settings."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from megalith.errors import InvalidSetting
from megalith.runtime.settings import Setting, flag_of, leaves, load, refuse_removed

T = TypeVar("T")
_FIRST = "first"  # what argparse calls the argument that needs no flag


def main(
    name: str,
    cls: type[T],
    run: Callable[[T], int],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """`megalith <name>` and `python -m megalith.<name>`: read the settings, then run.

    The flags go before the variables MEGALITH_<NAME>_*, and those before the defaults.
    """
    docstring = cls.__doc__ or ""
    summary, *_ = docstring.strip().splitlines()
    prefix = f"MEGALITH_{name.upper()}_"
    config = parse(name, cls, argv, environ, prefix=prefix, summary=summary)
    return run(config)


def parse(
    name: str,
    cls: type[T],
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    prefix: str,
    summary: str,
    positional: str = "",
    defaults: Mapping[str, Any] | None = None,
) -> T:
    """The configuration of `megalith <name>`.

    Its command line goes before the environment, and the environment before `defaults`. The setting
    `positional`, if any, may also be given as the first argument. A bad setting is one line on
    stderr and exit status 2.
    """
    parser = _parser(name, cls, prefix, summary, positional, defaults or {})
    try:
        refuse_removed(cls, prefix, argv, environ)
    except InvalidSetting as error:
        parser.error(str(error))

    given = vars(parser.parse_args(argv))
    flags = {flag: text for flag, text in given.items() if text is not None}
    try:
        first = flags.pop(_FIRST, None)
        if first is not None:
            if positional in flags:
                flag = f"--{positional}={flags[positional]}"
                raise InvalidSetting(f"{first!r}: {flag} is given as well")

            flags[positional] = first

        return load(cls, prefix, flags=flags, environ=environ, defaults=defaults)
    except InvalidSetting as error:
        parser.error(str(error))


def _parser(
    name: str,
    cls: type[Any],
    prefix: str,
    summary: str,
    positional: str,
    defaults: Mapping[str, Any],
) -> argparse.ArgumentParser:
    first = positional.upper()
    usage = f"%(prog)s [{first}]" if first else "%(prog)s"
    parser = argparse.ArgumentParser(
        f"megalith {name}",
        usage=f"{usage} [--setting VALUE ...]",
        description=summary,
        allow_abbrev=False,
    )

    for leaf in leaves(cls):
        default = defaults.get(leaf.name, leaf.default)
        names = [leaf.flag, leaf.alias] if leaf.alias else [leaf.flag]
        parser.add_argument(
            *names,
            dest=leaf.name,
            metavar=leaf.type.__name__.upper(),
            help=_help(leaf, default, prefix),
        )

    if positional:
        same = f"The same as --{positional}."
        parser.add_argument(_FIRST, nargs="?", metavar=first, help=same)

    return parser


def _help(leaf: Setting, default: Any, prefix: str) -> str:
    is_required = default is dataclasses.MISSING
    otherwise = "required" if is_required else f"default: {default!r}"
    variable = leaf.environment(prefix)
    text = f"{leaf.help} [{otherwise}; env: {variable}]"
    return text.replace("%", "%%")  # argparse fills in what follows a single one


def to_flags(values: Mapping[str, Any]) -> list[str]:
    """The command line that sets these values, for starting a service as a process."""
    return [f"{flag_of(name)}={value}" for name, value in values.items()]

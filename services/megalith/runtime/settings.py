"""Settings of a service: frozen dataclasses filled from flags over environment over defaults.

A service has one dataclass; parts shared between services are nested in it. Every leaf field is one setting:

    PsConfig.index            flag --index            environment MEGALITH_PS_INDEX
    PsConfig.server.port      flag --port             environment MEGALITH_PS_PORT
"""

import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_type_hints

import click

from megalith.wire.errors import InvalidSetting

T = TypeVar("T")
_MISSING = dataclasses.MISSING
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


def setting(help: str, default: Any = _MISSING) -> Any:
    """A dataclass field that is a setting; without a default it must be given."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One leaf: where it is stored, what it is called, and what it takes."""

    path: tuple[str, ...]
    type: type
    default: Any
    help: str

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def environment(self, prefix: str) -> str:
        return prefix + self.name.upper()

    def parse(self, text: str, source: str) -> Any:
        """The text as this setting's type; InvalidSetting names where it came from."""
        try:
            if self.type is bool:
                if text.lower() not in _TRUE | _FALSE:
                    raise ValueError
                return text.lower() in _TRUE
            return self.type(text)
        except ValueError:
            raise InvalidSetting(f"{source}={text!r}: expected {self.type.__name__}") from None


def leaves(cls: type[Any], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every setting of a configuration class, nested ones included, in declaration order."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        here = (*path, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], here)
        else:
            yield Setting(here, hints[field.name], field.default, field.metadata["help"])


def from_env(cls: type[T], prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Values by setting name from the variables that start with `prefix`; an unknown one is InvalidSetting."""
    by_variable = {leaf.environment(prefix): leaf for leaf in leaves(cls)}
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in by_variable:
            raise InvalidSetting(f"{variable} is not a setting{_suggestion(variable, by_variable)}")
        leaf = by_variable[variable]
        values[leaf.name] = leaf.parse(text, variable)
    return values


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The configuration with `values` by setting name; what is missing takes its default."""
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every caller passes a dataclass
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = build(hints[field.name], values)
        elif field.name in values:
            arguments[field.name] = values[field.name]
        elif field.default is _MISSING:
            raise InvalidSetting(f"--{field.name.replace('_', '-')} is not given")
    return cls(**arguments)


def to_flags(values: Mapping[str, Any]) -> list[str]:
    """The command line that sets these values, for starting a service as a process."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def command(name: str, cls: type[T], run: Callable[[T], int]) -> click.Command:
    """`megalith <name>` and `python -m megalith.<name>`: flags over MEGALITH_<NAME>_* over defaults, then run."""
    prefix = f"MEGALITH_{name.upper()}_"

    def invoke(**flags: str | None) -> None:
        try:
            values = from_env(cls, prefix, os.environ)
            values |= {leaf.name: leaf.parse(text, leaf.flag) for leaf in leaves(cls) if (text := flags[leaf.name])}
            config = build(cls, values)
        except InvalidSetting as error:
            click.echo(f"megalith {name}: {error}", err=True)
            sys.exit(2)
        sys.exit(run(config))

    summary = (cls.__doc__ or "").strip().splitlines()[0]
    options = [click.Option([leaf.flag], metavar=leaf.type.__name__, help=_help(leaf, prefix)) for leaf in leaves(cls)]
    return click.Command(name, callback=invoke, params=list(options), help=summary)


def _help(leaf: Setting, prefix: str) -> str:
    default = "required" if leaf.default is _MISSING else f"default: {leaf.default!r}"
    return f"{leaf.help} [{default}; env: {leaf.environment(prefix)}]"


def _suggestion(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"

"""Settings of a service: frozen dataclasses filled from flags over environment over defaults.

A service has one dataclass; parts shared between services are nested in it. Every leaf field is one setting:

    PsConfig.index            flag --index            environment MEGALITH_PS_INDEX
    PsConfig.server.port      flag --port             environment MEGALITH_PS_PORT
"""

import argparse
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

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
            names = {leaf.name: known for known, leaf in by_variable.items()}
            raise InvalidSetting(f"{variable} is not a setting{_suggestion(variable[len(prefix) :].lower(), names)}")
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


def main(name: str, cls: type[T], run: Callable[[T], int], argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """`megalith <name>` and `python -m megalith.<name>`: flags over MEGALITH_<NAME>_* over defaults, then run."""
    prefix = f"MEGALITH_{name.upper()}_"
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(f"megalith {name}", description=summary, allow_abbrev=False)
    for leaf in leaves(cls):
        parser.add_argument(leaf.flag, metavar=leaf.type.__name__.upper(), help=_help(leaf, prefix))
    flags = vars(parser.parse_args(argv))
    try:
        values = from_env(cls, prefix, environ)
        given = ((leaf, flags[leaf.name]) for leaf in leaves(cls) if flags[leaf.name] is not None)
        values |= {leaf.name: leaf.parse(text, leaf.flag) for leaf, text in given}
        config = build(cls, values)
    except InvalidSetting as error:
        parser.error(str(error))
    return run(config)


def _help(leaf: Setting, prefix: str) -> str:
    default = "required" if leaf.default is _MISSING else f"default: {leaf.default!r}"
    return f"{leaf.help} [{default}; env: {leaf.environment(prefix)}]".replace("%", "%%")


def _suggestion(name: str, variables: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, variables, n=1)
    return f"; did you mean {variables[close[0]]}?" if close else f"; known are {', '.join(sorted(variables.values()))}"

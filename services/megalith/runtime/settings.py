"""Settings: frozen dataclasses filled from code over flags over environment over defaults.

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


def setting(help: str, default: Any = _MISSING, *, alias: str = "") -> Any:
    """A dataclass field that is a setting; without a default it must be given. `alias` is a second flag for it."""
    return dataclasses.field(default=default, metadata={"help": help, "alias": alias})


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One leaf: where it is stored, what it is called, and what it takes."""

    path: tuple[str, ...]
    type: type
    default: Any
    help: str
    alias: str = ""

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

    def checked(self, value: Any) -> Any:
        """A value that code gave, if it has this setting's type; an int passes for a float, a bool for nothing else."""
        takes = (int, float) if self.type is float else (self.type,)
        if not isinstance(value, takes) or (isinstance(value, bool) and self.type is not bool):
            raise InvalidSetting(f"{self.name}={value!r}: expected {self.type.__name__}")
        return self.type(value)


def leaves(cls: type[Any], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every setting of a configuration class, nested ones included, in declaration order."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        here = (*path, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], here)
        else:
            yield Setting(
                here,
                hints[field.name],
                field.default,
                field.metadata["help"],
                field.metadata.get("alias", ""),
            )


def from_env(cls: type[T], prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Values by setting name from the variables that start with `prefix`; an unknown one is InvalidSetting."""
    by_variable = {leaf.environment(prefix): leaf for leaf in leaves(cls)}
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in by_variable:
            names = {leaf.name: known for known, leaf in by_variable.items()}
            raise InvalidSetting(
                f"{variable} is not a setting{_suggestion(variable[len(prefix) :].lower(), names)}"
            )
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


def load(
    cls: type[T],
    prefix: str,
    *,
    code: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str],
    defaults: Mapping[str, Any] | None = None,
) -> T:
    """The configuration from `code` over `flags` over `environ` over `defaults` over the class's own defaults.

    What is given in code wins even where it equals the default. Names are setting names; InvalidSetting for an unknown
    one, a wrong type or a value that the class refuses.
    """
    by_name = {leaf.name: leaf for leaf in leaves(cls)}
    for name in (*(code or {}), *(flags or {}), *(defaults or {})):
        if name not in by_name:
            raise InvalidSetting(
                f"{name} is not a setting{_suggestion(name, {known: known for known in by_name})}"
            )
    values = dict(defaults or {}) | from_env(cls, prefix, environ)
    values |= {
        name: by_name[name].parse(text, by_name[name].flag) for name, text in (flags or {}).items()
    }
    values |= {name: by_name[name].checked(value) for name, value in (code or {}).items()}
    return build(cls, values)


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
    """The configuration of `megalith <name>`: its command line over the environment over `defaults`.

    The setting `positional`, if any, may also be given as the first argument. A bad setting is one line on stderr and
    exit status 2.
    """
    usage = f"%(prog)s{f' [{positional.upper()}]' if positional else ''} [--setting VALUE ...]"
    parser = argparse.ArgumentParser(
        f"megalith {name}", usage=usage, description=summary, allow_abbrev=False
    )
    for leaf in leaves(cls):
        default = (defaults or {}).get(leaf.name, leaf.default)
        names = [leaf.flag, leaf.alias] if leaf.alias else [leaf.flag]
        parser.add_argument(
            *names,
            dest=leaf.name,
            metavar=leaf.type.__name__.upper(),
            help=_help(leaf, default, prefix),
        )
    if positional:
        parser.add_argument(
            "first", nargs="?", metavar=positional.upper(), help=f"The same as --{positional}."
        )
    flags = {flag: text for flag, text in vars(parser.parse_args(argv)).items() if text is not None}
    try:
        if "first" in flags:
            if positional in flags:
                raise InvalidSetting(
                    f"{flags['first']!r}: --{positional}={flags[positional]} is given as well"
                )
            flags[positional] = flags.pop("first")
        return load(cls, prefix, flags=flags, environ=environ, defaults=defaults)
    except InvalidSetting as error:
        parser.error(str(error))


def main(
    name: str,
    cls: type[T],
    run: Callable[[T], int],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """`megalith <name>` and `python -m megalith.<name>`: flags over MEGALITH_<NAME>_* over defaults, then run."""
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    return run(parse(name, cls, argv, environ, prefix=f"MEGALITH_{name.upper()}_", summary=summary))


def _help(leaf: Setting, default: Any, prefix: str) -> str:
    told = "required" if default is _MISSING else f"default: {default!r}"
    return f"{leaf.help} [{told}; env: {leaf.environment(prefix)}]".replace("%", "%%")


def _suggestion(name: str, variables: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, variables, n=1)
    return (
        f"; did you mean {variables[close[0]]}?"
        if close
        else f"; known are {', '.join(sorted(variables.values()))}"
    )

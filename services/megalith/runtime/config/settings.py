"""Settings: frozen dataclasses filled from code over flags over environment over defaults.

A service has one dataclass; parts shared between services are nested in it. Every leaf field is one
setting:

    PsConfig.index            flag --index            environment MEGALITH_PS_INDEX
    PsConfig.server.port      flag --port             environment MEGALITH_PS_PORT
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from megalith.errors import InvalidSetting
from megalith.runtime.config.removed_settings import RemovedSettings

T = TypeVar("T")
_MISSING = dataclasses.MISSING
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
_WORDS = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}


def setting(
    help: str,
    default: Any = _MISSING,
    *,
    section: str = "",
    choices: tuple[str, ...] = (),
    alias: str = "",
    replaces: RemovedSettings | None = None,
    is_repeated: bool = False,
    fallback: str = "",
) -> Any:
    """A dataclass field that is a setting; without a default it must be given.

    `section` is where the help shows it; without one, the SECTION of its class. `choices` are all
    texts that it takes; `check_choices` refuses others. `alias` is a second flag for it. `replaces`
    names settings that are gone, because this one says the same. The texts of a flag that
    `is_repeated` are joined as a shell would quote them. `fallback` is a variable of somebody
    else's, which is read where neither a flag nor our own variable is given.
    """
    metadata = {
        "help": help,
        "section": section,
        "choices": choices,
        "alias": alias,
        "replaces": replaces,
        "is_repeated": is_repeated,
        "fallback": fallback,
    }
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(name: str) -> str:
    """The flag of a setting: `--step-timeout-s` for `step_timeout_s`."""
    return "--" + name.replace("_", "-")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One leaf: where it is stored, what it is called, and what it takes."""

    path: tuple[str, ...]
    type: type
    default: Any
    help: str
    section: str = ""
    choices: tuple[str, ...] = ()
    alias: str = ""
    replaces: RemovedSettings | None = None
    is_repeated: bool = False
    fallback: str = ""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    def environment(self, prefix: str) -> str:
        return prefix + self.name.upper()

    def parse(self, text: str, source: str) -> Any:
        """The text as this setting's type; InvalidSetting names where it came from."""
        try:
            if self.type is bool:
                return _parse_bool(text)

            return self.type(text)
        except ValueError:
            raise InvalidSetting(f"{source}={text!r}: expected {_words(self.type)}") from None

    def checked(self, value: Any) -> Any:
        """A value that code gave, if it has this setting's type.

        An int passes for a float, a bool for nothing else.
        """
        if self.type is float and type(value) is int:
            return float(value)

        is_stray_bool = isinstance(value, bool) and self.type is not bool
        is_of_type = isinstance(value, self.type) and not is_stray_bool

        if not is_of_type:
            raise InvalidSetting(f"{self.name}={value!r}: expected {_words(self.type)}")

        return self.type(value)


def leaves(cls: type[Any], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every setting of a configuration class, nested ones included, in declaration order."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        here = (*path, field.name)
        kind = hints[field.name]
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(kind, here)
        else:
            metadata = field.metadata
            section = str(metadata.get("section") or getattr(cls, "SECTION", ""))
            yield Setting(
                here,
                kind,
                field.default,
                metadata["help"],
                section,
                metadata.get("choices", ()),
                metadata.get("alias", ""),
                metadata.get("replaces"),
                metadata.get("is_repeated", False),
                metadata.get("fallback", ""),
            )


def refuse_removed(
    cls: type[Any], prefix: str, argv: Sequence[str], environ: Mapping[str, str]
) -> None:
    """InvalidSetting if a setting is given that is gone; it says what to write instead."""
    for leaf in leaves(cls):
        if leaf.replaces is not None:
            leaf.replaces.refuse(leaf.name, prefix, argv, environ)


def from_env(cls: type[T], prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Values by setting name from the variables that start with `prefix`, and from fallbacks.

    An unknown one with the prefix is InvalidSetting.
    """
    by_variable = {leaf.environment(prefix): leaf for leaf in leaves(cls)}
    values = {}

    for leaf in by_variable.values():
        if leaf.fallback in environ:
            values[leaf.name] = leaf.parse(environ[leaf.fallback], leaf.fallback)

    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue

        found = by_variable.get(variable)
        if found is None:
            name = variable.removeprefix(prefix).lower()
            known = {each.name: each.environment(prefix) for each in by_variable.values()}
            raise InvalidSetting(f"{variable} is not a setting{suggestion(name, known)}")

        values[found.name] = found.parse(text, variable)

    return values


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The configuration with `values` by setting name; what is missing takes its default."""
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    dataclass: Any = cls

    for field in dataclasses.fields(dataclass):
        name = field.name
        kind = hints[name]

        if dataclasses.is_dataclass(kind):
            arguments[name] = build(hints[name], values)
        elif name in values:
            arguments[name] = values[name]
        elif field.default is _MISSING:
            raise InvalidSetting(f"{flag_of(name)} is not given")

    return cls(**arguments)


def load(
    cls: type[T],
    prefix: str,
    *,
    code: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str],
    defaults: Mapping[str, Any] | None = None,
) -> T:
    """The configuration from four sources; the first that has a setting decides it.

    They are `code`, `flags`, `environ` and `defaults`, and after them the class's own defaults.
    What is given in code wins even where it equals the default. Names are setting names;
    InvalidSetting for an unknown one, a wrong type or a value that the class refuses.
    """
    code = code or {}
    flags = flags or {}
    defaults = defaults or {}
    by_name = {leaf.name: leaf for leaf in leaves(cls)}

    for name in (*code, *flags, *defaults):
        if name not in by_name:
            known = {each: each for each in by_name}
            hint = suggestion(name, known)
            raise InvalidSetting(f"{name} is not a setting{hint}")

    refuse_removed(cls, prefix, (), environ)
    values = dict(defaults)
    values.update(from_env(cls, prefix, environ))

    for name, text in flags.items():
        leaf = by_name[name]
        values[name] = leaf.parse(text, leaf.flag)

    for name, value in code.items():
        leaf = by_name[name]
        values[name] = leaf.checked(value)

    return build(cls, values)


def _words(kind: type) -> str:
    """What is expected of a setting, for people."""
    return _WORDS.get(kind, kind.__name__)


def _parse_bool(text: str) -> bool:
    lower = text.lower()
    if lower not in _TRUE | _FALSE:
        raise ValueError(f"neither yes nor no: {text}")

    return lower in _TRUE


def suggestion(name: str, known: Mapping[str, str]) -> str:
    """What may have been meant, or all that is known: the words to say, by name."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {known[close[0]]}?"

    return f"; known are {', '.join(sorted(known.values()))}"

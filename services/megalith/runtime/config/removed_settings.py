"""Settings that are gone: whoever still gives one is told what to write instead."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from megalith.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class RemovedSettings:
    """The names of settings that another setting has taken the place of.

    `successor` gets what was said, texts by setting name, the other setting included. It gives the
    text for that other setting.
    """

    names: tuple[str, ...]
    successor: Callable[[Mapping[str, str]], str]

    def refuse(
        self, kept: str, prefix: str, argv: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        """InvalidSetting if one of them is given; `kept` names the setting that is left."""
        flags = self._flags(kept, argv)
        variables = self._variables(kept, prefix, environ)
        instead = shlex.quote(self.successor(variables | flags))

        gone = [_flag(name) for name in self.names if name in flags]
        if gone:
            flag = _flag(kept)
            raise InvalidSetting(f"{_are_gone(gone)}; write {flag} {instead}")

        gone = [_variable(prefix, name) for name in self.names if name in variables]
        if gone:
            variable = _variable(prefix, kept)
            raise InvalidSetting(f"{_are_gone(gone)}; write {variable}={instead}")

    def _flags(self, kept: str, argv: Sequence[str]) -> dict[str, str]:
        name_by_flag = {_flag(name): name for name in (kept, *self.names)}
        given = {}
        for word, next_word in zip_longest(argv, argv[1:], fillvalue=""):
            flag, equals, text = word.partition("=")

            if flag not in name_by_flag:
                continue

            is_alone = next_word.startswith("-")
            name = name_by_flag[flag]
            given[name] = text if equals or is_alone else next_word

        return given

    def _variables(self, kept: str, prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
        given = {}
        for name in (kept, *self.names):
            variable = _variable(prefix, name)
            if variable in environ:
                given[name] = environ[variable]

        return given


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(prefix: str, name: str) -> str:
    return prefix + name.upper()


def _are_gone(names: Sequence[str]) -> str:
    listed = " and ".join(names)
    verb = "is" if len(names) == 1 else "are"
    return f"{listed} {verb} gone"

"""Settings that are gone: whoever still gives one is told what to write instead."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from megalith.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class Removed:
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

        gone_flags = [_flag(name) for name in self.names if name in flags]
        if gone_flags:
            raise InvalidSetting(f"{_are_gone(gone_flags)}; write {_flag(kept)} {instead}")

        gone_variables = [_variable(prefix, name) for name in self.names if name in variables]
        if gone_variables:
            raise InvalidSetting(
                f"{_are_gone(gone_variables)}; write {_variable(prefix, kept)}={instead}"
            )

    def _flags(self, kept: str, argv: Sequence[str]) -> dict[str, str]:
        name_by_flag = {_flag(name): name for name in (kept, *self.names)}
        given = {}
        for word, next_word in zip_longest(argv, argv[1:], fillvalue=""):
            flag, equals, text = word.partition("=")
            if flag not in name_by_flag:
                continue

            is_bare = next_word.startswith("-")
            given[name_by_flag[flag]] = text if equals or is_bare else next_word

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
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb} gone"

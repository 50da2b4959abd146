"""How every command of Megalith looks and fails: one style of help, and errors of one line.

A command is a `Command`, and a command that has commands is a `Group`. Both are click's own, with

    -h and --help        the options in sections, in the order in which they were declared
    a wrong line         one line on stderr, `megalith up: --nump-s is no option; ...`, status 2
    Ctrl-C               status 130

A group imports a command when somebody runs it: `megalith ctl status` does not wait for the imports
of `megalith train`.
"""

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from megalith.runtime.config.imports import imports_of

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
OPTIONS = "Options"  # section of an option that names none
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
INTERRUPTED = 130  # exit status after Ctrl-C, as a shell has it


class Option(click.Option):
    """An option that stands in a section of the help."""

    def __init__(self, *args: Any, section: str = OPTIONS, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Command(click.Command):
    """A command in the style of the house; `examples` are lines at the end of its help."""

    def __init__(self, name: str, *, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(name, context_settings=_CONTEXT, **settings)
        self.examples = examples

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, then end the process: a command that returns a number exits with it."""
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            if not standalone_mode:
                raise

            show_error(error)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)

        if standalone_mode:
            sys.exit(status or 0)

        return status

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        self._refuse_negative_arguments(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # so that the line names the command
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section after the other; what every command has, such as --help, comes last."""
        records: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or isinstance(param, click.Argument):
                continue

            section = getattr(param, "section", OPTIONS)
            options = records.setdefault(section, [])
            options.append(record)

        # A dict keeps the order in which names come into it.
        records[OPTIONS] = records.pop(OPTIONS, [])

        for section, options in records.items():
            with formatter.section(section):
                formatter.write_dl(options)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if not self.examples:
            return

        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for line in self.examples:
                formatter.write(f"{indent}{line}\n")

    def _refuse_negative_arguments(self, ctx: click.Context, args: Iterable[str]) -> None:
        """`restart-policy -1` is a number out of range, though it looks like an option."""
        numbers: list[click.Argument] = []
        for param in self.get_params(ctx):
            is_number = isinstance(param.type, click.IntRange)
            if is_number and isinstance(param, click.Argument):
                numbers.append(param)

        if not numbers:
            return

        first = numbers[0]
        for word in args:
            if _NEGATIVE.fullmatch(word):
                first.type_cast_value(ctx, word)


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command of a group that is imported when it is used.

    `path` is `package.module:name`. `summary` is the line that the group's help shows of it.
    """

    name: str
    path: str
    summary: str

    def load(self) -> click.Command:
        module, _, name = self.path.partition(":")
        with imports_of("services"):
            command: click.Command = getattr(import_module(module), name)

        return command


class Group(Command, click.Group):
    """A command that has commands, in sections of its help."""

    def __init__(
        self, name: str, *, sections: Mapping[str, Sequence[LazyCommand]], **settings: Any
    ) -> None:
        super().__init__(name, no_args_is_help=True, **settings)
        self.sections = sections

        self._lazy: dict[str, LazyCommand] = {}
        for commands in sections.values():
            for command in commands:
                self._lazy[command.name] = command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        return lazy.load() if lazy is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._lazy and not ctx.resilient_parsing:
            if name.startswith("-"):
                self.parse_args(ctx, args)  # complains of an option that does not exist

            known = ", ".join(self._lazy)
            way_out = did_you_mean(name, self._lazy) or f"; known are {known}"
            raise click.UsageError(f"{name} is no command{way_out}", ctx)

        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # All sections have the column of names as wide as the longest of all.
        width = max(len(name) for name in self._lazy)

        for section, commands in self.sections.items():
            lines: list[tuple[str, str]] = []
            for command in commands:
                name = command.name.ljust(width)
                lines.append((name, command.summary))

            with formatter.section(section):
                formatter.write_dl(lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, without the import of each."""
        found: list[CompletionItem] = []
        for name, command in self._lazy.items():
            if name.startswith(incomplete):
                found.append(CompletionItem(name, help=command.summary))

        options = click.Command.shell_complete(self, ctx, incomplete)
        return found + options


def show_error(error: click.ClickException, file: IO[str] | None = None) -> None:
    """One line: which command, what is wrong, what to write instead."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        help_text = context.get_help() if context else ""
        click.echo(help_text, file=file)
        return

    name = context.command_path if context is not None else "megalith"
    words = _complaint(error).split()
    line = " ".join(words)

    print(f"{name}: {line}", file=file or sys.stderr)


def fail(message: str) -> NoReturn:
    """A wrong command line: one line, and exit status 2."""
    raise click.UsageError(message, click.get_current_context(silent=True))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing if no name is close."""
    # The dashes, which all options share, would make --bogus look like --host
    by_word = {option.lstrip("-"): option for option in known}
    word = name.lstrip("-")

    close = difflib.get_close_matches(word, by_word, n=1, cutoff=0.7)
    if not close:
        return ""

    closest = by_word[close[0]]
    return f"; did you mean {closest}?"


def _complaint(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        wrong = error.option_name
        options = [] if error.ctx is None else _options_of(error.ctx)
        return f"{wrong} is no option{did_you_mean(wrong, options)}"

    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value"

    param = getattr(error, "param", None)
    if isinstance(error, click.MissingParameter) and param is not None:
        return f"{_name_of(param)} is not given"

    if isinstance(error, click.BadParameter) and param is not None:
        return _out_of_range(_name_of(param), error.message.removesuffix("."))

    return error.format_message()


def _out_of_range(name: str, message: str) -> str:
    """`--every-s=0: not in the range x>=0.1`, for click's `0 is not in the range x>=0.1`."""
    value, is_told, why = message.partition(" is not ")
    if not is_told:
        return f"{name}: {message}"

    bare = value.strip("'")
    return f"{name}={bare}: not {why}"


def _options_of(context: click.Context) -> list[str]:
    options: list[str] = []
    for param in context.command.get_params(context):
        options += [name for name in param.opts if name.startswith("-")]

    return options


def _name_of(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return param.metavar or str(param.name).upper()

    return param.opts[0]

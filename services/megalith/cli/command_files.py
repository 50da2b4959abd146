"""How the commands of a group are found: a command is one file in a folder of the group.

The file is named as the command, and so is the function in it. A name that Python has already gets
an underscore behind it: `import_`. The docstring of the file is the command's help, and the first
line of that is what `--help` of the group shows.
"""

from pathlib import Path

from megalith.runtime.config.commands import LazyCommand


def commands_in(group: str, folder: str) -> tuple[LazyCommand, ...]:
    """The commands of a folder by name. Nothing is imported: of each file one line is read."""
    directory = Path(__file__).parent / group / folder
    paths = sorted(directory.glob("[!_]*.py"))

    commands: list[LazyCommand] = []
    for path in paths:
        with path.open(encoding="utf-8") as file:
            first_line = file.readline()

        function = path.stem
        home = f"megalith.cli.{group}.{folder}.{function}:{function}"
        summary = first_line.strip().strip('"')
        commands.append(LazyCommand(command_name(function), home, summary))

    return tuple(commands)


def command_name(function: str) -> str:
    """The name of the command in a function or file of that name."""
    return function.rstrip("_").replace("_", "-")

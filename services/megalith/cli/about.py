"""`megalith version` and `megalith completion`."""

from importlib import metadata

import click

from megalith.runtime.config.commands import Command

_SHELLS = ("bash", "zsh", "fish")
_COMPLETION_HELP = """Print what makes a shell complete commands and options.

The shell reads it when it starts, if you write it into the file that the example names.
"""


def print_version() -> None:
    print(f"megalith {metadata.version('megalith')}")


def _print_completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    context = click.get_current_context()
    if complete is None:
        raise click.UsageError(f"{shell}: no completion for it", context)

    root = context.find_root().command
    print(complete(root, {}, "megalith", "_MEGALITH_COMPLETE").source())


version = Command("version", callback=print_version, help="Print the version.")
completion = Command(
    "completion",
    callback=_print_completion,
    help=_COMPLETION_HELP,
    params=[click.Argument(["shell"], type=click.Choice(_SHELLS))],
    examples=(
        "megalith completion bash >> ~/.bashrc",
        "megalith completion zsh >> ~/.zshrc",
        "megalith completion fish > ~/.config/fish/completions/megalith.fish",
    ),
)

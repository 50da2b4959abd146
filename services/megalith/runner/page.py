"""docs/configuration.md, written from RunnerConfig: `python -m megalith.runner.page` prints it."""

from megalith.runner.config import PREFIX, RunnerConfig
from megalith.runner.reference import LEFT_OUT, RENAMED
from megalith.runtime.settings import leaves

_HEAD = f"""# Configuration of a job

<!-- Written by `make docs` from megalith.runner.config.RunnerConfig; do not edit. -->

A job is described by one `megalith.runner.config.RunnerConfig`. `megalith up` and `megalith train` make it from their
flags, and derive the settings of every process from it. A value given in code wins over a flag, a flag over the
environment variable `{PREFIX}<FIELD>`, the variable over the default:

    RunnerConfig.load(environ=os.environ, num_ps=4)     # 4, whatever flags and variables say

An unknown name, a wrong type or an impossible value is an `InvalidSetting` that names the field and the value; on the
command line that is one line on stderr and exit status 2. Settings of single processes are in the README.

| field | flag | default | reaches | meaning |
|---|---|---|---|---|
"""

_DEFAULTS_OF_TRAIN = """
`megalith train` has two defaults of its own: a new directory under `model/`, and 2,000,000 examples.

## Fields of the reference with another name

| reference | here |
|---|---|
"""

_LEFT_OUT_HEAD = """
## Fields of the reference that do not exist here

| field | why |
|---|---|
"""


def page() -> str:
    """The whole page."""
    renamed = "".join(f"| `{theirs}` | `{ours}` |\n" for theirs, ours in RENAMED.items())
    left_out = "".join(
        f"| {', '.join(f'`{name}`' for name in names)} | {why} |\n" for why, names in _by_reason()
    )
    return _HEAD + "".join(_rows()) + _DEFAULTS_OF_TRAIN + renamed + _LEFT_OUT_HEAD + left_out


def _rows() -> list[str]:
    reaches = {
        name: field.metadata["reaches"] for name, field in RunnerConfig.__dataclass_fields__.items()
    }
    rows = []
    for leaf in leaves(RunnerConfig):
        flags = f"`{leaf.flag}`, `{leaf.alias}`" if leaf.alias else f"`{leaf.flag}`"
        rows.append(
            f"| `{leaf.name}` | {flags} | `{leaf.default!r}` | {', '.join(reaches[leaf.name])} | {leaf.help} |\n"
        )
    return rows


def _by_reason() -> list[tuple[str, list[str]]]:
    names: dict[str, list[str]] = {}
    for name, why in LEFT_OUT.items():
        names.setdefault(why, []).append(name)
    return list(names.items())


if __name__ == "__main__":
    print(page(), end="")

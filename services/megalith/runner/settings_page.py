"""docs/settings.md: `python -m megalith.runner.settings_page` prints it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from inspect import getdoc
from typing import Any, get_type_hints

from megalith.discovery.registry import BACK_ENDS
from megalith.discovery.settings import DiscoverySettings
from megalith.runner.config import PREFIX, SERVICES, RunnerConfig
from megalith.runner.monolith_settings import LEFT_OUT, RENAMED
from megalith.runtime.config.settings import Setting, leaves
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.rpc.server import ServerSettings

_HEAD = """# Settings

<!-- Written by `make settings` from the dataclasses of the settings; do not edit. -->

Every setting is a flag and an environment variable. A flag wins over the variable, and the variable
over the default. For example, these two commands start the same cluster:

<!-- not run: both start a cluster of four servers, in the same folder -->
```sh
megalith up --num-ps 4
MEGALITH_RUNNER_NUM_PS=4 megalith up
```

An unknown name, a wrong type or an impossible value ends the command before anything starts. It
prints one line, which names the setting and the value, and exits with status 2. A value that is on
or off is written `true` or `false`.

- [A job](#a-job): what you give to `megalith up` and `megalith train`.
- [Every service](#every-service): what all processes of a cluster have in common.
- [Controller](#controller), [Parameter server](#parameter-server), [Worker](#worker),
  [AppMaster](#appmaster): what you give to a process that you start yourself.
- [Discovery back ends](#discovery-back-ends): the URLs of `--discovery`.
- [Settings of Monolith](#settings-of-monolith): where they are here, and which have no meaning.
"""

_JOB = f"""
## A job

`megalith up` and `megalith train` start all processes of a job on one machine. They hand each
setting to the services that the column *reaches* names. The environment variables begin with
`{PREFIX}`. `megalith train` has two defaults of its own: a new directory under `model/`, and
2,000,000 examples.
"""

_CODE = """
A program makes the same configuration as a `megalith.runner.config.RunnerConfig`. What the program
says wins over flags and variables:

```python
import os

from megalith.runner.config import RunnerConfig

config = RunnerConfig.load(environ=os.environ, num_ps=4)
print(config.num_ps)
```
```text
4
```
"""

_EVERY_SERVICE = """
## Every service

`megalith controller`, `ps`, `worker` and `appmaster` start one process each. Their environment
variables begin with the service's name: `--rpc-threads` of a ps is `MEGALITH_PS_RPC_THREADS`, and
of a worker `MEGALITH_WORKER_RPC_THREADS`. `python -m megalith.ps` takes the same settings as
`megalith ps`.

A service listens on two ports. Port 0 stands for any free one, which is printed when it starts.
"""

_DISCOVERY = """
## Discovery back ends

`--discovery` takes one of these URLs. Where the URL of ZooKeeper or Consul ends without `/job`,
`--job` names the job. An IPv6 address stands in brackets: `zookeeper://[fd00::1]:2181/job`. With
`?ttl_s=30` after a URL of ZooKeeper or Consul the entry of a dead process vanishes after 30 s.
`file:` alone means `discovery/` in the model directory. `static:` alone is for `megalith up`, which
then chooses the addresses. In a shell, put a URL with `;` or `?` between quotes.
"""

_MONOLITH = """
## Settings of Monolith

Fields of Monolith's `RunnerConfig` that have the same name here are left out of these tables.

### Fields with another name
"""

_LEFT_OUT = """
### Fields that do not exist here
"""

_SETTINGS = ("flag", "variable", "default", "meaning")
_SHARED: Mapping[str, type[Any]] = {
    "### How a service listens": ServerSettings,
    "### How ps and workers join": MembershipSettings,
    "### How processes find each other": DiscoverySettings,
}
_TITLES = {
    "controller": "Controller",
    "ps": "Parameter server",
    "worker": "Worker",
    "appmaster": "AppMaster",
    "replica": "Serving replica",
}


def page() -> str:
    """The whole page."""
    sections = [
        _HEAD,
        _JOB,
        _table(("flag", "variable", "default", "reaches", "meaning"), _job()),
        _CODE,
        _EVERY_SERVICE,
        _table(("service", "gRPC", "metrics"), _ports()),
    ]
    for title, group in _SHARED.items():
        sections += [f"\n{title}\n", _table(_SETTINGS, _rows(leaves(group), "MEGALITH_<SERVICE>_"))]

    for service, config in SERVICES.items():
        sections += _service(service, config)

    sections += [
        _DISCOVERY,
        _table(("URL", "extra", "what an entry is, and when it vanishes"), _back_ends()),
        _MONOLITH,
        _table(("Monolith", "here"), _renamed()),
        _LEFT_OUT,
        _table(("field", "why"), _left_out()),
    ]
    return "".join(sections)


def _job() -> list[list[str]]:
    rows = []
    for leaf in leaves(RunnerConfig):
        flag, variable, default, meaning = _row(leaf, PREFIX)

        field = RunnerConfig.__dataclass_fields__[leaf.name]
        reaches = ", ".join(field.metadata["reaches"]) or "`up` and `train`"
        rows.append([flag, variable, default, reaches, meaning])

    return rows


def _ports() -> list[list[str]]:
    rows = []
    for service, config in SERVICES.items():
        default_by_name = {leaf.name: leaf.default for leaf in leaves(config)}

        port = str(default_by_name["port"])
        metrics_port = str(default_by_name["metrics_port"])
        rows.append([service, _code(port), _code(metrics_port)])

    return rows


def _service(service: str, config: type[Any]) -> list[str]:
    """The section of one service: what it does, and its settings beyond the shared ones."""
    docstring = getdoc(config) or ""
    summary, *_ = docstring.splitlines()

    title = _TITLES[service]
    does = _uncapitalized(summary)
    heading = f"\n## {title}\n\n`megalith {service}`: {does}\n"

    prefix = f"MEGALITH_{service.upper()}_"
    rows = _rows(_own(config), prefix)
    table = _table(_SETTINGS, rows)

    return [heading, table]


def _own(config: type[Any]) -> list[Setting]:
    """Settings of a service that are in no shared group, or have a default of its own."""
    shared: set[tuple[str, Any]] = set()
    for kind in get_type_hints(config).values():
        if not isinstance(kind, type):
            continue

        for group in _SHARED.values():
            if issubclass(kind, group):
                shared |= {(leaf.name, leaf.default) for leaf in leaves(group)}

    own: list[Setting] = []
    for leaf in leaves(config):
        if (leaf.name, leaf.default) not in shared:
            own.append(leaf)

    return own


def _rows(settings: Iterable[Setting], prefix: str) -> list[list[str]]:
    return [_row(leaf, prefix) for leaf in settings]


def _row(leaf: Setting, prefix: str) -> list[str]:
    flags = _code(leaf.flag)
    if leaf.alias:
        flags += f" or {_code(leaf.alias)}"

    meaning = leaf.help

    if leaf.choices:
        *others, last = (_code(choice) for choice in leaf.choices)
        most = ", ".join(others)
        meaning += f" {most} or {last}."

    variable = leaf.environment(prefix)
    default = _default(leaf.default)
    return [flags, _code(variable), default, _cell(meaning)]


def _default(value: Any) -> str:
    """How a default is written on a command line; sizes also in a unit that one can read."""
    if value is dataclasses.MISSING:
        return "required"
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return _code(str(value).lower())
    if isinstance(value, float):
        return _code(f"{value:g}")

    written = _code(str(value))
    mebibyte = 1 << 20
    if isinstance(value, int) and value >= mebibyte and value % mebibyte == 0:
        size = value // mebibyte
        return f"{written} ({size} MiB)"

    return written


def _back_ends() -> list[list[str]]:
    """A back end is described by the docstring of its file."""
    rows = []
    for back_end in BACK_ENDS:
        docstring = getdoc(back_end.load()) or ""
        description = " ".join(docstring.split())

        extra = _code(back_end.extra) if back_end.extra else "none"
        rows.append([_code(back_end.example), extra, description])

    return rows


def _renamed() -> list[list[str]]:
    rows = []
    for theirs, ours in RENAMED.items():
        rows.append([_code(theirs), _code(ours)])

    return rows


def _left_out() -> list[list[str]]:
    names_by_reason: dict[str, list[str]] = {}
    for name, why in LEFT_OUT.items():
        names = names_by_reason.setdefault(why, [])
        names.append(_code(name))

    rows = []
    for why, names in names_by_reason.items():
        rows.append([", ".join(names), why])

    return rows


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = "---|" * len(titles)
    lines = ["", _table_line(titles), f"|{ruler}"]
    for row in rows:
        lines.append(_table_line(row))

    return "\n".join(lines) + "\n"


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Text of a table's cell, in which | would begin the next one."""
    return text.replace("|", "\\|")


def _uncapitalized(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    print(page(), end="")

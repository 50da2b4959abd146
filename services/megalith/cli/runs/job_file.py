"""A job as a TOML file: what it says becomes options.

task = "ctr"                          # megalith train ctr
data = "clicks/*.parquet"             #     --data 'clicks/*.parquet'
features = ["user", "item"]           #     --features user,item
num_workers = 4                       #     --num-workers 4

[set.task]                            # keywords for the factory of the task
days = 7                              #     --set task.days=7
"""

import json
import tomllib
from pathlib import Path

from megalith.runtime.config.commands import fail
from megalith.runtime.config.settings import flag_of


def arguments_of(path: str) -> list[str]:
    """The command line that says what the file says: the task, then its options."""
    try:
        content = tomllib.loads(Path(path).read_text())
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        fail(f"{path} is no TOML: {error}")

    task = content.pop("task", None)
    if not isinstance(task, str):
        fail(f'{path}: it names no task; write task = "ctr", for example')

    services = content.pop("set", {})
    tables = [services]
    if isinstance(services, dict):
        tables = list(services.values())

    if not all(isinstance(table, dict) for table in tables):
        fail(f"{path}: set is a table of services, such as [set.task] or [set.ps]")

    arguments = [task]
    for name, value in content.items():
        flag = flag_of(name)
        text = _text(path, name, value)
        arguments.append(f"{flag}={text}")

    for service, pairs in services.items():
        for name, value in pairs.items():
            text = json.dumps(value)
            arguments.append(f"--set={service}.{name}={text}")

    return arguments


def _text(path: str, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    if isinstance(value, str | int | float):
        return str(value)

    kind = type(value).__name__
    fail(f"{path}: {name} is {kind}, expected text, a number or a list")

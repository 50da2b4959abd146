"""Options that many commands take, declared once, and how a command gets them."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR

# Round brackets: square ones are markup to rich, and vanish from the help.
_CONTROLLER_HELP = "host:port of the controller (environment: MEGALITH_CTL_CONTROLLER)."
_APPMASTER_HELP = (
    "host:port of the AppMaster; without it, found through the model directory "
    "(environment: MEGALITH_CTL_APPMASTER)."
)
_MODEL_DIR_HELP = (
    f"Model directory of the job (default: {DEFAULT_MODEL_DIR}; "
    "environment: MEGALITH_CTL_MODEL_DIR)."
)

ControllerOption = Annotated[str, typer.Option("--controller", help=_CONTROLLER_HELP)]
AppMasterOption = Annotated[str, typer.Option("--appmaster", help=_APPMASTER_HELP)]
ModelDirOption = Annotated[str, typer.Option("--model-dir", help=_MODEL_DIR_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout-s", help="Seconds to look for the controller.")
]
DirectoryOption = Annotated[
    str, typer.Option(help="Where to save, not another job's; empty = its model directory.")
]


def with_options_of(call: type[Any], function: Callable[..., None]) -> Callable[..., None]:
    """`function` as typer takes it: its own options, then the fields of the dataclass `call`.

    What is given for the fields reaches `function` as one `call`, its first argument.
    """
    names = [field.name for field in dataclasses.fields(call)]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        shared = {name: given.pop(name) for name in names}
        function(call(**shared), **given)

    own = list(inspect.signature(function).parameters.values())[1:]
    added = inspect.signature(call).parameters.values()
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *added)
    ]
    # Typer reads the first of these for names and defaults, and the second for types.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run

"""Where the `megalith` command begins, before anything that may be missing or slow is imported."""

from megalith.runtime.config.imports import imports_of
from megalith.runtime.process import blas


def main() -> None:
    """Run the `megalith` command."""
    blas.use_one_thread()
    with imports_of("services"):
        from megalith.cli.app import app

    app(prog_name="megalith")

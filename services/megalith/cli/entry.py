"""Where the `megalith` command begins, before anything that may be missing or slow is imported."""

import signal

from megalith.errors.extras import needed


def main() -> None:
    """Run the `megalith` command."""
    # The imports take most of a second. Ctrl-C then ends the process at once, without a traceback.
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with needed("services"):
        from megalith.cli.app import app

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    app()

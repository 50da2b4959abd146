"""Log lines of a service: one line an event, to stderr."""

import logging
import sys
import time


def configure_logging(name: str, level: str) -> None:
    """Called once, by the entry point."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {name} %(name)s: %(message)s"
    )

    formatter.datefmt = "%Y-%m-%dT%H:%M:%S"
    formatter.converter = time.gmtime

    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

"""`megalith ctl`: drive a running job.

A command is a function in a file of this folder, registered there by `@command()`. All files are
imported here, so a new one needs no line elsewhere.
"""

from importlib import import_module
from pkgutil import iter_modules

from megalith.cli.ctl.group import app

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["app"]

"""A pytest plugin: a run in which some kernel was never compiled fails, and says which.

Kernels that are always compiled into their callers have nothing of their own to compile and do not
count.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

PACKAGES = ("megalith.engine.kernels", "megalith.client._kernels")


def kernels() -> Iterator[tuple[str, Dispatcher]]:
    """Every kernel, by where it is defined."""
    for package in PACKAGES:
        root = importlib.import_module(package)
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if isinstance(value, Dispatcher) and value.py_func.__module__ == info.name:
                    yield f"{info.name}.{name}", value


def pytest_sessionfinish(session: pytest.Session, exitstatus: Any) -> None:
    """Look at every kernel once all tests are done."""
    found = dict(kernels())
    idle = [
        name for name, kernel in found.items() if not kernel.signatures and not _is_inlined(kernel)
    ]
    print(f"\n{len(found)} kernels, {len(idle)} never compiled: {', '.join(sorted(idle))}")
    if idle and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_inlined(kernel: Dispatcher) -> bool:
    return kernel.targetoptions.get("inline") == "always"

"""The data of examples/make_criteo_like.py."""

import importlib.util
from pathlib import Path

_SCRIPT = Path(__file__).parents[2] / "examples" / "make_criteo_like.py"


def script():
    spec = importlib.util.spec_from_file_location("make_criteo_like", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

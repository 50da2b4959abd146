"""Commands that a message tells somebody to type: short, and quoted for the shell."""

import shlex

from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR


def ctl(model_dir: str, *words: str) -> str:
    """`megalith ctl <words>` for the job of that directory."""
    which = () if model_dir == DEFAULT_MODEL_DIR else ("--model-dir", model_dir)
    return shlex.join(["megalith", "ctl", *which, *words])

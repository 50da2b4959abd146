"""What Dockerfile and Makefile import is there: a build of the image tells it much later."""

import importlib.util
import re

import pytest

from support.pages import ROOT


@pytest.mark.parametrize("recipe", ["docker/Dockerfile", "Makefile"])
def test_every_name_that_a_recipe_imports_exists(recipe):
    text = (ROOT / recipe).read_text()
    imported = re.findall(r"from (megalith[\w.]*) import (\w+)", text)
    assert imported, f"{recipe} imports nothing: this test looks for the wrong words"
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    for module in re.findall(r"\"-m\", \"(megalith[\w.]*)\"|-m (megalith[\w.]*)", text):
        assert importlib.util.find_spec("".join(module)), module

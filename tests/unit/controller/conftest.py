"""A saver of two ps that are not there; a test says what they answer."""

import pytest

from megalith.controller.saving.saves import Saver
from support.saves import FakeCoordinator


@pytest.fixture
def cluster():
    return FakeCoordinator()


@pytest.fixture
def saver(cluster, tmp_path):
    return Saver(cluster, tmp_path, timeout_s=60.0, clock=lambda: 99.5, appear_s=0.0)

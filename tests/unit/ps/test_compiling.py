import logging

import numba
import numpy as np
from numba.core import event

from megalith.engine.kernels.actions import Update
from megalith.engine.table.row_layout import RowLayout
from megalith.ps.compiling import CompileLog
from megalith.schema import Adam, Segment, Sgd, TableConfig, Zeros


@numba.njit
def inner(step):
    return step + 1


@numba.njit
def outer(action):
    return inner(action.step)


def test_a_kernel_that_is_compiled_is_named_once_with_its_optimizers(caplog):
    segments = (Segment(2, Zeros(), Adam()), Segment(2, Zeros(), Sgd()))
    layout = RowLayout(TableConfig("t", segments))
    action = Update(layout.stages(np.ones(2, np.float32)), 1)

    with (
        caplog.at_level(logging.INFO, "megalith.ps.compiling"),
        event.install_listener("numba:compile", CompileLog()),
    ):
        assert outer(action) == 2
        assert outer(action) == 2

    assert caplog.messages == [
        "compiling the kernel outer of adam, sgd (once on a machine); a request that needs it waits"
    ]

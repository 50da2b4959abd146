"""Golden numbers of all sparse optimizers once more, now through a table, with its rates, offsets,
dumps and loads.

A table has a segment for each of eight optimizers, so that what one does to its neighbours would
show, and so that two kernels are compiled instead of sixteen. Tables of one shape differ in widths
and settings only.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.kernels.dtypes import F32
from megalith.schema import Segment, TableConfig, Zeros
from megalith.schema.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    Dc,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Optimizer,
    Rmsprop,
    RmspropV2,
    Sgd,
    StochasticRoundingFloat16,
)
from support.optimizer_rows import state_by_name

pytestmark = pytest.mark.timeout(
    600
)  # the first test of each shape compiles eight optimizers at once

KEY = np.array([123456789], np.int64)


@dataclass(frozen=True)
class Case:
    """Two updates of one segment that starts at zero, at the optimizer's own rate, and what it must
    hold after each."""

    name: str
    optimizer: Optimizer
    gradients: list[list[float]]
    weights: list[list[float]]
    first_state: dict[str, list[float]] = field(default_factory=dict)
    last_state: dict[str, list[float]] = field(default_factory=dict)
    pulled: list[list[float]] = field(default_factory=lambda: [[0], [0]])
    tolerance: float = 1e-6

    @property
    def dim(self) -> int:
        return len(self.gradients[0])


def case(
    name: str, optimizer: Optimizer, gradient: list[float], *weights: list[float], **more: Any
) -> Case:
    return Case(name, optimizer, [gradient, gradient], list(weights), **more)


GROUP = {"beta": 1.0, "initial_accumulator_value": 0.0}
DECAY = DynamicWdAdagrad(0.1, 1.0, weight_decay_factor=0.1)
# One step each from w = 0; the second adds lr*wd*w (decoupled) or goes through the gradient
# (coupled).
COUPLED = [-0.07071067, -0.128173]
DECOUPLED_2 = -0.07071067 - (0.1 / np.sqrt(3) + 0.1 * 0.1 * -0.07071067)

TABLES: dict[str, list[Case]] = {
    "first eight, list update": [
        case("sgd", Sgd(0.1), [1, -2], [-0.1, 0.2], [-0.2, 0.4]),
        case(
            "adagrad_optimizer_optimize_with_weight_decay",
            Adagrad(0.1, 1.0, 0.1),
            [1, 2],
            [-0.07071067, -0.08944272],
            [-0.128173, -0.155943],
            last_state={"norm": [2.9859078, 8.964303]},
        ),
        case("avx_basic", DECAY, [1, 2], [-0.07071067, -0.08944272], [-0.128173, -0.155943]),
        case(
            "ftrl_optimizer_list_update",
            Ftrl(),
            [10, 1],
            [-0.009995, -0.00953463],
            [-0.0170643, -0.0164353],
            last_state={"norm": [200.1, 2.1], "zero": [24.138603, 2.3816986]},
        ),
        case(
            "group_ftrl",
            GroupFtrl(l1_regularization_strength=1),
            [3, 4],
            [-0.006, -0.0064],
            [-0.01172769, -0.01240568],
        ),
        Case(
            "group_ada_grad_optimizer_list_update",
            GroupAdagrad(**GROUP, l2_regularization_strength=0.5),
            [[10, 1], [1, 5]],
            [[-0.008639, -0.000864], [-0.009096, -0.004778]],
        ),
        case(
            "adadelta_optimizer_list_update",
            Adadelta(),
            [10, 1],
            [-0.0031607, -0.0030151],
            [-0.0064035, -0.0061047],
            first_state={"accum": [10, 0.1]},
        ),
        case(
            "adam_optimizer_list_update",
            Adam(),
            [10, 1],
            [-0.00990099, -0.00909091],
            [-0.01983060, -0.01842895],
            first_state={"m": [1, 0.1], "beta1_power": [0.81], "beta2_power": [0.9801]},
        ),
    ],
    "first eight, basic": [
        case("sgd_optimizer_basic", Sgd(0.1), [1], [-0.1], [-0.2]),
        case("adagrad_optimizer_basic", Adagrad(0.1, 1.0), [1, 2], [-0.07071067, -0.08944272]),
        case(
            "avx_decouple_wd",
            replace(DECAY, decouple_weight_decay=True),
            [1],
            COUPLED[:1],
            [DECOUPLED_2],
            last_state={"norm": [3], "last_update_step": [2]},
        ),
        case("ftrl_optimizer_basic", Ftrl(), [10], [-0.009995], [-0.0170643]),
        case(
            "group_ftrl drops the group",
            GroupFtrl(l1_regularization_strength=20),
            [3, 4],
            [0, 0],
            [0, 0],
        ),
        case(
            "group_ada_grad_optimizer_basic",
            GroupAdagrad(**GROUP, l2_regularization_strength=1),
            [10],
            [-0.008182],
            [-0.014125],
        ),
        case("adadelta_optimizer_basic", Adadelta(), [10], [-0.0031607], [-0.0064035]),
        case("adam_optimizer_basic", Adam(), [10], [-0.00990099], [-0.01983060]),
    ],
    "first eight, variants": [
        case("sgd", Sgd(1.0), [1], [-1], [-2]),
        case("entry_accessor_save_restore", Adagrad(1.0, 0.1), [1], [-0.95346254], [-1.643528]),
        case("avx_basic", DECAY, [1], COUPLED[:1], COUPLED[1:]),
        case(
            "ftrl, the sign bit of Monolith",
            Ftrl(
                l1_regularization_strength=1,
                l2_regularization_strength=0.5,
                beta=1,
                sign_bit_l1=True,
            ),
            [10, -10, 0.5],
            [-0.00908265, 0.00999092, 0],
        ),
        case("group_ftrl", GroupFtrl(l1_regularization_strength=1), [3, 4], [-0.006, -0.0064]),
        case(
            "group_ada_grad_optimizer_zero_lambda",
            GroupAdagrad(**GROUP),
            [10, 1],
            [-0.009091, -0.000909],
        ),
        case("adadelta", Adadelta(), [10], [-0.0031607], [-0.0064035]),
        case("adam, nesterov", Adam(use_nesterov=True), [10], [-0.01881188], [-0.03297463]),
    ],
    "last eight, list update": [
        case(
            "amsgrad_optimizer_list_update",
            Amsgrad(),
            [10, 1],
            [-0.00990099, -0.00909091],
            [-0.0198306, -0.01842895],
        ),
        case(
            "momentum_optimizer_list_update",
            Momentum(),
            [10, 1],
            [-0.1, -0.01],
            [-0.29, -0.029],
            first_state={"n": [-0.1, -0.01]},
        ),
        case(
            "moving_average_optimizer_list_update", MovingAverage(), [10, 1], [1, 0.1], [1.9, 0.19]
        ),
        case(
            "batch_softmax_optimizer_basic",
            BatchSoftmax(),
            [5],
            [0.1],
            [0.19],
            last_state={"last_step": [2]},
        ),
        case("rmsprop", Rmsprop(), [10], [-0.024025], [-0.042686]),
        case(
            "rmsprop_v2_optimizer_list_update",
            RmspropV2(),
            [10, 1],
            [-0.0090909, -0.005],
            [-0.0158549, -0.0092045],
            first_state={"n": [100, 1]},
        ),
        case(
            "dc_optimizer_list_update",
            Dc(Adadelta(), 0.1),
            [10, 1],
            [-0.0031603, -0.00301233],
            [-0.0065548, -0.00611400],
            first_state={"accum": [8.1, 0.09801]},
            pulled=[[0.1, 0.1], [0, 0]],
        ),
        case(
            "stochastic_rounding_float16_optimizer_decorator_basic",
            StochasticRoundingFloat16(Momentum()),
            [10, 1],
            [-0.1, -0.01],
            [-0.29, -0.029],
            tolerance=4e-4,
        ),
    ],
    "last eight, basic": [
        case("amsgrad_optimizer_basic", Amsgrad(), [10], [-0.00990099], [-0.0198306]),
        case("momentum_optimizer_basic", Momentum(), [10], [-0.1], [-0.29]),
        case("moving_average_optimizer_basic", MovingAverage(), [10], [1], [1.9]),
        case("batch_softmax at another rate", BatchSoftmax(0.5), [0], [0.5], [0.75]),
        case(
            "rmsprop_optimizer_basic",
            Rmsprop(),
            [10],
            [-0.024025],
            [-0.042686],
            first_state={"n": [10]},
        ),
        case("rmsprop_v2", RmspropV2(), [10], [-0.0090909], [-0.0158549]),
        case(
            "dc_optimizer_basic",
            Dc(Adadelta(), 0.1),
            [10],
            [-0.0031603],
            [-0.0065548],
            pulled=[[0.1], [0]],
        ),
        case(
            "stochastic rounding of halves",
            StochasticRoundingFloat16(Momentum(0.25)),
            [1],
            [-0.25],
            [-0.725],
            tolerance=5e-4,
        ),
    ],
}
SET_ZERO = case(
    "group_ada_grad_optimizer_set_zero",
    GroupAdagrad(**GROUP, l2_regularization_strength=1000),
    [10, 1],
    [0, 0],
    [0, 0],
)
TABLES["first eight, set zero"] = [
    SET_ZERO if c.optimizer.name == "group_adagrad" else c for c in TABLES["first eight, variants"]
]
ALL = [(table, number) for table, cases in TABLES.items() for number in range(len(cases))]


def table_of(cases: list[Case]) -> EmbeddingTable:
    return EmbeddingTable(
        TableConfig("t", tuple(Segment(c.dim, Zeros(), c.optimizer) for c in cases))
    )


def update(table: EmbeddingTable, cases: list[Case], turn: int) -> None:
    grads = [x for c in cases for x in c.gradients[turn]]
    if table.layout.gradient_width > table.layout.dim:
        grads += [
            x
            for c in cases
            for x in (c.pulled[turn] if len(c.pulled[turn]) == c.dim else [0] * c.dim)
        ]
    table.apply_gradients(KEY, np.array([grads], np.float32), req_time_s=1000 + turn, step=turn + 1)


@cache
def rows_of(name: str) -> list[F32]:
    """The whole row after each update; the second was made by a copy too, to the same bits."""
    cases = TABLES[name]
    table, copy = table_of(cases), table_of(cases)
    update(table, cases, 0)
    saved = table.dump()
    copy.load(saved.ids, saved.rows, saved.times, table.layout.signature)
    for both in (table, copy):
        update(both, cases, 1)
    last = table.dump()
    rounded = table.layout.weight_offsets[
        -1
    ]  # the last segment may be rounded, by chance, another way
    names = [c.optimizer.name for c in cases]
    kept = np.arange(last.rows.shape[1]) != -1
    if names[-1] == "stochastic_rounding_float16":
        kept[rounded : rounded + cases[-1].dim] = False
    np.testing.assert_array_equal(copy.dump().rows[:, kept], last.rows[:, kept])
    return [saved.rows[0], last.rows[0]]


@pytest.mark.golden(
    "SgdOptimizer.Basic",
    "AdagradOptimizer.Basic",
    "AdagradOptimizer.OptimizeWithWeightDecay",
    "EntryAccessorTest.SaveRestore",
    "AVX.Basic",
    "AVX.DecoupleWd",
    "FtrlOptimizer.Basic",
    "FtrlOptimizer.ListUpdate",
    "GroupAdaGradOptimizer.Basic",
    "GroupAdaGradOptimizer.ListUpdate",
    "GroupAdaGradOptimizer.ZeroLambda",
    "GroupAdaGradOptimizer.SetZero",
    "AdadeltaOptimizer.Basic",
    "AdadeltaOptimizer.ListUpdate",
    "AdamOptimizer.Basic",
    "AdamOptimizer.ListUpdate",
    "AmsgradOptimizer.Basic",
    "AmsgradOptimizer.ListUpdate",
    "MomentumOptimizer.Basic",
    "MomentumOptimizer.ListUpdate",
    "MovingAverageOptimizer.Basic",
    "MovingAverageOptimizer.ListUpdate",
    "RmspropOptimizer.Basic",
    "RmspropV2Optimizer.ListUpdate",
    "BatchSoftmaxOptimizer.Basic",
    "DcOptimizer.Basic",
    "DcOptimizer.ListUpdate",
    "StochasticRoundingFloat16OptimizerDecorator.Basic",
)
@pytest.mark.parametrize(
    ("name", "number"), ALL, ids=[f"{TABLES[name][number].name}, {name}" for name, number in ALL]
)
def test_in_a_table_every_optimizer_gives_its_golden_numbers(name: str, number: int) -> None:
    cases = TABLES[name]
    one, layout = cases[number], table_of(cases).layout
    w, s = layout.weight_offsets[number], layout.state_offsets[number]
    optimizer = layout.optimizers[number]
    for row, expected in zip(rows_of(name), one.weights, strict=False):
        np.testing.assert_allclose(row[w : w + one.dim], expected, rtol=0, atol=one.tolerance)
    for row, states in zip(rows_of(name), (one.first_state, one.last_state), strict=True):
        held = state_by_name(optimizer, row[None, s : s + optimizer.state_width])
        for state, expected in states.items():
            np.testing.assert_allclose(
                np.ravel(held[state]), expected, rtol=1e-6, atol=1e-4, err_msg=state
            )


def test_stochastic_rounding_stores_halves_in_its_own_segment_only() -> None:
    cases = TABLES["last eight, list update"]
    layout = table_of(cases).layout
    w = layout.weight_offsets[-1]
    for row in rows_of("last eight, list update"):
        np.testing.assert_array_equal(
            row[w : w + 2], row[w : w + 2].astype(np.float16).astype(np.float32)
        )
        assert (row[: layout.dim][:w] != row[:w].astype(np.float16).astype(np.float32)).any()


@pytest.mark.parametrize("name", ["first eight, list update", "last eight, list update"])
def test_at_step_zero_of_a_warm_up_rows_are_made_and_no_weight_moves(name: str) -> None:
    """Ramp of 4 steps: rates 0, 1/4, ...

    In Monolith ftrl and group_adagrad spoil the row at rate 0.
    """
    own = {"moving_average", "batch_softmax"}  # what they do is no descent

    def warm(optimizer: Optimizer) -> Optimizer:
        if isinstance(optimizer, Dc | StochasticRoundingFloat16):
            return replace(optimizer, base=warm(optimizer.base))
        return (
            optimizer
            if isinstance(optimizer, MovingAverage)
            else replace(optimizer, warmup_steps=4)
        )

    cases = TABLES[name]
    table = table_of([replace(c, optimizer=warm(c.optimizer)) for c in cases])
    given = np.ones((1, table.layout.gradient_width), np.float32)
    table.apply_gradients(KEY, given, step=0)
    row = table.lookup(KEY)[0]
    assert np.isfinite(table.dump().rows).all()
    plain = table_of(cases)
    rates = plain.layout.rates(None, 0)
    np.testing.assert_array_equal(table.layout.rates(None, 0), np.zeros(8))
    np.testing.assert_allclose(table.layout.rates(None, 1), rates / 4, rtol=1e-6)
    np.testing.assert_array_equal(table.layout.rates(None, 9), rates)
    for c, w in zip(cases, table.layout.weight_offsets, strict=True):
        assert c.optimizer.name in own or not row[w : w + c.dim].any(), c.name


@pytest.mark.golden("HashTableOpsTest.test_batch_softmax_optimizer")
def test_in_a_table_batch_softmax_estimates_how_often_an_id_is_sampled() -> None:
    """Id 0 at every fifth step, id 1 at every tenth: 1/B is how often a step samples each."""
    cases = TABLES["last eight, basic"]
    cases = [
        replace(c, optimizer=BatchSoftmax(0.1)) if c.optimizer.name == "batch_softmax" else c
        for c in cases
    ]
    table = table_of(cases)
    column = table.layout.weight_offsets[3]
    for step in range(1000):
        keys = np.array([key for key, every in ((0, 5), (1, 10)) if step % every == 0], np.int64)
        table.apply_gradients(
            keys, np.zeros((keys.size, table.layout.gradient_width), np.float32), step=step
        )
    estimate = table.lookup(np.arange(2))[:, column]
    np.testing.assert_allclose(1 / np.maximum(estimate, 1), [0.2, 0.1], rtol=0, atol=0.01)

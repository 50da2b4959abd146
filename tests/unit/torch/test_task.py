"""A torch module as the model of a task: its gradients, its variables, and what it refuses."""

from typing import ClassVar

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import InvalidRequest
from megalith.local import local_train
from support.liked_task import LikedTask

torch = pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from megalith.torch import TorchTask  # noqa: E402
from megalith.worker.hooks import Hook  # noqa: E402
from support.torch_liked_task import TorchLikedTask  # noqa: E402
from support.turns_task import TABLE, TakesTurns, trains_films  # noqa: E402


class SameAsNumpy(TorchTask):
    """What LikedTask computes by hand."""

    features = LikedTask.features
    layouts = LikedTask.layouts
    num_batches = LikedTask.num_batches
    batch = LikedTask.batch
    held_out = LikedTask.held_out
    optimizer = mg.Adagrad(0.05)

    def __init__(self):
        LikedTask.__init__(self)
        self.module = Product()


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, layouts):
        return self.bias + layouts["bias"][:, 0] + layouts["vec"].prod(1).sum(1)


def test_a_module_trains_as_the_same_model_by_hand():
    by_hand = local_train(LikedTask())
    by_torch = local_train(SameAsNumpy())
    np.testing.assert_allclose(by_torch.losses, by_hand.losses, atol=1e-5)
    assert by_torch.figures == pytest.approx(by_hand.figures, abs=1e-4)


class InParts(SameAsNumpy):
    """The same with the vectors as a tuple, of which a third part is not used."""

    layouts: ClassVar = {
        "bias": LikedTask.layouts["bias"],
        "vec": mg.Layout.none("user.vec", "film.vec", "film.bias"),
    }

    def __init__(self):
        super().__init__()
        self.module = ProductOfParts()


class ProductOfParts(Product):
    def forward(self, layouts):
        user, film, _ = layouts["vec"]
        return self.bias + layouts["bias"][:, 0] + (user * film).sum(1)


def test_a_layout_of_several_parts_is_a_tuple_of_tensors():
    whole = local_train(SameAsNumpy())
    in_parts = local_train(InParts())
    np.testing.assert_allclose(in_parts.losses, whole.losses, atol=1e-5)
    assert in_parts.figures == pytest.approx(whole.figures, abs=1e-4)


class TurnsOfTorch(TorchTask):
    """TakesTurns, whose films take part in the loss of every third batch only."""

    features = TakesTurns.features
    layouts = TakesTurns.layouts
    num_batches = TakesTurns.num_batches
    batch = TakesTurns.batch
    evaluate = TakesTurns.evaluate

    def __init__(self):
        TakesTurns.__init__(self)
        self.module = nn.Identity()

    def forward(self, batch, layouts):
        user, film = self.user_and_film(layouts)
        logits = user.sum(1)
        if trains_films(batch.fields["number"][0]):
            logits = logits + film.sum(1)

        return logits

    def user_and_film(self, layouts):
        return layouts["user"], layouts["film"]

    def loss(self, logits, batch):
        return logits.mean()


class TurnsOfParts(TurnsOfTorch):
    """Users and films are two parts of one layout."""

    layouts: ClassVar = {"both": mg.Layout.none("user", "film")}

    def user_and_film(self, layouts):
        return layouts["both"]


@pytest.mark.parametrize("make_task", [TurnsOfTorch, TurnsOfParts])
def test_a_feature_outside_of_the_loss_moves_no_row_of_a_table_that_it_shares(make_task):
    task = make_task()
    run = local_train(task)
    TakesTurns().check(task.found, run.model.rows_by_table()[TABLE])


def test_parameters_are_variables_and_go_on_with_their_optimizer(tmp_path):
    whole = local_train(TorchLikedTask())
    names = [variable.name for variable in TorchLikedTask().variables]
    assert names == ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]
    first = local_train(TorchLikedTask(), model_dir=tmp_path, max_steps=50)
    # Another seed would begin with other parameters: those of the checkpoint count.
    other = TorchLikedTask()
    other.module.apply(lambda part: part.reset_parameters() if hasattr(part, "weight") else None)
    rest = local_train(other, model_dir=tmp_path)
    assert first.losses + rest.losses == whole.losses
    _, trained = whole.read({}, names)
    _, restored = rest.read({}, names)
    for name in names:
        np.testing.assert_array_equal(trained[name], restored[name])


def test_a_frozen_parameter_stays_and_is_in_the_checkpoint(tmp_path):
    def frozen():
        task = TorchLikedTask()
        task.module.hidden.requires_grad_(False)
        return task

    weight = frozen().module.hidden.weight.numpy().copy()
    whole = local_train(frozen())
    local_train(frozen(), model_dir=tmp_path, max_steps=50)
    other = frozen()
    other.module.hidden.reset_parameters()  # those of the checkpoint count
    rest = local_train(other, model_dir=tmp_path)
    assert rest.losses == whole.losses[50:]
    _, trained = rest.read({}, ["hidden.weight"])
    np.testing.assert_array_equal(trained["hidden.weight"], weight)


@pytest.fixture
def process_group():
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def in_parallel():
    task = TorchLikedTask()
    task.module = DistributedDataParallel(task.module)
    return task


@pytest.mark.usefixtures("process_group")
def test_what_is_trained_with_distributed_data_parallel_goes_on_without_it(tmp_path):
    whole = local_train(TorchLikedTask(), evaluates=False)
    first = local_train(in_parallel(), model_dir=tmp_path, max_steps=50, evaluates=False)
    rest = local_train(TorchLikedTask(), model_dir=tmp_path, evaluates=False)
    np.testing.assert_allclose(first.losses + rest.losses, whole.losses, rtol=1e-5)


class CountedForwards(DistributedDataParallel):
    num_forwards = 0

    def forward(self, *inputs):
        self.num_forwards += 1
        return super().forward(*inputs)


@pytest.mark.usefixtures("process_group")
def test_one_process_evaluates_without_the_others_of_distributed_data_parallel():
    """With a buffer in the module, each forward of it is a call that all processes make."""
    task = TorchLikedTask()
    task.module.register_buffer("scale", torch.ones(1))
    task.module = CountedForwards(task.module)
    run = local_train(task, max_steps=3)
    assert run.figures["auc"] > 0
    assert task.module.num_forwards == 3


class Normed(Product):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class NormedOneByOne(Product):
    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(4, track_running_stats=True)


class TwoLogits(Product):
    def forward(self, layouts):
        return layouts["bias"].repeat(1, 2)


class Lazy(Product):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(1)


class Counting(Product):
    """Counts its calls in a buffer: in place, or by another tensor."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, layouts):
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        return super().forward(layouts)


class Scaled(Product):
    """Has a constant in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, layouts):
        return self.scale * super().forward(layouts)


def test_a_constant_buffer_is_used_and_is_no_variable():
    task = SameAsNumpy()
    task.module = Scaled()
    run = local_train(task, max_steps=10)
    assert run.losses == local_train(SameAsNumpy(), max_steps=10).losses
    assert [variable.name for variable in task.variables] == ["bias"]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Normed, "norm is of BatchNorm1d, whose statistics would be different on each worker"),
        (NormedOneByOne, "norm is of InstanceNorm1d, whose statistics would be different"),
        (lambda: Product().bfloat16(), "bias is torch.bfloat16 on cpu, expected torch.float32"),
        (lambda: Product().half(), "bias is torch.float16 on cpu, expected torch.float32"),
        (lambda: Product().double(), "bias is torch.float64 on cpu, expected torch.float32"),
        (lambda: Product().to("meta"), "bias is torch.float32 on meta, expected .* on cpu"),
        (Lazy, "the shape of the parameter layer.weight is not known before the first batch"),
        (TwoLogits, r"the module returned \[64, 2\], expected one logit for each of 64"),
        (lambda: None, "SameAsNumpy has no module"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(module, message):
    task = SameAsNumpy()
    task.module = module()
    with pytest.raises(InvalidRequest, match=message):
        local_train(task)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_step_that_changes_a_buffer_is_refused_and_nothing_of_it_is_applied(in_place):
    task = SameAsNumpy()
    task.module = Counting(in_place)
    steps = []
    with pytest.raises(InvalidRequest, match="a step has changed the buffer calls") as raised:
        local_train(task, on_step=lambda step, loss: steps.append(step))
    assert raised.value.__notes__ == ["step 0, batch 0"]
    assert steps == []


def test_the_auc_of_each_step_is_shown_and_changes_nothing_that_is_learned():
    class Heard(Hook):
        def after_step(self, worker, done):
            figures.append(done.metrics)

    figures = []
    plain = local_train(SameAsNumpy(), max_steps=5, evaluates=False)
    task = SameAsNumpy()
    task.shows_auc = True
    task.hooks = (Heard(),)
    shown = local_train(task, max_steps=5, evaluates=False)
    assert shown.losses == plain.losses
    assert [set(each) for each in figures] == [{"auc", "calibration"}] * 5
    assert all(0.3 < each["auc"] < 0.7 for each in figures[:1])

"""The read-only torch module: what replicas serve, as tensors of the trained model."""

import numpy as np
import pytest

import megalith.serving as serving
from megalith.client import (
    Adagrad,
    Feature,
    Layout,
    Mean,
    Ragged,
    RandomUniform,
    Slice,
    VariableConfig,
)
from megalith.errors import ShapeMismatch, UnknownVariable
from support.replicas import ReplicaReader
from support.servers import Servers

torch = pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")

from megalith.torch import ClusterEmbedding, ServedEmbedding, load_served  # noqa: E402

SLICES = (Slice("vec", 4, RandomUniform(-0.5, 0.5), Adagrad(0.1)),)
FEATURES = (Feature("user", SLICES), Feature("item", SLICES, combiner=Mean()))
LAYOUTS = {"both": Layout.concat("user", "item"), "item": Layout.concat("item")}


def test_a_served_model_gives_what_the_trained_one_does_and_trains_nothing(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)
        cluster = servers.connect()
        features = cluster.create_features(*FEATURES, layouts=LAYOUTS)
        trained = ClusterEmbedding(features)
        head = torch.nn.Linear(8, 1)
        for name, parameter in head.named_parameters():
            initial = parameter.detach().numpy()
            cluster.create_variables(VariableConfig(name, initial, Adagrad(0.1)))

        ids = {"user": torch.arange(50), "item": Ragged(np.arange(100), np.arange(0, 101, 2))}
        head(trained(ids)["both"]).sum().backward()

        reader = ReplicaReader(servers.start_replica(0).address)
        reader.wait_ready()
        reader.wait_for_a_version()
        with serving.connect(model_dir=str(tmp_path), timeout_s=30) as client:
            served = ServedEmbedding(client, features)
            outputs = served(ids)
            trained.eval()
            for name, tensor in trained(ids).items():
                torch.testing.assert_close(outputs[name], tensor, rtol=0, atol=0)
                assert not outputs[name].requires_grad
            assert list(served.parameters()) == []
            assert served.freshness.staleness_s < 60
            absent = served({"user": [10**9], "item": [10**9]})["both"]
            assert torch.count_nonzero(absent) == 0

            nothing = {"user": [[], []], "item": [[], []]}
            torch.testing.assert_close(served(nothing)["both"], trained(nothing)["both"])

            copied = torch.nn.Linear(8, 1)
            load_served(copied, client)
            torch.testing.assert_close(copied.weight, head.weight)
            with pytest.raises(ShapeMismatch, match="variable weight"):
                load_served(torch.nn.Linear(9, 1), client)
            with pytest.raises(UnknownVariable):
                load_served(torch.nn.Sequential(torch.nn.Linear(8, 1)), client)
        reader.close()

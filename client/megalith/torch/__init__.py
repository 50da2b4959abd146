"""Megalith for PyTorch (the extra `torch`): embeddings on a cluster, in an ordinary model.

from megalith.torch import ClusterEmbedding

embedding = ClusterEmbedding(cluster.create_features(user, item))
loss = criterion(head(embedding({"user": user_ids, "item": item_ids})), labels)
loss.backward()  # pushes the gradients of the rows
optimizer.step()  # of the head's parameters, any torch optimizer

Where the trained model answers requests, `ServedEmbedding` takes its place: it reads from replicas.
With `TorchTask` the model is a task of `megalith train` instead, and its workers share the head. It
needs the extra `services` too.
"""

from megalith.errors.extras import how_to_install

try:
    from megalith.torch._embedding import ClusterEmbedding
    from megalith.torch._served import ServedEmbedding, load_served
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(how_to_install("torch", error)) from None

try:
    from megalith.torch._task import TorchTask
except ModuleNotFoundError as error:  # an installation of the SDK alone
    _MISSING = how_to_install("services", error)

    def __getattr__(name: str) -> object:
        if name == "TorchTask":
            raise ImportError(_MISSING)

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ClusterEmbedding", "ServedEmbedding", "TorchTask", "load_served"]

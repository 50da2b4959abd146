"""Megalith for PyTorch (the extra `torch`): embeddings on a cluster, in an ordinary model.

from megalith.torch import ClusterEmbedding

embedding = ClusterEmbedding(cluster.create_features(user, item))
loss = criterion(head(embedding({"user": user_ids, "item": item_ids})), labels)
loss.backward()  # pushes the gradients of the rows
optimizer.step()  # of the head's parameters, any torch optimizer
"""

from megalith.errors.extras import how_to_install

try:
    from megalith.torch._embedding import ClusterEmbedding
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(how_to_install("torch", error)) from None

__all__ = ["ClusterEmbedding"]

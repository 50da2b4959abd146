"""Reading a model that is being trained, from serving replicas.

import megalith.serving as serving

with serving.connect(model_dir="model") as client:
    found = client.lookup({"item": [7, 42]})
    print(found.rows["item"], found.freshness.staleness_s)
    print(client.predict({"user": ["ann"], "item": [7]}).predictions)
"""

from megalith.serving._answers import FeaturesResult, Freshness, LookupResult, PredictResult
from megalith.serving._client import ServingClient
from megalith.serving._connect import connect

__all__ = [
    "FeaturesResult",
    "Freshness",
    "LookupResult",
    "PredictResult",
    "ServingClient",
    "connect",
]

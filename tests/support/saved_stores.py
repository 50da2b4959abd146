"""Stores that are saved as their controller would order it, and restored."""

from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.ps.store.store import Store
from megalith.wire import routing


def save(stores, directory, save_id="s"):
    directory.mkdir(exist_ok=True)
    files = [
        file
        for index, store in enumerate(stores)
        for file in save_shard(store, directory, save_id, index, len(stores)).files
    ]
    manifest.write(
        directory, Manifest(step=7, num_ps=len(stores), saved_at_s=1.0, files=tuple(files))
    )
    return files


def restore(directory, num_ps):
    stores = [Store(index) for index in range(num_ps)]
    for index, store in enumerate(stores):
        restore_shard(store, directory, routing.even_owners(num_ps), index)
    return stores

"""Object stores for tests: one in the memory of the process, and S3 as moto serves it."""

import os
import uuid
from contextlib import contextmanager

import fsspec
import s3fs
from moto.server import ThreadedMotoServer

from megalith.checkpoint.storage.location import locate

BUCKET = "models"
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server():
    """A server with a bucket; yields the environment in which processes use it."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        environment = environment_of(port)
        with set_environment(environment):
            s3fs.S3FileSystem(endpoint_url=environment["AWS_ENDPOINT_URL"]).makedirs(
                BUCKET, exist_ok=True
            )

        yield environment
    finally:
        server.stop()


def environment_of(port):
    return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", **_CREDENTIALS}


@contextmanager
def set_environment(environment):
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def new_folder(scheme):
    """A folder of its own for a test."""
    return locate(f"{scheme}://{BUCKET}/{uuid.uuid4().hex[:8]}/model")


def forget_memory():
    fsspec.filesystem("memory").store.clear()

"""The blobs of a checkpoint with its increments."""

import hashlib

from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.files import blobs as blob_files
from megalith.checkpoint.layout import arrow_files


def digests_of(chain: Chain) -> dict[str, str]:
    """The sha256 of each, by name. An increment has all of them, so the last one counts."""
    digests = {}
    directory, content = chain.folders[-1]

    for file in blob_files.files_of(content):
        with arrow_files.opened(directory, file) as reader:
            for blob in blob_files.read(reader, file):
                digests[blob.name] = hashlib.sha256(blob.data.as_buffer()).hexdigest()

    return digests

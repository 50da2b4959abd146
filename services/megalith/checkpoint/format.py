"""The format of checkpoints: what a version means, which kinds of files there are, their names.

    <model_dir>/checkpoint                   text: the newest checkpoint and all others
    <model_dir>/model.ckpt-120/              a checkpoint of step 120; it never changes
        manifest.json                        what it consists of                  layout/manifest.py
        table-0003-<table>-<shard>.arrow     rows of a table                      files/tables.py
        filter-0003-<table>-<shard>.arrow    counts of its admission filter       files/filters.py
        variables-<shard>.arrow              variables and parts of large ones    files/variables.py
        blobs-<shard>.arrow                  blobs, if the ps had some            files/blobs.py
        applied-<shard>.arrow                pushes that are in it                files/applied.py
    <model_dir>/model.ckpt-r1-120/           the second checkpoint of step 120
    <model_dir>/increments/model.ckpt-120/   what changed since then         directory/increments.py
        000001/                              the first increment; it never changes
            manifest.json                    with a link to what it goes on from
            table-0003-<table>-<shard>.arrow    rows that changed; the last of equal ids counts
            dropped-0003-<table>-<shard>.arrow  ids whose rows are gone           files/dropped.py
            filter-0003-<table>-<shard>.arrow   counts of its admission filter
            variables-<shard>.arrow          all variables
            blobs-<shard>.arrow              all blobs, if the ps had some
            applied-<shard>.arrow            pushes that are in it
    <model_dir>/increments/newest.json       the newest increment
    <model_dir>/dense_only/                  checkpoints of variables alone, with their own list
    <model_dir>/saving-120-<save id>/        a save under way, of the job of this directory
    <model_dir>/saving-120-<save id>-export/ one of another job, which was told to save here
    <model_dir>/saving-120-command-<save id>/    a checkpoint that an import or a copy makes

    <shard> = ps-00000-of-00002-<save id>

directory/catalog.py names the folders and keeps the list. saving/save.py and restoring/restore.py
write and read what one ps holds, and restoring/serving.py what a server that only serves needs.
"""

import re
from enum import StrEnum

# The version covers the manifest and all files beside it. Each reads everything below it.
#   1  A file does not say which buckets it is about. The file of a table may lack its data time.
#   2  Each file says its buckets, and each file of a table the table's data time and which floats
#      of the state are what.
#   3  The manifest has a save id, and there may be increments. There are no files of touched ids.
#   4  The rows of a table's file are grouped by bucket, and the manifest lists its blocks. Each
#      field of the state has a column. The manifest says up to which set of a delta log a table's
#      file has all changes. There may be files of blobs, and of the pushes that are in it.
#   5  A table's file has no sha256: each of its blocks has a checksum, and they are all of it.
FORMAT_VERSION = 5
READ_VERSIONS = (1, 2, 3, 4, 5)

MANIFEST = "manifest.json"
LIST = "checkpoint"
DENSE_ONLY = "dense_only"  # the folder of the checkpoints of variables alone

_READABLE = 60  # characters of a table's name in the names of its files


class FileKind(StrEnum):
    """What is in a file of a checkpoint; the values are in manifests."""

    TABLE = "table"
    FILTER = "filter"
    TOUCHED = "touched"  # in older checkpoints: ids that nobody needs any more
    VARIABLES = "variables"
    DROPPED = "dropped"
    APPLIED = "applied"
    BLOBS = "blobs"


def shard_suffix(index: int, num_ps: int, save_id: str) -> str:
    """How the names of all files of one shard end."""
    return f"ps-{index:05}-of-{num_ps:05}-{save_id}.arrow"


def table_file_name(kind: FileKind, number: int, table: str, suffix: str) -> str:
    """The name of a file about one table.

    The number keeps the files of two tables apart. The rest of the name is for people; the manifest
    says which table it really is.
    """
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", table[:_READABLE])
    return f"{kind}-{number:04}-{readable}-{suffix}"


def applied_file_name(suffix: str) -> str:
    return f"{FileKind.APPLIED}-{suffix}"


def blobs_file_name(suffix: str) -> str:
    return f"{FileKind.BLOBS}-{suffix}"


def variables_file_name(suffix: str) -> str:
    return f"{FileKind.VARIABLES}-{suffix}"

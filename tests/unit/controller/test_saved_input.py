"""What people are told of the input of a job that goes on."""

import base64
from pathlib import Path

import pytest

from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.layout.manifest import Manifest
from megalith.controller.saving import saved_input

DIRECTORY = Path("/m/model.ckpt-7")
CURSORS = (b"there",)


def saved_at(step):
    cursors = tuple(base64.b64encode(cursor).decode() for cursor in CURSORS)
    return Manifest(step, 1, 0.0, (), cursors)


@pytest.mark.parametrize(
    ("increments", "when"),
    [
        ([], "/m/model.ckpt-7"),
        ([9, 12], "increment 2 of /m/model.ckpt-7"),
    ],
)
def test_the_moment_is_that_of_the_newest_increment(increments, when):
    later = tuple(Increment(DIRECTORY / str(step), saved_at(step)) for step in increments)
    chain = Chain(DIRECTORY, saved_at(7), later)
    cursors, said = saved_input.start_of(chain, "", num_workers=1)
    assert cursors == CURSORS
    assert said == f"goes on where it was when {when} was saved; no batch is trained again"

"""What people are told of the input of a job that goes on."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.layout.manifest import Manifest
from megalith.controller.saving import input_names, saved_input

DIRECTORY = Path("/m/model.ckpt-7")
CURSORS = (b"there",)
ONCE = "no batch counts twice"


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
    step = increments[-1] if increments else 7
    assert said == f"goes on where it was when {when} was saved, at step {step}; {ONCE}"


def test_what_is_trained_anew_and_what_of_it_counts_twice_are_told_apart():
    saved = replace(saved_at(8518), repeated_batches=38)
    _, said = saved_input.start_of(Chain(DIRECTORY, saved, ()), "", num_workers=1)
    assert said == (
        "goes on where it was when /m/model.ckpt-7 was saved, at step 8518; all steps after it are "
        "trained anew; counted twice, because the model has them already: about 38 batches of these"
    )


OTHER_FILES = "other files than those of ckpt-7: all rows of these are trained"


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        (
            "data-index-a, 2 workers, batches of 1024",
            "data-index-b, 2 workers, batches of 1024",
            OTHER_FILES,
        ),
        ("data-index-a, in pieces", "data-index-b, in pieces", OTHER_FILES),
        (
            "data-index-a, 2 workers, batches of 1024",
            "data-index-a, 3 workers, batches of 1024",
            "ckpt-7 was saved with 2 workers, this run has 3 workers",
        ),
        (
            "data-index-a, 2 workers, batches of 64",
            "data-index-b, 2 workers, batches of 32",
            f"{OTHER_FILES}; ckpt-7 was saved with batches of 64, this run has batches of 32",
        ),
        (
            "data-index-a shuffled by seed 1, in pieces",
            "data-index-a shuffled by seed 2, in pieces",
            "ckpt-7 was saved with rows shuffled by seed 1, this run has rows shuffled by seed 2",
        ),
        (
            "data-index-a shuffled by seed 1, 1 worker, batches of 4",
            "data-index-a, in pieces",
            "ckpt-7 was saved with rows shuffled by seed 1, 1 worker, batches of 4, "
            "this run has rows in the order of the files, --sharding dynamic",
        ),
        (
            "data-index-a shuffled by seed 1, in pieces",
            "data-index-a, in pieces",
            "ckpt-7 was saved with rows shuffled by seed 1, this run has rows in the order of "
            "the files",
        ),
        (
            "data-index-a, in pieces",
            "data-index-a shuffled by seed 1, in pieces",
            "ckpt-7 was saved with rows in the order of the files, this run has rows shuffled by "
            "seed 1",
        ),
        (
            "",
            "monday",
            "ckpt-7 was saved with an input without a name, this one is named monday",
        ),
    ],
)
def test_only_what_differs_between_two_inputs_is_said(saved, now, said):
    assert input_names.difference(saved, now, "ckpt-7") == said

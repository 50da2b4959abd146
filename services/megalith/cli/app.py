"""`megalith`: the whole product from one command.

A command is one line of the table below. Its module is imported when somebody runs it.
"""

import click

from megalith.runtime.config.commands import Group, LazyCommand

_SECTIONS = {
    "A job on this machine": (
        LazyCommand(
            "train",
            "megalith.cli.train.jobs:train",
            "Train a task: start a cluster, show progress, save, stop it.",
        ),
        LazyCommand(
            "up",
            "megalith.cli.train.jobs:up",
            "Start a cluster and keep it up until Ctrl-C or the end of the job.",
        ),
        LazyCommand(
            "demo",
            "megalith.cli.demo:demo",
            "See training and serving at once: live figures in the terminal.",
        ),
    ),
    "What is trained": (
        LazyCommand("tasks", "megalith.cli.tasks:tasks", "List what can be trained by name."),
        LazyCommand(
            "data", "megalith.cli.data:data", "Look at training data: columns, types, label rate."
        ),
    ),
    "A running job": (
        LazyCommand(
            "ctl", "megalith.cli.ctl:ctl", "Look at a job and drive it: status, stop, resume, save."
        ),
    ),
    "Saved models": (
        LazyCommand(
            "eval",
            "megalith.cli.saved_models.evaluating:eval_command",
            "Score the checkpoints of a model directory on held-out data.",
        ),
        LazyCommand(
            "predict",
            "megalith.cli.saved_models.predicting:predict",
            "Write what a trained model says of each example to a Parquet file.",
        ),
        LazyCommand(
            "export",
            "megalith.cli.saved_models.exporting:export",
            "Write a checkpoint as a model that replicas serve without a cluster.",
        ),
        LazyCommand(
            "ckpt",
            "megalith.cli.ckpt:ckpt",
            "Look at checkpoints, check, compare, export, import and remove them.",
        ),
    ),
    "One process of a cluster": (
        LazyCommand(
            "controller",
            "megalith.cli.services:controller",
            "Run the controller: membership, routing map, barrier, checkpoints, end of job.",
        ),
        LazyCommand(
            "ps",
            "megalith.cli.services:ps",
            "Run a parameter server: tables of embedding rows and dense variables.",
        ),
        LazyCommand(
            "worker",
            "megalith.cli.services:worker",
            "Run a worker: trains a task; worker-0 is the chief and creates tables.",
        ),
        LazyCommand(
            "replica",
            "megalith.cli.services:replica",
            "Run a serving replica: a read-only copy of the model, kept up to date.",
        ),
        LazyCommand(
            "appmaster",
            "megalith.cli.services:appmaster",
            "Run the AppMaster: supervises a job's processes and answers for it.",
        ),
    ),
    "This command": (
        LazyCommand("version", "megalith.cli.about:version", "Print the version."),
        LazyCommand(
            "completion",
            "megalith.cli.about:completion",
            "Print what makes a shell complete commands and options.",
        ),
    ),
}


def _show_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from megalith.cli.about import print_version

        print_version()
        context.exit()


app = Group(
    "megalith",
    sections=_SECTIONS,
    help="A training cluster for recommendation models.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_show_version,
            help="Print the version and exit.",
        )
    ],
    examples=(
        "megalith train clicks           train the demo task, and stop",
        "megalith up                     keep a cluster up in the folder model",
        "megalith ctl status             how the job of the folder model stands",
    ),
)

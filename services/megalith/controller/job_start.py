"""What a job goes on from: its newest checkpoint, and its input."""

import logging
from dataclasses import dataclass

from megalith.checkpoint.directory import catalog, exempt_list
from megalith.checkpoint.starting import choices, override
from megalith.checkpoint.storage.location import Location
from megalith.controller.config import ControllerConfig
from megalith.controller.saving import saved_input
from megalith.controller.saving.start_point import StartPoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobStart:
    """What was saved before this controller came; everything is empty if nothing was.

    `cursors` say where the workers' input goes on. `said_of_input` is why they are empty though
    there is a checkpoint, for people. `notes` are what is not taken over of the checkpoint.

    `input_name` is of the input that they are of: in a run without workers that of an earlier run.
    About `repeated_batches` were trained after they were taken, and are in the rows too.
    """

    checkpoint: str = ""
    step: int = 0
    num_increments: int = 0
    saved_at_s: float = 0.0
    cursors: tuple[bytes, ...] = ()
    said_of_input: str = ""
    notes: tuple[str, ...] = ()
    input_name: str = ""
    repeated_batches: int = 0


def find_start(directory: Location, config: ControllerConfig, start_point: StartPoint) -> JobStart:
    """Obey --restore-ckpt and --restore-dir, mend the list of checkpoints, and read the newest."""
    catalog.complete_list(directory)
    override.apply(directory, config.restore_ckpt, config.restore_dir)
    catalog.recover_list(directory)
    exempt_list.create(directory)

    chain = start_point.find()
    if chain is None:
        return JobStart(input_name=config.input_name)

    checkpoint = chain.directory
    made = choices.make(directory, chain, config.restore_choices)
    start_point.choose(checkpoint, chain.base.saved_at_s, made.choices)
    goes_on = made.choices.takes_variable(choices.GLOBAL_STEP)
    cursors: tuple[bytes, ...] = ()
    said_of_input = ""
    if config.input_cursors:
        cursors, said_of_input = saved_input.start_of(chain, config.input_name, config.num_workers)

    logger.info("starting from checkpoint path=%s increments=%d", checkpoint, chain.number)
    return JobStart(
        str(checkpoint.absolute()),
        chain.last.step if goes_on else 0,
        chain.number,
        chain.last.saved_at_s,
        cursors,
        said_of_input,
        made.notes,
        config.input_name if config.num_workers else chain.last.input_name,
        chain.last.repeated_batches if cursors else 0,
    )

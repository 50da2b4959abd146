"""A model as a checkpoint has it: what a replica starts from, or goes back to."""

import logging
import threading
import time
from dataclasses import dataclass

from megalith.checkpoint.directory import increments
from megalith.checkpoint.restoring import served_rows
from megalith.checkpoint.storage.location import Location, locate, name_of
from megalith.control.controller import Controller
from megalith.errors import AccessDenied, CheckpointNotFound, MegalithError, Unavailable
from megalith.kernels.dtypes import Bools
from megalith.replica.copies.model import ServedModel
from megalith.runtime.counting import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A whole model. `saved_at_s` is when its save began, Unix seconds."""

    model: ServedModel
    name: str  # for people: "model.ckpt-120 with 3 increments"
    save_id: str
    saved_at_s: float
    newest_data_s: int


class CheckpointLoader:
    """Loads checkpoints of the job. `stop` ends a load that is under way."""

    def __init__(self, controller: Controller, share: Bools) -> None:
        self._controller = controller
        self._share = share
        self._newest = ""  # as the controller said last
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def newest(self) -> LoadedCheckpoint | None:
        """The newest checkpoint of the job with its increments; None if there is none."""
        path = self._newest_path()
        return self._load(locate(path)) if path else None

    def named(self, name: str) -> LoadedCheckpoint:
        """A checkpoint by its path or URL, or by its name in the list of the job."""
        newest = self._newest_path()
        if "/" in name:
            return self._load(locate(name))
        if not newest:
            raise CheckpointNotFound(f"the job has no checkpoint yet, so none is named {name}")

        return self._load(locate(newest).parent / name)

    def _newest_path(self) -> str:
        """A controller that is away changes nothing: what it said last is taken."""
        try:
            self._newest = self._controller.status().last_checkpoint
        except MegalithError:
            if not self._newest:
                raise

        return self._newest

    def _load(self, directory: Location) -> LoadedCheckpoint:
        """AccessDenied if the storage refuses it, Unavailable if it does not answer."""
        try:
            return self._loaded(directory)
        except PermissionError as error:
            raise AccessDenied(f"{directory} may not be read by this replica: {error}") from error
        except OSError as error:
            raise Unavailable(f"{directory} cannot be read by this replica: {error}") from error

    def _loaded(self, directory: Location) -> LoadedCheckpoint:
        began_s = time.monotonic()
        chain = increments.read_chain(directory)
        model = ServedModel(0)
        loading = served_rows.ServedRowsLoading(
            chain, self._share, model.begin_table, self._check_stop
        )
        loading.load()
        model.set_variables(served_rows.variables_of(chain))
        model.is_from_checkpoint()
        name = name_of(str(directory))
        if chain.number:
            name += f" with {counted(chain.number, 'increment')}"

        logger.info(
            "loaded checkpoint=%s rows=%d bytes=%d seconds=%.1f",
            name,
            model.rows,
            model.nbytes,
            time.monotonic() - began_s,
        )
        last = chain.last
        return LoadedCheckpoint(model, name, last.save_id, last.saved_at_s, loading.newest_data_s)

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("this replica stops")

"""Control by files in the model directory, for operators who reach nothing else.

monolith_action            what to do, in protobuf's text format:
                           `action: TRIGGER_SAVE` or `action: STOP`
monolith_action_response   OK once it is done, otherwise why it is not
"""

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from google.protobuf import text_format

from megalith.controller.guarded import guarded
from megalith.errors import MegalithError
from megalith.protos.controller_hooks_pb2 import ControllerHooksProto
from megalith.runtime.files import open_plain, write_atomically

logger = logging.getLogger(__name__)

REQUEST = "monolith_action"
RESPONSE = "monolith_action_response"
_MAX_BYTES = 4096  # a request is one line; a large file is somebody's mistake and is not read whole


class ActionFile:
    """Looks for a request and obeys it.

    `save` and `stop` return once they are done, and raise MegalithErrors.

    A request is removed whatever becomes of it. Monolith answers OK before it begins, and
    answers nothing to an unknown action; here the answer says what became of it.
    """

    def __init__(
        self, model_dir: Path, save: Callable[[], object], stop: Callable[[], object]
    ) -> None:
        self._request = model_dir / REQUEST
        self._response = model_dir / RESPONSE
        self._by_action = {ControllerHooksProto.TRIGGER_SAVE: save, ControllerHooksProto.STOP: stop}

    def run(self, stopping: threading.Event, every_s: float) -> None:
        """Look every so often, on the thread that calls; 0 = never."""
        look = guarded("looking for an action", self.look)
        while every_s and not stopping.wait(every_s):
            look()

    def look(self) -> None:
        """Obey the request that is there, if one is."""
        try:
            text = self._read()
        except FileNotFoundError:
            return
        except OSError as error:
            self._refuse(f"{REQUEST}: {error.strerror}")
            return

        try:
            answer = self._obey(text)
            logger.info("%s: %s: %s", REQUEST, text, answer)
            write_atomically(self._response, answer.encode())
        finally:
            self._request.unlink(missing_ok=True)

    def _read(self) -> str:
        with open_plain(self._request, "rb") as request:
            if (
                os.fstat(request.fileno()).st_nlink > 1
            ):  # another name of a file that its author may not read
                raise OSError(errno.EMLINK, "has other names; write a file of its own")

            return request.read(_MAX_BYTES).decode(errors="replace").strip()

    def _refuse(self, answer: str) -> None:
        """Answer a request that was not read, and remove it.

        One that cannot be removed is answered again and again.
        """
        logger.warning("%s", answer)
        try:
            self._request.unlink()
        except OSError as error:
            logger.warning("%s cannot be removed: %s", self._request, error.strerror)

        write_atomically(self._response, answer.encode())

    def _obey(self, text: str) -> str:
        try:
            action = text_format.Parse(text, ControllerHooksProto()).action
        except text_format.ParseError as error:
            actions = [ControllerHooksProto.Action.Name(each) for each in self._by_action]
            return f"{error} The actions are {' and '.join(actions)}."

        act = self._by_action.get(action)
        if act is None:
            return f"Unknown action: {text}"

        try:
            act()
        except MegalithError as error:
            return str(error)

        return "OK"

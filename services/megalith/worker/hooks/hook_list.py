"""The hooks of one worker, in their order."""

import logging
from collections.abc import Callable, Sequence

from megalith.wire.reports import HookErrors
from megalith.worker.hooks.hook import Hook, RunningWorker, StepDone

logger = logging.getLogger(__name__)

STOP = "stop"
GO_ON = "go-on"
ON_ERROR = (STOP, GO_ON)

_MOST_TOLD = 64  # hooks and moments whose first error is reported; every error is logged
_LONGEST_TOLD = 500  # characters of such an error


class HookList:
    """Calls every hook at each of the four moments, always in the same order.

    A hook that raises ends the worker, and the error says which hook it was; with `on_error`
    "go-on" it is logged and counted instead. Used by one thread; others may read `errors`.
    """

    def __init__(self, hooks: Sequence[Hook] = (), on_error: str = STOP) -> None:
        self._hooks = tuple(hooks)
        self._on_error = on_error
        self._failed_names: set[str] = set()
        self.errors = HookErrors()

    def begin(self, worker: RunningWorker) -> None:
        self._call_each("begin", lambda hook: hook.begin(worker))

    def before_step(self, worker: RunningWorker) -> None:
        self._call_each("before_step", lambda hook: hook.before_step(worker))

    def after_step(self, worker: RunningWorker, done: StepDone) -> None:
        self._call_each("after_step", lambda hook: hook.after_step(worker, done))

    def end(self, worker: RunningWorker) -> None:
        self._call_each("end", lambda hook: hook.end(worker))

    def _call_each(self, moment: str, call: Callable[[Hook], None]) -> None:
        for hook in self._hooks:
            try:
                call(hook)
            except Exception as error:
                self._failed(f"{type(hook).__name__}.{moment}", error)

    def _failed(self, name: str, error: Exception) -> None:
        if self._on_error == STOP:
            error.add_note(f"raised by the hook {name}")
            raise error

        failures = self.errors.hook_failures
        if name not in self._failed_names and len(failures) < _MOST_TOLD:
            text = f"{name} raised {type(error).__name__}: {error}"
            one_line = " ".join(text.split())[:_LONGEST_TOLD]
            # Bytes of a file name that are no text would end the report that says them.
            sayable = one_line.encode(errors="backslashreplace").decode()
            failures += (sayable,)

        self._failed_names.add(name)
        self.errors = HookErrors(self.errors.hook_errors + 1, failures)
        logger.error("the hook %s failed; training goes on", name, exc_info=error)

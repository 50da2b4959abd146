"""Which hooks a worker has, and in which order."""

from collections.abc import Callable

from megalith.errors import InvalidSetting
from megalith.runtime.task_loading import load_named, raised_at
from megalith.worker.config import HookSettings
from megalith.worker.hooks.figures import TableSizes, Throughput
from megalith.worker.hooks.hook import Hook
from megalith.worker.hooks.hook_list import HookList
from megalith.worker.hooks.hours import SlowStart, TideStop


def hooks_of(
    task: object, settings: HookSettings, index: int, *, counts_tables: bool = True
) -> HookList:
    """First those that may hold up the start, then those that watch, then the user's own.

    Without `counts_tables` somebody else logs the sizes of the tables.
    """
    window = settings.window()
    slow_start = SlowStart.of_worker(
        index, settings.slow_start_steps, settings.slow_start_max_s, window
    )
    hooks: list[Hook] = [slow_start]
    if window is not None:
        hooks.append(TideStop(window))

    if settings.figures_every_s:
        hooks.append(Throughput(settings.figures_every_s))
        if index == 0 and counts_tables:
            hooks.append(TableSizes(settings.figures_every_s))

    hooks += hooks_of_task(task)
    names = [name.strip() for name in settings.hooks.split(",")]
    hooks += [_named("--hooks", name) for name in names if name]
    return HookList(hooks, settings.on_hook_error)


def hooks_of_local(task: object, figures_every_s: float) -> HookList:
    """Those of a training in one process: its figures, then what the task brings along."""
    figures: tuple[Hook, ...] = ()
    if figures_every_s:
        figures = (Throughput(figures_every_s), TableSizes(figures_every_s))

    return HookList((*figures, *hooks_of_task(task)))


def hooks_of_task(task: object) -> tuple[Hook, ...]:
    """What the task brings along as `hooks`: hooks, their classes, or names as --hooks has them."""
    origin = f"{type(task).__name__}.hooks"
    brought = getattr(task, "hooks", ())
    if isinstance(brought, str):
        raise InvalidSetting(f"{origin}={brought!r}: expected a tuple, such as ({brought!r},)")

    return tuple(_hook_of(origin, each) for each in brought)


def _hook_of(origin: str, brought: object) -> Hook:
    if isinstance(brought, str):
        return _named(origin, brought)
    if isinstance(brought, type):
        return _made(f"{origin}: {brought.__name__}", brought)

    return _check(origin, brought)


def _named(setting: str, name: str) -> Hook:
    origin = f"{setting}={name}"
    factory = load_named(
        "hook", name, origin=origin, advice="use package.module:Class or file.py:Class"
    )
    return _made(origin, factory)


def _made(origin: str, factory: Callable[[], object]) -> Hook:
    try:
        hook = factory()
    except Exception as error:
        raise InvalidSetting(
            f"{origin}: it cannot be made: {type(error).__name__}: {error}{raised_at(error)}"
        ) from error

    return _check(origin, hook)


def _check(origin: str, hook: object) -> Hook:
    if not isinstance(hook, Hook):
        raise InvalidSetting(f"{origin}: {hook!r} is no megalith.worker.hooks.Hook")

    return hook

"""A training job as one configuration: its shape, what it trains, how patient it is.

Everything else is derived from it. Each field says which services it reaches; there it is the
setting of the same name. `plan.py` turns a RunnerConfig into the processes of the job and their
settings, so nothing about a job is decided in two places.
"""

import dataclasses
import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from megalith.appmaster.config import AppMasterConfig
from megalith.collective.choose import AUTO, COLLECTIVES, OFF
from megalith.controller.config import ControllerConfig
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.ps.config import PsConfig
from megalith.replica.config import ReplicaConfig
from megalith.runtime.config import settings
from megalith.runtime.config.sections import JOINING, SAVING, SERVING, SPARES, TRAINING
from megalith.runtime.config.setting_checks import (
    check_choices,
    check_not_below_0,
)
from megalith.worker.config import TaskSettings, WorkerConfig

PREFIX = "MEGALITH_RUNNER_"
SERVICES: Mapping[str, type[Any]] = {
    "controller": ControllerConfig,
    "ps": PsConfig,
    "worker": WorkerConfig,
    "appmaster": AppMasterConfig,
    "replica": ReplicaConfig,
}
_MEMBERS = ("ps", "worker")
_FOLLOWERS = (*_MEMBERS, "replica")  # who has to find the controller
_TASK = "task"  # in --set: no service, but what the workers train
_FINDING = ("controller", *_FOLLOWERS)


# What no --set may say: it differs from process to process, or the command itself decides it.
_OF_THE_JOB = (
    "index",
    "model_dir",
    "controller",
    "app_id",
    "state_file",
    "stay_up",
    "exit_with_stdin",
)


def _job(help: str, default: Any, *reaches: str, **described: Any) -> Any:
    """A field of the job itself, handed on to the services that it reaches.

    `described` is what `setting` takes too.
    """
    field = settings.setting(help, default, **described)
    metadata = {**field.metadata, "reaches": reaches}
    return dataclasses.field(default=default, metadata=metadata)


def _as_in(name: str, *reaches: str, alias: str = "") -> Any:
    """A field that is the services' own setting of that name, with their default and words."""
    first, *_ = reaches
    by_name = {leaf.name: leaf for leaf in settings.leaves(SERVICES[first])}
    leaf = by_name[name]
    return _job(
        leaf.help,
        leaf.default,
        *reaches,
        section=leaf.section,
        choices=leaf.choices,
        alias=alias,
        replaces=leaf.replaces,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """A job on this machine: controller, parameter servers, workers and AppMaster.

    Validated whole when it is made: InvalidSetting names the field and its value. The fields of
    Monolith's RunnerConfig that are not here, and why, are in `monolith_settings.py` and in
    docs/settings.md. Monolith lets a flag win over a value that code set to the default; here
    what code says always wins.
    """

    model_dir: str = _job("Directory of the job: checkpoints, logs, addresses.", "model", *SERVICES)
    num_ps: int = _job("Parameter servers that hold the model.", 2, "controller", alias="--ps")
    num_workers: int = _job(
        "Workers; 0 = only programs that use the SDK train.", 2, "controller", alias="--workers"
    )
    num_replicas: int = _job(
        "Serving replicas: read-only copies of the model, kept up to date while it trains.",
        0,
        alias="--replicas",
        section=SERVING,
    )
    sync: str = _job(
        "off: workers train at their own pace, and the model is on parameter servers. full: every "
        "step is one of all ranks that mpirun or torchrun has started; they hold the model, and "
        "there are no servers.",
        OFF,
        section=TRAINING,
        choices=(OFF, "full"),
    )
    collective: str = _job(
        "How the ranks of --sync find each other: by mpi (mpirun), gloo (torchrun), horovod or "
        "byteps. auto: by the launcher that has started them; a process without one is alone.",
        AUTO,
        section=TRAINING,
        choices=COLLECTIVES,
    )
    sync_timeout_s: float = _as_in("sync_timeout_s", "worker")
    delta_every_s: float = _as_in("delta_every_s", "ps")
    dense_every_s: float = _as_in("dense_every_s", "ps")
    num_extra_ps: int = _job(
        "Further ps that workers measure; the slowest are not used.",
        0,
        "controller",
        alias="--extra-ps",
        section=SPARES,
    )
    num_redundant_ps: int = _job(
        "Further ps that are not waited for; they stand by for those that die.",
        0,
        "controller",
        alias="--redundant-ps",
        section=SPARES,
    )
    benchmark_s: float = _as_in("benchmark_s", "controller")
    ps_override: str = _as_in("ps_override", "controller")
    takeover_s: float = _as_in("takeover_s", "controller")

    discovery: str = _as_in("discovery", *_FINDING)
    job: str = _job(
        "Name of the job in ZooKeeper and Consul; empty = made from the model directory.",
        "",
        *_FINDING,
        section=JOINING,
    )

    task: str = _as_in("task", "worker")
    batch_size: int = _as_in("batch_size", "worker")
    num_examples: int = _as_in("num_examples", "worker")
    max_steps: int = _as_in("max_steps", "worker")
    on_nan: str = _as_in("on_nan", "worker")
    hooks: str = _as_in("hooks", "worker")
    on_hook_error: str = _as_in("on_hook_error", "worker")
    slow_start_steps: int = _as_in("slow_start_steps", "worker")
    slow_start_max_s: float = _as_in("slow_start_max_s", "worker")
    train_window: str = _as_in("train_window", "worker")
    figures_every_s: float = _as_in("figures_every_s", "worker")
    sharding: str = _as_in("sharding", "worker")
    tensorboard: str = _as_in("tensorboard", "worker")
    summary_every_steps: int = _as_in("summary_every_steps", "worker")
    seed: int = _as_in("seed", "worker")
    allow_new_layout: bool = _as_in("allow_new_layout", "worker")
    task_options: str = _as_in("task_options", "worker")
    params_override: str = _as_in("params_override", "worker")
    staleness: int = _as_in("staleness", "worker")
    prefetch_batches: int = _as_in("prefetch_batches", "worker")
    row_dtype: str = _as_in("row_dtype", "worker")
    gradient_dtype: str = _as_in("gradient_dtype", "worker")

    max_restarts: int = _as_in("max_restarts", "appmaster", alias="--restart")
    heartbeat_s: float = _as_in("heartbeat_s", *_MEMBERS)
    silence_s: float = _as_in("silence_s", "controller")
    suspect_s: float = _as_in("suspect_s", "controller")
    lost_worker_s: float = _as_in("lost_worker_s", "controller")
    step_timeout_s: float = _as_in("step_timeout_s", "worker")
    retry_wait_s: float = _as_in("retry_wait_s", "worker")
    max_retries: int = _as_in("max_retries", "worker")
    chief_timeout_s: float = _as_in("chief_timeout_s", "worker")
    rejoin_timeout_s: float = _as_in("rejoin_timeout_s", *_MEMBERS)
    checkpoint_dir: str = _as_in("checkpoint_dir", "controller")
    restore_ckpt: str = _as_in("restore_ckpt", "controller")
    restore_dir: str = _as_in("restore_dir", "controller")
    leave_out_tables: str = _as_in("leave_out_tables", "controller")
    clear_nn: bool = _as_in("clear_nn", "controller")
    continue_training: bool = _as_in("continue_training", "controller")
    variable_aliases: str = _as_in("variable_aliases", "controller")
    restore_dense: str = _as_in("restore_dense", "controller")
    input_cursors: bool = _as_in("input_cursors", "controller")
    input_name: str = _as_in("input_name", "controller")
    save_window: str = _as_in("save_window", "controller")
    save_only_online: bool = _as_in("save_only_online", "controller")
    save_timeout_s: float = _as_in("save_timeout_s", "controller")
    final_save_timeout_s: float = _as_in("final_save_timeout_s", "controller")
    save_on_exit: bool = _job(
        "Save before `up` or `train` stops because of Ctrl-C or SIGTERM, for at most "
        "--final-save-timeout-s.",
        True,
        section=SAVING,
    )
    save_hold_s: float = _as_in("save_hold_s", "controller")
    save_every_s: float = _as_in("save_every_s", "controller")
    save_every_steps: int = _as_in("save_every_steps", "controller")
    dense_save_every_s: float = _as_in("dense_save_every_s", "controller")
    dense_save_every_steps: int = _as_in("dense_save_every_steps", "controller")
    dense_only_hold: bool = _as_in("dense_only_hold", "controller")
    increment_every_s: float = _as_in("increment_every_s", "controller")
    tide_window: str = _as_in("tide_window", "controller")
    tide_save_s: float = _as_in("tide_save_s", "controller")
    max_to_keep: int = _as_in("max_to_keep", "controller")
    keep_every_n_hours: float = _as_in("keep_every_n_hours", "controller")
    action_poll_s: float = _as_in("action_poll_s", "controller")
    expire_every_s: float = _as_in("expire_every_s", "ps")
    expire_on_save: bool = _as_in("expire_on_save", "ps")
    restore_over_budget: bool = _as_in("restore_over_budget", "ps")
    log_level: str = _as_in("log_level", *SERVICES)
    set: str = _job(
        "A setting of one service that is not here, as SERVICE.NAME=VALUE; may be given several "
        "times. Ports count up with the index of the process. task.NAME=VALUE is a keyword for the "
        "factory of the task.",
        "",
        is_repeated=True,
    )

    def __post_init__(self) -> None:
        for leaf in settings.leaves(RunnerConfig):
            leaf.checked(getattr(self, leaf.name))

        check_not_below_0(self, "num_replicas")
        check_choices(self)
        if not self.model_dir:
            raise InvalidSetting("--model-dir='': the job needs a directory")

        for service, config_class in SERVICES.items():
            # Each service checks what reaches it.
            settings.build(config_class, self.settings_of(service))

    @classmethod
    def load(
        cls, *, flags: Mapping[str, str] | None = None, environ: Mapping[str, str], **code: Any
    ) -> Self:
        """Values given in code over `flags` over MEGALITH_RUNNER_* variables over defaults.

        `flags` are texts by field name.
        """
        return settings.load(cls, PREFIX, code=code, flags=flags, environ=environ)

    def settings_of(self, service: str) -> dict[str, Any]:
        """What this job sets on every process of that service."""
        values = {}
        for field in dataclasses.fields(self):
            if service in field.metadata["reaches"]:
                values[field.name] = getattr(self, field.name)

        if service == "worker":
            values["task_options"] = self._task_options()

        return values | self._found_by(service) | self._set(service)

    def _task_options(self) -> str:
        """The JSON object of --task-options, with what --set says for the task.

        A value is JSON if it can be, and otherwise text.
        """
        told = {}
        for text in shlex.split(self.set):
            name, value = _set_of(text, _TASK)
            if name:
                told[name] = json_or_text(value)

        if not told:
            return self.task_options

        options = TaskSettings(task_options=self.task_options).options()
        return json.dumps(options | told)

    def _set(self, service: str) -> dict[str, Any]:
        """What --set says for that service."""
        reached = set()
        for field in dataclasses.fields(self):
            if service in field.metadata["reaches"]:
                reached.add(field.name)

        values = {}
        for text in shlex.split(self.set):
            name, value = _set_of(text, service)
            if name in reached:
                raise InvalidSetting(f"--set={text}: write {settings.flag_of(name)}={value}")
            if name in _OF_THE_JOB:
                raise InvalidSetting(f"--set={text}: the job decides it")

            if name:
                values[name] = _parsed(service, name, value, f"--set {service}.{name}")

        return values

    def _found_by(self, service: str) -> dict[str, Any]:
        """What a process is told to find the others through a discovery back end.

        Members are then not told the model directory: the back end is what they join by.
        """
        found_by = DiscoverySettings(discovery=self.discovery)
        if not found_by.is_used or service not in _FINDING:
            return {}

        opener = found_by.opener(self.job, self.model_dir, default_job=self._default_job)
        told: dict[str, Any] = {"discovery": opener.url, "job": opener.job}
        if service in _FOLLOWERS:
            told["model_dir"] = ""

        return told

    @property
    def _default_job(self) -> str:
        """A name made from the model directory, so that two directories are two jobs."""
        path = os.path.abspath(self.model_dir)
        digest = hashlib.sha256(path.encode()).hexdigest()
        suffix = digest[:8]

        folder = os.path.basename(self.model_dir)
        readable = re.sub(r"[^A-Za-z0-9]+", "-", folder)

        name = f"{readable}-{suffix}"
        return name.lstrip("-")


def _set_of(text: str, service: str) -> tuple[str, str]:
    """(Name, value) of a --set for that service; both empty if it is for another one."""
    path, equals, value = text.partition("=")
    named, dot, name = path.partition(".")
    if not equals or not dot or named not in (*SERVICES, _TASK):
        services = ", ".join((*SERVICES, _TASK))
        raise InvalidSetting(
            f"--set={text}: expected SERVICE.NAME=VALUE, with a service of {services}; "
            "for example ps.memory_limit_bytes=8000000000"
        )

    if named != service:
        return "", ""
    if service == _TASK:
        return name, value

    return name.replace("-", "_"), value


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parsed(service: str, name: str, text: str, source: str) -> Any:
    by_name = {leaf.name: leaf for leaf in settings.leaves(SERVICES[service])}
    leaf = by_name.get(name)
    if leaf is None:
        known = {each: each for each in by_name}
        hint = settings.suggestion(name, known)
        raise InvalidSetting(f"{source} is not a setting{hint}")

    return leaf.parse(text, source)

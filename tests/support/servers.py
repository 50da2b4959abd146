"""Real servers on free ports in this process."""

from contextlib import ExitStack

from megalith.appmaster.config import AppMasterConfig, AppMasterServerSettings
from megalith.appmaster.server import AppMasterServer
from megalith.client import connect
from megalith.controller.config import ControllerConfig, ControllerServerSettings
from megalith.controller.server import ControllerServer
from megalith.ps.config import PsConfig
from megalith.ps.server import PsServer
from megalith.ps.warm_up import warm_up
from megalith.replica.config import ReplicaConfig
from megalith.replica.server import ReplicaServer
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.runtime.rpc.server import ServerSettings
from megalith.worker.config import TaskSettings, WorkerConfig
from megalith.worker.server import WorkerServer
from support.waiting import LIMIT_S, ended

GRACE_S = 0.5


class Servers:
    """A cluster in one process; everything is stopped on exit, last started first."""

    heartbeat_s = 0.2  # between two reports of each member

    def __init__(self, model_dir, num_ps=1, num_workers=0, **controller_settings):
        self.model_dir, self.num_ps, self.num_workers = model_dir, num_ps, num_workers
        self._controller_settings = controller_settings
        self._stack = ExitStack()
        self.exits = {}
        self._running = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    def start(self, name, build):
        self.exits[name] = exit_request = ExitRequest()
        server = build(exit_request)
        server.start()
        self._running[name] = server
        self._stack.callback(self.stop, name, server)
        return server

    def stop(self, name, server=None):
        """Stop a server, once; without `server` the one that was started last under that name."""
        running = self._running.get(name)
        if running is not None and server in (None, running):
            del self._running[name]
            ended(lambda: running.stop(GRACE_S), f"{name} stops")

    def start_controller(self, **settings):
        settings = {"stay_up": True, **self._controller_settings, **settings}
        settings.setdefault("server", ControllerServerSettings(port=0, metrics_port=0))
        # A planned save would come between two steps of a slow test: tests save when they say so
        settings.setdefault("save_every_s", 0.0)
        config = ControllerConfig(
            model_dir=str(self.model_dir),
            num_ps=self.num_ps,
            num_workers=self.num_workers,
            **settings,
        )
        self.controller = self.start(
            "controller", lambda request: ControllerServer(config, request)
        )
        return self.controller

    def membership(self, **settings):
        return MembershipSettings(
            model_dir=str(self.model_dir), heartbeat_s=self.heartbeat_s, **settings
        )

    def start_ps(self, index, server=None, membership=None, dense_every_s=0.0, **settings):
        warm_up()  # here, however long compiling takes: who waits for the server waits for it alone
        config = PsConfig(
            index=index,
            server=server or ServerSettings(),
            membership=membership or self.membership(),
            dense_every_s=dense_every_s,
            **settings,
        )
        return self.start(f"ps-{index}", lambda request: PsServer(config, request))

    def start_worker(self, index, in_step=None, **task):
        config = WorkerConfig(
            index=index,
            step_timeout_s=60.0,
            task=TaskSettings(**task),
            membership=self.membership(),
        )
        return self.start(f"worker-{index}", lambda request: WorkerServer(config, request, in_step))

    def start_replica(self, index, **settings):
        config = ReplicaConfig(index=index, membership=self.membership(), **settings)
        return self.start(f"replica-{index}", lambda request: ReplicaServer(config, request))

    def start_appmaster(self, port=0, **settings):
        server = AppMasterServerSettings(port=port, metrics_port=0)
        config = AppMasterConfig(
            model_dir=str(self.model_dir), server=server, linger_s=0.0, **settings
        )
        return self.start("appmaster", lambda request: AppMasterServer(config, request))

    def start_all(self, **task):
        self.start_controller()
        for index in range(self.num_ps):
            self.start_ps(index)
        for index in range(self.num_workers):
            self.start_worker(index, **task)

    def connect(self, timeout_s=60.0, **options):
        cluster = connect(model_dir=str(self.model_dir), timeout_s=timeout_s, **options)
        self._stack.callback(ended, cluster.close, "a client closes", timeout_s + LIMIT_S)
        return cluster

"""What a job says to its resource manager, over real sockets."""

import logging
import socket
import threading
from concurrent import futures

import grpc
import pytest

from megalith.control import application
from megalith.protos import appmaster_pb2 as pb
from megalith.protos import appmaster_pb2_grpc
from support.servers import Servers
from support.waiting import LIMIT_S, wait_until

STATE = pb.CreateSavepointStatusResponse


class Platform(appmaster_pb2_grpc.AppMasterServiceServicer):
    """A resource manager that writes down what it is told."""

    def __init__(self):
        self.heard = []
        self.code = 0
        self.states = [STATE.SUCCEEDED]
        self.refusal = None
        self.seconds_left = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def _hear(self, request, context):
        self.heard.append(request)
        self.seconds_left.append(context.time_remaining())
        if self.refusal:
            context.abort(self.refusal, "no")

    def kill(self, request, context):
        self._hear(request, context)
        return pb.KillResponse()

    def succeed(self, request, context):
        self._hear(request, context)
        return pb.SucceedResponse()

    def createSavepoint(self, request, context):
        self._hear(request, context)
        return pb.CreateSavepointResponse(code=self.code, message="busy", savepoint_id="123")

    def createSavepointStatus(self, request, context):
        self._hear(request, context)
        self.may_answer.wait(60)
        return STATE(create_savepoint_state=self.states.pop(0))


@pytest.fixture
def platform(tmp_path, monkeypatch):
    platform = Platform()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    appmaster_pb2_grpc.add_AppMasterServiceServicer_to_server(platform, server)
    # A socket's path has at most 107 characters, and pytest's directories are longer.
    monkeypatch.chdir(tmp_path)
    server.add_insecure_port("unix:am")
    server.start()
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", "am")
    application._channels.clear()
    yield platform
    assert server.stop(0).wait(LIMIT_S)
    application._channels.clear()


@pytest.fixture
def nobody(monkeypatch):
    """The environment names an AppMaster where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "127.0.0.1")
        monkeypatch.setenv("PRIMUS_AM_RPC_PORT", str(probe.getsockname()[1]))
        yield


@pytest.fixture
def hung(monkeypatch):
    """The environment names an AppMaster that takes connections and never says a word.

    A call gives up soon.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "127.0.0.1")
        monkeypatch.setenv("PRIMUS_AM_RPC_PORT", str(listener.getsockname()[1]))
        monkeypatch.setattr(application, "_CALL_S", 0.5)
        yield
    application._channels.clear()


@pytest.fixture
def slept():
    return []


@pytest.mark.golden("G25")
def test_the_local_host_is_what_the_platform_says(monkeypatch):
    monkeypatch.setenv("YARN_INET_ADDR", "1.2.3.4")
    assert application.get_local_host() == "1.2.3.4"
    monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "5.6.7.8,9.9.9.9")
    assert application.get_local_host() == "5.6.7.8"
    monkeypatch.delenv("YARN_INET_ADDR")
    monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "1.2.3.4,5.6.7.8")
    assert application.get_local_host() == "1.2.3.4"
    monkeypatch.delenv("CLOUDNATIVE_INET_ADDR")
    assert application.get_local_host()


@pytest.mark.golden("G25")
def test_kill_carries_the_reason(platform):
    assert application.maybe_kill_application("out of memory") is True
    (request,) = platform.heard
    assert (request.exit_code, request.diagnose) == (1, "out of memory")
    assert request.graceful_shutdown_timeout_ms.value == 20000


@pytest.mark.golden("G25")
def test_a_finished_job_tells_the_platform_that_it_succeeded(platform):
    assert application.maybe_finish_application() is True
    (request,) = platform.heard
    assert request == pb.SucceedRequest(graceful_shutdown_timeout_ms={"value": 20000})


@pytest.mark.golden("G25")
def test_a_savepoint_is_polled_until_it_succeeded(platform, slept):
    platform.states = [STATE.PENDING, STATE.RUNNING, STATE.SUCCEEDED]
    assert application.create_primus_save_point("/models", sleep=slept.append) is True
    assert platform.heard[0].savepoint_dir == "/models"
    assert {request.savepoint_restore_id for request in platform.heard[1:]} == {"123"}
    assert slept == [5.0, 5.0]


def test_a_savepoint_that_is_refused_fails_or_never_ends_is_false(platform, slept, caplog):
    platform.states = [STATE.RUNNING, STATE.FAILED]
    assert application.create_primus_save_point("/models", sleep=slept.append) is False
    platform.states = [STATE.RUNNING] * 3
    assert application.create_primus_save_point("/models", timeout_s=0, sleep=slept.append) is False
    assert "savepoint 123 is not complete after 0 s" in caplog.text
    platform.code = 1
    assert application.create_primus_save_point("/models", sleep=slept.append) is False
    assert "refused a savepoint code=1 message=busy" in caplog.text


def test_without_an_appmaster_nothing_is_said(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "somewhere")
    monkeypatch.delenv("PRIMUS_AM_RPC_PORT", raising=False)
    assert application.maybe_kill_application("x") is False
    assert "Current framework doesn't support kill. Ignore killing..." in caplog.text
    assert application.maybe_finish_application() is None
    assert application.create_primus_save_point("/models") is None


def test_an_appmaster_that_is_down_is_logged_and_raises_nothing(nobody, caplog):
    assert application.maybe_kill_application("x") is False
    assert application.maybe_finish_application() is False
    assert application.create_primus_save_point("/models") is False
    assert caplog.text.count("appmaster 127.0.0.1:") == 3


def test_an_appmaster_that_hangs_is_given_up_after_the_deadline_and_raises_nothing(hung, caplog):
    assert application.maybe_kill_application("x") is False
    assert application.maybe_finish_application() is False
    assert application.create_primus_save_point("/models") is False
    assert caplog.text.count("appmaster 127.0.0.1:") == 3


def test_a_savepoint_whose_appmaster_hangs_while_it_is_polled_is_false(
    platform, monkeypatch, slept, caplog
):
    monkeypatch.setattr(application, "_CALL_S", 0.5)
    platform.may_answer.clear()
    assert application.create_primus_save_point("/models", sleep=slept.append) is False
    platform.may_answer.set()
    assert "savepoint: appmaster unix:am: " in caplog.text


def test_every_call_to_the_appmaster_has_monolith_s_deadline(platform):
    platform.states = [STATE.RUNNING, STATE.SUCCEEDED]
    application.maybe_kill_application("x")
    application.maybe_finish_application()
    application.create_primus_save_point("/models", sleep=lambda seconds: None)
    assert len(platform.seconds_left) == 5
    assert all(0 < left <= 11 for left in platform.seconds_left)


def test_an_appmaster_that_refuses_is_logged_and_raises_nothing(platform, caplog):
    platform.refusal = grpc.StatusCode.FAILED_PRECONDITION
    assert application.maybe_finish_application() is False
    assert "succeed: appmaster unix:am: no" in caplog.text


@pytest.mark.parametrize("appmaster", ["nobody", "hung"])
def test_training_goes_on_and_ends_well_while_the_appmaster_is_down_or_hangs(
    appmaster, tmp_path, request
):
    request.getfixturevalue(appmaster)
    with Servers(tmp_path, num_ps=1, num_workers=1, stay_up=False) as servers:
        servers.start_all(batch_size=64, num_examples=640)
        wait_until(lambda: servers.exits["controller"].reason, 100)
        assert (servers.exits["controller"].status, servers.exits["worker-0"].status) == (0, 0)


def test_the_controller_tells_the_platform_that_the_job_succeeded(platform, tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=1, stay_up=False) as servers:
        servers.start_all(batch_size=64, num_examples=640)
        wait_until(lambda: platform.heard, 100)
        assert [type(request) for request in platform.heard] == [pb.SucceedRequest]


def test_a_chief_that_fails_takes_the_job_down(platform, tmp_path, monkeypatch):
    with Servers(tmp_path, num_ps=1, num_workers=1, stay_up=False) as servers:
        servers.start_controller()
        servers.start_ps(0)
        worker = servers.start_worker(0, batch_size=64)
        monkeypatch.setattr(worker._training, "_learn", lambda *step: 1 / 0)
        wait_until(lambda: platform.heard, 100)
        assert platform.heard[0].diagnose.startswith("training failed: division by zero")
        assert isinstance(platform.heard[0], pb.KillRequest)
        assert len(platform.heard) == 1


def test_a_chief_that_is_stopped_in_a_step_does_not_take_the_job_down(
    platform, tmp_path, monkeypatch
):
    with Servers(tmp_path, num_ps=1, num_workers=1, stay_up=False) as servers:
        servers.start_controller()
        servers.start_ps(0)
        worker, in_step = servers.start_worker(0, batch_size=64), []

        def step_until_closed(*step):
            in_step.append(threading.current_thread())
            wait_until(lambda: worker._view.is_stopping)
            raise RuntimeError("cannot schedule new futures after shutdown")

        monkeypatch.setattr(worker._training, "_learn", step_until_closed)
        wait_until(lambda: in_step)
        worker.stop(0.1)
        in_step[0].join(60)
        assert not in_step[0].is_alive()
        assert (platform.heard, servers.exits["worker-0"].reason) == ([], "")


def test_the_mock_answers_the_helpers(tmp_path, monkeypatch):
    with Servers(tmp_path, num_ps=1, num_workers=1, stay_up=False) as servers:
        servers.start_all(batch_size=64)
        appmaster = servers.start_appmaster()
        host, _, port = appmaster.address.rpartition(":")
        environ = {"PRIMUS_AM_RPC_HOST": host, "PRIMUS_AM_RPC_PORT": port}
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 2, 100)
        target = tmp_path / "savepoint"
        polls = []
        done = application.create_primus_save_point(
            str(target), environ=environ, sleep=lambda _: polls.append(1)
        )
        assert done is True
        assert len(list(target.glob("model.ckpt-*/manifest.json"))) == 1
        assert application.maybe_kill_application("enough", environ) is True
        wait_until(lambda: servers.exits["controller"].reason)
        assert servers.exits["controller"].status == 1
        assert (
            servers.exits["controller"].reason.partition(";")[0] == "killed: enough"
        )  # and what is not saved

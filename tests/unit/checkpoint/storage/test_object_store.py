"""What an object store may do to us: each fault is an error that names it, and none looks empty."""

import errno
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.storage import object_store, scratch
from megalith.checkpoint.storage.location import locate
from megalith.checkpoint.storage.object_store import StorageFailed
from megalith.checkpoint.storage.preparation import prepared
from megalith.errors import InvalidSetting
from support import object_stores


@pytest.fixture(scope="module")
def s3():
    with object_stores.s3_server() as environment, object_stores.set_environment(environment):
        yield


@pytest.fixture
def answering(monkeypatch):
    """A store that answers every request in one way; yields how many there were."""
    servers = []

    def start(status, code):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                asked.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        for name, value in object_stores.environment_of(server.server_port).items():
            monkeypatch.setenv(name, value)

        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_missing_bucket_is_no_empty_directory(s3):
    nowhere = locate("s3://no-such-bucket/ctr")
    for look in (nowhere.exists, nowhere.read_bytes, lambda: catalog.latest(nowhere)):
        with pytest.raises(StorageFailed, match="the bucket does not exist; make it first"):
            look()

    with pytest.raises(InvalidSetting, match=r"s3://no-such-bucket/ctr: .*bucket does not exist"):
        prepared("s3://no-such-bucket/ctr")


def test_a_store_that_forbids_it_is_asked_once(answering):
    asked = answering(403, "AccessDenied")
    with pytest.raises(PermissionError, match="the object store refuses it"):
        object_store.store_of("s3").write("s3://models/ctr/x", b"")

    assert len(asked) == 1
    with pytest.raises(InvalidSetting, match=r"cannot be written there: .*refuses.*credentials"):
        prepared("s3://models/ctr")


def test_a_store_that_fails_is_asked_several_times_and_then_named(answering):
    asked = answering(503, "ServiceUnavailable")
    with pytest.raises(StorageFailed, match=r"failed 4 times.*s3://models/ctr/x"):
        object_store.store_of("s3").write("s3://models/ctr/x", b"")

    assert len(asked) == 4


def test_a_store_that_cannot_be_reached_is_given_up_soon(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    for name, value in object_stores.environment_of(port).items():
        monkeypatch.setenv(name, value)

    began = time.monotonic()
    with pytest.raises(StorageFailed, match=f"Could not connect.*:{port}/"):
        catalog.latest(locate("s3://models/ctr"))

    assert time.monotonic() - began < 20


def test_a_fault_that_passes_is_not_noticed():
    tries = []

    class Flaky:
        def cat_file(self, url):
            tries.append(url)
            if len(tries) < 3:
                raise TimeoutError("late")

            return b"content"

    assert object_store.ObjectStore(Flaky()).read("memory://bucket/x") == b"content"
    assert len(tries) == 3


def test_an_answer_that_was_lost_does_not_make_a_stranger_of_our_own_object():
    held = {}

    class LosesTheFirstAnswer:
        def pipe_file(self, url, content, mode):
            if url in held:
                raise FileExistsError(url)

            held[url] = content
            raise TimeoutError("the answer is lost")

        def cat_file(self, url):
            return held[url]

    store = object_store.ObjectStore(LosesTheFirstAnswer())
    store.create("memory://bucket/x", b"ours")
    with pytest.raises(FileExistsError):
        store.create("memory://bucket/x", b"another's")

    assert held == {"memory://bucket/x": b"ours"}


def test_the_parts_of_uploads_that_nobody_ended_are_dropped(s3):
    system = object_store.store_of("s3")._system
    for key in ("a/model.ckpt-1/rows", "b/model.ckpt-1/rows"):
        upload = system.call_s3("create_multipart_upload", Bucket=object_stores.BUCKET, Key=key)
        system.call_s3(
            "upload_part",
            Bucket=object_stores.BUCKET,
            Key=key,
            UploadId=upload["UploadId"],
            PartNumber=1,
            Body=b"x",
        )

    folder = locate(f"s3://{object_stores.BUCKET}/a/model.ckpt-1")
    assert folder.store.abandon_uploads(folder.url) == 1
    assert folder.store.abandon_uploads(folder.url) == 0
    (left,) = system.list_multipart_uploads(object_stores.BUCKET)
    assert left["Key"].startswith("b/")


def test_a_large_file_goes_up_and_comes_down_in_parts(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "_PART_BYTES", 5 << 20)
    content = os.urandom((21 << 20) + 7)
    (tmp_path / "up").write_bytes(content)
    place = object_stores.new_folder("s3") / "large"
    place.store.upload(tmp_path / "up", place.url)
    assert place.stat().st_size == len(content)
    place.store.download(place.url, tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == content


def test_the_folder_of_a_process_that_was_killed_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch.folder() as used:
        (used / "rows").write_bytes(b"x")
        killed = used.with_name("megalith-scratch-killed")
        killed.mkdir()
        (killed / "rows").write_bytes(b"x")
        with scratch.folder() as other:
            assert sorted(tmp_path.iterdir()) == sorted([used, other])

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_of_this_machine_is_not_blamed_on_the_store_nor_tried_again(tmp_path):
    tries = []

    class System:
        def get_file(self, url, path, **options):
            tries.append(path)
            raise OSError(errno.ENOSPC, "No space left on device", path)

    with pytest.raises(OSError, match="No space left on device") as failed:
        object_store.ObjectStore(System()).download("s3://models/a", tmp_path / "a")
    assert not isinstance(failed.value, StorageFailed)
    assert len(tries) == 1

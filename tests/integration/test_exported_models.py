"""`megalith export`, and a replica that serves what it wrote without a job."""

import json
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.exported import about, versions
from megalith.cli.app import app
from megalith.client import Adagrad, RandomUniform, Segment, Sgd, TableConfig, VariableConfig
from megalith.control import Controller
from megalith.errors import CheckpointDamaged, CheckpointNotFound, InvalidSetting, TooStale
from megalith.protos import replica_pb2 as pb
from megalith.replica.config import ReplicaConfig
from megalith.replica.copies.exported_copy import ExportedCopy
from megalith.replica.exported_server import ExportedServer
from megalith.replica.serving.lookups import Lookups
from megalith.runtime import healthcheck
from megalith.runtime.joining.membership import MembershipSettings
from megalith.schema.compressors import FixedR8, Fp16
from support import checkpoints
from support.processes import Process
from support.replicas import ReplicaReader
from support.servers import Servers
from support.waiting import wait_until

DIM = 4
NOW = 1_790_000_000


def run(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)], prog_name="megalith")


def export(*words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    return Path(result.stdout.strip()), result.stderr


def table_of(name, dim=DIM, **segment):
    return TableConfig(name, (Segment(dim, RandomUniform(-0.5, 0.5), Adagrad(0.1), **segment),))


@pytest.fixture
def serve():
    servers = []

    def start(directory, **settings):
        config = ReplicaConfig(
            export=str(directory), membership=MembershipSettings(model_dir=""), **settings
        )
        server = ExportedServer(config, None)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(0.5)


def test_a_checkpoint_and_its_increments_are_served_after_the_job_is_gone(tmp_path, serve):
    ids = np.arange(3000)
    with Servers(tmp_path, num_ps=2, increment_every_s=0.2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(
            table_of("full"),
            table_of("half", compressor=Fp16()),
            TableConfig("dated", (Segment(DIM, optimizer=Sgd(1.0)),), expire_days=1),
        )
        large = np.arange(80_000, dtype=np.float32).reshape(400, 200)
        cluster.create_variables(
            VariableConfig("small", np.zeros(3, np.float32), Adagrad(1.0)),
            VariableConfig("large", large, Sgd(1.0)),
        )
        ones = np.ones((3000, DIM), np.float32)
        cluster.push({"full": (ids, ones), "half": (ids, ones)})
        cluster.push({"dated": (ids, ones)}, req_time_s=NOW - 3 * 86400)
        job = Controller(servers.controller.address, None, 60)
        base = Path(job.save().path)
        gradient = {"small": np.ones(3, np.float32)}
        cluster.push({"full": (ids[:10], ones[:10])}, variable_gradients=gradient)
        cluster.push({"dated": (ids[:7], ones[:7])}, req_time_s=NOW)
        cluster.expire()
        wait_until(lambda: read_chain(base).number >= 1, what="an increment")
        wait_until(lambda: not job.status().unsaved, what="everything is saved")
        names = ["full", "half", "dated"]
        trained = cluster.pull({name: ids for name in names}, ["small", "large"])
        number = read_chain(base).number

    directory, said = export(tmp_path)
    assert directory.parent == tmp_path / "exported_models"
    assert f"model.ckpt-0 with {number} increment" in said
    assert "6,007 rows, 2 variables" in said
    reader = ReplicaReader(serve(tmp_path / "exported_models").address)
    for name, tolerance in [("full", 0), ("half", 1e-3), ("dated", 0)]:
        found = reader.lookup(name, ids)
        np.testing.assert_allclose(found, trained.rows[name], atol=tolerance, rtol=0)
    assert not reader.lookup("dated", ids[7:]).any()
    small, found = reader.variables("small", "large")
    np.testing.assert_array_equal(small, trained.variables["small"])
    np.testing.assert_array_equal(found, large)
    status = reader.status()
    assert status.is_ready
    assert status.rows == 6007
    assert status.freshness.exported_model == f"{directory.name} (model.ckpt-0)"
    assert status.freshness.newest_data_s == NOW
    with pytest.raises(TooStale, match="export a newer one"):
        reader.lookup("full", [1], max_staleness_s=1e-3)


def write_checkpoint(model_dir, ids, step=10, config=None, value=1.0):
    config = config or table_of("t", dim=8)
    rows = np.random.default_rng(step).normal(size=(ids.size, 8)).astype(np.float32) * value
    stores = checkpoints.stores_with([(config, ids, rows, NOW)], {"w": np.ones(3, np.float32)})
    return checkpoints.write(stores, model_dir, step), rows


@pytest.mark.parametrize("order", ["random", "sorted"])
@pytest.mark.parametrize("compressor", [None, FixedR8(4.0)])
def test_300_000_rows_of_an_exported_model_are_those_of_the_checkpoint(
    tmp_path, serve, order, compressor
):
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(0, 2**62, 300_000))
    if order == "random":
        ids = rng.permutation(ids)
    config = table_of("t", dim=8, **({"compressor": compressor} if compressor else {}))
    _, rows = write_checkpoint(tmp_path, ids, config=config)
    directory, said = export(tmp_path)
    assert f"{ids.size:,} rows" in said
    size = sum(path.stat().st_size for path in directory.iterdir())
    assert size < ids.size * (8 + 8 + (8 if compressor else 32)) * 1.02 + 10_000
    reader = ReplicaReader(serve(directory).address)
    assert reader.status().rows == ids.size
    expected = rows if compressor is None else np.clip(rows, -4, 4 * 127 / 128)
    found = reader.lookup("t", ids)
    np.testing.assert_allclose(found, expected, atol=4 / 256 + 1e-6 if compressor else 0, rtol=0)
    assert not reader.lookup("t", np.arange(100)).any()


def test_a_process_serves_an_exported_model_and_says_so(tmp_path):
    ids = np.arange(100)
    _, rows = write_checkpoint(tmp_path / "model", ids)
    export(tmp_path / "model")
    command = [sys.executable, "-m", "megalith", "replica"]
    folder = tmp_path / "model" / "exported_models"
    process = Process("replica", [*command, "--export", str(folder), "--port", "0"], tmp_path)
    try:
        address = process.reported("address")
        wait_until(lambda: healthcheck.main([address]) == 0, what="it is SERVING")
        np.testing.assert_array_equal(ReplicaReader(address).lookup("t", ids), rows)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.close()
    refused = Process("replica", [*command, "--export", str(tmp_path / "nowhere")], tmp_path)
    assert refused.wait() == 1
    assert "did not start" in refused.output()
    assert "not an exported model; megalith export writes one" in refused.output()


def test_a_newer_version_is_taken_and_a_damaged_one_is_not(tmp_path, serve, caplog):
    ids = np.arange(50)
    _, first = write_checkpoint(tmp_path, ids, step=10)
    export(tmp_path)
    folder = tmp_path / "exported_models"
    reader = ReplicaReader(serve(folder, export_every_s=0.05).address)
    np.testing.assert_array_equal(reader.lookup("t", ids), first)
    _, second = write_checkpoint(tmp_path, ids, step=20)
    directory, _ = export(tmp_path)
    wait_until(lambda: reader.status().freshness.exported_model.startswith(directory.name))
    np.testing.assert_array_equal(reader.lookup("t", ids), second)

    damaged = folder / str(int(directory.name) + 1)
    shutil.copytree(directory, tmp_path / "copy")
    flip(tmp_path / "copy" / "variables.arrow")
    (tmp_path / "copy").rename(damaged)
    wait_until(lambda: "is not served, the older one stays" in caplog.text, what="the complaint")
    np.testing.assert_array_equal(reader.lookup("t", ids), second)


def test_a_request_at_a_change_of_versions_is_answered_from_one(tmp_path):
    ids = np.arange(50)
    _, first = write_checkpoint(tmp_path, ids, step=10)
    export(tmp_path)
    copy = ExportedCopy(tmp_path / "exported_models", 1.0)
    write_checkpoint(tmp_path, ids, step=20)
    directory, _ = export(tmp_path)
    parts = [pb.ServedIds(table="t"), pb.ServedIds(table="t")]
    # The newer version is loaded when room is asked for, before rows are read
    rows, fresh = Lookups(copy).look_up(
        pb.LookupRequest(tables=parts), [ids.tobytes()] * 2, lambda _: copy.look()
    )
    assert fresh.exported_model.endswith("(model.ckpt-10)")
    for found in rows:
        np.testing.assert_array_equal(found, first)

    assert copy.freshness().exported_model.startswith(directory.name)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["exported.json", "variables.arrow", "table-0000-t.arrow"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_exported_model_is_refused(tmp_path, name, damage):
    write_checkpoint(tmp_path, np.arange(50))
    directory, _ = export(tmp_path)
    path = directory / name
    if damage == "flip":
        flip(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    with pytest.raises((CheckpointDamaged, CheckpointNotFound), match=str(directory)):
        ExportedCopy(directory, 1.0)


def test_what_is_no_exported_model_is_named(tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path, np.arange(50))
    with pytest.raises(CheckpointNotFound, match="is a checkpoint, not an exported model"):
        ExportedCopy(checkpoint, 1.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFound, match="not an exported model; megalith export writes"):
        ExportedCopy(tmp_path / "empty", 1.0)
    directory, _ = export(tmp_path)
    content = json.loads((directory / about.FILE).read_text())
    (directory / about.FILE).write_text(json.dumps({**content, "format": 9}))
    with pytest.raises(CheckpointDamaged, match="has format 9, this version reads 1"):
        ExportedCopy(directory, 1.0)


def test_the_path_of_a_checkpoint_says_which_one_to_export(tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path, np.arange(50), step=10)
    write_checkpoint(tmp_path, np.arange(50), step=20)
    directory, said = export(f"{checkpoint}/")
    assert directory.parent == tmp_path / "exported_models"
    assert said.startswith("model.ckpt-10, step 10: 50 rows")


def test_a_model_directory_is_told_where_its_exported_models_are(tmp_path):
    write_checkpoint(tmp_path, np.arange(50))
    directory, _ = export(tmp_path)
    with pytest.raises(CheckpointNotFound) as refused:
        ExportedCopy(tmp_path, 1.0)
    assert f"has its exported models in {directory.parent}: give that folder" in str(refused.value)
    assert f"or {directory} to stay with its newest version" in str(refused.value)


def test_versions_go_with_their_checkpoints_unless_these_are_exempt(tmp_path):
    made = {}
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, np.arange(20), step=step)
        directory, _ = export(tmp_path)
        made[step] = directory.name
    assert sorted(made.values(), key=int) == list(made.values())
    folder = tmp_path / "exported_models"
    shutil.rmtree(tmp_path / "model.ckpt-10")
    shutil.rmtree(tmp_path / "model.ckpt-20")
    text = 'exempt_model_checkpoint_paths: "model.ckpt-20"\nlast_checkpoint_save_timestamp: 1\n'
    (tmp_path / "monolith_checkpoint").write_text(text)
    write_checkpoint(tmp_path, np.arange(20), step=50)
    directory, said = export(tmp_path)
    made[50] = directory.name
    assert f"removed, because their checkpoints are gone: {made[10]}" in said
    left = [20, 30, 40, 50]
    assert [path.name for path in versions.all_versions(folder)] == [made[step] for step in left]
    entries = [
        f'entries {{\n  export_dir: "{made[step]}"\n  global_step: {step}\n}}\n' for step in left
    ]
    assert (folder / "ExportSaverListenerState").read_text() == "".join(entries)

    (tmp_path / "monolith_checkpoint").write_text("{broken")
    shutil.rmtree(tmp_path / "model.ckpt-30")
    export(tmp_path)
    assert (folder / made[30]).exists()


def test_an_export_elsewhere_removes_nothing(tmp_path):
    model_dir, other = tmp_path / "model", tmp_path / "other"
    first, _ = write_checkpoint(model_dir, np.arange(20), step=10)
    export(model_dir, "--to", other)
    write_checkpoint(model_dir, np.arange(20), step=20)
    shutil.rmtree(first)
    export(model_dir, "--to", other, "--checkpoint", "model.ckpt-20")
    assert len(versions.all_versions(other)) == 2
    assert not (model_dir / "exported_models").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "nowhere is no directory"),
        (["."], "has no checkpoint"),
        ([".", "--checkpoint", "model.ckpt-7"], "there is no folder model.ckpt-7"),
        ([".", "--to", "s3://bucket/x"], "give a local folder"),
    ],
)
def test_what_cannot_be_exported_is_one_line(tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    if "--to" in words:
        write_checkpoint(tmp_path, np.arange(5))
    result = run(*words)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "exported_models").exists()


def test_a_damaged_checkpoint_is_not_exported(tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path, np.arange(500))
    flip(next(checkpoint.glob("table-*")))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert not list(tmp_path.glob("exported_models/*"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"replica_shards": "0/2"}, "--replica-shards: a replica with --export holds all ids"),
        ({"export_every_s": 0.0}, "--export-every-s"),
    ],
)
def test_settings_that_do_not_go_with_an_exported_model_are_refused(settings, complaint):
    with pytest.raises(InvalidSetting, match=complaint):
        ReplicaConfig(export="x", membership=MembershipSettings(), **settings)
    with pytest.raises(InvalidSetting, match="leave --controller"):
        ReplicaConfig(export="x", membership=MembershipSettings(controller="a:1"))


@pytest.mark.parametrize("kind", ["copied", "linked"])
def test_a_version_in_a_folder_of_another_name_is_loaded_once(tmp_path, kind, caplog):
    write_checkpoint(tmp_path, np.arange(50))
    (tmp_path / "task.json").write_text("{}")
    directory, _ = export(tmp_path)
    folder = tmp_path / "current"
    if kind == "copied":
        shutil.copytree(directory, folder)
    else:
        folder.symlink_to(directory)
    caplog.set_level("INFO")
    copy = ExportedCopy(folder, 1.0)
    for _ in range(3):
        copy.look()
    assert caplog.text.count("loading version") == 1
    assert (copy.directory / "task.json").exists()


def test_a_link_that_leads_to_another_version_is_followed(tmp_path):
    ids = np.arange(50)
    link = tmp_path / "current"
    made = {}
    for step in (10, 20):
        _, values = write_checkpoint(tmp_path, ids, step=step)
        made[step] = export(tmp_path)[0], values

    link.symlink_to(made[20][0])
    copy = ExportedCopy(link, 1.0)
    link.unlink()
    directory, values = made[10]
    link.symlink_to(directory)
    copy.look()
    assert copy.freshness().exported_model.endswith("(model.ckpt-10)")
    np.testing.assert_array_equal(copy.model.lookup("t", ids), values)


def test_a_version_that_is_copied_file_by_file_is_served_when_it_is_whole(tmp_path, caplog):
    ids = np.arange(50)
    folder = tmp_path / "watched"
    write_checkpoint(tmp_path, ids, step=10)
    export(tmp_path, "--to", folder)
    copy = ExportedCopy(folder, 1.0)
    _, second = write_checkpoint(tmp_path, ids, step=20)
    made, _ = export(tmp_path, "--to", tmp_path / "elsewhere")
    arriving = folder / str(int(made.name) + 10)
    arriving.mkdir()
    files = sorted(path.name for path in made.iterdir())
    assert files[0] == about.FILE
    for name in files:
        copy.look()
        copy.look()
        assert copy.freshness().exported_model.endswith("(model.ckpt-10)")
        shutil.copy(made / name, arriving / name)

    copy.look()
    assert copy.freshness().exported_model.endswith("(model.ckpt-20)")
    np.testing.assert_array_equal(copy.model.lookup("t", ids), second)
    assert caplog.text.count("is not served, the older one stays") == len(files)

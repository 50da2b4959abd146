"""What replicas compute: layouts and predictions, against `megalith predict` of the same model."""

import json
import re
import shutil
import urllib.request

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import megalith.client as mg
import megalith.serving as serving
from megalith import errors
from megalith.cli.app import app
from megalith.cli.runs.run_record import RunRecord
from megalith.control import Controller
from megalith.errors import UnknownTask
from megalith.local import local_train
from megalith.protos import prediction_pb2 as pb
from megalith.protos import prediction_pb2_grpc
from megalith.replica.config import ReplicaConfig
from megalith.replica.exported_server import ExportedServer
from megalith.replica.predicting.prediction import MAX_EXAMPLES
from megalith.runner.config import RunnerConfig
from megalith.runtime.joining.membership import MembershipSettings
from megalith.tasks import clicks
from megalith.tasks.ctr import make_task
from megalith.wire import arrays, channel
from megalith.wire.status import translated
from support.liked_task import SLICES, LikedTask
from support.replicas import ReplicaReader
from support.servers import Servers

NUM_EXAMPLES = 2000
NUM_NEW = 300
OPTIONS = {
    "label": "click",
    "features": "user,item",
    "lists": "history:item",
    "dense": "price:log,age",
    "hidden": "8,4",
    "dim": 4,
}
KINDS = {"user": "text", "item": "number", "history": "list of number"}


def write_clicks(path, seed, size):
    """Users are text, items are integers; the histories of some examples are empty."""
    rng = np.random.default_rng(seed)
    items = rng.integers(60, size=size)
    histories = [rng.integers(60, size=length) for length in rng.integers(4, size=size)]
    table = pa.table(
        {
            "user": [f"user {number}" for number in rng.integers(80, size=size)],
            "item": items,
            "history": histories,
            "price": rng.lognormal(3.0, 2.0, size),
            "age": rng.normal(40.0, 10.0, size),
            "click": rng.random(size) < items / 60,
        }
    )
    pq.write_table(table, path)
    return table


def record(model_dir, task, **options):
    config = RunnerConfig(model_dir=str(model_dir), task=task, task_options=json.dumps(options))
    RunRecord(model_dir, print).write_settings(config)


@pytest.fixture
def serve(tmp_path):
    """Serve the model that was trained in a folder, by a cluster which has no workers."""
    opened = []

    def start(model_dir, **settings):
        servers = Servers(model_dir, num_ps=2)
        opened.append(servers)
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)

        reader = ReplicaReader(servers.start_replica(0, **settings).address)
        reader.wait_ready()
        reader.close()
        client = serving.connect(model_dir=str(model_dir), timeout_s=30)
        opened.append(client)
        return client

    yield start
    for each in reversed(opened):
        each.__exit__(None, None, None)


def predicted(model_dir, data, out):
    words = ["predict", str(model_dir), "--data", str(data), "--out", str(out)]
    done = CliRunner().invoke(app, words, prog_name="megalith")
    assert done.exit_code == 0, done.output
    return pq.read_table(out).column("prediction").to_numpy()


def trained_clicks(folder, model):
    write_clicks(folder / "train.parquet", 1, NUM_EXAMPLES)
    model_dir = folder / "model"
    model_dir.mkdir()
    options = {**OPTIONS, "data": str(folder / "train.parquet"), "model": model}
    record(model_dir, "ctr", kinds=KINDS, **options)
    task = make_task(batch_size=100, num_examples=0, seed=1, **options)
    local_train(task, model_dir=model_dir)
    return model_dir


def features_of(table):
    return {name: table.column(name).to_pylist() for name in ("user", "item", "history")}


@pytest.mark.parametrize("model", ["lr", "fm", "deepfm", "dcn"])
def test_a_replica_predicts_what_megalith_predict_does(tmp_path, serve, model):
    model_dir = trained_clicks(tmp_path, model)
    new = write_clicks(tmp_path / "new.parquet", 2, NUM_NEW)
    expected = predicted(model_dir, tmp_path / "new.parquet", tmp_path / "out.parquet")

    client = serve(model_dir)
    dense = {name: new.column(name).to_numpy() for name in ("price", "age")}
    found = client.predict(features_of(new), dense)
    np.testing.assert_allclose(found.predictions, expected, rtol=1e-5)
    assert np.ptp(expected) > 0.1
    assert found.missing == ()
    assert len(found.freshness.versions) == 2
    assert found.freshness.staleness_s < 60

    matrix = np.column_stack([dense["price"], dense["age"]])
    again = client.predict(features_of(new), matrix, max_staleness_s=60)
    np.testing.assert_allclose(again.predictions, expected, rtol=1e-5)

    some = client.predict({"user": ["user 1", "nobody"]}, {"age": [40, 40]})
    assert some.missing == ("item", "history", "price")
    assert some.predictions.size == 2

    if model != "fm":
        return

    layouts = client.features({"item": [5, 6], "user": ["user 1", "nobody"]})
    assert {name: layouts[name].shape for name in layouts.layouts} == {
        "bias": (2, 3, 1),
        "vec": (2, 3, 4),
    }
    rows = client.lookup({"item": mg.hash_ids([5, 6])}).rows["item"]
    is_item = [np.array_equal(layouts["vec"][:, number], rows[:, 1:]) for number in range(3)]
    assert sum(is_item) == 1
    _refuses_what_is_wrong(client)
    with (
        serving.connect(model_dir=str(model_dir), timeout_s=0.5) as hasty,
        pytest.raises(errors.TooStale, match="are allowed"),
    ):
        hasty.predict({"item": [1]}, max_staleness_s=1e-6)


def test_a_number_that_one_example_lacks_counts_as_in_training_and_in_predict(tmp_path, serve):
    model_dir = trained_clicks(tmp_path, "deepfm")
    new = write_clicks(tmp_path / "whole.parquet", 2, NUM_NEW)
    whole = predicted(model_dir, tmp_path / "whole.parquet", tmp_path / "whole-out.parquet")
    for column, every in (("price", 3), ("age", 5)):
        values = new.column(column).to_pylist()
        values[::every] = [None] * len(values[::every])
        new = new.set_column(new.column_names.index(column), column, pa.array(values, pa.float64()))

    pq.write_table(new, tmp_path / "new.parquet")
    expected = predicted(model_dir, tmp_path / "new.parquet", tmp_path / "out.parquet")
    assert np.abs(expected - whole)[::3].max() > 1e-3

    client = serve(model_dir)
    columns = {name: new.column(name).to_pylist() for name in ("price", "age")}
    assert columns["price"][0] is None
    found = client.predict(features_of(new), columns)
    np.testing.assert_allclose(found.predictions, expected, rtol=1e-5)
    assert found.missing == ()

    with_nan = {name: np.array(values, np.float64) for name, values in columns.items()}
    assert np.isnan(with_nan["price"][0])
    again = client.predict(features_of(new), with_nan)
    np.testing.assert_array_equal(again.predictions, found.predictions)


def _refuses_what_is_wrong(client):
    """Each with its own class, and the next request is answered."""

    def refuses(kind, words, features, dense=None):
        with pytest.raises(kind, match=words):
            client.predict(features, dense)

    one = {"user": ["a"], "item": [1]}
    refuses(errors.UnknownFeature, "no feature 'nope'", {"nope": [1]})
    refuses(errors.UnknownFeature, "no dense column", one, {"weight": [1.0]})
    refuses(
        errors.NonFiniteValue, "column age: 1 of 1 numbers are infinite", one, {"age": [np.inf]}
    )
    refuses(errors.NonFiniteValue, "give columns by name, with None", one, [[np.nan, 1.0]])
    refuses(errors.NonFiniteValue, "NaN or infinite", one, [[np.inf, 1.0]])
    refuses(errors.ShapeMismatch, "dense is", one, [[1.0, 2.0, 3.0]])
    refuses(errors.ShapeMismatch, "2 numbers for 1", one, {"age": [1.0, 2.0]})
    refuses(errors.ShapeMismatch, "different numbers of examples", {"user": ["a"], "item": [1, 2]})
    refuses(errors.ShapeMismatch, "one at most in training", {"item": [[1, 2]]})
    refuses(errors.DtypeMismatch, "feature item: .*: give whole numbers, or text", {"item": [1.5]})
    refuses(errors.DtypeMismatch, "is among text", {"user": ["a", 1]})
    refuses(errors.DtypeMismatch, "feature item is text.* on number", {"item": ["7"]})
    refuses(errors.DtypeMismatch, "feature user is number.* on text", {"user": [7]})
    refuses(errors.DtypeMismatch, "on list of number", {"item": [7], "history": [["7"]]})
    refuses(errors.DtypeMismatch, "no numbers", one, {"age": ["old"]})
    refuses(errors.InvalidRequest, "names no feature", {})
    too_many = np.zeros(MAX_EXAMPLES + 1, np.int64)
    refuses(errors.MessageTooLarge, "at most", {"item": too_many})
    with pytest.raises(errors.UnknownLayout, match="has no layout 'nope'"):
        client.features(one, ["nope"])
    assert client.predict(one).predictions.size == 1


def test_a_list_that_is_text_is_served_as_it_is_trained(tmp_path, serve):
    """One text for each example is split at --list-separator, and a value of a list is whole."""

    def write(name, seed, size):
        rng = np.random.default_rng(seed)
        lists = [rng.integers(9, size=length).tolist() for length in rng.integers(4, size=size)]
        texts = ["|".join(f"t{number}" for number in each) for each in lists]
        clicks = np.array(["t3" in text for text in texts])
        users = [f"user {number}" for number in rng.integers(20, size=size)]
        table = pa.table({"user": users, "tags": texts, "click": clicks})
        pq.write_table(table, tmp_path / name)
        return table

    write("train.parquet", 1, NUM_EXAMPLES)
    data = str(tmp_path / "train.parquet")
    options = {"label": "click", "features": "user", "lists": "tags", "model": "lr", "data": data}
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    record(model_dir, "ctr", kinds={"user": "text", "tags": "list of text"}, **options)
    local_train(make_task(batch_size=50, num_examples=0, seed=1, **options), model_dir=model_dir)

    new = write("new.parquet", 2, NUM_NEW)
    expected = predicted(model_dir, tmp_path / "new.parquet", tmp_path / "out.parquet")
    is_tagged = new.column("click").to_numpy()
    assert expected[is_tagged].mean() > expected[~is_tagged].mean() + 0.05

    client = serve(model_dir)
    users, texts = new.column("user").to_pylist(), new.column("tags").to_pylist()
    lists = [[part for part in text.split("|") if part] for text in texts]
    biases = client.features({"user": users, "tags": lists})["bias"]
    for tags in (texts, np.array(texts), lists):
        found = client.predict({"user": users, "tags": tags})
        np.testing.assert_allclose(found.predictions, expected, rtol=1e-5)
        layouts = client.features({"user": users, "tags": tags})
        np.testing.assert_array_equal(layouts["bias"], biases)

    whole, unknown = client.predict(
        {"user": ["ann"] * 2, "tags": [["t3|t4"], ["nothing"]]}
    ).predictions
    assert whole == unknown
    with pytest.raises(errors.InvalidRequest, match=r"feature tags: .* give text as UTF-8"):
        client.predict({"tags": [b"\xff|t3"]})


def calls_of(server):
    """Of what the task computes, by method."""
    page = urllib.request.urlopen(f"http://{server._rpc.metrics_address}/metrics").read().decode()
    found = re.findall(
        r'^megalith_rpc_total{.*method="(.*(?:eatures|redict))".* ([0-9.]+)$', page, re.M
    )
    return {method: float(count) for method, count in found}


def test_both_ways_give_the_same_layouts_and_predictions(tmp_path):
    model_dir = trained_clicks(tmp_path, "fm")
    table = write_clicks(tmp_path / "new.parquet", 2, NUM_NEW)
    words = ["export", str(model_dir), "--to", str(tmp_path / "exported")]
    assert CliRunner().invoke(app, words, prog_name="megalith").exit_code == 0
    found = []
    calls = []
    for by_lane in (True, False):
        config = ReplicaConfig(
            export=str(tmp_path / "exported"),
            bulk_lane=by_lane,
            membership=MembershipSettings(model_dir=""),
        )
        server = ExportedServer(config, None)
        server.start()
        try:
            with serving.connect(replicas=[server.address], timeout_s=30) as client:
                layouts = client.features(features_of(table))
                answer = client.predict(features_of(table))
                found.append((layouts.layouts, answer.predictions, answer.missing))
                calls.append(calls_of(server))
                _refuses_what_is_wrong(client)
        finally:
            server.stop(0.5)

    (layouts, predictions, missing), (by_calls, same_predictions, same_missing) = found
    assert {name: [part.shape for part in parts] for name, parts in layouts.items()} == {
        "bias": [(NUM_NEW, 3, 1)],
        "vec": [(NUM_NEW, 3, 4)],
    }
    for name, parts in layouts.items():
        np.testing.assert_array_equal(parts[0], by_calls[name][0])

    np.testing.assert_array_equal(predictions, same_predictions)
    assert predictions.size == NUM_NEW
    assert missing == same_missing == ("price", "age")
    service = "/megalith.v1.Prediction"
    assert calls == [
        {"lane/features": 1, "lane/predict": 1},
        {f"{service}/Features": 1, f"{service}/Predict": 1},
    ]


def test_an_exported_model_predicts_without_its_model_directory(tmp_path):
    model_dir = trained_clicks(tmp_path, "lr")
    expected = predicted(model_dir, tmp_path / "train.parquet", tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "train.parquet")
    words = ["export", str(model_dir), "--to", str(tmp_path / "exported")]
    assert CliRunner().invoke(app, words, prog_name="megalith").exit_code == 0
    shutil.rmtree(model_dir)

    config = ReplicaConfig(
        export=str(tmp_path / "exported"), membership=MembershipSettings(model_dir="")
    )
    server = ExportedServer(config, None)
    server.start()
    try:
        with serving.connect(replicas=[server.address], timeout_s=30) as client:
            dense = {name: table.column(name).to_numpy() for name in ("price", "age")}
            found = client.predict(features_of(table), dense)
    finally:
        server.stop(0.5)

    np.testing.assert_allclose(found.predictions, expected, rtol=1e-5)
    assert found.freshness.exported_model.endswith("(model.ckpt-20)")


def test_the_demo_task_is_served_and_what_is_left_out_adds_nothing(tmp_path, serve):
    record(tmp_path, "clicks", num_examples=4000)
    task = clicks.make_task(batch_size=200, num_examples=4000, seed=1)
    trained = local_train(task, model_dir=tmp_path)
    batch = clicks.draw_batch(2, 0, 500)
    rows, variables = trained.read(batch.ids, ["readout", "dense", "bias"])
    logits = batch.dense @ variables["dense"] + variables["bias"]
    for number, column in enumerate(("user", "item", "campaign", "hour")):
        logits += rows[column] @ variables["readout"][number]

    client = serve(tmp_path)
    found = client.predict(batch.ids, batch.dense)
    np.testing.assert_allclose(found.predictions, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert np.ptp(found.predictions) > 0.1
    assert found.missing == ()
    columns = {f"dense{number}": batch.dense[:, number] for number in range(4)}
    again = client.predict(batch.ids, columns)
    np.testing.assert_array_equal(again.predictions, found.predictions)

    less = client.predict({"user": batch.ids["user"]})
    logits = rows["user"] @ variables["readout"][0] + variables["bias"]
    np.testing.assert_allclose(less.predictions, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert less.missing == ("item", "campaign", "hour", "dense0", "dense1", "dense2", "dense3")
    layouts = client.features(batch.ids, ["user"])
    np.testing.assert_array_equal(layouts["user"], rows["user"])

    with pytest.raises(errors.DtypeMismatch, match="takes ids"):
        client.predict({"user": ["ann"]})
    with pytest.raises(errors.ShapeMismatch, match="an example has 2 ids"):
        client.predict({"user": [[1, 2], [3]]})
    with pytest.raises(errors.UnknownFeature, match="no dense column 'age'"):
        client.predict(batch.ids, {"age": np.zeros(500)})
    with pytest.raises(errors.UnknownFeature, match="film"):
        client.predict({"film": [1]})


class HalfLiked(LikedTask):
    """Serving stores its vectors in float16."""

    features = tuple(
        mg.Feature(
            name,
            (SLICES[0], mg.Slice("vec", 4, SLICES[1].initializer, compressor=mg.Fp16())),
        )
        for name in ("user", "film")
    )


class Careless(HalfLiked):
    def predict(self, batch, layouts, variables):
        return variables["bias"] + batch.fields["age"]


def test_a_task_of_ones_own_is_served_within_the_rounding_of_its_compressor(tmp_path, serve):
    record(tmp_path, f"{__file__}:HalfLiked")
    task = HalfLiked()
    trained = local_train(task, model_dir=tmp_path)
    batch = task.held_out()[0]
    (expected, *_) = [each.logits for each in task.predictions(trained.read, ())]

    client = serve(tmp_path)
    found = client.predict(batch.ids)
    np.testing.assert_allclose(found.predictions, 1 / (1 + np.exp(-expected)), atol=2e-3)
    assert np.abs(found.predictions - 1 / (1 + np.exp(-expected))).max() > 0
    layouts = client.features(batch.ids, ["vec"])
    assert list(layouts.layouts) == ["vec"]
    assert layouts["vec"].shape == (500, 2, 4)

    with pytest.raises(errors.DtypeMismatch, match="takes ids"):
        client.predict({"user": ["ann"], "film": [1]})
    with pytest.raises(errors.InvalidRequest, match="as a matrix"):
        client.predict(batch.ids, {"age": np.zeros(500)})
    record(tmp_path, f"{__file__}:Careless")
    with pytest.raises(errors.InvalidRequest, match=r"the task failed.*KeyError.*in predict"):
        client.predict(batch.ids)


def test_a_replica_without_a_task_says_so_and_takes_one_that_comes(tmp_path, serve):
    trained = local_train(LikedTask(), model_dir=tmp_path)
    client = serve(tmp_path)
    ids = LikedTask().held_out()[0].ids
    with pytest.raises(UnknownTask, match="`megalith train` writes it"):
        client.predict(ids)

    (tmp_path / "task.json").write_text("{}")
    with pytest.raises(UnknownTask, match="does not name a task"):
        client.predict(ids)

    record(tmp_path, "support.one_step:make_task")
    with pytest.raises(UnknownTask, match="cannot be served"):
        client.predict(ids)

    record(tmp_path, "support.liked_task:LikedTask")
    logits = next(LikedTask().predictions(trained.read, ())).logits
    found = client.predict(ids).predictions
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), rtol=1e-5)

    record(tmp_path, f"{__file__}:Wider")
    with pytest.raises(errors.ShapeMismatch, match="the task takes"):
        client.predict(ids)


class Wider(LikedTask):
    features = tuple(mg.Feature(name, (SLICES[0], mg.Slice("vec", 7))) for name in ("user", "film"))


def test_a_replica_of_a_share_does_not_predict(tmp_path, serve):
    record(tmp_path, "support.liked_task:LikedTask")
    local_train(LikedTask(), model_dir=tmp_path)
    serve(tmp_path, replica_shards="0/2")
    with (
        serving.connect(model_dir=str(tmp_path), timeout_s=0.5) as client,
        pytest.raises(errors.PeerUnreachable, match="no replica that holds these ids"),
    ):
        client.predict(LikedTask().held_out()[0].ids)


def test_bytes_that_are_no_request_are_refused(tmp_path, serve):
    record(tmp_path, "support.liked_task:LikedTask")
    local_train(LikedTask(), model_dir=tmp_path)
    serve(tmp_path)
    (replica,) = Controller(None, str(tmp_path), 10).status().replicas
    with channel.open_channel(replica.report.address, 1 << 20) as opened:
        stub = prediction_pb2_grpc.PredictionStub(opened)

        def refused(kind, *features, **more):
            with pytest.raises(kind), translated("the replica"):
                stub.Predict(pb.PredictRequest(features=features, **more), timeout=10)

        ids = arrays.encode(np.arange(2))
        splits = arrays.encode(np.array([0, 5, 2]))
        refused(errors.MalformedArray, pb.FeatureValues(feature="user", integers=b"abc"))
        bad = pb.FeatureValues(feature="user", integers=ids, row_splits=splits)
        refused(errors.ShapeMismatch, bad)
        both = pb.FeatureValues(feature="user", integers=ids, texts=[b"a"])
        refused(errors.DtypeMismatch, both)
        twice = pb.FeatureValues(feature="user", integers=ids)
        refused(errors.DuplicateIds, twice, twice)
        refused(errors.InvalidRequest, twice, max_staleness_us=-1)
        refused(errors.MalformedArray, twice, dense_columns=[pb.DenseValues(values=b"abc")])

"""State files are compared with protobuf's own text format of Monolith's messages."""

import contextlib
import re
import threading

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from megalith.checkpoint.directory import exempt_list, row_counts, state_text
from megalith.checkpoint.directory.exempt_list import ExemptList
from megalith.checkpoint.directory.listing import Listing
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.storage import files as stored

Field = descriptor_pb2.FieldDescriptorProto


def _messages():
    """CheckpointState and MonolithCheckpointState, as Monolith and TensorFlow declare them."""
    file = descriptor_pb2.FileDescriptorProto(name="state_files.proto", syntax="proto2")
    state = file.message_type.add(name="CheckpointState")
    monolith = file.message_type.add(name="MonolithCheckpointState")
    kinds = monolith.enum_type.add(name="HashTableType")
    for number, name in enumerate(("UNKNOWN", "CUCKOO_HASH_MAP", "MULTI_CUCKOO_HASH_MAP")):
        kinds.value.add(name=name, number=number)

    one, many = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
    for message, number, name, kind, label in (
        (state, 1, "model_checkpoint_path", Field.TYPE_STRING, one),
        (state, 2, "all_model_checkpoint_paths", Field.TYPE_STRING, many),
        (state, 3, "all_model_checkpoint_timestamps", Field.TYPE_DOUBLE, many),
        (state, 4, "last_preserved_timestamp", Field.TYPE_DOUBLE, one),
        (monolith, 1, "exempt_model_checkpoint_paths", Field.TYPE_STRING, many),
        (monolith, 2, "last_checkpoint_save_timestamp", Field.TYPE_INT64, one),
        (monolith, 3, "builtin_hash_table_type", Field.TYPE_ENUM, one),
    ):
        field = message.field.add(name=name, number=number, type=kind, label=label)
        if kind == Field.TYPE_ENUM:
            field.type_name = ".MonolithCheckpointState.HashTableType"

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("CheckpointState", "MonolithCheckpointState")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(each)) for each in names]


CheckpointState, MonolithCheckpointState = _messages()

paths = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.floats(min_value=0, max_value=1e11)
listings = st.builds(
    Listing,
    newest=paths,
    time_by_name=st.dictionaries(paths, times.map(repr), max_size=5),
    last_preserved_s=times,
)
exempt_lists = st.builds(
    ExemptList,
    paths=st.lists(paths, max_size=4).map(tuple),
    saved_at_s=st.integers(0, 2**62),
    table_kind=st.sampled_from(["UNKNOWN", "CUCKOO_HASH_MAP", "MULTI_CUCKOO_HASH_MAP"]),
)


def state_of(listed):
    return CheckpointState(
        model_checkpoint_path=listed.newest,
        all_model_checkpoint_paths=list(listed.time_by_name),
        all_model_checkpoint_timestamps=[float(time) for time in listed.time_by_name.values()],
        last_preserved_timestamp=listed.last_preserved_s,
    )


@given(listed=listings)
def test_protobuf_reads_a_list_as_it_was_meant(listed):
    assert text_format.Parse(listed.text(), CheckpointState()) == state_of(listed)


@given(listed=listings, is_one_line=st.booleans())
def test_a_list_that_protobuf_has_written_is_read_as_it_was_meant(listed, is_one_line):
    text = text_format.MessageToString(state_of(listed), as_one_line=is_one_line)
    read = Listing.parse(text)
    assert state_of(read) == state_of(listed)
    assert list(read.time_by_name) == list(listed.time_by_name)


@given(exempt=exempt_lists)
def test_protobuf_reads_an_exempt_list_as_it_was_meant(exempt):
    read = text_format.Parse(exempt.text(), MonolithCheckpointState())
    assert tuple(read.exempt_model_checkpoint_paths) == exempt.paths
    assert read.last_checkpoint_save_timestamp == exempt.saved_at_s
    kinds = MonolithCheckpointState.HashTableType
    assert kinds.Name(read.builtin_hash_table_type) == exempt.table_kind


@given(exempt=exempt_lists, is_one_line=st.booleans())
def test_an_exempt_list_that_protobuf_has_written_is_read_as_it_was_meant(exempt, is_one_line):
    message = text_format.Parse(exempt.text(), MonolithCheckpointState())
    text = text_format.MessageToString(message, as_one_line=is_one_line)
    assert ExemptList.parse(text) == exempt


@pytest.mark.parametrize(
    "text",
    [
        'exempt_model_checkpoint_paths: ["model.ckpt-1", "model.ckpt-2"]',
        "exempt_model_checkpoint_paths: 'model.ckpt-1'; exempt_model_checkpoint_paths: "
        "'model.ckpt-' '2'  # both stay",
    ],
)
def test_what_a_person_may_write_is_read_as_protobuf_reads_it(text):
    expected = text_format.Parse(text, MonolithCheckpointState()).exempt_model_checkpoint_paths
    assert ExemptList.parse(text).paths == tuple(expected) == ("model.ckpt-1", "model.ckpt-2")


@given(text=st.text(max_size=60))
def test_no_text_makes_reading_it_fail(text):
    state_text.parse(text)
    Listing.parse(text)
    with contextlib.suppress(ValueError):
        ExemptList.parse(text)


def test_a_save_says_when_it_was_and_leaves_what_is_exempt(tmp_path):
    exempt_list.create(tmp_path)
    file = tmp_path / "monolith_checkpoint"
    file.write_text('exempt_model_checkpoint_paths: "a/model.ckpt-1"\n' + file.read_text())
    exempt_list.create(tmp_path)
    exempt_list.note_save(tmp_path, 1790003600.7)
    assert file.read_text() == (
        'exempt_model_checkpoint_paths: "a/model.ckpt-1"\n'
        "last_checkpoint_save_timestamp: 1790003600\n"
        "builtin_hash_table_type: MULTI_CUCKOO_HASH_MAP\n"
    )
    assert exempt_list.read(tmp_path).names == {"model.ckpt-1"}


def test_a_file_of_somebody_else_under_that_name_is_left_alone_and_exempts_nothing(tmp_path):
    file = tmp_path / "monolith_checkpoint"
    file.write_text("{not text format}")
    exempt_list.note_save(tmp_path, 5.0)
    assert file.read_text() == "{not text format}"
    assert exempt_list.read(tmp_path) is None
    assert exempt_list.is_unreadable(tmp_path)


EXEMPT = 'exempt_model_checkpoint_paths: "model.ckpt-1"\n'
SAVED = "last_checkpoint_save_timestamp: 1790003600\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (EXEMPT + SAVED + 'exempt_model_checkpoint_paths = "model.ckpt-2"', "line 3: .* has no :"),
        (SAVED + 'exempt_model_checkpoint_path: "model.ckpt-2"', "line 2: .* is no field"),
        (SAVED + EXEMPT.replace('1"', "1"), "line 2: .* is not closed"),
        (SAVED + "exempt_model_checkpoint_paths:", "line 2: .* has no value"),
        (SAVED + 'exempt_model_checkpoint_paths: ["model.ckpt-1"', "line 2: .* is not closed"),
        (SAVED + 'exempt_model_checkpoint_paths: "model.ckpt-1", "model.ckpt-2"', "line 2"),
        (EXEMPT + '"model.ckpt-2"\n', "line 2: .* a text below another"),
        (EXEMPT + "model.ckpt-2\n", "line 2"),
        (SAVED + "exempt_model_checkpoint_paths { }", "line 2"),
    ],
)
def test_a_slip_makes_the_exempt_list_unreadable_and_a_save_leaves_it(
    tmp_path, caplog, text, fault
):
    """What comes before the slip would pass for all of it, and an exempt checkpoint would go."""
    file = tmp_path / "monolith_checkpoint"
    file.write_text(text)
    assert exempt_list.is_unreadable(tmp_path)
    assert re.search(fault, caplog.text)
    exempt_list.note_save(tmp_path, 1790003700.0)
    assert file.read_text() == text


def test_what_is_exempted_while_a_save_is_noted_stays_exempt(tmp_path, monkeypatch):
    """Whoever holds the lock of the folder may rewrite the file until it lets go."""
    exempt_list.create(tmp_path)
    file = tmp_path / "monolith_checkpoint"
    with stored.locked(tmp_path):
        noting = threading.Thread(target=exempt_list.note_save, args=(tmp_path, 5.0))
        noting.start()
        noting.join(0.2)
        file.write_text(EXEMPT + SAVED)
    noting.join()
    assert exempt_list.read(tmp_path) == ExemptList(("model.ckpt-1",), 5, "UNKNOWN")


@pytest.mark.timeout(20)  # in time that grows with the square of its lines it takes minutes
def test_a_list_of_thousands_is_read_in_one_pass():
    listed = Listing("model.ckpt-0", {f"model.ckpt-{step}": "1.0" for step in range(10_000)}, 0.0)
    assert len(Listing.parse(listed.text()).time_by_name) == 10_000
    exempt = ExemptList(tuple(listed.time_by_name)).text()
    lines = exempt.count("\n")
    with pytest.raises(ValueError, match=f"^line {lines + 1}: model.ckpt-x has no :"):
        ExemptList.parse(exempt + "model.ckpt-x\n")


def test_row_counts_are_what_protobuf_would_write(tmp_path):
    file = descriptor_pb2.FileDescriptorProto(name="info.proto", syntax="proto3")
    message = file.message_type.add(name="CkptInfo")
    many, one = Field.LABEL_REPEATED, Field.LABEL_OPTIONAL
    entry = message.nested_type.add(name="FeatureCountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT64, label=one)
    counts = message.field.add(name="feature_counts", number=2, type=Field.TYPE_MESSAGE, label=many)
    counts.type_name = ".CkptInfo.FeatureCountsEntry"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    info = message_factory.GetMessageClass(pool.FindMessageTypeByName("CkptInfo"))()
    info.feature_counts.update({'a "b"': 7, "user": 30})

    files = [
        ShardFile(f"f{number}", kind, table, rows, 1, "")
        for number, (kind, table, rows) in enumerate(
            [
                ("table", "user", 10),
                ("table", "user", 20),
                ("table", 'a "b"', 7),
                ("filter", "x", 9),
            ]
        )
    ]
    row_counts.write(tmp_path, Manifest(step=5, num_ps=2, saved_at_s=1.0, files=tuple(files)))
    text = (tmp_path / "ckpt.info-5").read_text()
    assert text == text_format.MessageToString(info)

"""Table files as Monolith writes them, made from its documented formats with protobuf's own library.

TFRecord: length, masked CRC-32C of the length, data, masked CRC-32C of the data. Snappy: blocks of a
big-endian length and what Snappy made. Messages: see `MESSAGES`, all proto2.
"""

import struct

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# (name, number, type, is repeated) of each message's fields
MESSAGES = {
    "Adagrad": [("norm", 1, "float", True)],
    "Sgd": [],
    "Ftrl": [("zero", 1, "float", True), ("norm", 2, "float", True)],
    "DynamicWdAdagrad": [("norm", 1, "float", True), ("last_update_step", 2, "int64", False)],
    "Adadelta": [("accum", 1, "float", True), ("accum_update", 2, "float", True)],
    "Adam": [
        ("m", 1, "float", True),
        ("v", 2, "float", True),
        ("beta1_power", 3, "float", False),
        ("beta2_power", 4, "float", False),
    ],
    "Amsgrad": [
        ("m", 1, "float", True),
        ("v", 2, "float", True),
        ("vhat", 3, "float", True),
        ("beta1_power", 4, "float", False),
        ("beta2_power", 5, "float", False),
    ],
    "N": [("n", 1, "float", True)],
    "BatchSoftmax": [("global_step", 1, "int64", False)],
    "GroupAdagrad": [("grad_square_sum", 1, "float", False)],
    "SingleOptimizerDump": [
        ("adagrad", 1, "Adagrad", False),
        ("sgd", 2, "Sgd", False),
        ("ftrl", 3, "Ftrl", False),
        ("dynamic_wd_adagrad", 4, "DynamicWdAdagrad", False),
        ("adadelta", 6, "Adadelta", False),
        ("adam", 7, "Adam", False),
        ("amsgrad", 8, "Amsgrad", False),
        ("momentum", 9, "N", False),
        ("rmsprop", 11, "N", False),
        ("rmspropv2", 12, "N", False),
        ("group_ftrl", 13, "Ftrl", False),
        ("batch_softmax", 14, "BatchSoftmax", False),
        ("group_adagrad", 15, "GroupAdagrad", False),
    ],
    "OptimizerDump": [("dump", 1, "SingleOptimizerDump", True)],
    "EntryDump": [
        ("id", 1, "sfixed64", False),
        ("num", 2, "float", True),
        ("opt", 3, "OptimizerDump", False),
        ("last_update_ts_sec", 4, "int64", False),
    ],
    "MultiHashTableMetadata": [
        ("table_name", 1, "string", False),
        ("num_entries", 2, "uint64", False),
    ],
}


def _classes():
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="monolith.proto", syntax="proto2", package="t")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        is_oneof = name == "SingleOptimizerDump"
        if is_oneof:
            message.oneof_decl.add(name="type")
        for field, number, kind, is_repeated in fields:
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
            if kind in MESSAGES:
                added.type = kinds.TYPE_MESSAGE
                added.type_name = f".t.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if is_oneof:
                added.oneof_index = 0

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in MESSAGES
    }


CLASSES = _classes()
EntryDump = CLASSES["EntryDump"]
Metadata = CLASSES["MultiHashTableMetadata"]


def entry(number, values, states=(), time_s=None):
    """An entry. `states` has an optimizer's name and the fields of its state for each segment."""
    message = EntryDump(id=number, num=values)
    for optimizer, fields in states:
        getattr(message.opt.dump.add(), optimizer).SetInParent()
        case = getattr(message.opt.dump[-1], optimizer)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(case, name).extend(value)
            else:
                setattr(case, name, value)

    if time_s is not None:
        message.last_update_ts_sec = time_s
    return message.SerializeToString()


# --- records ---


def crc_table():
    """Bit by bit, from the definition."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return np.array(table, np.uint32)


_TABLE = crc_table()


def crc32c(columns):
    """Of each row of a matrix of bytes: byte by byte, for all rows at once."""
    crc = np.full(len(columns), 0xFFFFFFFF, np.uint32)
    for column in columns.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ crc >> np.uint32(8)
    return crc ^ np.uint32(0xFFFFFFFF)


def masked(crc):
    wide = crc.astype(np.uint64)
    rotated = (wide >> np.uint64(15) | wide << np.uint64(17)) & np.uint64(0xFFFFFFFF)
    return ((rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)).astype("<u4")


def records_of(payloads):
    """The records of a matrix of bytes, a record for each row."""
    count, length = payloads.shape
    size = np.frombuffer(struct.pack("<Q", length), np.uint8)
    head = np.concatenate([size, masked(crc32c(size[None])).view(np.uint8)])
    tail = masked(crc32c(payloads)).view(np.uint8).reshape(count, 4)
    whole = np.concatenate([np.tile(head, (count, 1)), payloads, tail], axis=1)
    return whole.tobytes()


def records(messages):
    return b"".join(records_of(np.frombuffer(each, np.uint8)[None]) for each in messages)


def snappy(data, block=1 << 18):
    """As TensorFlow's Snappy output buffer writes it."""
    parts = []
    for start in range(0, len(data), block):
        packed = pa.compress(data[start : start + block], codec="snappy", asbytes=True)
        parts += [struct.pack(">I", len(packed)), packed]
    return b"".join(parts)


# --- files ---


def write_table(folder, table, shards, ps=0):
    """A table in files of its own; `shards` are the records of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(shards):
        name = f"MonolithHashTable_{table}_{ps}-{index:05}-of-{len(shards):05}"
        (folder / name).write_bytes(data)


def write_tables(folder, shards, ps=0):
    """Many tables in one file; `shards` give (table, entries, records) in order for each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, tables in enumerate(shards):
        base = folder / f"MonolithMultiHashTable_{ps}"
        suffix = f"-{index:05}-of-{len(shards):05}"
        data = b"".join(part for _, _, part in tables)
        metas = [Metadata(table_name=name, num_entries=count) for name, count, _ in tables]
        base.with_name(base.name + suffix).write_bytes(snappy(data))
        base.with_name(f"{base.name}.meta{suffix}").write_bytes(
            records(meta.SerializeToString() for meta in metas)
        )

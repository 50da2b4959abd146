"""Files of the chief that say where the processes of a job are, for tools of Monolith."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import json_format

from megalith.checkpoint.layout import schema_json
from megalith.checkpoint.storage.location import is_url
from megalith.client import TableConfig
from megalith.protos import debugging_info_pb2 as pb
from megalith.runtime.files import write_atomically

logger = logging.getLogger(__name__)

FILE = "debugging_info.pb"
JSON_FILE = "debugging_info.json"  # the same, for people


def write(
    model_dir: str,
    chief: str,
    ps: Sequence[str],
    num_workers: int,
    tables: Sequence[TableConfig],
) -> None:
    """Replace both files. Training goes on without them: a failure is a warning.

    Nothing is written without a model directory, or if that is an object store.
    """
    if not model_dir or is_url(model_dir):
        return

    info = pb.DebuggingInfo(
        cluster=pb.DebuggingInfo.Cluster(chief_addr=chief, ps_addrs=ps),
        num_workers=num_workers,
        feature_name_configs=[_described(config) for config in tables],
    )
    text = json_format.MessageToJson(info, preserving_proto_field_name=True)
    try:
        write_atomically(Path(model_dir) / FILE, info.SerializeToString())
        write_atomically(Path(model_dir) / JSON_FILE, text.encode())
    except OSError as error:
        logger.warning("%s is not written: %s", Path(model_dir) / FILE, error)


def _described(config: TableConfig) -> pb.DebuggingInfo.FeatureNameConfig:
    described = json.dumps(schema_json.to_json(config))
    return pb.DebuggingInfo.FeatureNameConfig(feature_name=config.name, config_str=described)

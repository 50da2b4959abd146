"""docs/coming-from-monolith.md names modules, metrics, files and settings that exist."""

import dataclasses
import re
import subprocess

import pytest

import megalith.client as mg
from megalith.runner.config import RunnerConfig
from megalith.runner.monolith_settings import LEFT_OUT, RENAMED
from support.pages import ROOT

PAGE = (ROOT / "docs/coming-from-monolith.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def cells(title, column):
    """A column of the tables of a section, without their heads."""
    rows = [line.split("|")[1:-1] for line in section(title).splitlines() if line[:1] == "|"]
    return [row[column] for row in rows if not set(row[0]) <= set("- ")][1:]


def sources():
    paths = ["services", "client/megalith", "protos"]
    found = subprocess.run(
        ["git", "grep", "-h", "", "--", *paths], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout


def test_every_path_of_ours_exists():
    paths = re.findall(r"`((?:services|client|protos)/[^`]+)`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_of_the_sdk_exists():
    names = re.findall(r"`mg\.(\w+)", PAGE)
    assert names
    assert [name for name in names if not hasattr(mg, name)] == []


def test_every_metric_is_one_that_a_service_makes():
    text = sources()
    named = [name for cell in cells("Metrics", 0) for name in re.findall(r"`([\w.]+)`", cell)]
    made = [name for name in named if name != "monolith.containers"]
    assert len(made) > 10
    assert [name for name in made if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    "name", ["controller_server_addr.txt", "monolith_action", "ps_cluster_dir", "manifest.json"]
)
def test_the_files_that_keep_their_names_are_written_by_a_service(name):
    assert f"`{name}" in PAGE or f"/{name}" in PAGE
    assert f'"{name}"' in sources()


def test_every_variable_that_is_read_as_in_monolith_is_read():
    paragraph = re.search(r"These variables of the environment(.*?)\n\n", PAGE, re.DOTALL)[1]
    names = re.findall(r"`([A-Z][A-Z_0-9]+)[*`]", paragraph)
    assert len(names) > 12
    text = sources()
    assert [name for name in names if name not in text] == []


# All that Monolith reads, besides those of the test above and those that choose a collective.
UNREAD = re.findall(
    r"\S+",
    """
    MONOLITH_WITH_OPTIMIZED_HOROVOD MONOLITH_WITH_HOROVOD_FID_G2G MONOLITH_WITH_HOROVOD_FWD_G2G
    MONOLITH_WITH_HOROVOD_BWD_G2G MONOLITH_WITH_BYTEPS_FID MONOLITH_WITH_BYTEPS_FWD
    MONOLITH_WITH_BYTEPS_BWD MONOLITH_WITH_BYTEPS_BWD_CAST MONOLITH_WITH_BYTEPS_BWD_FAKE_CAST
    MONOLITH_WITH_BYTEPS_FWD_GDR MONOLITH_WITH_BYTEPS_FWD_GDR_G2G MONOLITH_WITH_BYTEPS_BWD_GDR
    MONOLITH_WITH_BYTEPS_BWD_GDR_G2G MONOLITH_WITH_BYTEPS_BCAST MONOLITH_WITH_BYTEPS_ALLREDUCE
    MONOLITH_WITH_ALLREDUCE_FUSION MONOLITH_WITH_ALLREDUCE_FP16 MONOLITH_SKIP_ALLREDUCE
    MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD MONOLITH_SAVE_SUMMARY_INTERVAL MONOLITH_ROOT_LOG_INTERVAL
    MONOLITH_BENCHMARK_BPS MONOLITH_BENCHMARK_ITERS MONOLITH_BENCHMARK_BPS_AR_LEN
    MONOLITH_BENCHMARK_BPS_A2A_LEN BYTEPS_* DMLC_* UCX_* PSLITE_* MONOLITH_FORCE_GPU_COMPATIBLE
    MONOLITH_GPU_FEATURE_FACTORY_FUSION_LEVEL MONOLITH_GT_OVERSUB_SM CUDA_VISIBLE_DEVICES
    CUDA_DEVICE_ORDER TF_XLA_FLAGS TF_GRPC_WORKER_CACHE_THREADS
    MONOLITH_GRPC_WORKER_SERVICE_HANDLER_MULTIPLIER MONOLITH_GRPC_REMOTE_CALLBACK_THREADS TF_CONF
    TPU_SPLIT_COMPILE_AND_EXECUTE TF_TPU_WATCHDOG_TIMEOUT zk_servers TENSORBOARD_LOG_PATH
    HADOOP_HDFS_HOME KAFKA_BROKER_LIST KAFKA_TOPIC_NAME HOME TEST_TMPDIR PORT PORT2 PORT10
    REPLICA_ID SHARD_ID DENSE_SERVICE_IDX MY_POD_NAME MLP_POD_NAME MY_CPU_LIMIT MY_MEM_LIMIT TCE_PSM
    TCE_CLUSTER TCE_LOGICAL_CLUSTER TCE_PHYSICAL_CLUSTER TCE_INTERNAL_IDC MONOLITH_HOST_SHARD_N
    MONOLITH_TFS_BINARY LD_PRELOAD HEAPPROFILE HEAP_PROFILE_*
""",
)


# A metavar, a flag that is gone, and those of which DMLC_NUM_WORKER is read.
OF_OTHER_MEANING = {"PORT", "zk_servers", "DMLC_*"}


def test_every_variable_that_is_not_read_has_a_reason_and_is_not_read():
    variables = cells("Variables that are not read", 0)
    named = [name for cell in variables for name in re.findall(r"`([\w*]+)`", cell)]
    assert sorted(named) == sorted(UNREAD)
    reasons = cells("Variables that are not read", 1)
    assert all(len(reason.split()) > 3 for reason in reasons)
    text = sources()
    quoted = {name: f'"{name}"'.replace('*"', "") for name in named}
    read = {name for name in named if quoted[name] in text}
    assert read - OF_OTHER_MEANING == set()


def test_every_field_of_the_configuration_is_known_here_or_in_the_list_of_settings():
    ours = {field.name for field in dataclasses.fields(RunnerConfig)}
    named = [name for cell in cells("Configuration", 0) for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) > 10
    assert [name for name in named if name not in ours | set(RENAMED) | set(LEFT_OUT)] == []
    flags = [
        flag for cell in cells("Configuration", 1) for flag in re.findall(r"`--([\w-]+)", cell)
    ]
    assert [flag for flag in flags if flag.replace("-", "_") not in ours] == []


def test_what_is_called_not_there_is_not_there_and_has_a_reason():
    """Whoever builds one of these takes it off the list."""
    there = {field.name for field in dataclasses.fields(RunnerConfig)} | set(RENAMED)
    named = [name for cell in cells("Not there", 0) for name in re.findall(r"`(\w+)`", cell)]
    assert named
    assert [name for name in named if name in there] == []
    known = (*LEFT_OUT, "distributed_sync_train", "use_gpu_emb_table", "limit_req_time")
    assert [name for name in named if name not in known] == []
    reasons = cells("Not there", 1) + cells("What has no meaning here", 1)
    assert all(len(reason.split()) > 3 for reason in reasons)

"""docs/settings.md is what the dataclasses are, and no field of Monolith is forgotten."""

import dataclasses
from pathlib import Path

import pytest

from megalith.runner.config import PREFIX, SERVICES, RunnerConfig
from megalith.runner.monolith_settings import LEFT_OUT, RENAMED
from megalith.runner.settings_page import page
from megalith.runtime.config.settings import leaves

# Every field of Monolith's CpuTrainingConfig, its distributed additions and RunnerConfig, but
# for the groups that the notes themselves put out of scope (model dump, rough sort, item input,
# device function).
REFERENCE = """
server_type index num_ps num_workers model_name filter_type filter_capacity filter_split_num filter_equal_probability
hashtable_init_capacity use_native_multi_hash_table embedding_prefetch_capacity enable_embedding_postpush
enable_variable_prefetch enable_variable_postpush enable_sync_training enable_partial_sync_training enable_gpu_training
processes_per_gpu merge_sync_training_ckpt mode partial_recovery tide_start_hour tide_start_minute tide_end_hour
tide_end_minute tide_save_secs enable_realtime_training enable_async_optimize enable_pipelined_fwda2a
enable_pipelined_bwda2a profile_some_steps_from profile_save_steps_interval profile_with_nvprof_from_to
reorder_fids_in_data_pipeline chief_timeout_secs save_checkpoints_secs save_checkpoints_steps
dense_only_save_checkpoints_secs dense_only_save_checkpoints_steps dense_only_stop_training_when_save warmup_file
skip_zero_embedding_when_serving max_rpc_deadline_millis checkpoints_max_to_keep submit_time_secs
containers_ready_time_secs cluster_type max_slow_start_wait_minute enable_model_ckpt_info feature_eviction_on_save
only_feature_engineering enable_variable_partition enable_fused_layout force_shutdown_ps clear_nn continue_training
reload_alias_map enable_alias_map_auto_gen use_dataservice num_extra_dsworker_on_gpu_worker save_summary_steps
log_step_count_steps model_dir tensorboard_log_path intra_op_parallelism_threads inter_op_parallelism_threads
num_extra_ps num_redundant_ps uuid operation_timeout_in_ms session_creation_timeout_secs max_retry_times
retry_wait_in_secs fountain_zk_host fountain_model_name dc_aware task tf_config deep_insight_name discovery_type
zk_server zk_watch_address_family is_local enable_fid_dedup bzid ps_replica_num tf_grpc_worker_cache_threads
monolith_grpc_worker_service_handler_multiplier params_override base_name data_type feature_list lagrangex_header
sort_id kafka_dump kafka_dump_prefix restore_dir restore_ckpt deep_insight_target deep_insight_sample_ratio
unified_serving use_estimator kafka_topics kafka_group_id kafka_servers input_path is_hourly wildcard
start_date end_date start_hour end_hour enable_dynamic_sharding max_task_num_per_worker disable_native_metrics
"""


def test_the_page_is_up_to_date():
    written = Path(__file__).parents[3] / "docs" / "settings.md"
    assert written.read_text() == page(), "docs/settings.md is out of date: run make settings"


def test_every_setting_of_a_job_is_on_the_page():
    text = page()
    for leaf in leaves(RunnerConfig):
        assert f"| `{leaf.environment(PREFIX)}` |" in text, leaf.flag


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_of_a_service_is_on_the_page(service):
    """Under the name of the service, or among those that every service has."""
    text = page()
    for leaf in leaves(SERVICES[service]):
        own = f"| `{leaf.environment(f'MEGALITH_{service.upper()}_')}` |"
        shared = f"| `{leaf.environment('MEGALITH_<SERVICE>_')}` |"
        assert own in text or shared in text, leaf.flag


def test_every_field_of_monolith_is_here_renamed_or_left_out_with_a_reason():
    ours = {field.name for field in dataclasses.fields(RunnerConfig)}
    assert set(RENAMED.values()) <= ours
    assert not ours & (LEFT_OUT.keys() | RENAMED.keys())
    assert not LEFT_OUT.keys() & RENAMED.keys()
    assert set(REFERENCE.split()) <= ours | RENAMED.keys() | LEFT_OUT.keys()
    assert LEFT_OUT.keys() | RENAMED.keys() <= set(REFERENCE.split())

"""The configuration fields of Monolith that RunnerConfig does not have, and why."""

from collections.abc import Mapping

# Named otherwise here, because the name says more or the unit changed.
RENAMED: Mapping[str, str] = {
    "operation_timeout_in_ms": "step_timeout_s",
    "session_creation_timeout_secs": "rejoin_timeout_s",
    "chief_timeout_secs": "chief_timeout_s",
    "max_retry_times": "max_retries",
    "retry_wait_in_secs": "retry_wait_s",
    "save_checkpoints_secs": "save_every_s",
    "save_checkpoints_steps": "save_every_steps",
    "discovery_type": "discovery",
    "zk_server": "discovery",
    "deep_insight_name": "job",
    "uuid": "job",
    "embedding_prefetch_capacity": "staleness",
    "enable_embedding_postpush": "staleness",
    "feature_eviction_on_save": "expire_on_save",
    "checkpoints_max_to_keep": "max_to_keep",
    "tide_start_hour": "tide_window",
    "tide_start_minute": "tide_window",
    "tide_end_hour": "tide_window",
    "tide_end_minute": "tide_window",
    "tide_save_secs": "tide_save_s",
}

_PROCESS = "belongs to one process, not to the job: a flag of `megalith ps` or `megalith worker`"
_TABLE = "said per table in its TableConfig, by the program that creates it"
_ALWAYS = "always so here"
_TENSORFLOW = "steers TensorFlow, which is not used"
_SYNCHRONOUS = "synchronous training: not there yet"
_SERVING = "serving and export: not there yet"
_INPUT = "input pipelines other than tasks: not there yet"
_PIPELINE = "the pipelined worker: not there yet"
_CHECKPOINT = "dense-only saves, tide and restore choice: not there yet"
_DENSE = "dense reload: not there yet"
_PLATFORM = "names of Monolith's own platform"

LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(("server_type", "index"), _PROCESS),
    **dict.fromkeys(
        (
            "filter_type",
            "filter_capacity",
            "filter_split_num",
            "filter_equal_probability",
            "hashtable_init_capacity",
        ),
        _TABLE,
    ),
    "enable_fid_dedup": f"{_ALWAYS}: the client sends each id of a batch once",
    "sort_id": "the order of ids has no meaning here",
    **dict.fromkeys(
        ("enable_variable_prefetch", "enable_variable_postpush"),
        "variables travel with the rows: `staleness` holds for both",
    ),
    "use_native_multi_hash_table": "one table format exists",
    "partial_recovery": f"{_ALWAYS}: only a replaced ps restores",
    "enable_variable_partition": _ALWAYS,
    "mode": "train is the only mode; evaluation and inference are not there yet",
    "force_shutdown_ps": f"{_ALWAYS}: parameter servers end with the job",
    "is_local": "`megalith up` and `megalith train` are local",
    "merge_sync_training_ckpt": _SYNCHRONOUS,
    **dict.fromkeys(
        (
            "reorder_fids_in_data_pipeline",
            "enable_fused_layout",
            "max_slow_start_wait_minute",
            "only_feature_engineering",
        ),
        _PIPELINE,
    ),
    **dict.fromkeys(
        (
            "enable_sync_training",
            "enable_partial_sync_training",
            "enable_gpu_training",
            "processes_per_gpu",
            "enable_async_optimize",
            "enable_pipelined_fwda2a",
            "enable_pipelined_bwda2a",
        ),
        _SYNCHRONOUS,
    ),
    **dict.fromkeys(
        (
            "dense_only_save_checkpoints_secs",
            "dense_only_save_checkpoints_steps",
            "dense_only_stop_training_when_save",
            "enable_model_ckpt_info",
        ),
        _CHECKPOINT,
    ),
    **dict.fromkeys(
        ("clear_nn", "continue_training", "reload_alias_map", "enable_alias_map_auto_gen"), _DENSE
    ),
    **dict.fromkeys(
        (
            "enable_realtime_training",
            "warmup_file",
            "skip_zero_embedding_when_serving",
            "max_rpc_deadline_millis",
            "ps_replica_num",
            "unified_serving",
            "use_estimator",
            "dc_aware",
            "fountain_zk_host",
            "fountain_model_name",
        ),
        _SERVING,
    ),
    **dict.fromkeys(
        (
            "use_dataservice",
            "num_extra_dsworker_on_gpu_worker",
            "data_type",
            "feature_list",
            "lagrangex_header",
            "kafka_dump",
            "kafka_dump_prefix",
            "kafka_topics",
            "kafka_group_id",
            "kafka_servers",
            "input_path",
            "is_hourly",
            "wildcard",
            "start_date",
            "end_date",
            "start_hour",
            "end_hour",
            "enable_dynamic_sharding",
            "max_task_num_per_worker",
        ),
        _INPUT,
    ),
    **dict.fromkeys(
        (
            "profile_some_steps_from",
            "profile_save_steps_interval",
            "profile_with_nvprof_from_to",
            "intra_op_parallelism_threads",
            "inter_op_parallelism_threads",
            "tf_grpc_worker_cache_threads",
            "monolith_grpc_worker_service_handler_multiplier",
            "params_override",
            "disable_native_metrics",
        ),
        _TENSORFLOW,
    ),
    **dict.fromkeys(
        ("save_summary_steps", "log_step_count_steps", "tensorboard_log_path"),
        "summaries for TensorBoard: not there yet; `/metrics` has steps and times",
    ),
    "tf_config": "the variable TF_CONFIG, with `discovery` = tf-config:",
    "zk_watch_address_family": "those ZooKeeper servers are asked that this machine can reach",
    "model_name": "`job` is the only name",
    **dict.fromkeys(
        (
            "bzid",
            "base_name",
            "deep_insight_target",
            "deep_insight_sample_ratio",
            "submit_time_secs",
            "containers_ready_time_secs",
            "cluster_type",
        ),
        _PLATFORM,
    ),
}

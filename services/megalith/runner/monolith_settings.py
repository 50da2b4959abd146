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
    "dense_only_save_checkpoints_secs": "dense_save_every_s",
    "dense_only_save_checkpoints_steps": "dense_save_every_steps",
    "dense_only_stop_training_when_save": "dense_only_hold",
    "discovery_type": "discovery",
    "zk_server": "discovery",
    "deep_insight_name": "job",
    "uuid": "job",
    "embedding_prefetch_capacity": "staleness",
    "enable_embedding_postpush": "staleness",
    "feature_eviction_on_save": "expire_on_save",
    "reload_alias_map": "variable_aliases",
    "checkpoints_max_to_keep": "max_to_keep",
    "tide_start_hour": "tide_window",
    "tide_start_minute": "tide_window",
    "tide_end_hour": "tide_window",
    "tide_end_minute": "tide_window",
    "tide_save_secs": "tide_save_s",
    "max_slow_start_wait_minute": "slow_start_max_s",
    "save_summary_steps": "summary_every_steps",
    "tensorboard_log_path": "tensorboard",
    "ps_replica_num": "num_replicas",
}

_PROCESS = "belongs to one process, not to the job: a flag of `megalith ps` or `megalith worker`"
_TABLE = "said per table in its TableConfig, by the program that creates it"
_ALWAYS = "always so here"
_TENSORFLOW = "steers TensorFlow, which is not used"
_PIPELINED = "a synchronous step reads no rows ahead; `prefetch_batches` draws its input ahead"
_SERVING = "export to TensorFlow Serving: there are no graphs; replicas serve rows and variables"
_INPUT = "the data service: each worker reads for itself"
_READER = "an option of the task: see --data, --start, --end and --follow of `megalith train ctr`"
_FUSED = f"{_ALWAYS}: a batch is one message to each ps, and layouts are made in one pass"
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
    "mode": "the command: `megalith train`, `megalith eval` or `megalith predict`",
    "force_shutdown_ps": f"{_ALWAYS}: parameter servers end with the job",
    "is_local": "`megalith up` and `megalith train` are local",
    "merge_sync_training_ckpt": "each rank writes a shard of one checkpoint: nothing is merged",
    "enable_sync_training": "`sync` = full",
    "enable_partial_sync_training": "a setting of `megalith worker`: `dense_sync`",
    **dict.fromkeys(
        (
            "reorder_fids_in_data_pipeline",
            "enable_fused_layout",
        ),
        _FUSED,
    ),
    "only_feature_engineering": "`batch` of a task is a call: a program can write what it returns",
    **dict.fromkeys(
        ("enable_async_optimize", "enable_pipelined_fwda2a", "enable_pipelined_bwda2a"),
        _PIPELINED,
    ),
    "enable_gpu_training": "rows are in the memory of CPU machines; a program of your own may have "
    "the dense part of its PyTorch model on a GPU, with `megalith.torch.ClusterEmbedding`",
    "processes_per_gpu": "no process is placed on a GPU here",
    "enable_alias_map_auto_gen": "names are not guessed: `--variable-aliases` gives them",
    **dict.fromkeys(
        (
            "warmup_file",
            "skip_zero_embedding_when_serving",
            "max_rpc_deadline_millis",
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
        ),
        _INPUT,
    ),
    "enable_dynamic_sharding": "`sharding` = dynamic",
    "max_task_num_per_worker": "a worker takes as many pieces as a batch needs",
    **dict.fromkeys(
        (
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
        ),
        _READER,
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
            "disable_native_metrics",
        ),
        _TENSORFLOW,
    ),
    "log_step_count_steps": "progress is shown every five seconds; `/metrics` has steps and times",
    "enable_model_ckpt_info": "the manifest of a checkpoint has the rows of each table",
    "enable_realtime_training": "replicas follow the servers of any job: `num_replicas`",
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

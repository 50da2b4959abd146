"""`make bench-checkpoint`: what saves, increments and restores take. Prints JSON lines.

    PYTHONPATH=tests python tests/benchmarks/checkpoint.py [save] [training] [kill]

All of them by default. Rows have 16 floats and 16 Adagrad accumulators and are on two servers, each
a process. Files go to a temporary folder (TMPDIR says where).

save       CHECKPOINT_ROWS rows (10 M), training idle, three times; medians:
           plain_write    the bytes of the full save again, in two files, by write and fsync
           full_save      all rows
           increment      after 1 % of the rows were updated; `share` is its time over the full save
           restore        the checkpoint and the increment, into two new servers
           restore_again  the same at once a second time: into memory that the first one has freed,
                          which a virtual machine need not get from its host first
training   a client that pulls and pushes 4096 rows of CHECKPOINT_ROWS (10 M): steps a second, and the
           99.9th percentile of a step, without a save, during one, and beside an increment every
           5 s that has a variable of 4 MB too
kill       CHECKPOINT_KILL_ROWS rows (5 M), an increment every 10 s, then kill -9 of a ps and at once
           its replacement: seconds until the first push is acknowledged that needs it. Then the
           same while pushes go on: seconds of acknowledged pushes that the ps has lost, whether the
           other one has kept all, and the steps that a worker took after it
"""

import sys

import checkpoint_files
import checkpoint_job

PARTS = {
    "save": checkpoint_files.measure,
    "training": checkpoint_job.measure_training,
    "kill": checkpoint_job.measure_kill,
}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()

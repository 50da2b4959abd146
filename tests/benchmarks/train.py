"""`make bench-train`: workload W3, a training job of the click models. Prints JSON lines.

train.py [local] [cluster] [workers] [torch]     all of them by default

local: `local_train`, 2 threads. cluster: 2 ps and 1 worker as processes. workers: the same with 2.
torch: PyTorch in this process with rows on 2 ps. `cpu_ms` is processor time of a step in the
process that is measured, which another load on the machine changes less than the rate.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is there

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import w2
import w3

from megalith.client import connect
from megalith.local import local_train
from support.processes import Processes

THREADS = int(os.environ.get("PEERS_THREADS", 2))
REPS = w2.REPS
MODELS = tuple(w3.MODELS)
TABLES = int(os.environ.get("W3_TABLES", 1))


def report(case, rates, **conditions):
    """By the harness of the peers if this runs in its folder, so that its table has the line."""
    common = w2.harness()
    if common is not None:
        common.report("w3", f"megalith_{case}", "examples", "examples/s", rates, **conditions)
    else:
        w2.report_best(f"w3_{case}", "examples/s", rates, **conditions)


def bench_local():
    for model in MODELS:
        num_steps = 4 + REPS * w3.BATCHES
        task = w3.W3Task(model, THREADS, TABLES, num_steps)
        at = []
        cpu = []

        def on_step(step, loss, at=at, cpu=cpu):
            at.append(time.perf_counter())
            cpu.append(time.process_time())

        run = local_train(task, num_threads=THREADS, on_step=on_step, evaluates=False)
        ends = range(4 + w3.BATCHES - 1, num_steps, w3.BATCHES)
        rates = [w3.BATCHES * w2.EXAMPLES / (at[end] - at[end - w3.BATCHES]) for end in ends]
        cpu_ms = min(cpu[end] - cpu[end - w3.BATCHES] for end in ends) / w3.BATCHES * 1e3
        report(
            f"local_{model}_t{THREADS}",
            rates,
            cpu_ms=round(cpu_ms, 1),
            first_loss=round(run.losses[0], 4),
            last_loss=round(run.losses[-1], 4),
        )


def bench_cluster(num_workers=1):
    for model in MODELS:
        threads = max(1, THREADS // num_workers)
        rates = [trained(model, num_workers, threads) for _ in range(2)]
        report(f"cluster_{model}_w{num_workers}_t{threads}", rates, ps=2)


def trained(model, num_workers, threads):
    """Examples per second between the first and the last step seen."""
    examples = (8 + REPS * w3.BATCHES) * w2.EXAMPLES
    options = {"model": model, "num_threads": threads, "num_tables": TABLES}
    settings = {
        "task": f"{Path(w3.__file__)}:make_task",
        "task_options": json.dumps(options),
        "batch_size": w2.EXAMPLES,
        "num_examples": examples,
        "heartbeat_s": 0.1,
    }
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_controller(num_ps=2, num_workers=num_workers, stay_up=True)
        for index in range(2):
            processes.start_member("ps", index)
        for index in range(num_workers):
            processes.start_member("worker", index, **settings)
        job, seen = processes.job(), []
        while not (status := job.status()).results:
            done = sum(member.examples for member in status.members)
            if done and (not seen or done > seen[-1][1]):
                seen.append((time.perf_counter(), done))
            time.sleep(0.1)  # asking more often would take a tenth of a core
        (first_s, first), (last_s, last) = seen[len(seen) // 10], seen[-1]
        return (last - first) / (last_s - first_s)


def bench_torch():
    import torch
    from torch import nn

    from megalith.torch import ClusterEmbedding

    torch.set_num_threads(THREADS)
    for model in MODELS:
        with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
            processes.start_controller(num_ps=2, num_workers=0)
            for index in range(2):
                processes.start_member("ps", index)
            with connect(model_dir=str(processes.model_dir)) as cluster:
                task = w3.W3Task(model, 1, TABLES, 0)
                layouts = task._layouts
                features = cluster.create_features(
                    *layouts.features.values(), layouts=layouts.layouts
                )
                embedding = ClusterEmbedding(features, pushes_behind=1)
                num_inputs = w2.SLOTS * w2.DIM + w3.DENSE
                widths = (num_inputs, *w3.HIDDEN, 1) if model == "deepfm" else (num_inputs, 1)
                layers = []
                for before, after in itertools.pairwise(widths):
                    layers += [nn.Linear(before, after), nn.ReLU()]
                mlp = nn.Sequential(*layers[:-1])
                linear = nn.Linear(w3.DENSE, 1)
                parameters = [*mlp.parameters()]
                parameters += [*linear.parameters()] if model == "deepfm" else []
                optimizer = torch.optim.Adagrad(parameters, lr=0.01)
                data = [task._data[n % w3.BATCHES] for n in range(4 + REPS * w3.BATCHES)]
                at = []
                for (_, dense, labels), batch in embedding.prefetch(data, lambda one: one[0]):
                    tensors = embedding(batch)
                    vectors, columns = tensors["vec"], torch.from_numpy(dense)
                    logits = mlp(torch.cat([vectors.flatten(1), columns], 1)).squeeze(1)
                    if model == "deepfm":
                        total = vectors.sum(1)
                        pairs = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1)
                        first = tensors["bias"].sum((1, 2))
                        logits = logits + first + pairs + linear(columns).squeeze(1)
                    loss = nn.functional.binary_cross_entropy_with_logits(
                        logits, torch.from_numpy(labels)
                    )
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    at.append(time.perf_counter())
                embedding.flush()
        ends = range(4 + w3.BATCHES - 1, len(at), w3.BATCHES)
        rates = [w3.BATCHES * w2.EXAMPLES / (at[end] - at[end - w3.BATCHES]) for end in ends]
        report(f"torch_{model}_t{THREADS}", rates, ps=2, last_loss=round(loss.item(), 4))


BENCHMARKS = {
    "local": bench_local,
    "cluster": bench_cluster,
    "workers": lambda: bench_cluster(num_workers=2),
    "torch": bench_torch,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], default=[])
    for name in parser.parse_args().names or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()

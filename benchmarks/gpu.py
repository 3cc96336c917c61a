"""Read datasets to a GPU: equal bytes, rows per second, time that training waits for rows, DDP, JAX.

python benchmarks/gpu.py make FOLDER         write the datasets (needs DuckDB and delta-rs)
python benchmarks/gpu.py run FOLDER          measure on this machine's GPU (needs torch; JAX if there)

The second command needs neither a store nor an engine, so a machine with a GPU requires only torch,
numpy, pyarrow and crc32c. The program ends with 1 if rows or results differ.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from report import COMPARISONS, Report

from featurestore import TrainingDataset
from featurestore.model.runtime import usable_cores

FORMATS = ("tfrecord", "parquet")
ROWS = 300_000
BATCH = 8_192
EPOCHS = 4
FLOATS = [f"f{index}" for index in range(16)]
# The narrow network needs less time for a batch than the copy of the batch to the GPU.
WIDTHS = (256, 4_096)
REPORT = Report(
    "gpu",
    "One NVIDIA H200, 16 cores, PyTorch 2.11.0 and JAX 0.11.2 on Python 3.12; 270,000 training rows "
    "of 16 float32 and 4 int64 columns, shuffled batches of 8,192. 'Resident' trains on batches that "
    "are in the memory of the GPU already.",
)
Batch = tuple[dict[str, Any], Any]


def make(folder: Path) -> None:
    """Write a dataset in each format to a folder."""
    import pyarrow as pa

    import featurestore

    random = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": np.arange(ROWS)}
    for name in FLOATS:
        columns[name] = (random.integers(0, 64, ROWS) / 64).astype("float32")
    for index in range(4):
        columns[f"i{index}"] = random.integers(0, 50, ROWS)
    columns["late"] = (sum(columns[name] for name in FLOATS[:4]) > 2).astype("int64")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        store = featurestore.connect(directory)
        for data_format in FORMATS:
            dataset = store.create_training_dataset(
                pa.table(columns),
                data_format,
                label="late",
                key="id",
                data_format=data_format,
                splits={"train": 0.9, "test": 0.1},
                shards=16,
                statistics=False,
                progress=False,
            )
            shutil.copytree(dataset.path, folder / data_format)


def open_reader(folder: Path, data_format: str, **options: Any) -> Any:
    options = {"split": "train", "global_batch_size": BATCH, "seed": 1} | options
    return TrainingDataset.open(str(folder / data_format)).reader(options.pop("split"), **options)


def to_gpu(batches: Iterable[Batch]) -> Iterator[Batch]:
    for features, label in batches:
        moved = {name: values.cuda(non_blocking=True) for name, values in features.items()}
        yield moved, label.cuda(non_blocking=True)


def digest(batches: Iterable[Batch]) -> str:
    """Return the SHA-256 of all values of the batches."""
    sha = hashlib.sha256()
    for features, label in batches:
        for values in [*(features[name] for name in sorted(features)), label]:
            sha.update(np.ascontiguousarray(values.cpu().numpy()).tobytes())
    return sha.hexdigest()


def check_bytes(folder: Path, data_format: str) -> bool:
    """Return whether the batches on the GPU have the bytes of those in memory."""
    in_memory = digest(open_reader(folder, data_format).torch_loader())
    on_gpu = set()
    for workers in (0, 2):
        loader = open_reader(folder, data_format).torch_loader(pin_memory=True, num_workers=workers)
        on_gpu.add(digest(to_gpu(loader)))
    return on_gpu == {in_memory}


def rate(epoch: Callable[[], Iterable[Batch]]) -> float:
    """Return the median rows per second of several epochs, after one warm-up."""
    import torch

    rates = []
    for _ in range(2 * EPOCHS):
        begin = time.perf_counter()
        rows = sum(len(label) for _, label in epoch())
        torch.cuda.synchronize()
        rates.append(rows / (time.perf_counter() - begin))
    return statistics.median(rates[1:])


def train(width: int, batches: Iterable[Batch]) -> float:
    """Train a network on batches and return the rows per second."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 2),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    rows, begin = 0, 0.0
    for features, label in batches:
        inputs = torch.stack([values.float() for values in features.values()], dim=1)
        loss = torch.nn.functional.cross_entropy(model(inputs), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if begin:
            rows += len(label)
        else:  # the first step compiles kernels
            torch.cuda.synchronize()
            begin = time.perf_counter()
    torch.cuda.synchronize()
    return rows / (time.perf_counter() - begin)


def measure_reading(folder: Path, data_format: str) -> None:
    """Report the rates of reading, of copies to the GPU, and of training on both kinds of batches."""
    plain = open_reader(folder, data_format).torch_loader()
    pinned = open_reader(folder, data_format).torch_loader(pin_memory=True)
    row = f"GPU, {data_format}"
    rates = {
        f"{row}: batches in memory": rate(lambda: plain),
        f"{row}: batches copied to the GPU": rate(lambda: to_gpu(pinned)),
    }
    for name, value in rates.items():
        print(f"{name:60}{value:14,.0f} rows/s")
        REPORT.add(COMPARISONS, name, "ours", value, "rows/s")
    resident = list(to_gpu(pinned))
    for width in WIDTHS:
        ceiling = train(width, resident * EPOCHS)
        fed = train(width, (batch for _ in range(EPOCHS) for batch in to_gpu(pinned)))
        name = f"{row}: training a network of width {width:,}, vs resident"
        print(f"{name:60}{fed:14,.0f} rows/s, {fed / ceiling:.2f} of {ceiling:,.0f}")
        REPORT.compare(name, fed, ceiling, "rows/s")


def check_evaluation(folder: Path) -> bool:
    """Return whether evaluate() on the GPU has the figures of the processor."""
    import torch

    def evaluate(device: str) -> dict[str, float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 2).double().to(device)

        def figures(features: dict[str, Any], label: Any) -> dict[str, Any]:
            inputs = [values.double().to(device) for values in features.values()]
            scores, label = model(torch.stack(inputs, dim=1)), label.to(device)
            loss = torch.nn.functional.cross_entropy(scores, label, reduction="none")
            return {"loss": loss, "accuracy": scores.argmax(dim=1) == label}

        reader = open_reader(folder, "tfrecord", split="test", global_batch_size=1_024)
        result: dict[str, float] = reader.evaluate(figures)
        return result

    on_processor, on_gpu = evaluate("cpu"), evaluate("cuda")
    print(f"evaluate: {on_processor} and {on_gpu}")
    return all(abs(on_processor[name] - on_gpu[name]) < 1e-12 for name in on_processor)


def check_jax(folder: Path) -> bool:
    """Report the rows per second that JAX receives, and return whether their bytes are equal."""
    import jax

    in_memory, on_gpu = hashlib.sha256(), hashlib.sha256()
    for batch in open_reader(folder, "tfrecord").batches(0):
        arrays = jax.device_put({name: batch[name] for name in FLOATS})
        for name in FLOATS:
            in_memory.update(np.ascontiguousarray(batch[name]).tobytes())
            on_gpu.update(np.asarray(arrays[name]).tobytes())
    rows, begin = 0, time.perf_counter()
    for batch in open_reader(folder, "tfrecord").batches(1):
        arrays = jax.device_put(batch)
        rows += BATCH
    jax.block_until_ready(arrays)
    value = rows / (time.perf_counter() - begin)
    print(f"JAX on {jax.devices()[0]}: {value:,.0f} rows/s")
    REPORT.add(COMPARISONS, "GPU, tfrecord: batches copied by JAX", "ours", value, "rows/s")
    return in_memory.digest() == on_gpu.digest()


_RANK = """
import os, sys
import torch
import torch.distributed as dist
from featurestore import TrainingDataset
from featurestore.model.runtime import usable_cores
data, folder, backend = sys.argv[1:4]
rank, world, port, last_step = map(int, sys.argv[4:])
torch.manual_seed(0)
address = f"tcp://127.0.0.1:{port}"
dist.init_process_group(backend, init_method=address, rank=rank, world_size=world)
floats = [f"f{index}" for index in range(16)]
reader = TrainingDataset.open(data).reader(
    "train", global_batch_size=4096, seed=1, remainder="pad", columns=["id", *floats, "late"]
)
loader = reader.torch_loader(pin_memory=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpoint, step = f"{folder}/checkpoint-{rank}", 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    step = saved["step"]
with open(f"{folder}/rows-{rank}", "a") as journal:
    for features, label, weight in loader:
        inputs = torch.stack([features[name] for name in floats], dim=1).cuda(non_blocking=True)
        losses = torch.nn.functional.cross_entropy(model(inputs), label.cuda(), reduction="none")
        loss = (losses * weight.cuda()).sum() * world / 4096
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        ids = [str(int(number)) for number, real in zip(features["id"], weight) if real > 0]
        journal.write(" ".join(ids) + "\\n")
        if step == last_step:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved | {"loader": loader.state_dict(), "step": step}, checkpoint)
            journal.flush()
            os._exit(0)
torch.save([weights.cpu() for weights in model.state_dict().values()], f"{folder}/weights-{rank}")
dist.destroy_process_group()
"""


def check_ranks(folder: Path) -> bool:
    """Return whether DDP ranks read each row once, and equal weights follow from a resumed run."""
    import torch

    batches = open_reader(folder, "tfrecord", remainder="keep", columns=["id", "late"]).batches(0)
    expected = sorted(int(number) for batch in batches for number in batch["id"])
    weights, rows_once = {}, []
    # Ranks of NCCL need a GPU each, so two ranks on one GPU communicate through gloo.
    runs = {"uninterrupted": ("gloo", 2, [0]), "resumed": ("gloo", 2, [17, 0])}
    runs["nccl"] = ("nccl", 1, [0])
    for name, (backend, world, stops) in runs.items():
        with tempfile.TemporaryDirectory() as directory:
            for last_step in stops:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = free.getsockname()[1]
                command = [sys.executable, "-c", _RANK, str(folder / "tfrecord"), directory]
                ranks = [
                    subprocess.Popen(
                        [*command, backend, str(rank), str(world), str(port), str(last_step)]
                    )
                    for rank in range(world)
                ]
                assert [rank.wait(timeout=120) for rank in ranks] == [0] * world
            journals = [Path(directory, f"rows-{rank}").read_text() for rank in range(world)]
            ids = sorted(int(number) for journal in journals for number in journal.split())
            rows_once.append(ids == expected)
            weights[name] = torch.load(f"{directory}/weights-0")
    pairs = zip(weights["uninterrupted"], weights["resumed"], strict=True)
    is_resumed_equal = all(torch.equal(first, second) for first, second in pairs)
    print(f"DDP: {len(expected):,} rows, once: {rows_once}; resumed equal: {is_resumed_equal}")
    return all(rows_once) and is_resumed_equal


def run(folder: Path) -> bool:
    import torch

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {usable_cores()} cores")
    checks = {}
    for data_format in FORMATS:
        checks[f"equal bytes of {data_format}"] = check_bytes(folder, data_format)
        measure_reading(folder, data_format)
    checks["evaluation"] = check_evaluation(folder)
    if importlib.util.find_spec("jax") is not None:
        checks["JAX"] = check_jax(folder)
    checks["ranks"] = check_ranks(folder)
    print(json.dumps(checks))
    return all(checks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ignored: the program needs a GPU")
    parser.add_argument("action", nargs="?", choices=["make", "run"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--commit", help="the commit of the code, for a copy without a repository")
    arguments = parser.parse_args()
    if arguments.action is None:
        print("left out: name an action and a folder, on a machine with a GPU")
        return
    if arguments.action == "make":
        make(arguments.folder)
        return
    passed = run(arguments.folder)
    stamp = None
    if arguments.commit:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        stamp = {"date": today, "commit": arguments.commit}
    REPORT.save(stamp=stamp)
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

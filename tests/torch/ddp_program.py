"""One rank of a training run: python ddp_program.py DATASET OUT RANK WORLD PORT STOP EVALUATED.

Trains two epochs under DistributedDataParallel with gloo, on from OUT/checkpoint-RANK.pt if there
is one. Every step appends its rows and its loss to OUT/rank-RANK.jsonl. After STOP steps (0: never)
the run writes a checkpoint and ends, as one that is killed right after. At the end the figures of a
model over each dataset in the folder EVALUATED go to OUT/figures-RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from featurestore.training.dataset import TrainingDataset
from tests.torch.evaluated_model import figures_of, normalized_model

dataset_path, out = sys.argv[1], Path(sys.argv[2])
rank, world, port, stop = map(int, sys.argv[3:7])
evaluated = Path(sys.argv[7])
torch.manual_seed(7)
torch.set_num_threads(1)
store = f"tcp://127.0.0.1:{port}"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)

reader = TrainingDataset.open(dataset_path).reader(
    "train",
    global_batch_size=12,
    seed=3,
    remainder="pad",
    columns=["row_id", "ratio", "vector", "label"],
)
loader = reader.torch_loader()
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
checkpoint = out / f"checkpoint-{rank}.pt"
step_count = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    step_count = saved["made"]

with (out / f"rank-{rank}.jsonl").open("a") as journal:
    for _ in range(loader.state_dict()["epoch"], 2):
        for features, label, weight in loader:
            inputs = torch.cat([features["vector"], features["ratio"][:, None]], dim=1)
            error = (model(inputs)[:, 0] - label) ** 2 * weight
            # Gradients are averaged over ranks, and the loss is over the global batch.
            loss = error.sum() * world / reader.global_batch_size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_count += 1
            rows = torch.where(weight > 0, features["row_id"], -1).tolist()
            journal.write(json.dumps({"rows": rows, "loss": loss.item().hex()}) + "\n")
            if step_count == stop:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "made": step_count,
                }
                torch.save(saved, checkpoint)
                journal.flush()
                os._exit(0)

weights = [value.tolist() for value in model.state_dict().values()]
(out / f"weights-{rank}.json").write_text(json.dumps(weights))

result = {}
for name in ("plain", "weighed"):
    evaluated_model = DistributedDataParallel(normalized_model()).eval()
    figures = {}
    for remainder in ("keep", "pad", "drop"):
        for batch in (12, 88):  # with 88, the last batch of the second rank has no row
            checks = TrainingDataset.open(str(evaluated / name / "v1")).reader(
                "train", global_batch_size=batch, remainder=remainder
            )
            figures[f"{remainder}-{batch}"] = checks.evaluate(figures_of(evaluated_model))
    result[name] = figures
(out / f"figures-{rank}.json").write_text(json.dumps(result))
dist.destroy_process_group()
assert threading.enumerate() == [threading.main_thread()]
# Gloo's own threads outlive their process group. One that drops its last tensor while the
# interpreter shuts down aborts the process, so the interpreter does not shut down.
os._exit(0)

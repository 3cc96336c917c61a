"""Modules and state dicts of PyTorch as files of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import featurestore
from featurestore import experiments
from featurestore.experiments.run_files import save_model


@pytest.mark.parametrize("model_type", ["module", "state", "distributed"])
def test_save_model_torch_state_loads_into_bare_module(model_type: str, tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 1)
    model: Any = {"module": module, "state": module.state_dict()}.get(model_type)
    if model_type == "distributed":
        group = f"file://{tmp_path / 'group'}"
        dist.init_process_group("gloo", init_method=group, rank=0, world_size=1)
        model = DistributedDataParallel(module)
    artifacts = tmp_path / "artifacts"
    try:
        for worker in (1, 0):
            path = save_model(model, directory=str(artifacts), name="net", worker=worker)
            assert Path(path).exists() == (worker == 0)
    finally:
        if model_type == "distributed":
            dist.destroy_process_group()
    assert [file.name for file in artifacts.iterdir()] == ["net.pt"]
    copy = torch.nn.Linear(3, 1)
    copy.load_state_dict(torch.load(path, weights_only=True))
    assert torch.equal(copy(torch.ones(3)), module(torch.ones(3)))


def trained(context: Any) -> dict[str, float]:
    torch.manual_seed(context.seed)
    module = torch.nn.Linear(2, 1)
    context.save(module, "net")
    return {"sum": float(module.weight.sum())}


def test_collective_all_reduce_two_workers_save_one_torch_file(tmp_path: Path) -> None:
    store = featurestore.connect(tmp_path / "store")
    run = experiments.collective_all_reduce(trained, workers=2, store=store, progress=False)
    assert run.artifacts == ["artifacts/net.pt"]
    assert set(run.record.files) == {"artifacts/net.pt"}
    state = torch.load(Path(run.path, "artifacts", "net.pt"), weights_only=True)
    assert float(state["weight"].sum()) == run.metrics["sum"]

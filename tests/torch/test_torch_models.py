"""PyTorch programs as registered models: predictions, REST, and files that contain code."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from featurestore import experiments
from featurestore.errors import InvalidArgument, ModelDamaged, UntrustedModel
from featurestore.experiments import catalog
from featurestore.experiments.models import loading, predictors
from featurestore.experiments.run import Run
from featurestore.experiments.run_files import save_model
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.server import create_app
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

DYNAMIC = {0: torch.export.Dim.DYNAMIC}


class Columns(torch.nn.Module):
    """A network whose arguments are columns, with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Dropout(0.5)
        )

    def forward(self, size: torch.Tensor, temp: torch.Tensor) -> dict[str, torch.Tensor]:
        stacked = torch.stack([size, temp], dim=1) * torch.tensor([1.0, 0.5])
        values = self.layers(stacked)
        return {"total": values.sum(1), "late": values[:, 0].sigmoid()}


class Sequences(torch.nn.Module):
    """Layers with many operators: embeddings, attention and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.attention = torch.nn.TransformerEncoderLayer(4, 2, dropout=0.1, batch_first=True)
        self.convolution = torch.nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.attention(self.embedding(x.long()))
        convolved = self.convolution(hidden.transpose(1, 2)).mean(-1)
        return torch.cat([hidden[:, -1], convolved], dim=1).softmax(-1)


def export(module: torch.nn.Module, *shapes: tuple[int, ...]) -> Any:
    torch.manual_seed(0)
    arguments = tuple(torch.ones(shape) for shape in shapes)
    return torch.export.export(module.eval(), arguments, dynamic_shapes=(DYNAMIC,) * len(shapes))


@pytest.fixture
def dataset(empty_store: FeatureStore) -> TrainingDataset:
    shops = [{"shop": 1, "size": 10.0, "temp": 3.0}, {"shop": 2, "size": 20.0, "temp": -1.0}]
    empty_store.create_featuregroup(shops, "shops", primary_key="shop")
    now = datetime.now(UTC)
    labels = [{"shop": shop, "at": now, "good": 1.0} for shop in (1, 2)]
    empty_store.create_featuregroup(labels, "labels", primary_key="shop", event_time="at")
    view = empty_store.create_feature_view(
        "sales", features=["shops.size", "shops.temp"], labels="labels", label="good"
    )
    return view.create_training_dataset("sales", progress=False)


def a_run(store: FeatureStore, dataset: TrainingDataset, model: Any) -> Run:
    """Return a finished run with a saved model."""
    origin = RunDataset(dataset.name, dataset.version, dataset.manifest.content_hash, dataset.path)
    record = RunRecord(
        id="20240301-120000-000001",
        name="nets",
        kind="launch",
        state="finished",
        created="2024-03-01T12:00:00+00:00",
        dataset=origin,
    )
    catalog.save(store.session, record)
    run = Run(store.session, record)
    save_model(model, directory=os.path.join(run.path, "artifacts"), name="net", worker=0)
    return run


class Sum(torch.nn.Module):
    """The weighted sum of columns, which are arguments or the entries of a dict."""

    def forward(self, c: Any, a: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(c, dict):
            c, a = c["c"], c["a"]
        assert a is not None
        return 100 * c + a


def test_torch_program_gets_columns_by_exported_names(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    rows = [{"a": float(row), "b": 9.0, "c": float(row % 3), "y": 0.0} for row in range(6)]
    dataset = empty_store.create_training_dataset(rows, "sums", label="y", progress=False)
    expected = [100 * row["c"] + row["a"] for row in rows]
    c, a, shapes = torch.ones(3), torch.ones(3), {"c": DYNAMIC, "a": DYNAMIC}
    exports: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
        "positions": ((c, a), {}, (DYNAMIC, DYNAMIC)),
        "keywords": ((), {"a": a, "c": c}, shapes),
        "mixed": ((c,), {"a": a}, shapes),
        "dict": (({"c": c, "a": a},), {}, ({"c": DYNAMIC, "a": DYNAMIC},)),
    }
    for name, (arguments, keywords, dynamic_shapes) in exports.items():
        with subtests.test(name):
            program = torch.export.export(Sum(), arguments, keywords, dynamic_shapes=dynamic_shapes)
            run = a_run(empty_store, dataset, program)
            model = experiments.register_model(run, "sums", arrays="columns")
            assert model.inputs == ("a", "c")
            scored = empty_store.score(model, labels=rows).to_arrow()
            assert scored["prediction"].to_pylist() == expected


@pytest.mark.parametrize("layout", ["columns", "matrix"])
def test_torch_program_predicts_by_score_and_rest(
    empty_store: FeatureStore, dataset: TrainingDataset, layout: str
) -> None:
    module = Columns() if layout == "columns" else torch.nn.Linear(2, 1)
    program = export(module, *{"columns": [(3,), (3,)], "matrix": [(3, 2)]}[layout])
    arrays: Any = layout if layout == "columns" else None
    model = experiments.register_model(a_run(empty_store, dataset, program), "net", arrays=arrays)
    rows = torch.tensor([[10.0, 3.0], [20.0, -1.0]])
    with torch.no_grad():
        outputs = module(*rows.T) if layout == "columns" else {"": module(rows)[:, 0]}
    expected = {
        f"prediction_{name}".rstrip("_"): values.tolist() for name, values in outputs.items()
    }
    assert (model.flavor, model.outputs) == ("torch", tuple(expected))
    labels = [{"shop": 1}, {"shop": 2}]
    scored = (
        empty_store.score(model, labels=labels, label_time=datetime.now(UTC)).to_arrow().to_pydict()
    )
    assert {name: scored[name] for name in expected} == pytest.approx(expected)
    empty_store.publish("sales")
    client = TestClient(create_app(empty_store), base_url="http://localhost")
    body = {"entities": [{"shop": 1}, {"shop": 2}]}
    response = client.post("/api/v1/models/net/predict", json=body).json()
    assert response.pop("rows") == [
        {name: scored[name][index] for name in expected} for index in (0, 1)
    ]
    assert response == {
        "model": "net",
        "model_version": 1,
        "view": "sales",
        "view_version": 1,
        "statuses": ["found", "found"],
        "delta_versions": {"shops@v1": 1},
    }
    single_response = client.post(
        "/api/v1/models/net/predict", json={"entities": [{"shop": 2}]}
    ).json()
    assert single_response["rows"][0] == pytest.approx(
        {name: expected[name][1] for name in expected}
    )


def test_state_dict_and_fixed_batch_are_refused_with_export(
    empty_store: FeatureStore, dataset: TrainingDataset
) -> None:
    run = a_run(empty_store, dataset, torch.nn.Linear(2, 1))
    with pytest.raises(InvalidArgument, match="state dict has the tensors") as refused:
        experiments.register_model(run, "net")
    names: dict[str, Any] = {"torch": torch, "module": torch.nn.Linear(2, 1)}
    names |= {"inputs": torch.ones(3, 2), "context": None}
    exec(str(refused.value.hint).split("; ")[0], names)
    Path(run.path, "artifacts", "net.pt").unlink()
    save_model(names["program"], directory=f"{run.path}/artifacts", name="net", worker=0)
    assert experiments.register_model(run, "net").outputs == ("prediction",)
    fixed = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(3, 2),))
    save_model(fixed, directory=f"{run.path}/artifacts", name="net", worker=0)
    with pytest.raises(InvalidArgument, match="cannot use the inputs") as failed:
        experiments.register_model(run, "net")
    assert "dynamic_shapes" in str(failed.value.hint)


def test_layers_of_torch_need_no_trust(tmp_path: Path) -> None:
    module = Sequences()
    program = export(module, (3, 5))
    tokens = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    for variant in (program, program.run_decompositions()):
        path = str(tmp_path / "model.pt2")
        torch.export.save(variant, path)
        loading.check_trusted(path, "torch", trust=False, description="it")
        loaded = loading.load_object(path, "torch")
        predict = predictors.make_predictor(loaded, "torch", method="predict")
        with torch.no_grad():
            torch.testing.assert_close(
                torch.tensor(predict(tokens.numpy())[""]), module(tokens), check_dtype=False
            )


class Payload:
    """Create a directory when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def rewrite(path: Path, change: Callable[[dict[str, Any], Any], None]) -> None:
    """Write an archive again after a change of its entries and its graph."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        entries: dict[str, Any] = {
            name.partition("/")[2]: archive.read(name) for name in archive.namelist()
        }
    graph = json.loads(entries["models/model.json"])
    change(entries, graph)
    if "models/model.json" in entries:
        entries["models/model.json"] = json.dumps(graph).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"{root}/{name}", content)


CALL = "__import__('os').mkdir({!r})"


@pytest.mark.parametrize(
    "target", ["weight", "constant", "operator", "shape", "symbol", "structure", "compiled", "old"]
)
def test_torch_programs_with_code_need_trust(tmp_path: Path, target: str) -> None:
    marker = tmp_path / "marker"
    payload = pickle.dumps(Payload(marker))

    def change(entries: dict[str, Any], graph: Any) -> None:
        config = json.loads(entries["data/weights/model_weights_config.json"])
        if target == "weight":
            config["config"]["weight"]["use_pickle"] = True
            entries["data/weights/weight_0"] = payload
            entries["data/weights/model_weights_config.json"] = json.dumps(config)
        elif target == "constant":
            tensor = {**config["config"]["weight"], "path_name": "opaque_obj_0"}
            entries["data/constants/opaque_obj_0"] = payload
            constants = json.dumps({"config": {"c": tensor}})
            entries["data/constants/model_constants_config.json"] = constants
        elif target == "operator":
            graph["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file"
        elif target == "shape":
            values = graph["graph_module"]["graph"]["tensor_values"]
            values["x"] = values.pop(next(iter(values)))
            values["x"]["sizes"] = [{"as_expr": {"expr_str": CALL.format(str(marker))}}]
        elif target == "symbol":
            symbols = graph["range_constraints"]
            symbols[CALL.format(str(marker))] = symbols.pop(next(iter(symbols)))
        elif target == "structure":
            (call,) = graph["graph_module"]["module_call_graph"]
            keys = json.dumps([{"__enum__": True, "fqn": "antigravity:A", "name": "B"}])
            text = {"type": "builtins.dict", "context": keys, "children_spec": []}
            call["signature"]["in_spec"] = json.dumps([1, text])
        elif target == "compiled":
            entries["data/aotinductor/model/model.so"] = b"code"
        else:
            del entries["models/model.json"]
            entries["serialized_state_dict.pt"] = payload

    path = tmp_path / "model.pt2"
    torch.export.save(export(torch.nn.Linear(2, 1), (3, 2)), path)
    rewrite(path, change)
    flavor = loading.detect_flavor(str(path))
    with pytest.raises(UntrustedModel, match=r"other than tensors and known operators"):
        loading.check_trusted(str(path), flavor, trust=False, description="it")
    assert not marker.exists()


def test_pickles_and_guards_of_safe_programs_are_not_evaluated(tmp_path: Path) -> None:
    """They are not needed, so the program is loaded without them."""
    marker, path = tmp_path / "marker", tmp_path / "model.pt2"

    def change(entries: dict[str, Any], graph: Any) -> None:
        entries["data/sample_inputs/model.pt"] = pickle.dumps(Payload(marker))
        entries["extra/note.txt"] = b"\xff"
        graph["guards_code"] = [CALL.format(str(marker))]

    torch.export.save(export(torch.nn.Linear(2, 1), (3, 2)), path)
    rewrite(path, change)
    loading.check_trusted(str(path), "torch", trust=False, description="it")
    program = loading.load_object(str(path), "torch")
    predict = predictors.make_predictor(program, "torch", method="predict")
    assert predict(torch.ones(4, 2).numpy())[""].shape == (4, 1)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps(1), b"zip", b"json"])
def test_damaged_torch_programs_are_named(tmp_path: Path, content: bytes) -> None:
    if content == b"json":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("program/models/model.json", "[]")
        content = buffer.getvalue()
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelDamaged, match=r"model\.pt2"):
        loading.check_trusted(str(path), "torch", trust=False, description="it")


def positions(document: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of each value of a JSON document."""
    places, waiting = [], [document]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            places.append((container, key))
            if isinstance(container[key], dict | list):
                waiting.append(container[key])
    return places


def test_hostile_values_at_any_place_of_a_program_run_nothing(tmp_path: Path) -> None:
    """A few places are drawn in each run; each is refused, damaged, or without effect."""
    marker, path = tmp_path / "marker", tmp_path / "model.pt2"
    call = CALL.format(str(marker))
    texts = json.dumps([1, {"type": "os.mkdir", "context": call, "children_spec": []}])
    structures = json.dumps([1, {"type": "builtins.dict", "context": call, "children_spec": []}])
    hostile: list[Any] = [
        call,
        f"Integer({call})",
        "torch.ops.aten.from_file.default",
        "os.mkdir",
        texts,
    ]
    hostile += [structures, {"as_expr": {"expr_str": call}}, {"as_custom_obj": {"class_fqn": call}}]
    hostile += [{"as_operator": "os.mkdir"}, [], {}, 7, None]
    torch.export.save(export(Columns(), (3,), (3,)), path)
    original, outcomes = path.read_bytes(), set()
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        count = len(positions(json.loads(archive.read(f"{root}/models/model.json"))))
    for number in random.sample(range(count), 60):
        for value in random.sample(hostile, 2):
            path.write_bytes(original)

            def change(
                _: dict[str, Any], graph: Any, *, number: int = number, value: Any = value
            ) -> None:
                container, key = positions(graph)[number]
                container[key] = value

            rewrite(path, change)
            try:
                loading.load_object(str(path), "torch")
                outcomes.add("loaded")
            except (UntrustedModel, ModelDamaged) as error:
                outcomes.add(type(error).__name__)
            assert not marker.exists(), (number, value)
    assert "UntrustedModel" in outcomes


@pytest.mark.timeout(60)
def test_shapes_that_take_exponential_time_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(export(torch.nn.Linear(2, 1), (3, 2)), path)
    plain = path.read_bytes()
    for text in ("1" * 900 + "!", "a1" * 450 + "!", "(" * 999, "Max(" * 200, "9*" * 499 + "9", "("):
        path.write_bytes(plain)

        def change(_: dict[str, Any], graph: Any, *, text: str = text) -> None:
            values = graph["graph_module"]["graph"]["tensor_values"]
            next(iter(values.values()))["sizes"] = [{"as_expr": {"expr_str": text}}]

        rewrite(path, change)
        with pytest.raises((UntrustedModel, ModelDamaged)):
            loading.load_object(str(path), "torch")


def test_programs_with_two_meanings_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(export(torch.nn.Linear(2, 1), (3, 2)), path)
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/models/model.json", "{}")
    with pytest.raises(ModelDamaged, match="two entries"):
        loading.load_object(str(path), "torch")
    assert root != "other"

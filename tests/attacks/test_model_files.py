"""Model files that contain code are refused before Keras imports or builds anything."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore.errors import ModelDamaged, UntrustedModel
from featurestore.experiments.models import keras_files, loading, spark_pipelines

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytestmark = pytest.mark.tensorflow
FLAVORS = ["keras", "tf_keras"]


def image_layers(layers: Any, keras: Any) -> list[Any]:
    return [
        keras.Input((8, 8, 3)),
        layers.Rescaling(1 / 255.0),
        layers.RandomFlip(),
        layers.Normalization(mean=0.0, variance=1.0),
        layers.Conv2D(4, 3, padding="same", kernel_constraint="max_norm"),
        layers.BatchNormalization(),
        layers.DepthwiseConv2D(3),
        layers.SeparableConv2D(4, 2, activation="relu"),
        layers.MaxPooling2D(2),
        layers.UpSampling2D(2),
        layers.ZeroPadding2D(1),
        layers.Cropping2D(1),
        layers.SpatialDropout2D(0.1),
        layers.LeakyReLU(),
        layers.PReLU(),
        layers.GroupNormalization(2),
        layers.GlobalAveragePooling2D(),
        layers.Dense(2, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.1), dtype="float64"),
        layers.Softmax(),
    ]


def sequence_layers(layers: Any, keras: Any) -> list[Any]:
    cells = [layers.LSTMCell(4), layers.GRUCell(4)]
    return [
        keras.Input((6, 4)),
        layers.GRU(4, return_sequences=True),
        layers.RNN(cells, return_sequences=True),
        layers.TimeDistributed(layers.Dense(4, activation="tanh")),
        layers.LayerNormalization(),
        layers.GaussianNoise(0.1),
        layers.Conv1D(4, 2, activation=keras.activations.gelu),
        layers.GlobalMaxPooling1D(),
        layers.Dense(4, activation=layers.LeakyReLU()),
        layers.RepeatVector(3),
        layers.EinsumDense("abc,cd->abd", output_shape=(3, 4)),
        layers.Flatten(),
        layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.5)),
    ]


def network(flavor: str) -> Any:
    """Return a network of Keras layers, wrappers, operations and lookups."""
    keras = pytest.importorskip(flavor)
    layers = keras.layers
    number, word = keras.Input((4, 3), name="number"), keras.Input((1,), dtype="string", name="w")
    hidden = layers.Bidirectional(layers.LSTM(4, kernel_regularizer="l2"))(number)
    attended = layers.MultiHeadAttention(2, 3)(number, number)
    hidden = layers.Concatenate()(
        [hidden, layers.Flatten()(layers.Attention()([attended, number]))]
    )
    hidden = layers.Dense(4, activation=keras.activations.gelu, kernel_initializer="he_normal")(
        hidden
    )
    code = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(word)
    text = layers.TextVectorization(vocabulary=["x"], output_sequence_length=3)(word)
    text = layers.LSTM(2)(layers.Embedding(4, 2, mask_zero=True)(text))
    hidden = layers.Concatenate()([hidden, code, text]) * np.ones(1, "float32")
    if flavor == "keras":
        hidden = keras.ops.where(hidden > 0, keras.ops.sigmoid(hidden), 0.5)[:, :4]
    else:
        import tensorflow as tf

        hidden = tf.where(hidden > 0, tf.math.sigmoid(hidden), 0.5)[:, :4]
    inner = keras.Sequential([keras.Input((4,)), layers.Dropout(0.1), layers.Dense(1)])
    model = keras.Model([number, word], inner(hidden))
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse")
    return model


@pytest.mark.parametrize("flavor", FLAVORS)
def test_plain_keras_networks_need_no_trust(tmp_path: Path, flavor: str) -> None:
    keras = pytest.importorskip(flavor)
    models = [network(flavor)]
    models += [
        keras.Sequential(make(keras.layers, keras)) for make in (image_layers, sequence_layers)
    ]
    for number, model in enumerate(models):
        path = str(tmp_path / f"model{number}.keras")
        model.save(path)
        assert loading.detect_flavor(path) == flavor
        loaded = loading.load_object(path, flavor)
        for array, same in zip(model.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(array, same)


def positions(config: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of each value of a configuration."""
    places, waiting = [], [config]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            if key == "compile_config":  # not loaded
                continue
            places.append((container, key))
            if isinstance(container[key], dict | list):
                waiting.append(container[key])
    return places


def hostile_objects(canary: Path) -> list[dict[str, Any]]:
    """Return described objects that import a module, call a function or run byte code."""
    function = {"class_name": "function", "config": "pipepager", "module": "pydoc"}
    typespec = {"class_name": "__typespec__", "spec_name": "Layer", "module": "canary"}
    return [
        *attacks(canary).values(),
        {**function, "registered_name": "Custom>Adam"},
        {**function, "class_name": "Custom>Adam", "registered_name": "Custom>Adam"},
        {"class_name": "Lambda", "module": "keras.layers", "config": {"function": function}}
        | {"registered_name": "Custom>Adam"},
        {"class_name": "Custom>Adam", "module": "canary", "config": {}, "registered_name": "x"},
        {"class_name": "Dense", "module": "canary", "config": {}, "registered_name": "Dense"},
        {"class_name": "Dense", "module": "keras.layers.canary", "config": {}},
        {
            "class_name": "Dense",
            "module": "keras.layers",
            "config": {},
            "registered_name": "Lambda",
        },
        {**typespec, "config": [], "registered_name": None},
        {**typespec, "config": {}, "registered_name": "Custom>Adam"},
        {"class_name": "__class_type__", "config": {"class_name": "Popen", "module": "canary"}},
        {"class_name": "__lambda__", "config": {"value": ["4wEAAAA=", None, None]}},
        {"class_name": "__tensor__", "config": {"value": [function], "dtype": "float32"}},
        {"class_name": "__numpy__", "config": {"value": [1], "dtype": "V1000000000000"}},
        {"class_name": "__numpy__", "config": {"value": [1], "dtype": {"a": 1}}},
        {"class_name": "__slice__", "config": {"start": function, "stop": None, "step": None}},
        {"class_name": "get_file", "module": "keras.utils", "config": {"origin": "http://x"}},
        {"module": "canary", "config": {}},
        {"class_name": ["Dense"], "module": {"a": 1}, "config": 7},
        {"class_name": None, "config": {}},
    ]


# Texts that Keras replaces by what they name, by their key.
HOSTILE_TEXTS = {
    "module": ["canary", "pydoc", "keras.src.utils.file_utils", "keras.utils", "keras", ""],
    "class_name": ["Lambda", "TFSMLayer", "get_file", "Custom>Adam", "Popen", "a.b", ""],
    "registered_name": ["Custom>Adam", "Lambda", "canary", ""],
    "activation": ["deserialize", "get", "Lambda", "canary"],
    "kernel_initializer": ["get", "deserialize", "/etc/passwd"],
    "vocabulary": ["/etc/hostname", "gs://bucket/words", "http://127.0.0.1:9/words"],
    "function": ["io.write_file", "io.read_file", "py_function", "keras.activations.deserialize"],
    "spec_name": ["Layer"],
    "encoding": ["canary", "idna"],
}


@pytest.mark.parametrize("flavor", FLAVORS)
def test_hostile_values_at_any_place_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavor: str
) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "canary.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    keras = pytest.importorskip(flavor)
    path = tmp_path / "model.keras"
    network(flavor).save(path)
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    objects, count = itertools.cycle(hostile_objects(canary)), 0
    cases: list[tuple[Any, Any, Any]] = []
    for container, key in positions(config):
        texts = HOSTILE_TEXTS.get(str(key), []) if isinstance(container, dict) else []
        cases += [(container, key, text) for text in texts if container[key] != text]
        cases.append((container, key, next(objects)))
    # Some cases pass through the whole path of a file, drawn again in each run.
    loaded = set(random.sample(range(len(cases)), 40))
    for number, (container, key, hostile) in enumerate(cases):
        value, container[key] = container[key], hostile
        if number in loaded:
            rewritten(path, config)
            with pytest.raises((UntrustedModel, ModelDamaged)):
                loading.load_object(str(path), flavor)
        else:
            is_root_class = container is config and key == "class_name" and type(hostile) is not str
            with pytest.raises(ValueError) if is_root_class else contextlib.nullcontext():
                parts = list(keras_files.find_config_code(config, keras, flavor))
                assert parts, (key, hostile)
        container[key] = value
        count += 1
    assert count > 500
    assert not canary.exists()
    assert "canary" not in sys.modules


@pytest.mark.parametrize("flavor", FLAVORS)
def test_networks_that_keras_would_build_for_ever_are_refused(tmp_path: Path, flavor: str) -> None:
    path = tmp_path / "model.keras"
    network(flavor).save(path)
    config = json.loads(entries(path)["config.json"])
    layers = config["config"]["layers"]
    # A layer without which others cannot be built, and an input that is its own.
    for remaining in (layers[1:], [each for each in layers if each["class_name"] != "Concatenate"]):
        config["config"]["layers"] = remaining
        rewritten(path, config)
        with pytest.raises(UntrustedModel, match="the inputs of the layer"):
            loading.load_object(str(path), flavor)
    concatenation = next(each for each in layers if each["class_name"] == "Concatenate")
    name, own = concatenation["name"], json.dumps(concatenation["inbound_nodes"])
    for number in (0, 1, 7, -1):
        text = re.sub(r'\["[^"]+", \d+, 0', f'["{name}", {number}, 0', own)
        changed = {**concatenation, "inbound_nodes": json.loads(text)}
        config["config"]["layers"] = [changed if each is concatenation else each for each in layers]
        rewritten(path, config)
        with pytest.raises(UntrustedModel, match="the inputs of the layer"):
            loading.load_object(str(path), flavor)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_own_registered_layers_need_no_trust(tmp_path: Path, flavor: str) -> None:
    keras = pytest.importorskip(flavor)

    @keras.saving.register_keras_serializable("tests")
    class Doubled(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, values: Any) -> Any:
            return values * 2.0

    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((2,)), Doubled(name="d")]).save(path)
    model = loading.load_object(str(path), flavor)
    np.testing.assert_array_equal(model.predict_on_batch(np.ones((1, 2), "float32")), [[2.0, 2.0]])
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    own = config["config"]["layers"][1]
    for change in ({"class_name": "Lambda"}, {"module": "pydoc"}, {"class_name": "function"}):
        config["config"]["layers"][1] = {**own, **change}
        rewritten(path, config)
        with pytest.raises(UntrustedModel):
            loading.load_object(str(path), flavor)


def small(flavor: str, path: Path) -> dict[str, Any]:
    """Save a network of one layer and return its configuration."""
    keras = pytest.importorskip(flavor)
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="d")]).save(path)
    with zipfile.ZipFile(path) as archive:
        return dict(json.loads(archive.read("config.json")))


def rewritten(path: Path, config: object) -> None:
    """Replace the configuration in a Keras file."""
    write_entries(path, {**entries(path), "config.json": json.dumps(config).encode()})


def attacks(canary: Path) -> dict[str, dict[str, Any]]:
    """Return layers that run a command, import a module, or read or write a file."""
    shell = {"text": "x", "cmd": f"touch {canary}"}
    pipe = {"module": "pydoc", "class_name": "function", "config": "pipepager"}
    pipe["registered_name"] = "function"
    return {
        "lambda that names a function": {
            "module": "keras.layers",
            "class_name": "Lambda",
            "config": {"name": "l", "function": pipe, "arguments": shell},
        },
        "lambda of byte code": {
            "module": "keras.layers",
            "class_name": "Lambda",
            "config": {
                "name": "l",
                "function": {"class_name": "__lambda__", "config": {"code": "4wEAAAA="}},
            },
        },
        "activation that is a function": {
            "module": "keras.layers",
            "class_name": "Activation",
            "config": {"name": "a", "activation": pipe},
        },
        "module that is imported": {"module": "canary", "class_name": "Layer", "config": {}},
        "class of a module of Python": {
            "module": "subprocess",
            "class_name": "Popen",
            "config": {"args": ["touch", str(canary)]},
        },
        "private module of Keras": {
            "module": "keras.src.utils.file_utils",
            "class_name": "get_file",
            "config": {},
        },
        "public function of Keras": {
            "module": "keras.utils",
            "class_name": "get_file",
            "config": {"fname": str(canary), "origin": "file:///etc/hostname"},
        },
        "operation that writes a file": {
            "module": "tf_keras.src.layers.core.tf_op_layer",
            "class_name": "TFOpLambda",
            "config": {"name": "w", "function": "io.write_file"},
        },
        "graph operation": {"class_name": "TensorFlowOpLayer", "config": {"node_def": ""}},
        "another model": {
            "module": "keras.layers",
            "class_name": "TFSMLayer",
            "config": {"filepath": str(canary)},
        },
        "vocabulary in a file": {
            "module": "keras.layers",
            "class_name": "TextVectorization",
            "config": {"name": "t", "vocabulary": "/etc/hostname"},
        },
    }


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("depth", ["layer", "wrapped layer", "inner model", "in compile_config"])
def test_code_in_files_of_keras_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavor: str, depth: str
) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "canary.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "model.keras"
    plain = small(flavor, path)
    for name, layer in attacks(canary).items():
        layer = {"registered_name": None, **layer}
        config = json.loads(json.dumps(plain))
        if depth == "wrapped layer":
            layer = {
                "module": "keras.layers",
                "class_name": "TimeDistributed",
                "config": {"name": "w", "layer": layer},
            }
        elif depth == "inner model":
            layer = json.loads(json.dumps(plain)) | {"config": {"name": "m", "layers": [layer]}}
        elif depth == "in compile_config":
            layer = json.loads(json.dumps(plain)) | {"compile_config": {"loss": layer}}
        config["config"]["layers"].append(layer)
        rewritten(path, config)
        if depth == "in compile_config":
            # Losses are not loaded.
            with contextlib.suppress(ModelDamaged):
                loading.load_object(str(path), flavor)
        else:
            with pytest.raises(UntrustedModel, match="trust=True"):
                loading.load_object(str(path), flavor)
        assert not canary.exists(), name


def write_weights(root: Any, attack: str) -> None:
    """Add an entry to weights that is not a plain number of their file."""
    h5py = pytest.importorskip("h5py")
    if attack == "link":
        root["outside"] = h5py.ExternalLink("/etc/hostname", "/")
    elif attack == "soft link":
        root["outside"] = h5py.SoftLink("/layers")
    elif attack == "cycle":
        root["outside"] = root["/"]
    elif attack == "external":
        root.create_dataset("outside", (8,), "u1", external=[("/etc/hostname", 0, 8)])
    elif attack == "virtual":
        layout = h5py.VirtualLayout((8,), "u1")
        layout[:] = h5py.VirtualSource("/etc/hostname", "d", (8,))
        root.create_virtual_dataset("outside", layout)
    elif attack == "sparse":
        root.create_dataset("outside", (1 << 40,), "f4", chunks=(1 << 20,))
    elif attack == "compressed":
        root.create_dataset("outside", data=np.zeros(1 << 20), compression="gzip")
    else:
        root.create_dataset("outside", data=["a"], dtype=h5py.string_dtype())


@pytest.mark.parametrize("flavor", FLAVORS)
def test_weights_outside_of_their_file_need_trust(tmp_path: Path, flavor: str) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "model.keras"
    small(flavor, path)
    contents = entries(path)
    weights = tmp_path / "w.h5"
    attacks = ("link", "soft link", "cycle", "external", "virtual", "sparse", "compressed", "text")
    for attack in attacks:
        weights.write_bytes(contents["model.weights.h5"])
        with h5py.File(weights, "a") as root:
            write_weights(root, attack)
        write_entries(path, {**contents, "model.weights.h5": weights.read_bytes()})
        with pytest.raises(UntrustedModel, match="outside"):
            loading.load_object(str(path), flavor)


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_entries(path: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def test_a_file_that_changes_after_its_check_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checked bytes are loaded, although the file has other bytes by then."""
    path, canary = tmp_path / "model.keras", tmp_path / "canary"
    config = small("tf_keras", path)
    plain = path.read_bytes()
    config["config"]["layers"].append(attacks(canary)["lambda that names a function"])
    rewritten(path, config)
    hostile = path.read_bytes()
    path.write_bytes(plain)
    find = keras_files.find_code_objects

    def find_then_replace(content: bytes, flavor: str, *, title: str) -> Any:
        result = find(content, flavor, title=title)
        path.write_bytes(hostile)
        return result

    monkeypatch.setattr(keras_files, "find_code_objects", find_then_replace)
    model = loading.load_object(str(path), "tf_keras")
    assert [layer.name for layer in model.layers] == ["d"]
    assert not canary.exists()


def write_stage(folder: Path, metadata: object) -> None:
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "_SUCCESS").touch()
    (folder / "metadata" / "part-00000").write_text(json.dumps(metadata))


def stage(class_name: str, **parameters: object) -> dict[str, object]:
    return {"class": class_name, "uid": "u", "paramMap": parameters, "sparkVersion": "4.0.0"}


def test_pipelines_load_only_stages_of_their_folder(tmp_path: Path) -> None:
    pipeline, scaler = "pyspark.ml.pipeline.PipelineModel", "org.apache.spark.ml.feature.Scaler"
    path = tmp_path / "pipeline"
    write_stage(path, stage(pipeline, stageUids=["inner", "a_1"], language="Python"))
    write_stage(path / "stages" / "0_inner", stage(pipeline, stageUids=["b"]))
    write_stage(path / "stages" / "1_a_1", stage(scaler))
    write_stage(path / "stages" / "0_inner" / "stages" / "0_b", stage("evil.Code"))
    assert spark_pipelines.find_classes(str(path)) == ["evil.Code", scaler]
    write_stage(tmp_path / "outside", stage("evil.Code"))
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    uids: list[Any] = ["../../outside", "/etc", "..", "", "a/b", "a\x00b", 7, None, {"a": 1}, deep]
    for number, uid in enumerate(uids):
        folder = tmp_path / f"p{number}"
        write_stage(folder, stage(pipeline, stageUids=[uid]))
        with pytest.raises(ModelDamaged):
            spark_pipelines.find_classes(str(folder))
    damaged: list[Any] = [[], None, {}, {"class": 7}, stage(pipeline, stageUids=7)]
    for number, metadata in enumerate(damaged):
        folder = tmp_path / f"m{number}"
        write_stage(folder, metadata)
        with pytest.raises(ModelDamaged):
            spark_pipelines.find_classes(str(folder))


DAMAGED = {
    "deep": "[" * 100_000,
    "cut": "{",
    "no name": '{"class_name": 7}',
    "text": '"x"',
    "null": "null",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_files_without_a_configuration_are_damaged(tmp_path: Path, case: str) -> None:
    path = tmp_path / "model.keras"
    small("keras", path)
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read("metadata.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", metadata)
        archive.writestr("config.json", DAMAGED[case])
    with pytest.raises(ModelDamaged):
        loading.check_trusted(str(path), "keras", trust=False, description="the model")

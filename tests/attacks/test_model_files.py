"""Model files that contain code are refused before Keras imports or builds anything."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore.errors import ModelDamaged, UntrustedModel
from featurestore.experiments.models import keras_files, loading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytestmark = pytest.mark.tensorflow
FLAVORS = ["keras", "tf_keras"]


def network(flavor: str) -> Any:
    """Return a network of Keras layers, wrappers, operations and lookups."""
    keras = pytest.importorskip(flavor)
    layers = keras.layers
    number, word = keras.Input((4, 3), name="number"), keras.Input((1,), dtype="string", name="w")
    hidden = layers.Bidirectional(layers.LSTM(4, kernel_regularizer="l2"))(number)
    hidden = layers.BatchNormalization()(hidden)
    hidden = layers.Dense(4, activation=keras.activations.gelu, kernel_initializer="he_normal")(
        hidden
    )
    code = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(word)
    hidden = layers.Concatenate()([hidden, code]) * 2.0
    if flavor == "keras":
        hidden = keras.ops.sigmoid(hidden)[:, :4]
    else:
        import tensorflow as tf

        hidden = tf.math.sigmoid(hidden)[:, :4]
    inner = keras.Sequential([keras.Input((4,)), layers.Dropout(0.1), layers.Dense(1)])
    model = keras.Model([number, word], inner(hidden))
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse")
    return model


@pytest.mark.parametrize("flavor", FLAVORS)
def test_plain_keras_networks_need_no_trust(tmp_path: Path, flavor: str) -> None:
    model = network(flavor)
    path = str(tmp_path / "model.keras")
    model.save(path)
    assert keras_files.find_code_objects(path, flavor) == []
    loading.check_trusted(path, loading.detect_flavor(path), trust=False, description="model")
    loaded = loading.load_object(path, flavor)
    for array, same in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(array, same)


def small(flavor: str, path: Path) -> dict[str, Any]:
    """Save a network of one layer and return its configuration."""
    keras = pytest.importorskip(flavor)
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="d")]).save(path)
    with zipfile.ZipFile(path) as archive:
        return dict(json.loads(archive.read("config.json")))


def rewritten(path: Path, config: object) -> None:
    """Replace the configuration in a Keras file."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


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
        with pytest.raises(UntrustedModel, match="trust=True"):
            loading.check_trusted(
                str(path), loading.detect_flavor(str(path)), trust=False, description="the model"
            )
        assert not canary.exists(), name


def test_weights_in_external_files_need_trust(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "model.keras"
    small("keras", path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    weights = tmp_path / "w.h5"
    for attack in ("link", "external", "soft link"):
        weights.write_bytes(contents["model.weights.h5"])
        with h5py.File(weights, "a") as root:
            if attack == "link":
                root["outside"] = h5py.ExternalLink("/etc/hostname", "/")
            elif attack == "soft link":
                root["outside"] = h5py.SoftLink("/layers")
            else:
                root.create_dataset("outside", (8,), "u1", external=[("/etc/hostname", 0, 8)])
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**contents, "model.weights.h5": weights.read_bytes()}.items():
                archive.writestr(name, content)
        with pytest.raises(UntrustedModel, match="outside"):
            loading.check_trusted(str(path), "keras", trust=False, description="the model")


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

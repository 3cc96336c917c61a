"""Detection of code in ``.keras`` files before Keras loads them.

Keras builds any class or function that ``config.json`` refers to: Keras 2 imports any module, and
Lambda layers contain bytecode. All references are therefore checked against the public classes of
the installed Keras. Everything else is code, and requires the caller's trust.
"""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from featurestore.errors import ModelDamaged
from featurestore.storage import files

# Public modules whose classes a configuration may refer to.
_MODULES = (
    "",
    "layers",
    "models",
    "initializers",
    "regularizers",
    "constraints",
    "activations",
    "losses",
    "metrics",
    "optimizers",
    "optimizers.schedules",
    "mixed_precision",
    "dtype_policies",
    "random",
)
# Private modules that contain models, by class.
_MODELS = {"Functional": ("models.functional", "engine.functional"), "Sequential": ("models",)}
# Public layers that contain code or open other files.
_CODE = ("Lambda", "TFSMLayer", "TorchModuleWrapper", "FlaxLayer", "JaxLayer", "TensorFlowOpLayer")
# Class names that the format uses to encode plain values.
_VALUES = (
    "__keras_tensor__",
    "__tensor__",
    "__numpy__",
    "__bytes__",
    "__ellipsis__",
    "__slice__",
    "__tuple__",
    "__typespec__",
    "TensorShape",
)
_FUNCTION_MODULES = ("activations", "losses", "metrics")
# TensorFlow operations that only compute: no file access, no Python calls.
_COMPUTING = ("math.", "nn.", "linalg.", "signal.", "__operators__.", "keras.activations.")
# fmt: off
_COMPUTING_NAMES = (
    "broadcast_to", "cast", "clip_by_value", "compat.v1.gather", "compat.v1.transpose",
    "concat", "expand_dims", "gather", "gather_nd", "identity", "image.resize", "one_hot",
    "ones_like", "pad", "repeat", "reshape", "reverse", "shape", "slice", "split", "squeeze",
    "stack", "strided_slice", "tile", "transpose", "unstack", "where", "zeros_like",
)
# fmt: on


def find_code_objects(path: str, flavor: str) -> list[str]:
    """Find the objects of a ``.keras`` file that contain code; empty for pure data.

    Args:
        path: The file, or its URI.
        flavor: ``keras`` or ``tf_keras``.

    Raises:
        ModelDamaged: The file was not written by Keras.
    """
    library = importlib.import_module(flavor)
    try:
        with zipfile.ZipFile(files.open_complete(path)) as archive:
            config = json.loads(archive.read("config.json"))
            refused = _find_external_datasets(archive)
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, OSError) as error:
        raise ModelDamaged(f"{path!r} was not written by Keras: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
        raise ModelDamaged(f"{path!r} has no model configuration.")
    # Models are loaded without the configuration of ``compile``.
    config = {name: value for name, value in config.items() if name != "compile_config"}
    for node in _iter_objects(config):
        if not _is_data(node, library, flavor):
            refused.append(_display_name(node))
    return sorted(set(refused))


def _iter_objects(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects that Keras would build from a configuration, at any depth."""
    # A stack instead of recursion, since the file may be nested deeper than the recursion limit.
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "class_name" in value:
                yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _is_data(node: Mapping[str, Any], library: Any, flavor: str) -> bool:
    """Return True if Keras builds the object from its public classes."""
    name, module, config = node["class_name"], node.get("module"), node.get("config")
    # The file is untrusted, so the types of its values are unknown.
    if not isinstance(name, str) or not (module is None or isinstance(module, str)):
        return False
    if name in _CODE:
        return False
    registered = library.saving.get_custom_objects()
    if node.get("registered_name") in registered or name in registered:
        return True  # code of this process
    if name in _VALUES:
        return True
    if name == "function":
        return module in (None, "builtins") and _is_function(config, library)
    if name in ("TFOpLambda", "SlicingOpLambda"):
        return _is_pure_computation(config)
    if isinstance(config, dict) and isinstance(config.get("vocabulary"), str):
        return False  # the path of a file
    return _is_public(name, module, library, flavor)


def _is_public(name: str, module: str | None, library: Any, flavor: str) -> bool:
    """Return True for a public class, a model class or an operation of the installed Keras."""
    if not name.isidentifier():
        return False
    if module is None:
        return any(_has_class(library, prefix, name) for prefix in _MODULES)
    root, _, submodule = module.partition(".")
    if root not in ("keras", flavor):
        return False
    if not submodule.startswith("src."):
        return submodule in _MODULES and _has_class(library, submodule, name)
    private = submodule.removeprefix("src.")
    if any(private.startswith(prefix) for prefix in _MODELS.get(name, ())) or (
        name == "Sequential" and private == "engine.sequential"
    ):
        return True
    return private.startswith("ops.") and _is_operation(f"{flavor}.{submodule}", name, library)


def _has_class(library: Any, module_path: str, name: str) -> bool:
    """Return True if a public Keras module has a class with this name."""
    module = library
    for attribute in module_path.split("."):
        module = getattr(module, attribute, None) if attribute else module
    return isinstance(getattr(module, name, None), type)


def _is_operation(module: str, name: str, library: Any) -> bool:
    """Return True if an imported Keras module has an operation with this name."""
    # Do not import the module, since the name comes from the untrusted file.
    operation = getattr(sys.modules.get(module), name, None)
    return isinstance(operation, type) and issubclass(operation, library.Operation)


def _is_function(name: object, library: Any) -> bool:
    """Return True for the name of a public activation, loss or metric function."""
    # These two functions build objects from their argument.
    if not isinstance(name, str) or not name.isidentifier() or name in ("get", "deserialize"):
        return False
    return any(
        callable(getattr(getattr(library, module), name, None)) for module in _FUNCTION_MODULES
    )


def _is_pure_computation(config: object) -> bool:
    function = config.get("function") if isinstance(config, dict) else None
    if not isinstance(function, str):
        return False
    return function.startswith(_COMPUTING) or function in _COMPUTING_NAMES


def _display_name(node: Mapping[str, Any]) -> str:
    """Return the display name of an object: its module, class and function."""
    name = f"{node.get('module') or ''}.{node['class_name']}".lstrip(".")
    config = node.get("config")
    if node["class_name"] in ("function", "TFOpLambda", "SlicingOpLambda"):
        function = config.get("function") if isinstance(config, dict) else config
        # Limit the length, since the text of an untrusted file appears in an error message.
        return f"{name} {str(function)[:100]}"
    if isinstance(config, dict) and isinstance(config.get("vocabulary"), str):
        return f"{name} with the file {config['vocabulary'][:100]}"
    return name[:200]


def _find_external_datasets(archive: zipfile.ZipFile) -> list[str]:
    """Return the weight datasets whose values are stored in other files (HDF5 external storage)."""
    if "model.weights.h5" not in archive.namelist():
        return []
    h5py = importlib.import_module("h5py")  # which Keras requires
    outside: list[str] = []
    with archive.open("model.weights.h5") as weights, h5py.File(weights) as root:
        waiting = [root]
        while waiting:
            group = waiting.pop()
            for name in group:
                # Only hard links are certain to stay in this file.
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    outside.append(f"a link {name!r} in its weights")
                    continue
                value = group[name]
                if isinstance(value, h5py.Group):
                    waiting.append(value)
                elif value.external or value.is_virtual:
                    outside.append(f"weights {name!r} in another file")
    return outside

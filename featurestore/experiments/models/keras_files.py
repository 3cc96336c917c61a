"""Checks of ``.keras`` files before Keras loads them.

Keras builds each object that ``config.json`` describes, by its class, its module or its registered
name; Keras 2 imports any module. The check walks through the complete configuration and accepts the
forms that Keras writes, with classes and functions of a fixed list (``keras_names``), and classes
that this process registered. Everything else is code, and requires the caller's trust. A checked
file is loaded from a copy that has only what was checked.

Keras builds a node when the nodes of its inputs exist, and repeats this until none remains. It
never ends if a node refers to a missing node, or to itself, so the order of nodes is checked, too.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from featurestore.errors import ModelDamaged
from featurestore.experiments.models import keras_names as names
from featurestore.experiments.models.archives import read_archive, write_archive
from featurestore.model.json_object import JsonMapping

_CONFIG, _WEIGHTS, _METADATA = "config.json", "model.weights.h5", "metadata.json"
_ASSET = re.compile(r"assets/.+")
# Each level of nesting takes several frames of Python while Keras builds the network.
_MAX_DEPTH = 100
# The keys of a described object. Losses, metrics and optimizers are not loaded.
_COMPILED = "compile_config"
_DESCRIPTION = ("module", "class_name", "config", "registered_name", "shared_object_id")
_KEYS = frozenset((*_DESCRIPTION, "build_config", "name", "inbound_nodes"))
# A dictionary with one of these keys is described as an object, and must be complete.
_MARKS = frozenset(("module", "class_name", "registered_name", "spec_name", "shared_object_id"))
_PLAIN = (str, int, float, bool, type(None))
_TENSORFLOW_FUNCTION = re.compile(names.TENSORFLOW_FUNCTION)
_OPERATION_MODULE = re.compile(names.OPERATION_MODULE)
_OUTSIDE_NAME = re.compile(r"^/|\\|(^|/)\.\.(/|$)")
# The time of the check grows with their square.
_MAX_LAYERS = 5000
_MODELS = ("Functional", "Sequential", "Model")


def find_code_objects(content: bytes, flavor: str, *, title: str) -> tuple[list[str], bytes]:
    """Find the parts of a ``.keras`` file that may run code, and return the file without the rest.

    Args:
        content: The bytes of the file.
        flavor: ``keras`` or ``tf_keras``.
        title: The name of the file, for messages.

    Returns:
        The parts, empty for pure data, and the bytes to load if there are none.

    Raises:
        ModelDamaged: The file was not written by Keras.
    """
    library = importlib.import_module(flavor)
    entries = read_archive(content, title=title, writer="Keras")
    try:
        config = json.loads(entries[_CONFIG])
        code = list(find_config_code(config, library, flavor))
        if _WEIGHTS in entries:
            code += _find_weights_code(entries[_WEIGHTS])
    except (KeyError, ValueError, RecursionError, OSError, RuntimeError) as error:
        raise ModelDamaged(f"{title} was not written by Keras: {error}") from error
    for name in entries:
        if name not in (_CONFIG, _WEIGHTS, _METADATA) and not _ASSET.fullmatch(name):
            code.append(f"the file {name[:100]!r}")
    if code:
        return sorted(set(code)), content
    return [], write_archive({**entries, _CONFIG: json.dumps(config).encode()})


def find_config_code(config: Any, library: Any, flavor: str) -> Iterator[str]:
    """Yield the parts of a configuration that are not data; remove what is not loaded.

    Raises:
        ValueError: The configuration does not describe a network.
    """
    if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
        raise ValueError("it has no model configuration")
    # A stack instead of recursion, since the file may be nested deeper than the recursion limit.
    waiting: list[tuple[Any, str, int]] = [(config, "", 0)]
    while waiting:
        value, key, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            yield f"more than {_MAX_DEPTH} nested values"
            return
        if isinstance(value, dict):
            value.pop(_COMPILED, None)
            if not _MARKS.isdisjoint(value) and not _is_data(value, library, flavor):
                yield _display_name(value)
                continue
            yield from find_impossible_nodes(value, flavor)
            waiting += [(item, name, depth + 1) for name, item in value.items()]
        elif isinstance(value, list):
            # Words of a vocabulary are not names of files.
            waiting += [(item, "", depth + 1) for item in value]
        elif isinstance(value, str) and not _is_plain_text(key, value, library):
            yield f"the {key[:50]} {value[:100]!r}"


def _is_data(node: JsonMapping, library: Any, flavor: str) -> bool:
    """Return True if a described object has a form that Keras writes and a known class."""
    # The file is untrusted, so the types of its values are unknown.
    texts = (node.get("module"), node.get("registered_name"), node.get("class_name", 0))
    if not all(isinstance(text, str | type(None)) for text in texts):
        return False
    name = node["class_name"]
    if name == "__typespec__":
        return flavor == "tf_keras" and _is_type_spec(node)
    if name == "TensorShape":
        return set(node) == {"class_name", "items"} and _is_array(node["items"])
    if name in _FORMS:
        return set(node) == {"class_name", "config"} and _FORMS[name](node["config"])
    if not _KEYS.issuperset(node) or "config" not in node:
        return False
    if not isinstance(node.get("shared_object_id"), int | type(None)):
        return False
    if name == "function":
        return _is_function(node, library)
    return _is_known_class(node, library, flavor)


def _is_known_class(node: JsonMapping, library: Any, flavor: str) -> bool:
    """Return True for a class of the list, or a class that this process registered."""
    name, module, config = node["class_name"], node.get("module"), node["config"]
    registered_class = _find_own_object(node.get("registered_name", name), library)
    if registered_class is not None:
        return registered_class.__name__ == name and module in (None, registered_class.__module__)
    if node.get("registered_name") not in (None, name) or not isinstance(config, dict):
        return False
    if module is None:
        return any(name in classes for classes in names.CLASSES.values())
    if flavor == "tf_keras":
        # Its files name its modules with both roots.
        module = re.sub(r"^tf_keras(?=\.|$)", "keras", module)
        if name in ("TFOpLambda", "SlicingOpLambda"):
            function = config.get("function")
            if module != names.TENSORFLOW_OPERATIONS or not isinstance(function, str):
                return False
            return bool(_TENSORFLOW_FUNCTION.fullmatch(function))
    elif _OPERATION_MODULE.fullmatch(module):
        operation = vars(importlib.import_module(module)).get(name)
        return isinstance(operation, type) and issubclass(operation, library.Operation)
    return name in names.CLASSES.get(module, ())


def _is_function(node: JsonMapping, library: Any) -> bool:
    """Return True for a public activation, or a function that this process registered."""
    name, module = node["config"], node.get("module")
    if not isinstance(name, str) or node.get("registered_name") not in (None, name):
        return False
    registered_function = _find_own_object(name, library)
    if registered_function is not None:
        return module in (None, "builtins", registered_function.__module__)
    return name in names.ACTIVATIONS and module in (None, "builtins", "keras.activations")


def _find_own_object(registered_name: object, library: Any) -> Any | None:
    """Return a class or function that this process registered, which is not part of Keras."""
    if not isinstance(registered_name, str):
        return None
    registered_object = library.saving.get_registered_object(registered_name)
    root = str(getattr(registered_object, "__module__", "")).partition(".")[0]
    # Keras 2 registers its optimizers and two layers. These are checked as classes of Keras.
    return None if root in ("keras", "tf_keras", "tensorflow") else registered_object


def _is_type_spec(node: JsonMapping) -> bool:
    """Return True for the type of a tensor, whose module is imported by its name."""
    return (
        set(node) == {"class_name", "module", "config", "registered_name", "spec_name"}
        and node["registered_name"] is None
        and isinstance(node["spec_name"], str)
        and node["module"] in names.TYPE_SPECS.get(node["spec_name"], ())
        and isinstance(node["config"], list)
        and _is_array(node["config"])
    )


def _is_constant(config: Any) -> bool:
    return (
        _has_keys(config, "value", "dtype")
        and isinstance(config["dtype"], str)
        and config["dtype"] in names.DTYPES
        and _is_array(config["value"])
    )


def _has_keys(config: Any, *keys: str) -> bool:
    """Return True for an object with these keys and no others."""
    return isinstance(config, dict) and set(config) == set(keys)


def _is_array(value: Any) -> bool:
    """Return True for a plain value or nested lists of plain values."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif not isinstance(item, _PLAIN):
            return False
    return True


# Class names that encode values, with the check of their configuration.
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "__keras_tensor__": lambda config: (
        isinstance(config, dict) and set(config) <= {"shape", "dtype", "keras_history"}
    ),
    "__tensor__": _is_constant,
    "__numpy__": _is_constant,
    "__bytes__": lambda config: _has_keys(config, "value") and type(config["value"]) is str,
    "__ellipsis__": lambda config: config == {},
    "__slice__": lambda config: _has_keys(config, "start", "stop", "step"),
}


def _is_plain_text(key: str, value: str, library: Any) -> bool:
    """Return True if a string is a value, or the name of a public object that Keras uses."""
    if key == "vocabulary":
        return False  # the path or address of a file
    if key == "encoding":
        return value.lower() in ("utf-8", "utf8")  # Python imports a codec by its name
    if key == "name":
        return not _OUTSIDE_NAME.search(value)  # part of the paths of the layer's files
    for ending, allowed in names.NAMES_BY_KEY.items():
        if key.endswith(ending):
            return value in allowed or _find_own_object(value, library) is not None
    return True


def _display_name(node: JsonMapping) -> str:
    """Return the display name of an object: its module, class and function."""
    # Limit the length, since the text of an untrusted file appears in an error message.
    texts = [str(node[key])[:80] for key in ("module", "class_name", "spec_name") if node.get(key)]
    name = ".".join(texts) or f"an object with the keys {sorted(map(str, node))[:5]}"
    config = node.get("config")
    if node.get("class_name") == "function":
        return f"{name} {str(config)[:100]}"
    if isinstance(config, dict) and isinstance(config.get("function"), str):
        return f"{name} {config['function'][:100]}"
    if node.get("registered_name") not in (None, node.get("class_name")):
        return f"{name} registered as {str(node['registered_name'])[:100]!r}"
    return name


def _find_weights_code(weights: bytes) -> list[str]:
    """Return the datasets whose values are not plain numbers in the file."""
    h5py = importlib.import_module("h5py")  # which Keras requires
    code: list[str] = []
    with h5py.File(io.BytesIO(weights), "r") as root:
        waiting, addresses = [root], {h5py.h5o.get_info(root.id).addr}
        while waiting:
            group = waiting.pop()
            for name in group:
                shown = str(name)[:100]
                # Only hard links are certain to stay in this file.
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    code.append(f"a link {shown!r} in its weights")
                    continue
                value = group[name]
                # A group may be an entry of its own descendants.
                address = h5py.h5o.get_info(value.id).addr
                if address in addresses:
                    code.append(f"a second link {shown!r} in its weights")
                    continue
                addresses.add(address)
                if isinstance(value, h5py.Group):
                    waiting.append(value)
                elif not isinstance(value, h5py.Dataset) or not _holds_own_numbers(value):
                    code.append(f"weights {shown!r} that are not plain numbers of this file")
    return code


def _holds_own_numbers(dataset: Any) -> bool:
    """Return True if a dataset stores all its numbers, uncompressed, in its own file."""
    if dataset.external or dataset.is_virtual or dataset.dtype.kind not in "biufcV":
        return False
    if dataset.dtype.hasobject or dataset.dtype.names is not None:
        return False
    # HDF5 loads filters as plugins, and invents values that no chunk stores.
    creation = dataset.id.get_create_plist()
    is_stored = bool(dataset.id.get_storage_size() >= dataset.nbytes)
    return is_stored and creation.get_nfilters() == 0


def find_impossible_nodes(network: Any, flavor: str) -> list[str]:
    """Return the layers of a network whose nodes can never be built.

    Args:
        network: The ``config`` of a network; it may have any form.
        flavor: ``keras`` or ``tf_keras``.

    >>> layer = {"class_name": "Dense", "config": {}, "name": "d", "inbound_nodes": [[["d", 0, 0]]]}
    >>> find_impossible_nodes({"layers": [layer]}, "keras")
    ["the inputs of the layer 'd'"]
    """
    layers = network.get("layers") if isinstance(network, dict) else None
    if not isinstance(layers, list):
        return []
    if len(layers) > _MAX_LAYERS:
        return [f"more than {_MAX_LAYERS} layers"]
    waiting: dict[str, list[set[tuple[str, int]]]] = {}
    built: set[tuple[str, int]] = set()
    for layer in layers:
        if not isinstance(layer, dict) or not isinstance(layer.get("inbound_nodes"), list):
            continue
        name = str(layer.get("name"))
        waiting[name] = [set(_references(node)) for node in layer["inbound_nodes"]]
        if layer.get("class_name") == "InputLayer":
            built.add((name, 0))
    counts = dict.fromkeys(waiting, 0)
    if flavor == "tf_keras":
        counts |= {
            str(layer.get("name")): _first_index(layer)
            for layer in layers
            if isinstance(layer, dict)
        }
    has_progress = True
    while has_progress:
        has_progress = False
        for name, nodes in waiting.items():
            while nodes and nodes[0] <= built:
                nodes.pop(0)
                built.add((name, counts[name]))
                counts[name] += 1
                has_progress = True
    return [f"the inputs of the layer {name[:100]!r}" for name, nodes in waiting.items() if nodes]


def _first_index(layer: JsonMapping) -> int:
    """Return the index of a layer's first node: 1 for networks with inputs in Keras 2, else 0."""
    config = layer.get("config")
    layers = config.get("layers") if isinstance(config, dict) else None
    if layer.get("class_name") not in _MODELS or not isinstance(layers, list) or not layers:
        return 0
    return int(isinstance(layers[0], dict) and layers[0].get("class_name") == "InputLayer")


def _references(node: Any) -> Iterator[tuple[str, int]]:
    """Yield the nodes, by layer and index, that are inputs of a node."""
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            if len(value) >= 3 and isinstance(value[0], str) and type(value[1]) is int:
                if value[0] != "_CONSTANT_VALUE":
                    yield value[0], value[1]
                waiting += value[3:]
            else:
                waiting += value

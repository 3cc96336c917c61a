"""The order of nodes in networks of Keras: whether each node can be built.

Keras builds a node when the nodes of its inputs exist, and repeats this until none remains. It
never ends if a node refers to a missing node, or to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# The time of the check grows with their square.
_MAX_LAYERS = 5000
_MODELS = ("Functional", "Sequential", "Model")


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


def _first_index(layer: Mapping[str, Any]) -> int:
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

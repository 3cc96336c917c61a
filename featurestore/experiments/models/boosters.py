"""Boosters of XGBoost (``.json``, ``.ubj``) and LightGBM (``.txt``): checks of their trees, and loading.

Such a file has no code, but both libraries follow its indexes without checks: a wrong index reads
other memory, a cycle never ends, and LightGBM ends the process for text that it cannot parse. A
booster is therefore loaded from a copy that has only trees whose indexes are checked. Other boosters
require the caller's trust. UBJSON (https://ubjson.org) is the binary JSON of ``.ubj`` files.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument, ModelDamaged
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.readers.columns import NumpyArray

ENDINGS = (".json", ".ubj", ".txt")
_XGBOOST_START = re.compile(rb'\s*\{\s*"(learner|version)"|\{L\0{7}\x07(learner|version)')
_LIGHTGBM_START = re.compile(rb"tree\r?\nversion=")
_HEADER_BYTES = 64
# The arrays of a tree with one item per node, and those of categorical splits.
_NODE_ARRAYS = (
    *("base_weights", "default_left", "left_children", "loss_changes", "parents"),
    *("right_children", "split_conditions", "split_indices", "split_type", "sum_hessian"),
)
# The parent of the root, and the feature of a deleted node.
_NO_NODE = 2**31 - 1
_SEGMENTS = ("categories_nodes", "categories_segments", "categories_sizes")
# fmt: off
_LIGHTGBM_HEADER = (
    "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
    "average_output", "feature_names", "feature_infos",
)
_LEAF_ARRAYS = ("leaf_value", "leaf_weight", "leaf_count")
_SPLIT_ARRAYS = (
    "split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child",
    "internal_value", "internal_weight", "internal_count",
)
_CATEGORY_ARRAYS = ("cat_boundaries", "cat_threshold")
# fmt: on
_LIGHTGBM_TREE = (
    *("num_leaves", "num_cat", *_SPLIT_ARRAYS, *_LEAF_ARRAYS, *_CATEGORY_ARRAYS),
    *("is_linear", "shrinkage"),
)
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*(e[-+]?[0-9]+)?|inf|nan)")
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_INTEGERS = "iUIlL"
_CONSTANTS = {"Z": None, "T": True, "F": False}


def decode_ubjson(content: bytes) -> Any:
    r"""Return the value of a UBJSON document; floats keep their 32 or 64 bits.

    Raises:
        ValueError: The document is invalid, truncated or has bytes after its end.
        RecursionError: The document is nested too deeply.

    >>> decode_ubjson(b"{i\x01a[U\x07Td?\x00\x00\x00]}")
    {'a': [7, True, 0.5]}
    """
    decoder = _UbjsonDecoder(content)
    value = decoder.read_value(decoder.read_marker())
    if decoder.position != len(content):
        raise ValueError(f"{len(content) - decoder.position} bytes follow its end")
    return value


class _UbjsonDecoder:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def read_value(self, marker: str) -> Any:
        """Return the value that begins after its marker."""
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in _NUMBERS:
            return self._read_numbers(marker, 1)[0]
        if marker == "S":
            return self._read_text(self.read_marker())
        if marker == "C":
            return self._take(1).decode()
        if marker == "[":
            return self._read_array()
        if marker == "{":
            return self._read_object()
        raise ValueError(f"unknown type {marker!r} at {self.position - 1}")

    def read_marker(self) -> str:
        """Return the next type, without padding."""
        marker = self._take(1).decode("latin-1")
        return marker if marker != "N" else self.read_marker()

    def _read_array(self) -> list[Any]:
        marker = self.read_marker()
        item_type = None
        if marker == "$":
            item_type = self.read_marker()
            marker = self.read_marker()
        if marker == "#":
            count = self._read_length(self.read_marker())
            if item_type is not None:
                return self._read_numbers(item_type, count)
            return [self.read_value(self.read_marker()) for _ in range(count)]
        items = []
        while marker != "]":
            items.append(self.read_value(marker))
            marker = self.read_marker()
        return items

    def _read_object(self) -> JsonDict:
        values: JsonDict = {}
        marker = self.read_marker()
        while marker != "}":
            name = self._read_text(marker)
            if name in values:
                raise ValueError(f"two values of {name[:50]!r}")
            values[name] = self.read_value(self.read_marker())
            marker = self.read_marker()
        return values

    def _read_text(self, marker: str) -> str:
        return self._take(self._read_length(marker)).decode()

    def _read_length(self, marker: str) -> int:
        if marker not in _INTEGERS:
            raise ValueError(f"a length of the type {marker!r} at {self.position - 1}")
        return int(self._read_numbers(marker, 1)[0])

    def _read_numbers(self, marker: str, count: int) -> list[Any]:
        if marker not in _NUMBERS:
            raise ValueError(f"numbers of the type {marker!r} at {self.position - 1}")
        dtype = np.dtype(_NUMBERS[marker])
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _take(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if size < 0 or self.position > len(self.content):
            raise ValueError(f"it is truncated at {start}")
        return self.content[start : self.position]


def detect_booster(start: bytes) -> str | None:
    """Return the library that wrote a file by its first bytes, or None for another file.

    >>> detect_booster(b'{"learner":{"attributes":{}'), detect_booster(b'{"loss": 0.5}')
    ('xgboost', None)
    """
    if _XGBOOST_START.match(start[:_HEADER_BYTES]):
        return "xgboost"
    return "lightgbm" if _LIGHTGBM_START.match(start[:_HEADER_BYTES]) else None


def find_unchecked_parts(content: bytes, flavor: str, *, title: str) -> tuple[list[str], bytes]:
    """Check the trees of a booster, and return the parts that cannot be checked.

    Args:
        content: The bytes of the file.
        flavor: ``xgboost`` or ``lightgbm``.
        title: The name of the file, for messages.

    Returns:
        The parts, empty for trees, and the bytes to load if there are none.

    Raises:
        ModelDamaged: The file was not written by its library, or a tree has a wrong index.
    """
    check = _check_xgboost if flavor == "xgboost" else _check_lightgbm
    try:
        return check(content)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, OverflowError) as error:
        raise ModelDamaged(f"{title} is not a booster of {flavor}: {error!r}") from error


def load_booster(content: bytes, flavor: str) -> Any:
    """Load a booster from the bytes of its file."""
    library = importlib.import_module(flavor)
    if flavor == "xgboost":
        return library.Booster(model_file=bytearray(content))
    return library.Booster(model_str=content.decode())


def make_predictor(booster: Any, flavor: str) -> Callable[[Any], Mapping[str, NumpyArray]]:
    """Return the prediction function of a booster, which takes a matrix or a DataFrame."""

    def predict(model_input: Any) -> Mapping[str, NumpyArray]:
        if isinstance(model_input, Mapping):
            raise InvalidArgument(
                f"A booster of {flavor} takes a matrix or a DataFrame, not one array per column.",
                hint='register_model(..., arrays="matrix")',
            )
        if flavor == "lightgbm":
            return {"": np.asarray(booster.predict(model_input))}
        rows = importlib.import_module("xgboost").DMatrix
        if isinstance(model_input, np.ndarray):
            # XGBoost would predict columns that are missing at the end as nulls.
            count = booster.num_features()
            if model_input.shape[1] != count:
                raise InvalidArgument(
                    f"The booster was trained with {count} columns, and gets "
                    f"{model_input.shape[1]}.",
                    hint="register_model(..., columns=[...]) with the columns of its training",
                )
            # The columns have the order of the training; a matrix has no names of its own.
            names, types = booster.feature_names, booster.feature_types
            matrix = rows(model_input, feature_names=names, feature_types=types)
        else:
            matrix = rows(model_input, enable_categorical=True)
        return {"": np.asarray(booster.predict(matrix))}

    return predict


def _check_xgboost(content: bytes) -> tuple[list[str], bytes]:
    """Check a model of XGBoost; see ``find_unchecked_parts``."""
    is_text = content.lstrip().startswith(b'{"')
    model = json.loads(content) if is_text else decode_ubjson(content)
    learner = model["learner"]
    booster = learner["gradient_booster"]
    if booster["name"] != "gbtree":
        return [f"the booster {str(booster['name'])[:50]!r}"], content
    trees = booster["model"]["trees"]
    parameters = learner["learner_model_param"]
    features = _parameter(parameters, "num_feature")
    groups = max(_parameter(parameters, "num_class"), 1)
    if _parameter(parameters, "num_target") != 1:
        return ["several targets"], content
    categories = booster["model"].get("cats", {"enc": ()})
    if categories["enc"] and not _are_text_categories(categories, features):
        return ["categories other than texts"], content
    for number, tree in enumerate(trees):
        _require(tree["id"] == number, "id")
        if _parameter(tree["tree_param"], "size_leaf_vector") > 1:
            return ["trees with vectors"], content
        _check_xgboost_tree(tree, features)
    _require(len(booster["model"]["tree_info"]) == len(trees), "tree_info")
    _require(all(0 <= group < groups for group in booster["model"]["tree_info"]), "tree_info")
    num_trees = _parameter(booster["model"]["gbtree_model_param"], "num_trees")
    _require(num_trees == len(trees), "num_trees")
    rounds = booster["model"]["iteration_indptr"]
    _require(rounds[0] == 0 and rounds[-1] == len(trees), "iteration_indptr")
    _require(list(rounds) == sorted(rounds), "iteration_indptr")
    for names in ("feature_names", "feature_types"):
        _require(len(learner.get(names, ())) in (0, features), names)
    # Written again, since parsers may differ for other texts.
    return [], json.dumps(model).encode()


def _are_text_categories(categories: JsonMapping, features: int) -> bool:
    """Check the texts of a DataFrame's categories; return False for other categories."""
    if any(set(column) != {"offsets", "values"} for column in categories["enc"]):
        return False
    _require(len(categories["enc"]) == features, "enc")
    starts, positions = [0], categories["sorted_idx"]
    for column in categories["enc"]:
        offsets = column["offsets"] or [0]
        _require(offsets == sorted(offsets) and offsets[0] == 0, "offsets")
        _require(offsets[-1] == len(column["values"]), "offsets")
        starts.append(starts[-1] + len(offsets) - 1)
        ranks = positions[starts[-2] : starts[-1]]
        _require(sorted(ranks) == list(range(len(offsets) - 1)), "sorted_idx")
    _require(categories["feature_segments"] == starts, "feature_segments")
    _require(len(positions) == starts[-1], "sorted_idx")
    return True


def _check_xgboost_tree(tree: JsonMapping, features: int) -> None:
    """Check the indexes of a tree of XGBoost."""
    nodes = _parameter(tree["tree_param"], "num_nodes")
    _require(_parameter(tree["tree_param"], "num_feature") == features, "num_feature")
    for name in _NODE_ARRAYS:
        _require(len(tree[name]) == nodes, name)
    left, right, parents = (tree[name] for name in ("left_children", "right_children", "parents"))
    reached = _check_paths(
        nodes, lambda node: (left[node], right[node]) if left[node] != -1 else ()
    )
    for node, (feature, parent) in enumerate(zip(tree["split_indices"], parents, strict=True)):
        if node in reached:
            _require(0 <= feature < features, "split_indices")
            is_child = node == 0 or (0 <= parent < nodes and node in (left[parent], right[parent]))
            _require(is_child, "parents")
        else:  # pruning leaves nodes that are marked as deleted
            _require(feature == _NO_NODE and left[node] == right[node] == -1, "split_indices")
            _require(0 <= parent < nodes, "parents")
    _require(parents[0] == _NO_NODE, "parents")
    num_deleted = _parameter(tree["tree_param"], "num_deleted")
    _require(num_deleted == nodes - len(reached), "num_deleted")
    categories = len(tree["categories"])
    owners, starts, sizes = (tree[name] for name in _SEGMENTS)
    _require(len(owners) == len(starts) == len(sizes), "categories_nodes")
    _require(list(owners) == sorted(set(owners)), "categories_nodes")
    categorical = [node for node, split in enumerate(tree["split_type"]) if split]
    _require(list(owners) == categorical, "categories_nodes")
    for start, size in zip(starts, sizes, strict=True):
        _require(start >= 0 and size > 0 and start + size <= categories, "categories_segments")
    # The library allocates a bit for each category up to the largest.
    _require(all(0 <= category < 1 << 24 for category in tree["categories"]), "categories")


def _check_lightgbm(content: bytes) -> tuple[list[str], bytes]:
    """Check a model of LightGBM; see ``find_unchecked_parts``."""
    sections = re.split(r"\n(?=Tree=\d+\n|end of trees\n)", content.decode().replace("\r\n", "\n"))
    if not sections[-1].startswith("end of trees\n"):
        raise ValueError("it is truncated")
    header = _parse_fields(sections[0], _LIGHTGBM_HEADER)
    groups = int(header["num_tree_per_iteration"])
    features = int(header["max_feature_idx"]) + 1
    objective_groups = re.search(r"\bnum_class:(\S+)", header.get("objective", ""))
    _require(int(header["num_class"]) == groups > 0, "num_class")
    _require(objective_groups is None or int(objective_groups[1]) == groups, "objective")
    for name in ("feature_names", "feature_infos"):
        _require(len(header[name].split(" ")) == features, name)
    trees = [_parse_fields(section, _LIGHTGBM_TREE) for section in sections[1:-1]]
    _require(len(trees) % groups == 0, "num_tree_per_iteration")
    for tree in trees:
        if tree.get("is_linear", "0") != "0":
            return ["linear trees"], content
        _check_lightgbm_tree(tree, features)
    lines = ["tree", *(f"{name}={value}" if value else name for name, value in header.items())]
    for number, tree in enumerate(trees):
        lines += ["", f"Tree={number}", *(f"{name}={value}" for name, value in tree.items()), ""]
    categories = re.search(r"^pandas_categorical:(.*)", sections[-1], re.MULTILINE)
    column_categories = None if categories is None else json.loads(categories[1])
    lines += ["", "end of trees", "", f"pandas_categorical:{json.dumps(column_categories)}"]
    # Written again without the sizes of the trees in bytes and the parameters of the training.
    return [], ("\n".join(lines) + "\n").encode()


def _check_lightgbm_tree(tree: Mapping[str, str], features: int) -> None:
    """Check the indexes of a tree of LightGBM."""
    leaves = int(tree["num_leaves"])
    splits = leaves - 1
    _require(leaves > 0, "num_leaves")
    for names, length in ((_LEAF_ARRAYS, leaves), (_SPLIT_ARRAYS, splits)):
        for name in names:
            numbers = tree.get(name, "").split()
            _require(all(map(_NUMBER.fullmatch, numbers)), name)
            # A tree without a split has only the value of its leaf.
            _require(len(numbers) in (length, 0 if splits == 0 else length), name)
    _require(len(tree["leaf_value"].split()) == leaves, "leaf_value")
    if splits == 0:
        return
    features_of_splits, decisions = (
        _integers(tree, "split_feature"),
        _integers(tree, "decision_type"),
    )
    left, right = _integers(tree, "left_child"), _integers(tree, "right_child")
    _require(all(0 <= feature < features for feature in features_of_splits), "split_feature")
    # A negative child -n is the leaf n - 1.
    _require(min(left + right) >= -leaves, "left_child")
    _check_paths(splits, lambda node: [child for child in (left[node], right[node]) if child >= 0])
    categories, bounds = int(tree["num_cat"]), [0]
    if categories:
        bounds, bits = _integers(tree, "cat_boundaries"), _integers(tree, "cat_threshold")
        _require(bounds == sorted(bounds) and bounds[-1] == len(bits), "cat_boundaries")
    _require(len(bounds) == categories + 1 and bounds[0] == 0, "cat_boundaries")
    for decision, threshold in zip(decisions, tree["threshold"].split(), strict=True):
        is_categorical = decision & 1
        _require(not is_categorical or 0 <= float(threshold) < categories, "threshold")


def _check_paths(nodes: int, children_of: Callable[[int], Sequence[int]]) -> set[int]:
    """Check that each path from node 0 ends, and return the nodes on these paths.

    No child is outside of the tree, and none occurs twice.
    """
    reached: set[int] = set()
    waiting = [0]
    while waiting:
        node = waiting.pop()
        _require(0 <= node < nodes and node not in reached, "children of a node")
        reached.add(node)
        waiting += children_of(node)
    return reached


def _parameter(parameters: Mapping[str, str], name: str) -> int:
    """Return a parameter of XGBoost, a count that is stored as text."""
    if re.fullmatch("[0-9]{1,9}", parameters[name]) is None:
        raise ValueError(f"{name!r} is not a count")
    return int(parameters[name])


def _parse_fields(section: str, names: Sequence[str]) -> dict[str, str]:
    """Return the fields ``name=value`` of a section that a prediction needs."""
    fields = dict(line.partition("=")[::2] for line in section.split("\n"))
    return {name: fields[name] for name in names if name in fields}


def _integers(tree: Mapping[str, str], name: str) -> list[int]:
    return [int(number) for number in tree[name].split()]


def _require(is_valid: bool, field: str) -> None:
    if not is_valid:
        raise ValueError(f"the values of {field!r} do not fit together")

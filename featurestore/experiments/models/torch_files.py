"""PyTorch programs (``.pt2``, written by ``torch.export.save``): detection of code, and loading.

``torch.export.load`` unpickles some entries of the archive, and evaluates the shapes and guards of
the graph as Python text, so it may run code of an untrusted file. A program is therefore loaded
from a copy of its archive that has only tensors, and a graph of known operators without guards,
metadata and example inputs. A program that needs more requires the caller's trust.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument, ModelDamaged, listing
from featurestore.experiments.models.archives import read_archive, write_archive
from featurestore.experiments.models.conversion import refuse_inexact_integers
from featurestore.model.json_object import JsonDict
from featurestore.readers.columns import NumpyArray

# Entries that contain numbers or constant texts.
_PLAIN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+"
)
STATE_DICT_ENDINGS = (".pt", ".pth")
_GRAPH = "models/model.json"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
# Entries that a prediction does not need.
_IGNORED = re.compile(r"extra/.*|data/sample_inputs/model\.pt")
_TENSOR_FILE = re.compile(r"(weight|tensor)_\d+")
# Shapes: SymPy would evaluate any other text as Python.
_SYMBOL = re.compile(r"[a-z]{1,4}\d{1,9}")
_SHAPE = re.compile(
    r"(Symbol\('[a-z]{1,4}\d{1,9}'(, (positive|nonnegative|integer)=True)*\)|Integer\(-?\d{1,18}\)"
    # Words and numbers end at a boundary: there is one way to read a text, so matching is linear.
    r"|(Add|Mul|Max|Min|Mod)\(|[a-z]{1,4}\d{1,9}\b|\d{1,18}\b|\*(?!\*)|[-+,() ])*"
)
_MAX_SHAPE = 1000
_STRUCTURES = (None, "builtins.tuple", "builtins.list", "builtins.dict")
# Operators that only compute. Others may read or write files, or access memory without checks.
# fmt: off
_OPERATORS = frozenset((
    "abs", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "add", "add_", "addmm", "alias", "all", "amax", "amin",
    "any", "arange", "argmax", "argmin", "_assert_tensor_metadata", "avg_pool1d", "avg_pool2d", "baddbmm",
    "batch_norm", "bmm", "cat", "celu", "chunk", "clamp", "clamp_min", "clone", "concat", "contiguous",
    "conv1d", "conv2d", "convolution", "cos", "cumsum", "detach", "detach_", "div", "dropout", "einsum", "elu",
    "embedding", "eq", "erf", "exp", "expand", "expand_as", "expm1", "feature_dropout", "flatten", "floor",
    "fmod", "full", "full_like", "gather", "ge", "gelu", "glu", "group_norm", "gru", "gt", "hardsigmoid",
    "hardswish", "hardtanh", "index_select", "isnan", "layer_norm", "le", "leaky_relu", "lift_fresh_copy",
    "linear", "log", "log1p", "_log_softmax", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logsumexp", "lstm", "lt", "matmul", "max", "max_pool1d", "max_pool2d", "maximum", "mean", "min", "minimum",
    "mish", "mm", "mul", "mul_", "nan_to_num", "narrow", "native_batch_norm",
    "_native_batch_norm_legit_no_training", "native_layer_norm", "ne", "neg", "norm", "one_hot", "ones",
    "ones_like", "pad", "permute", "pow", "prelu", "reciprocal", "relu", "relu6", "relu_", "remainder",
    "reshape", "rms_norm", "round", "rsqrt", "rsub", "scalar_tensor", "scaled_dot_product_attention", "select",
    "selu", "sigmoid", "sign", "silu", "silu_", "sin", "slice", "_softmax", "softmax", "softplus", "split",
    "split_with_sizes", "sqrt", "square", "squeeze", "stack", "std", "sub", "sub_", "sum", "sym_size", "t",
    "tanh", "tile", "to", "_to_copy", "topk", "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "var",
    "view", "where", "zeros", "zeros_like",
))
_COMPUTING = re.compile(
    rf"torch\.ops\.aten\.({'|'.join(_OPERATORS)})\.[A-Za-z]\w*|_operator\.(getitem|add|sub|mul|[engl][eqt])"
)
_VALUES = frozenset(
    f"as_{name}" for name in (
        "tensor", "tensors", "int", "ints", "float", "floats", "bool", "bools", "string", "strings", "none",
        "sym_int", "sym_ints", "sym_bool", "sym_float", "name", "expr", "scalar_type", "memory_format",
        "layout", "device", "optional_tensor", "optional_tensors",
    )
)
# fmt: on


def find_code_objects(content: bytes, *, title: str) -> tuple[list[str], bytes]:
    """Find the parts of a program that may run code, and return the program without the rest.

    Args:
        content: The bytes of the file.
        title: The name of the file, for messages.

    Returns:
        The parts, empty for tensors with known operators, and the bytes to load if there are none.

    Raises:
        ModelDamaged: The file was not written by ``torch.export.save``.
    """
    entries = _read_entries(content, title)
    code = [
        f"the file {name[:100]!r}"
        for name in entries
        if name not in (_GRAPH, *_CONFIGS)
        and not _PLAIN.fullmatch(name)
        and not _IGNORED.fullmatch(name)
    ]
    if _GRAPH not in entries:  # the format before PyTorch 2.8, which pickles tensors
        return sorted(code) or ["no graph"], content
    try:
        configs = {name: json.loads(entries[name]) for name in _CONFIGS}
        graph = json.loads(entries[_GRAPH])
        for config in configs.values():
            for name, tensor in config["config"].items():
                is_plain = tensor["use_pickle"] is False
                if not is_plain or not _TENSOR_FILE.fullmatch(tensor["path_name"]):
                    code.append(f"the pickle of {name[:100]!r}")
        code += _find_graph_code(graph)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ModelDamaged(f"{title} was not written by torch.export.save: {error!r}") from error
    if code:
        return sorted(set(code)), content
    # These are evaluated, and not needed.
    graph["guards_code"] = []
    for node in _iter_objects(graph):
        if isinstance(node.get("metadata"), dict):
            node["metadata"] = {}
    # Written again, since parsers may differ for other texts.
    entries |= {name: json.dumps(document).encode() for name, document in configs.items()}
    entries[_GRAPH] = json.dumps(graph).encode()
    if _SAMPLE_INPUTS in entries:
        entries[_SAMPLE_INPUTS] = b""  # a pickle; without it, the program has no example inputs
    checked = {
        f"program/{name}": entry
        for name, entry in entries.items()
        if name == _SAMPLE_INPUTS or not _IGNORED.fullmatch(name)
    }
    return [], write_archive(checked)


def load_program(content: bytes) -> Any:
    """Load a program from the bytes of its file."""
    return importlib.import_module("torch.export").load(io.BytesIO(content))


def input_names(program: Any) -> tuple[str, ...]:
    """Return the names of a program's tensors: parameters of ``forward``, or keys of its only dict."""
    tensors = tuple(program.graph_signature.user_inputs)
    arguments, keywords = _arrange(program, tensors)
    columns = {} if arguments else keywords
    if len(arguments) == 1 and isinstance(arguments[0], dict) and not keywords:
        columns = arguments[0]
    return tuple(map(str, columns)) if tuple(columns.values()) == tensors else tensors


def make_predictor(program: Any) -> Callable[[Any], Mapping[str, NumpyArray]]:
    """Return the prediction function of a program.

    A matrix is its only argument; columns are its arguments by their names (``input_names``).
    """
    torch, module = importlib.import_module("torch"), program.module()
    names = input_names(program)
    dtypes = {
        node.name: node.meta["val"].dtype
        for node in program.graph.nodes
        if hasattr(node.meta.get("val"), "dtype")
    }
    types = [dtypes.get(tensor) for tensor in program.graph_signature.user_inputs]

    def predict(model_input: Any) -> Mapping[str, NumpyArray]:
        arrays = model_input
        if not isinstance(model_input, Mapping):
            if len(names) != 1:
                raise InvalidArgument(
                    f"The program has the inputs {listing(names)}, not one matrix.",
                    hint='register_model(..., arrays="columns")',
                )
            arrays = {names[0]: model_input}
        elif set(arrays) != set(names):
            raise InvalidArgument(
                f"The program has the inputs {listing(names)}, not {listing(arrays)}.",
                hint="name the parameters of forward() like the columns, or export a program with "
                'one matrix and use arrays="matrix"',
            )
        tensors = []
        for name, dtype in zip(names, types, strict=True):
            values = np.ascontiguousarray(arrays[name])
            if dtype is not None and not dtype.is_floating_point:
                refuse_inexact_integers(name, values, np.dtype(str(dtype).removeprefix("torch.")))
            tensors.append(torch.from_numpy(values).to(dtype))
        arguments, keywords = _arrange(program, tensors)
        with torch.inference_mode():
            outputs = module(*arguments, **keywords)
        if isinstance(outputs, Mapping):
            return {str(name): _to_numpy(values) for name, values in outputs.items()}
        if isinstance(outputs, list | tuple):
            return {str(index): _to_numpy(values) for index, values in enumerate(outputs)}
        return {"": _to_numpy(outputs)}

    return predict


def _arrange(program: Any, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return values of the program's tensors as the arguments and keywords of its export."""
    unflatten = importlib.import_module("torch.utils._pytree").tree_unflatten
    arguments, keywords = unflatten(list(values), program.call_spec.in_spec)
    return tuple(arguments), dict(keywords)


def _to_numpy(tensor: Any) -> NumpyArray:
    """Convert a tensor to numpy; half-precision numbers become float32, since numpy has no bfloat16."""
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    values: NumpyArray = tensor.numpy()
    return values


def _read_entries(content: bytes, title: str) -> dict[str, bytes]:
    """Return the entries of an archive, by their name below its root folder."""
    entries = {}
    for path, entry in read_archive(content, title=title, writer="torch.export.save").items():
        root, _, name = path.partition("/")
        if name in entries:
            raise ModelDamaged(f"{title} has two entries {name[:100]!r}, one in {root[:100]!r}.")
        entries[name] = entry
    return entries


def _find_graph_code(graph: Any) -> list[str]:
    """Return the operators, values and shapes of a graph that may run code."""
    code = [
        f"the symbol {name[:100]!r}"
        for name in graph["range_constraints"]
        if not _SYMBOL.fullmatch(name)
    ]
    for node in _iter_objects(graph):
        for key, value in node.items():
            if key == "target" and not _COMPUTING.fullmatch(str(value)):
                code.append(f"the operator {str(value)[:100]!r}")
            elif key == "expr_str" and not (len(value) <= _MAX_SHAPE and _SHAPE.fullmatch(value)):
                code.append(f"the shape {value[:100]!r}")
            elif key.startswith("as_") and key not in _VALUES:
                code.append(f"a value of the kind {key[3:50]!r}")
            elif key in ("in_spec", "out_spec"):
                code += _find_structure_code(value)
    return code


def _find_structure_code(text: str) -> list[str]:
    """Return the structures of inputs or outputs other than tuples, lists and dicts."""
    code = []
    for node in _iter_objects(json.loads(text)):
        if node["type"] not in _STRUCTURES:
            code.append(f"the structure {str(node['type'])[:100]!r}")
        # The keys of a dict may be members of an enumeration, whose module would be imported.
        if "__enum__" in str(node["context"]):
            code.append("an enumeration")
    return code


def _iter_objects(value: Any) -> Iterator[JsonDict]:
    """Yield all objects of a JSON value, at any depth."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item

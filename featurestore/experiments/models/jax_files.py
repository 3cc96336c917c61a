"""Functions of JAX (``.jax``, the bytes of ``jax.export.Exported.serialize``): checks, and prediction.

Such a file is a program of StableHLO. Its operations compute, except for calls of functions of the
process by name, channels to other processes, and loops, which may never end. A program with these
requires the caller's trust.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, MissingExtra, ModelDamaged, listing
from featurestore.experiments.models.conversion import refuse_inexact_integers

ENDING = ".jax"
_COMPUTING = re.compile(r"(stablehlo|chlo|func|builtin)\.[a-z_0-9]+")
# fmt: off
_OTHER = frozenset(
    f"stablehlo.{name}" for name in (
        "custom_call", "while", "infeed", "outfeed", "send", "recv", "create_token", "after_all",
        "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "collective_broadcast",
        "collective_permute", "partition_id", "replica_id",
    )
)
# fmt: on
# JAX resolves these calls itself before it compiles a program.
_CALLS_OF_JAX = ("shape_assertion",)


def find_code_objects(content: bytes, *, title: str) -> tuple[list[str], bytes]:
    """Find the operations of a program that do more than compute.

    Args:
        content: The bytes of the file.
        title: The name of the file, for messages.

    Returns:
        The operations, and the bytes to load.

    Raises:
        ModelDamaged: The file was not written by ``Exported.serialize``.
    """
    ir = importlib.import_module("jax.extend.mlir.ir")
    dialects = [
        importlib.import_module(f"jax.extend.mlir.dialects.{name}")
        for name in ("stablehlo", "chlo", "sdy")
    ]
    operations: set[str] = set()

    def check(operation: Any) -> Any:
        name = str(operation.name)
        if name == "stablehlo.custom_call":
            target = str(operation.attributes["call_target_name"]).strip('"')
            if target not in _CALLS_OF_JAX:
                operations.add(f"a call of {target[:100]!r}")
        elif name in _OTHER or not _COMPUTING.fullmatch(name):
            operations.add(f"the operation {name[:100]!r}")
        return ir.WalkResult.ADVANCE

    try:
        exported = load_function(content)
        with ir.Context() as context:
            for dialect in dialects:
                dialect.register_dialect(context)
            program = dialects[0].deserialize_portable_artifact(
                context, exported.mlir_module_serialized
            )
            program.operation.walk(check)
    except ImportError as error:
        raise MissingExtra(
            "Files of jax.export need the library 'flatbuffers', which is not installed.",
            hint="pip install flatbuffers",
        ) from error
    except Exception as error:  # the parsers of JAX raise any exception for other bytes
        raise ModelDamaged(f"{title} is not an exported function of JAX: {error!r}") from error
    if exported.nr_devices != 1:
        operations.add(f"a program of {exported.nr_devices} devices")
    return sorted(operations), content


def load_function(content: bytes) -> Any:
    """Load an exported function from the bytes of its file."""
    return importlib.import_module("jax.export").deserialize(bytearray(content))


def input_names(exported: Any) -> tuple[str, ...] | None:
    """Return the columns of a function of one dict or of keyword arguments, None for others."""
    arguments, keywords = _positions(exported)
    if not arguments and keywords:
        return tuple(keywords)
    if len(arguments) == 1 and isinstance(arguments[0], dict) and not keywords:
        return tuple(arguments[0])
    return None


def make_predictor(exported: Any) -> Callable[[Any], Mapping[str, npt.NDArray[Any]]]:
    """Return the prediction function of an exported function.

    A matrix is its only argument. Columns are one dict, or keyword arguments.
    """
    arguments, keywords = _positions(exported)
    names = input_names(exported)
    takes_matrix = arguments == (0,) and not keywords

    def predict(model_input: Any) -> Mapping[str, npt.NDArray[Any]]:
        if not isinstance(model_input, Mapping):
            if not takes_matrix:
                raise InvalidArgument(
                    f"The function takes {listing(names or ['several arrays'])}, not one matrix.",
                    hint='register_model(..., arrays="columns")',
                )
            return _named_outputs(exported.call(_convert(exported, 0, "the matrix", model_input)))
        if names is None or set(names) != set(model_input):
            raise InvalidArgument(
                f"The function takes {listing(names or ['arrays without names'])}, not "
                f"{listing(model_input)}.",
                hint="export a function of one dict whose keys are the columns, or a function of "
                'one matrix and use arrays="matrix"',
            )
        positions = keywords or arguments[0]
        columns = {
            name: _convert(exported, positions[name], name, values)
            for name, values in model_input.items()
        }
        outputs = exported.call(**columns) if keywords else exported.call(columns)
        return _named_outputs(outputs)

    return predict


def _positions(exported: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the position of each array in their place."""
    unflatten = importlib.import_module("jax.tree_util").tree_unflatten
    arguments, keywords = unflatten(exported.in_tree, range(len(exported.in_avals)))
    return tuple(arguments), dict(keywords)


def _convert(exported: Any, position: int, name: str, values: npt.NDArray[Any]) -> Any:
    """Convert an array to the type that the function takes, which JAX does not."""
    dtype = np.dtype(exported.in_avals[position].dtype)
    refuse_inexact_integers(name, values, dtype)
    return values.astype(dtype, copy=False)


def _named_outputs(outputs: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return the outputs by name; a single output has the empty name."""
    if isinstance(outputs, list | tuple):
        outputs = {str(index): values for index, values in enumerate(outputs)}
    elif not isinstance(outputs, Mapping):
        outputs = {"": outputs}
    return {str(name): np.asarray(values) for name, values in outputs.items()}

"""Nulls of model inputs: how a run read them, per column, or the policy of ``register_model``.

A reader refuses, fills or masks nulls. A matrix has NaN, a DataFrame the missing value of its
dtype. A column without nulls in the training dataset was never read as NaN, so its nulls are
refused in each case unless a value fills them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import InvalidArgument, listing
from featurestore.experiments.models.conversion import parse_reader_fill, to_stored_fill
from featurestore.model.manifest import Manifest
from featurestore.model.registered_model import NullForm
from featurestore.readers.columns import columns_with_nulls

ModelNulls: TypeAlias = Literal["error", "mask", "nan"] | Mapping[str, Any]

# The form of ``dataset.read``, and that of a state without a read: the inputs that a function passed
# to ``context.save``.
FRAME, SAVED = "frame", "saved"


class PlannedNulls(NamedTuple):
    """The form of a column's nulls, and the JSON value of ``form`` "fill"."""

    form: NullForm
    fill: Any = None


def recorded_nulls(state: Mapping[str, Any]) -> ModelNulls:
    """Return the null policy in the state of a reader, a matrix or a DataFrame.

    >>> recorded_nulls({"split": "train", "columns": None, "transformed": None})
    'nan'
    >>> recorded_nulls({"order_version": 1, "nulls": {"seats": 0}})
    {'seats': 0}
    >>> recorded_nulls({})  # the run read nothing
    'error'
    """
    # Earlier releases recorded no policy for a matrix, whose nulls were NaN as well.
    return state.get("nulls", "nan" if state else "error")


def recorded_form(state: Mapping[str, Any]) -> str:
    """Return how a state of a run was read: "reader", "matrix", "frame" or "saved".

    "frame" is ``dataset.read``, ``SAVED`` are inputs without a read.
    """
    # Earlier releases recorded no form.
    return str(state.get("form", "reader" if "order_version" in state else "matrix"))


def plan_nulls(
    manifest: Manifest,
    names: Sequence[str],
    *,
    requested: ModelNulls | None,
    state: Mapping[str, Any],
) -> dict[str, PlannedNulls]:
    """Return what a model gets for the nulls of each input.

    Args:
        manifest: The training dataset.
        names: The inputs.
        requested: The argument ``nulls=`` of ``register_model``; None for the policy in ``state``.
        state: The state of the reader, matrix or DataFrame with which the model was trained.

    Raises:
        InvalidArgument: The policy is unknown, names a column that is not an input, or fills a
            column with a value that its type does not have.
    """
    nulls = requested if requested is not None else recorded_nulls(state)
    _check_policy(nulls, names, is_requested=requested is not None)
    if isinstance(nulls, Mapping):
        return {
            name: _plan_fill(manifest, name, nulls.get(name), is_recorded=requested is None)
            for name in names
        }
    # Masks are those of the reader, which uses the same ones for all splits.
    with_nulls = columns_with_nulls(manifest)
    if requested == "nan":
        with_nulls = set(names)
    form: NullForm = nulls
    return {name: PlannedNulls(form if name in with_nulls else "error") for name in names}


def _plan_fill(manifest: Manifest, name: str, value: Any, *, is_recorded: bool) -> PlannedNulls:
    if value is None:
        return PlannedNulls("error")
    dtype = type_from_json(manifest.column(name).type)
    if is_recorded:
        value = parse_reader_fill(value, dtype)
    return PlannedNulls("fill", to_stored_fill(name, value, dtype))


def _check_policy(nulls: ModelNulls, names: Sequence[str], *, is_requested: bool) -> None:
    if not isinstance(nulls, Mapping) and nulls not in ("error", "mask", "nan"):
        raise InvalidArgument(
            f"nulls={nulls!r} is not supported.",
            hint='nulls="error", "mask", "nan" or {input: value}',
        )
    # A reader may also fill keys and weights, which are not inputs.
    if is_requested and isinstance(nulls, Mapping):
        unknown = [name for name in nulls if name not in names]
        if unknown:
            raise InvalidArgument(
                f"nulls= contains columns that are not inputs: {listing(unknown)}. "
                f"Available: {listing(names)}."
            )

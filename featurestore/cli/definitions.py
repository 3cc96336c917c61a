"""Definition files: the arguments of a feature view or a training dataset in TOML.

A file has only data, no code, so it can come from anyone. Its keys are the arguments of the Python
call; a chain of transformations is text such as ``"log1p() | standardize()"``.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurestore import transform
from featurestore.cli.state import split_version
from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.requests import TimeSplit

if TYPE_CHECKING:
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset
    from featurestore.views import FeatureView

_SOURCES = ("view", "featuregroup")


def create_view(store: FeatureStore, path: Path) -> FeatureView:
    """Create the feature view that a file defines."""
    definition = _read(path)
    _check_keys(definition, _arguments_of(store.create_feature_view), path=path)
    for key in ("name", "features"):
        _require(definition, key, path=path)
    return store.create_feature_view(**_parse_values(definition, path=path))


def create_dataset(store: FeatureStore, path: Path) -> TrainingDataset:
    """Create the training dataset that a file defines, from a feature view or a feature group."""
    definition = dict(_read(path))
    _require(definition, "name", path=path)
    sources = [key for key in _SOURCES if key in definition]
    if len(sources) != 1:
        raise InvalidArgument(
            f"{path} needs either view or featuregroup, the source of the rows.",
            hint='view = "late_flights@v1"',
        )
    source = sources[0]
    source_name, version = split_version(str(definition.pop(source)))
    create: Callable[..., TrainingDataset]
    if source == "view":
        create = store.get_feature_view(source_name, version=version).create_training_dataset
        arguments = _arguments_of(create)
        values: dict[str, Any] = {}
    else:
        create = store.create_training_dataset
        arguments = [name for name in _arguments_of(create) if name != "data"]
        values = {"data": store.get_featuregroup(source_name, version=version)}
    _check_keys(definition, arguments, path=path)
    # The roles that the call prints are not part of the JSON output.
    with redirect_stdout(sys.stderr):
        return create(**values, **_parse_values(definition, path=path))


def parse_chain(text: str) -> transform.Chain:
    """Parse a chain of transformations without executing code.

    >>> parse_chain("clip(0, 1) | standardize()")
    clip(low=0.0, high=1.0) | standardize()
    """
    try:
        return _build_chain(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError) as error:
        # ValueError includes the errors of the store, which explain a wrong option.
        raise InvalidArgument(
            f"{text!r} is not a chain of transformations: {error}.",
            hint='"log1p() | standardize()"',
        ) from error


def _build_chain(node: ast.expr) -> transform.Chain:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _build_chain(node.left) | _build_chain(node.right)
    # "function" takes Python functions, which a file of data cannot contain.
    steps = [name for name in transform.__all__ if name.islower() and name != "function"]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"available: {listing(steps, limit=30)}")
    if node.func.id not in steps:
        raise ValueError(f"unknown step {node.func.id!r}; available: {listing(steps, limit=30)}")
    positional = list(map(ast.literal_eval, node.args))
    options = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in node.keywords}
    chain: transform.Chain = getattr(transform, node.func.id)(*positional, **options)
    return chain


def _read(path: Path) -> Mapping[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is not valid TOML: {error}.") from error


def _arguments_of(function: Callable[..., Any]) -> list[str]:
    # A function of the caller has no form in a file.
    return [name for name in inspect.signature(function).parameters if name != "progress"]


def _check_keys(definition: Mapping[str, object], allowed_keys: list[str], *, path: Path) -> None:
    for key in definition:
        if key not in allowed_keys:
            raise InvalidArgument(
                f"{path}: unknown key {key!r}. Available: {listing(allowed_keys, limit=40)}.",
                hint=did_you_mean(key, allowed_keys),
            )


def _require(definition: Mapping[str, object], key: str, *, path: Path) -> None:
    if key not in definition:
        raise InvalidArgument(f"{path} has no {key!r}.", hint=f'{key} = "late_flights"')


def _parse_values(definition: Mapping[str, object], *, path: Path) -> dict[str, Any]:
    """Convert the values for which TOML has no type: chains and splits by time."""
    values = dict(definition)
    chains = values.get("transformations")
    if chains is not None:
        if not isinstance(chains, Mapping):
            raise InvalidArgument(
                f"{path}: transformations is not a table.",
                hint='transformations = { temp = "standardize()" }',
            )
        values["transformations"] = {
            column: parse_chain(str(text)) for column, text in chains.items()
        }
    splits = values.get("splits")
    if isinstance(splits, Mapping) and isinstance(splits.get("column"), str):
        values["splits"] = _parse_time_split(splits, path=path)
    return values


def _parse_time_split(splits: Mapping[str, Any], *, path: Path) -> TimeSplit:
    """Parse a column and a range of times for each split; "" is an unbounded end."""
    ranges = {}
    for name, bounds in splits.items():
        if name == "column":
            continue
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise InvalidArgument(
                f"{path}: split {name!r} is not a list of a start and an end.",
                hint=f'{name} = ["", "2013-10-01T00:00Z"]',
            )
        start, end = (None if isinstance(bound, str) and not bound else bound for bound in bounds)
        ranges[name] = (start, end)
    return TimeSplit(splits["column"], ranges)

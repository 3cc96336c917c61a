"""Column roles in a training dataset: model input, label, weight, key and time.

One rule applies to all datasets: **the model inputs are the features that were requested by name in
all chained retrievals, and the columns in ``features=`` of the dataset. All other label columns are
the label, the weight, a key, the time, or unused.** Rows without a retrieval (a dataframe, all rows
of a group) have no requested features: without ``features=``, all columns are inputs except label,
weight, keys and timestamps. ``exclude=`` removes inputs.

Unused columns stay in the files and can be read by name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, listing
from featurestore.model import display
from featurestore.model.display import escape_line

Role = Literal["feature", "label", "weight", "key", "time", "unused"]
ROLES: tuple[Role, ...] = get_args(Role)
# The columns for statistics, plots and drift: model inputs and labels.
MODEL_ROLES: tuple[Role, ...] = ("feature", "label")

_HEADINGS: Mapping[Role, str] = {
    "feature": "inputs",
    "label": "label",
    "weight": "weight",
    "key": "key",
    "time": "time",
    "unused": "not used",
}
_MAX_NAMES = 40
_INDENT = 10
_WIDTH = 100


@dataclass(frozen=True)
class RoleRequest:
    """The information from which the roles are derived.

    Args:
        requested_features: The features requested by name; None without a retrieval.
        keys: Columns that identify rows or that were joined on.
        time: The time column of the rows.
        split_time: The column of a split by time.
        labels: The columns of ``label=``.
        weight: The column of ``weight=``.
        declared_keys: The columns of ``key=``.
        features: The columns of ``features=``.
        exclude: The columns of ``exclude=``.
    """

    requested_features: tuple[str, ...] | None = None
    keys: tuple[str, ...] = ()
    time: str | None = None
    split_time: str | None = None
    labels: tuple[str, ...] = ()
    weight: str | None = None
    declared_keys: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def assign_roles(schema: pa.Schema, request: RoleRequest) -> dict[str, Role]:
    """Return the role of each column.

    Raises:
        InvalidArgument: ``features=`` or ``exclude=`` conflicts with the label, the weight or each
            other; or no column other than keys and times remains.

    >>> schema = pa.schema([("id", pa.int64()), ("late", pa.bool_()), ("temp", pa.float64())])
    >>> assign_roles(schema, RoleRequest(requested_features=("temp",), keys=("id",), labels=("late",)))
    {'id': 'key', 'late': 'label', 'temp': 'feature'}
    """
    _check_request(request)
    inputs = set(_find_inputs(schema, request)) - set(request.exclude)
    time = _find_time(schema, request)
    roles: dict[str, Role] = {}
    for name in schema.names:
        roles[name] = _assign_role(name, request, inputs=inputs, time=time)
    # Readers return features and labels by default, so such a dataset would have no columns.
    if not {"feature", "label"} & set(roles.values()):
        raise InvalidArgument(
            "The data has no features, only keys, times and unused columns.",
            hint="request features, name columns in features=, or name other columns in key=",
        )
    return roles


def _assign_role(name: str, request: RoleRequest, *, inputs: set[str], time: str | None) -> Role:
    """Return the role of one column."""
    # The order is the precedence: arguments of the dataset override what the retrieval implies.
    role: Role = "unused"
    if name in request.labels:
        role = "label"
    elif name == request.weight:
        role = "weight"
    elif name in request.features:
        role = "feature"
    elif name == time:
        role = "time"
    elif name in request.declared_keys:
        role = "key"
    elif name in inputs:
        role = "feature"
    elif name in request.keys:
        role = "key"
    return role


def _find_inputs(schema: pa.Schema, request: RoleRequest) -> Sequence[str]:
    """Return the columns that are inputs unless they have another role or are excluded."""
    if request.requested_features is not None:
        return (*request.requested_features, *request.features)
    if request.features:
        return request.features
    # The model would receive a timestamp as microseconds since 1970.
    return [
        field.name
        for field in schema
        if field.name not in request.keys and not pat.is_timestamp(field.type)
    ]


def _find_time(schema: pa.Schema, request: RoleRequest) -> str | None:
    """Return the time column: the join time, the split time, or the only timestamp column."""
    if request.time is not None:
        return request.time
    # A feature that was requested by name stays an input, even if it also defines the split.
    if request.split_time is not None and request.split_time not in (
        request.requested_features or ()
    ):
        return request.split_time
    # The retrieval determines the time; other timestamps are never guessed to be one.
    if request.requested_features is not None:
        return None
    timestamps = [field.name for field in schema if pat.is_timestamp(field.type)]
    if len(timestamps) == 1:
        return timestamps[0]
    return None


def _check_request(request: RoleRequest) -> None:
    """Refuse arguments that assign two roles to a column."""
    assigned = {**dict.fromkeys(request.labels, "label")}
    if request.weight is not None:
        if request.weight in assigned:
            raise InvalidArgument(f"{request.weight!r} is in both label= and weight=.")
        assigned[request.weight] = "weight"
    for argument, names in (("features", request.features), ("exclude", request.exclude)):
        for name in names:
            if name in assigned:
                raise InvalidArgument(
                    f"{argument}= contains {name!r}, which is the {assigned[name]}.",
                    hint=f"remove it from {argument}=; the {assigned[name]} is never an input",
                )
    both = [name for name in request.features if name in request.exclude]
    if both:
        raise InvalidArgument(f"features= and exclude= both contain {listing(both)}.")


@dataclass(frozen=True, repr=False)
class DatasetRoles(Mapping[str, Role]):
    """The role of each column of a training dataset, in the order of its columns.

    >>> roles = DatasetRoles({"id": "key", "temp": "feature", "late": "label", "note": "unused"})
    >>> roles.inputs, roles["id"]
    (('temp',), 'key')
    >>> roles
    inputs:   temp
    label:    late
    key:      id
    not used: note; list them in features= to use them
    """

    columns: Mapping[str, Role]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model inputs."""
        return self.named("feature")

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns that the model predicts."""
        return self.named("label")

    @property
    def weight(self) -> str | None:
        """The column of row weights, or None."""
        return next(iter(self.named("weight")), None)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify rows."""
        return self.named("key")

    @property
    def time(self) -> str | None:
        """The column with the time of each row, or None."""
        return next(iter(self.named("time")), None)

    @property
    def unused(self) -> tuple[str, ...]:
        """The columns that are stored but not used."""
        return self.named("unused")

    def named(self, role: Role) -> tuple[str, ...]:
        """Return the columns with a role."""
        return tuple(name for name, column_role in self.columns.items() if column_role == role)

    def __getitem__(self, name: str) -> Role:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        lines = []
        for heading, names in self._rows():
            text = f"{heading + ':':<{_INDENT}}{names}"
            lines += textwrap.wrap(
                text, _WIDTH, subsequent_indent=" " * _INDENT, break_long_words=False
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return display.table([("role", ""), ("columns", "")], self._rows())

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yield a heading and the column names of each role that is present."""
        for role, heading in _HEADINGS.items():
            names = self.named(role)
            if not names:
                continue
            text = escape_line(", ".join(names[:_MAX_NAMES]))
            if len(names) > _MAX_NAMES:
                text += f", ... ({len(names)} in total)"
            if role == "unused":
                text += "; list them in features= to use them"
            yield heading, text

"""The request of one write into a feature group: its arguments, their checks, and lineage inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from featurestore.errors import InvalidArgument, KeyRequired, OutOfRange, did_you_mean
from featurestore.featuregroups.definition import check_validation_policy
from featurestore.featuregroups.handle import FeatureGroup
from featurestore.featuregroups.records import RecordOrder, ranges_of_positions
from featurestore.featuregroups.table import open_group
from featurestore.model.arguments import MAX_INT64
from featurestore.model.featuregroup import WRITE_MODES, FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.names import format_group_reference, parse_group_reference
from featurestore.model.suggestions import SIMILAR_VALUES
from featurestore.registry import sources
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.conversions import existing_inputs, recorded_inputs
from featurestore.session import Session

if TYPE_CHECKING:
    from featurestore.model.source import SourceRead
    from featurestore.plugins.engine import Relation, TimeRange

# "weather", "weather@v2", "source:shop", a handle, or a frame of the store.
InputReference: TypeAlias = str | FeatureGroup | FeatureFrame
Inputs: TypeAlias = InputReference | Sequence[InputReference]
_SOURCE_PREFIX = "source:"


@dataclass(frozen=True)
class WriteRequest:
    """What a caller asks of one write: an insert, or the first rows of a new group.

    It is built once, by the facade, a job or a project.

    Attributes:
        name: The name of the group.
        version: The version of the group; None for the latest one, or for the next one of a new
            group.
        options: The options of a new group.
        mode: "append", "upsert", "overwrite", or "replace" to replace the rows of ``replace``; not
            used for a new group.
        replace: The time range to replace.
        schema_change: "add" allows new columns and wider decimals.
        on_duplicates: "error", or "last" to write only the last row of each key.
        transaction: Name and number that make a repeated write a no-op.
        validation: The validation policy; None for the group's policy.
        run_id: The id of the run in commits and logs.
        inputs: Lineage sources: objects with ``source`` or ``featuregroup``, ``version`` and
            ``delta_version``; empty for those of the dataframe.
        window: The windows of a job run: ``job``, ``start``, ``end``, ``count``.
        deletes: The keys of stored rows that an upsert deletes in the same commit.
        staged: Whether the rows are already in staged files, which the caller removes.
        reads: The reads of registered sources, complete after the rows were read.
        offsets: The new offsets of stream partitions (see ``TableWrite``).
        stream: Metadata of the stream records, for the commit.
        order: The options for duplicate keys in stream records.
        has_checked_values: Whether the ranges of times and sizes of values are already checked.
    """

    name: str
    version: int | None = None
    options: GroupOptions = field(default_factory=GroupOptions)
    mode: str = "append"
    replace: TimeRange | None = None
    schema_change: str | None = None
    on_duplicates: str = "error"
    transaction: tuple[str, int] | None = None
    validation: str | None = None
    run_id: str | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    window: Mapping[str, Any] | None = None
    deletes: Relation | None = None
    staged: bool = False
    reads: Sequence[SourceRead] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    stream: Mapping[str, Any] | None = None
    order: RecordOrder | None = None
    has_checked_values: bool = False

    @property
    def is_from_job(self) -> bool:
        """Whether a job writes: only jobs write windows, stream records and ordered records."""
        return (self.window, self.stream, self.order) != (None, None, None)

    def check(self, spec: FeatureGroupSpec) -> None:
        """Reject invalid arguments of an insert, and modes that require a primary key."""
        if self.mode not in WRITE_MODES and not (self.mode == "replace" and self.replace):
            raise InvalidArgument(
                f"Unknown mode={self.mode!r}. 'append' adds the rows; 'upsert' replaces rows with "
                "the same key and adds the others; 'overwrite' replaces all rows.",
                hint=_suggest_mode(self.mode),
            )
        if self.on_duplicates not in ("error", "last"):
            raise InvalidArgument(
                f"Unknown on_duplicates={self.on_duplicates!r}.", hint="'error' or 'last'"
            )
        check_validation_policy(self.validation)
        if (self.mode == "upsert" or self.on_duplicates == "last") and not spec.primary_key:
            raise KeyRequired(
                f"Feature group {spec.name!r} version {spec.version} has no primary key, "
                "so rows cannot be matched.",
                hint="mode='append', or create the group with primary_key=",
            )
        if self.transaction is not None:
            _check_transaction(self.transaction)

    def metadata(
        self, inputs: Sequence[Mapping[str, Any]], reads: Sequence[SourceRead] | None
    ) -> dict[str, Any]:
        """Return the metadata of the commit that the request and its rows determine."""
        metadata: dict[str, Any] = {}
        all_inputs = [*map(dict, inputs), *(read.to_json() for read in reads or ())]
        if all_inputs:
            metadata["inputs"] = all_inputs
        if self.window is not None:
            metadata["window"] = dict(self.window)
        if self.stream is not None:
            metadata["stream"] = dict(self.stream)
        if self.order is not None and self.order.written_positions:
            metadata["replayed"] = ranges_of_positions(self.order.written_positions[0])
        return metadata


def _suggest_mode(mode: object) -> str:
    mode_name = SIMILAR_VALUES["mode"].get(str(mode).lower())
    if mode_name is not None:
        return f"did you mean mode={mode_name!r}?"
    return did_you_mean(mode, WRITE_MODES, write="mode={!r}") or "mode='append'"


def _check_transaction(transaction: object) -> None:
    """Reject a transaction that is not a pair of a name and a non-negative integer."""
    if isinstance(transaction, tuple) and len(transaction) == 2:
        app, number = transaction
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if isinstance(app, str) and app and is_number and number >= 0:
            if number > MAX_INT64:
                raise OutOfRange(
                    f"transaction=({app!r}, n): n is above {MAX_INT64}.",
                    hint=f"transaction=({app!r}, 42)",
                )
            return
    raise InvalidArgument(
        f"transaction={transaction!r} is not (app, n).", hint="transaction=('nightly', 42)"
    )


# -- lineage inputs ---------------------------------------------------------------------------
# Jobs record the inputs that they read. The rows of ``create_featuregroup`` are computed by the
# caller's code, so their inputs are declared, or known because the dataframe comes from the store.


def find_inputs(session: Session, declared: Inputs, df: object) -> tuple[Mapping[str, Any], ...]:
    """Return the lineage inputs of rows: the declared ones, then those of the dataframe.

    Raises:
        FeatureGroupNotFound: A declared group does not exist.
        SourceNotFound: A declared source is not registered.
        InvalidArgument: A declared input is not a reference, a handle or a frame.
    """
    inputs: list[Mapping[str, Any]] = []
    for reference in _as_references(declared):
        inputs += _resolve_input(session, reference)
    inputs += df.inputs if isinstance(df, FeatureFrame) else existing_inputs(session, df)
    # The first input of a group wins: a declared handle pins the latest Delta version.
    return tuple(
        {_identity(lineage_input): lineage_input for lineage_input in reversed(inputs)}.values()
    )[::-1]


def input_texts(declared: Inputs, df: object, *, location: str) -> list[str]:
    """Return declared and recorded inputs as references for a request to a server."""
    texts = []
    for reference in _as_references(declared):
        if isinstance(reference, FeatureFrame):
            texts += _group_texts(reference.inputs)
        elif isinstance(reference, FeatureGroup):
            texts.append(format_group_reference(reference.name, reference.version))
        else:
            texts.append(reference)
    recorded = df.inputs if isinstance(df, FeatureFrame) else recorded_inputs(df, location)
    return list(dict.fromkeys([*texts, *_group_texts(recorded)]))


def _as_references(declared: Inputs) -> list[InputReference]:
    if isinstance(declared, InputReference):
        return [declared]
    references = list(declared) if isinstance(declared, Iterable) else [declared]
    for reference in references:
        if not isinstance(reference, InputReference):
            raise InvalidArgument(
                f"inputs= contains {reference!r}, which is not a feature group, a frame of the "
                "store or a source.",
                hint="inputs=['weather', 'planes@v2', 'source:shop']",
            )
    return references


def _resolve_input(session: Session, reference: InputReference) -> list[Mapping[str, Any]]:
    """Return the lineage inputs of one reference, with groups pinned to their Delta version."""
    if isinstance(reference, FeatureFrame):
        return list(reference.inputs)
    if isinstance(reference, FeatureGroup):
        group = open_group(session, reference.name, reference.version)
    elif reference.startswith(_SOURCE_PREFIX):
        with session.registry.reading() as connection:
            sources.get(connection, reference.removeprefix(_SOURCE_PREFIX))
        return [{"source": reference}]
    else:
        group = open_group(session, *parse_group_reference(reference))
    return [
        {
            "featuregroup": group.spec.name,
            "version": group.spec.version,
            "delta_version": group.delta_version,
        }
    ]


def _identity(lineage_input: Mapping[str, Any]) -> tuple[object, object]:
    source = lineage_input.get("source") or lineage_input.get("featuregroup")
    return source, lineage_input.get("version")


def _group_texts(inputs: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        format_group_reference(lineage_input["featuregroup"], lineage_input["version"])
        for lineage_input in inputs
        if "featuregroup" in lineage_input
    ]

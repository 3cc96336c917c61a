"""The request of one write into a feature group, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, KeyRequired, OutOfRange, did_you_mean
from featurestore.featuregroups.definition import check_validation_policy
from featurestore.model.arguments import MAX_INT64
from featurestore.model.featuregroup import WRITE_MODES, FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.suggestions import SIMILAR_VALUES

if TYPE_CHECKING:
    from featurestore.featuregroups.records import RecordOrder
    from featurestore.model.source import SourceRead
    from featurestore.plugins.engine import Relation, TimeRange


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

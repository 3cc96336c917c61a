"""Targets of jobs outside the store: a view in an online store, and tables of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from featurestore.errors import InvalidJob, InvalidReference
from featurestore.model.arguments import as_tuple
from featurestore.model.names import check_name, parse_group_reference
from featurestore.model.records import Record


@dataclass(frozen=True)
class PublicationTarget(Record):
    """A view to publish, None for its latest version, and None for the embedded online store."""

    view: str
    version: int | None = None
    online: str | None = None

    @classmethod
    def parse(cls, reference: str, *, online: str | None) -> PublicationTarget:
        """Parse the reference of a view, and check the name of the online store.

        Raises:
            InvalidJob: The reference is invalid.

        >>> PublicationTarget.parse("buyers@v2", online="cache")
        PublicationTarget(view='buyers', version=2, online='cache')
        """
        try:
            view, version = parse_group_reference(reference)
        except (InvalidReference, TypeError) as error:
            raise InvalidJob(
                f"{reference!r} is not a feature view.", hint="write 'view' or 'view@v2'"
            ) from error
        if online is not None:
            check_name(online, noun="online store")
        return cls(view, version, online)

    def __str__(self) -> str:
        name = self.view if self.version is None else f"{self.view}@v{self.version}"
        return name if self.online is None else f"{name} to {self.online}"


@dataclass(frozen=True)
class CatalogTarget(Record):
    """The tables of a catalog that a job keeps in sync with feature groups.

    Attributes:
        source: The registered source of the catalog.
        schema: The schema (namespace) in the catalog.
        featuregroups: References of groups; None: all groups that can be registered.
    """

    source: str
    schema: str
    featuregroups: tuple[str, ...] | None = None


def parse_targets(
    publish: str | Sequence[str] | Mapping[str, str | None],
) -> tuple[PublicationTarget, ...]:
    """Parse references of views, or a mapping of references to online stores."""
    online_by_view = publish if isinstance(publish, Mapping) else dict.fromkeys(as_tuple(publish))
    return tuple(
        PublicationTarget.parse(view, online=online) for view, online in online_by_view.items()
    )

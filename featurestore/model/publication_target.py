"""Targets of jobs outside the store: a view in an online store, and tables of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featurestore.errors import InvalidJob, InvalidReference
from featurestore.model.arguments import as_tuple
from featurestore.model.json_object import JsonObject
from featurestore.model.names import check_name, parse_group_reference


@dataclass(frozen=True)
class PublicationTarget:
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

    def to_json(self) -> dict[str, Any]:
        """Return the target as a JSON object, the inverse of ``from_json``."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Any) -> PublicationTarget:
        """Parse the output of ``to_json``; raise ValueError if it is invalid."""
        fields = JsonObject.from_value(data)
        return cls(
            view=fields.text("view"),
            version=fields.optional_number("version"),
            online=fields.optional_text("online"),
        )


@dataclass(frozen=True)
class CatalogTarget:
    """The tables of a catalog that a job keeps in sync with feature groups.

    Attributes:
        source: The registered source of the catalog.
        schema: The schema (namespace) in the catalog.
        featuregroups: References of groups; None: all groups that can be registered.
    """

    source: str
    schema: str
    featuregroups: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the target as a JSON object, the inverse of ``from_json``."""
        references = None if self.featuregroups is None else list(self.featuregroups)
        return {**vars(self), "featuregroups": references}

    @classmethod
    def from_json(cls, data: Any) -> CatalogTarget:
        """Parse the output of ``to_json``; raise ValueError if it is invalid."""
        fields = JsonObject.from_value(data)
        references = None
        if fields.get("featuregroups") is not None:
            references = fields.texts("featuregroups")
        return cls(fields.text("source"), fields.text("schema"), references)


def parse_targets(
    publish: str | Sequence[str] | Mapping[str, str | None],
) -> tuple[PublicationTarget, ...]:
    """Parse references of views, or a mapping of references to online stores."""
    online_by_view = publish if isinstance(publish, Mapping) else dict.fromkeys(as_tuple(publish))
    return tuple(
        PublicationTarget.parse(view, online=online) for view, online in online_by_view.items()
    )

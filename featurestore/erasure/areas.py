"""The interface of the areas that an erasure searches, and what they share.

An area is a part of the store, such as the tables of feature groups. ``search`` only reads, and is
also the check of a certificate. ``erase`` needs the known values of the keys. It can be repeated
after it was killed: a second call continues with what the first one left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from featurestore.erasure.keys import Entities
from featurestore.model.erasure import ErasureFinding
from featurestore.session import Session


@dataclass
class Scan:
    """One search for entities, or one erasure, and its results so far.

    Attributes:
        session: The unfiltered session.
        entities: The entities.
        datasets: "export" to write training datasets again, or "keep" to list them.
        findings: The findings of all areas that were searched.
        scanned: The number of scanned places by area.
        key_rows: The values of the primary keys of matching rows, by group and version; the online
            values of these entities are removed.
        affected_datasets: The training datasets with rows of the entities.
        exported: The new version of each dataset that was exported again, by the old one.
        key_names: The keys that are columns of a table.
        key_hashes: The hashes of primary keys of the entities, by the names of these keys.
    """

    session: Session
    entities: Entities
    datasets: str = "export"
    findings: list[ErasureFinding] = field(default_factory=list)
    scanned: Counter[str] = field(default_factory=Counter)
    key_rows: dict[tuple[str, int], set[tuple[object, ...]]] = field(default_factory=dict)
    affected_datasets: set[tuple[str, int]] = field(default_factory=set)
    exported: dict[str, str] = field(default_factory=dict)
    key_names: set[str] = field(default_factory=set)
    key_hashes: dict[tuple[str, ...], set[bytes]] = field(default_factory=dict)

    def relative(self, path: str) -> str:
        """Return a path relative to the store, without erased values."""
        return self.entities.remove_from(path.removeprefix(self.session.location).lstrip("/"))


class Area(Protocol):
    """A part of the store that can contain data of an entity."""

    name: str

    def search(self, scan: Scan) -> Sequence[ErasureFinding]:
        """Return the places with data of the entities, without changing anything."""
        ...

    def erase(self, scan: Scan) -> None:
        """Remove the data of the entities from the places that are not only listed.

        Raises:
            WriteConflict: Another write changes the place.
        """
        ...


def search_areas(scan: Scan, areas: Sequence[Area]) -> list[ErasureFinding]:
    """Search all areas, and return the findings; they are also added to the scan."""
    for area in areas:
        scan.findings += area.search(scan)
    return scan.findings

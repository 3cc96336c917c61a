"""The results of an erasure: the findings, the report, and the check of a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from featurestore.model import display
from featurestore.model.json_object import JsonMapping
from featurestore.model.records import Record

# What an erasure does with a finding: "erase" removes the rows, "remove" the file or value, and
# "rewrite" replaces the text. "list" changes nothing; a person decides.
Action = Literal["erase", "remove", "rewrite", "list"]
DATASET_ACTIONS = ("export", "keep")
_CHECK_KEYS = ("certificate", "ok", "findings", "problems", "scanned", "listed", "not_searched")


@dataclass(frozen=True, order=True)
class ErasureFinding(Record):
    """A place with data of the erased entities.

    Attributes:
        area: The area of the store, such as "feature groups" or "online values".
        item: The object, such as ``visits@v1``, or a path relative to the store.
        detail: What the place contains.
        action: What the erasure does: "erase", "remove", "rewrite", or "list" for nothing.
        rows: The number of rows or values, 0 if it does not apply.
    """

    area: str
    item: str
    detail: str
    action: Action
    rows: int = 0

    def __str__(self) -> str:
        """Describe the finding in a line.

        >>> print(ErasureFinding("feature groups", "visits@v1", "2 rows", "erase", 2))
        feature groups: visits@v1: 2 rows (erase)
        """
        return f"{self.area}: {self.item}: {self.detail} ({self.action})"


@dataclass(frozen=True)
class ErasureReport(Record):
    """What an erasure found, and what it did.

    Attributes:
        keys: The names of the searched keys; the values are not stored.
        dry_run: Whether the erasure only searched.
        findings: The places, by area. After an erasure, each action was done.
        remaining: The places that an erasure could not change; empty after a complete erasure.
        models: The models that were trained on affected datasets, as ``name@v1``.
        datasets: The new version of each training dataset that was exported again, by old version.
        certificate: The certificate of an erasure; None after a dry run.
        not_searched: The places outside of the store that may have copies, such as catalogs.
    """

    keys: tuple[str, ...]
    dry_run: bool
    findings: Sequence[ErasureFinding] = field(repr=False)
    remaining: Sequence[ErasureFinding] = ()
    models: tuple[str, ...] = ()
    datasets: Mapping[str, str] = field(default_factory=dict)
    certificate: JsonMapping | None = field(default=None, repr=False)
    not_searched: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def complete(self) -> bool:
        """Whether an erasure was executed and left only listed places."""
        return not self.dry_run and not self.remaining

    def __str__(self) -> str:
        """List the findings and the models."""
        title = "Found, nothing was changed:" if self.dry_run else "Erased:"
        lines = [title, *map(str, self.findings)] if self.findings else ["Nothing found."]
        if self.remaining:
            lines += ["Not erased:", *map(str, self.remaining)]
        if self.models:
            lines.append(f"Models trained on these rows: {', '.join(self.models)}")
        if self.not_searched:
            lines += ["Not searched:", *self.not_searched]
        return "\n".join(lines)


@dataclass(frozen=True)
class ErasureCheck(Record, keys=_CHECK_KEYS):
    """The result of ``verify_erasure``.

    Attributes:
        certificate: The id of the certificate.
        findings: The places with data of the erased entities; empty if there are none.
        problems: Defects of the certificate or the audit log.
        scanned: The number of scanned places of each area.
        listed: The places that an erasure only lists, such as files of models.
        not_searched: The places outside of the store that may have copies, such as catalogs.
    """

    certificate: str
    findings: Sequence[ErasureFinding]
    problems: tuple[str, ...] = ()
    scanned: Mapping[str, int] = field(default_factory=dict)
    listed: Sequence[ErasureFinding] = ()
    not_searched: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def ok(self) -> bool:
        """Whether the certificate is genuine, and the store has no data of the entities."""
        return not self.findings and not self.problems

    def __str__(self) -> str:
        """State the result, and list the findings and problems."""
        if self.ok:
            return f"Certificate {self.certificate}: the store has no data of these entities."
        lines = [f"Certificate {self.certificate} is not confirmed:"]
        return "\n".join([*lines, *self.problems, *map(str, self.findings)])

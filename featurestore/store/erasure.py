"""Methods for the erasure of entities, and for the check of its certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from featurestore.model.erasure import ErasureCheck, ErasureReport


class ErasureCalls(StoreBase):
    """Methods for the erasure of entities."""

    def erase(
        self,
        subject: Mapping[str, object] | Sequence[Mapping[str, object]],
        *,
        columns: Mapping[str, str] | None = None,
        datasets: Literal["export", "keep"] = "export",
        dry_run: bool = True,
    ) -> ErasureReport:
        """Report all places with data of entities, or erase them.

        The rows of an entity are those whose columns have the values of its keys, in any feature
        group and training dataset. With ``dry_run=False``, the rows are deleted, and the versions,
        statistics, staged files, online values, logs and texts that contain them are removed or
        rewritten. Older Delta versions that contained them can no longer be read. The result has a
        certificate for ``verify_erasure``. After an error or a crash, call it again.

        Args:
            subject: The values of an entity's keys by column, such as ``{"user": "u-7731"}``, or a
                list of entities. A row belongs to an entity if it has all of its values.
            columns: Columns with another name than their key: ``{"orders.buyer": "user"}``.
            datasets: "export" writes training datasets with these rows as new versions without
                them, and removes the old versions; "keep" lists the datasets.
            dry_run: Only report.

        Raises:
            InvalidArgument: The subject is invalid, or the store has no column with its keys.
            WriteConflict: Other processes write groups with these rows; nothing was erased.
            OnlineStoreError: An online store cannot be used; nothing was erased.

        >>> report = store.erase({"tailnum": "N10"})
        >>> report.dry_run, report.certificate
        (True, None)
        """
        from featurestore.erasure import erase

        return erase(self._session, subject, columns=columns, datasets=datasets, dry_run=dry_run)

    def verify_erasure(self, certificate: Mapping[str, object] | str | bytes) -> ErasureCheck:
        """Check the certificate of an erasure, and search the store for the erased entities.

        The certificate contains no values: the keys of all places are compared with its digests.
        The check fails if rows came back, for example from a backup.

        Args:
            certificate: ``ErasureReport.certificate``, or its JSON.

        Raises:
            InvalidArgument: It is not a certificate.

        >>> report = store.erase({"tailnum": "N10"}, dry_run=False)
        >>> store.verify_erasure(report.certificate).ok
        True
        """
        from featurestore.erasure import verify_erasure

        return verify_erasure(self._session, certificate)

"""Verified reads: the data files of a retrieval are compared with their checksums before it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from featurestore.delta.datafile import DataFile
from featurestore.delta.maintenance import check_contents
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument, listing
from featurestore.external import LiveSource
from featurestore.model.plan import FeaturePlan

SAMPLE, ALL = "sample", "all"
# A sample is a small fraction of the time of a read. Repeated reads check other files.
_SAMPLED_FILES, _SAMPLED_BYTES = 4, 32 << 20


def check_verify(verify: str | None) -> None:
    """Raise InvalidArgument if ``verify=`` is neither None nor a mode."""
    if verify not in (None, SAMPLE, ALL):
        raise InvalidArgument(
            f"verify={verify!r} is invalid.", hint=f"one of {listing((SAMPLE, ALL))}, or None"
        )


def check_sources(plan: FeaturePlan | None, *, verify: str | None) -> None:
    """Compare files of the groups in a plan with their checksums.

    Raises:
        TableDamaged: A file differs from its checksum, or is missing.
    """
    if plan is None or verify is None:
        return
    for source in plan.sources:
        if not isinstance(source, LiveSource):
            snapshot = read_snapshot(source.path, source.delta_version)
            checked = snapshot.files if verify == ALL else _sample(snapshot.files)
            check_contents(snapshot, checked)


def _sample(data_files: Sequence[DataFile]) -> list[DataFile]:
    """Return random files, at least one, up to a number of files and bytes."""
    sample: list[DataFile] = []
    size = 0
    for file in random.sample(data_files, min(_SAMPLED_FILES, len(data_files))):
        size += file.bytes
        if sample and size > _SAMPLED_BYTES:
            break
        sample.append(file)
    return sample

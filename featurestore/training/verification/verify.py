"""Verify a training dataset: read all of its files again and report the differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.model.manifest import Manifest
from featurestore.plugins.format import find_format
from featurestore.training.verification.problems import Problem, VerifyReport
from featurestore.training.verification.row_order import row_problems, unchecked
from featurestore.training.verification.stored_files import (
    file_problems,
    manifest_problems,
    shard_problems,
    statistics_problems,
    transformations_problems,
    unknown_files,
)

if TYPE_CHECKING:
    from featurestore.session import Session


def verify(
    directory: str, manifest: Manifest, *, session: Session | None = None, recompute: bool = False
) -> VerifyReport:
    """Return the differences between a dataset's files and its manifest.

    Args:
        directory: The directory of the dataset.
        manifest: The manifest of the dataset.
        session: The store, needed to recompute.
        recompute: Also run the plan again at the pinned Delta versions and compare every byte.
    """
    problems = _file_problems(directory, manifest)
    notes: list[str] = []
    if not problems:
        dataset_format = find_format(manifest.data_format)
        notes += unchecked(manifest, dataset_format)
        if dataset_format.refuse_reading(manifest.layout) is None:
            problems += row_problems(directory, manifest)
    if recompute:
        from featurestore.training.verification.recompute import recompute_problems

        problems += recompute_problems(directory, manifest, session=session)
    rows, size, count = 0, 0, len(manifest.files)
    for split in manifest.splits:
        rows += split.rows
        size += split.bytes
        count += len(split.shards)
    return VerifyReport(
        dataset=f"{manifest.name} version {manifest.version}",
        content_hash=manifest.content_hash,
        rows=rows,
        files=count,
        bytes=size,
        recomputed=recompute,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _file_problems(directory: str, manifest: Manifest) -> list[Problem]:
    dataset_format = find_format(manifest.data_format)
    problems = [*manifest_problems(directory, manifest), *unknown_files(directory, manifest)]
    for split in manifest.splits:
        for shard in split.shards:
            problems += shard_problems(directory, manifest, shard, dataset_format)
    for file in manifest.files:
        problems += file_problems(directory, manifest, file)
    problems += statistics_problems(directory, manifest)
    problems += transformations_problems(directory, manifest)
    return problems

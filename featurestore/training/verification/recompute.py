"""Run a dataset's plan again at the pinned Delta versions and compare every shard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.model.manifest import MANIFEST_FILE, Manifest
from featurestore.plugins.format import find_format
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval import FeatureFrame
from featurestore.storage import files
from featurestore.training.export.data import Provenance
from featurestore.training.export.hashed_rows import hash_rows
from featurestore.training.export.manifest import build_manifest
from featurestore.training.export.pipeline import write_shards
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import plan_shards
from featurestore.training.export.split_rules import SplitRule
from featurestore.training.reading import dataset_schema
from featurestore.training.verification.problems import Problem
from featurestore.training.verification.replay import replay_plan

if TYPE_CHECKING:
    from featurestore.session import Session


def recompute_problems(
    directory: str, manifest: Manifest, *, session: Session | None
) -> Iterator[Problem]:
    """Yield a problem for each shard whose recomputed bytes differ.

    Raises:
        InvalidArgument: The dataset was opened without a store.
    """
    if not manifest.reproducible or manifest.plan is None:
        yield Problem(MANIFEST_FILE, f"cannot be recomputed: {manifest.reproducible_reason}")
        return
    if session is None:
        raise InvalidArgument(
            "verify(recompute=True) needs the store; this dataset was opened by its path alone.",
            hint="featurestore.connect(...).get_training_dataset(name).verify(recompute=True)",
        )
    try:
        with in_flight(session, kind="stage", name=manifest.name, version=manifest.version) as run:
            recomputed = _export_again(session, manifest, staging=run.rows)
            run.registered = True
    except FeatureStoreError as error:
        yield Problem(MANIFEST_FILE, f"cannot be recomputed: {error.message}")
        return
    yield from _differences(manifest, recomputed)


def _export_again(session: Session, manifest: Manifest, *, staging: str) -> Manifest:
    assert manifest.plan is not None
    plan = replay_plan(session, manifest.plan)
    frame = FeatureFrame.planned(session, plan)
    request = _request(manifest)
    rows = os.path.join(staging, "rows")
    hashed = hash_rows(session.engine, frame.relation, request, plan=plan, directory=rows)
    shards = [len(split.shards) for split in manifest.splits]
    shard_plan = plan_shards(session.engine, hashed, request, shard_counts=shards)
    target = os.path.join(staging, "dataset")
    files.make_directory(target)
    summaries = write_shards(session.engine, hashed, request, shard_plan, directory=target)
    return build_manifest(
        request, shard_plan, summaries, version=manifest.version, run_id="", provenance=Provenance()
    )


def _request(manifest: Manifest) -> ExportRequest:
    labels = []
    roles = {}
    for column in manifest.columns:
        roles[column.name] = column.role
        if column.role == "label":
            labels.append(column.name)
    return ExportRequest(
        name=manifest.name,
        schema=dataset_schema(manifest),
        labels=tuple(labels),
        key=manifest.key,
        roles=roles,
        rule=SplitRule.from_json(manifest.split_rule),
        seed=manifest.seed,
        format=find_format(manifest.data_format),
        compression=manifest.compression,
        shards=None,
        rows_per_shard=None,
        block_rows=manifest.block_rows,
        max_lengths=manifest.max_lengths,
    )


def _differences(manifest: Manifest, recomputed: Manifest) -> Iterator[Problem]:
    if recomputed.layout != manifest.layout:
        yield Problem(MANIFEST_FILE, "recomputed rows need another layout")
    for split, recomputed_split in zip(manifest.splits, recomputed.splits, strict=True):
        if split.rows != recomputed_split.rows:
            yield Problem(
                split.name,
                f"recomputed has {recomputed_split.rows:,} rows, the manifest says {split.rows:,}",
            )
        for shard, recomputed_shard in zip(split.shards, recomputed_split.shards, strict=True):
            if shard.sha256 != recomputed_shard.sha256:
                yield Problem(
                    shard.path,
                    f"recomputed bytes have SHA-256 {recomputed_shard.sha256}, the manifest says {shard.sha256}",
                )

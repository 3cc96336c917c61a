"""The TFRecord schema of a dataframe."""

from __future__ import annotations

from typing import Any

from featurestore.arrow.schemas import type_to_json
from featurestore.ingest import as_relation, with_language
from featurestore.model.manifest import Manifest, ManifestColumn, ManifestSplit
from featurestore.plugins.format import find_format
from featurestore.session import Session
from featurestore.training.export.data import check_typed
from featurestore.training.export.profiles import ProfileAccumulator

_BLOCK_ROWS = 1024


def record_schema(session: Session, df: object) -> dict[str, Any]:
    """Return ``{column: tf.io feature}`` for the rows of a dataframe.

    The rows are read once, for nulls and lengths; no file is written.

    Raises:
        UnsupportedType: TFRecord cannot hold some columns; all are listed.
    """
    tfrecord = find_format("tfrecord")
    df, language = with_language(df)
    with as_relation(df, engine=session.engine) as rows:
        schema = rows.schema
        check_typed(schema, language=language)
        tfrecord.check(schema, compression=None)
        profiles = session.engine.aggregate(rows, ProfileAccumulator(tuple(schema.names)))
    layout = tfrecord.layout(schema, profiles, compression=None, block_rows=_BLOCK_ROWS)
    encodings = tfrecord.encodings(layout)
    columns, nulls = [], {}
    for field, profile in zip(schema, profiles, strict=True):
        encoding = encodings[field.name]
        if profile.nulls:
            nulls[field.name] = profile.nulls
        columns.append(
            ManifestColumn(
                name=field.name,
                type=type_to_json(field.type),
                role="feature",
                tf_type=encoding.tf_type,
                shape=encoding.shape,
                null=encoding.null,
                loss=encoding.loss,
            )
        )
    split = ManifestSplit("all", rows=profiles[0].rows, bytes=0, shards=(), nulls=nulls)
    manifest = Manifest(
        name="dataframe",
        version=1,
        data_format="tfrecord",
        seed=0,
        key=(),
        split_rule={},
        block_rows=_BLOCK_ROWS,
        compression=None,
        columns=tuple(columns),
        layout=layout,
        splits=(split,),
        files=(),
        plan=None,
        plan_hash=None,
        sources=(),
        reproducible=False,
        reproducible_reason="it is a dataframe",
    )
    return tfrecord.feature_spec(manifest)

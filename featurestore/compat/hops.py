"""An adapter with the interface of ``hops.featurestore`` from 2019.

With ``from featurestore.compat import hops as featurestore``, notebooks of that time run: they use
its argument names, version 1 by default, ``group_1`` for a group and its version, inner joins, and
Spark dataframes from the Spark engine (the embedded engine returns frames that also have ``show``).
Unsupported arguments raise an error with an explanation. The differences are in
``docs/coming-from/hopsworks.md``.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import featurestore as fs
from featurestore._current import current_store
from featurestore.errors import InvalidArgument, listing

# hops appends the version to the name of a group: ``teams_1.budget``.
_REFERENCE = re.compile(r"([a-z][a-z0-9_]*)_([1-9][0-9]*)\.(\w+)")
_TABLE = re.compile(r"\b(from|join)\s+([a-z][a-z0-9_]*)_([1-9][0-9]*)\b", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*describe\s+([a-z][a-z0-9_]*?)_([1-9][0-9]*)\s*;?\s*", re.IGNORECASE)
_FORMATS = {"tfrecords": "tfrecord", "tsv": "csv", "orc": "parquet", "avro": "parquet",
            "hdf5": "parquet", "npy": "parquet"}  # fmt: skip
_INSTEAD = {
    "connect": "featurestore.connect('path') opens a store; there is no server to log in to",
    "sync_hive_table_with_featurestore": "create_featuregroup(spark.table('name'), 'name')",
    "insert_into_training_dataset": "training datasets are immutable: create_training_dataset(..., "
    "training_dataset_version=get_latest_training_dataset_version(name) + 1)",
    "get_storage_connector": "there are no storage connectors: read the data with its own library",
    "import_featuregroup_s3": "read the files and call create_featuregroup",
    "import_featuregroup_redshift": "read the table and call create_featuregroup",
    "enable_featuregroup_online": "there is no online store: get_features(features, labels=[{...}], "
    "label_time=now) reads the latest values",
    "disable_featuregroup_online": "there is no online store",
    "get_online_featurestore_connector": "there is no online store",
}
# Replacements for the other modules in ``hops``.
_MODULES = {
    "experiment": "experiments.launch(train, dataset=...) runs a function once, "
    "experiments.search(...) many times: from featurestore import experiments",
    "tensorboard": "training functions write to context.log_dir, and 'featurestore run "
    "tensorboard' displays it",
    "hdfs": "connect('hdfs://host:port/folder') opens a store on HDFS; "
    "pyarrow.fs.HadoopFileSystem reads files",
    "serving": "store.score(model, labels=...) applies a registered model",
    "model": "experiments.register_model(run, name) and experiments.get_model(name): from "
    "featurestore import experiments",
    "kafka": "featurestore.stream_job(...) keeps a group up to date with a topic",
}


class _Module:
    """A placeholder for a module in ``hops``: each call raises an error with a replacement."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        # The import succeeds, so that a notebook runs until the first call.
        return lambda *_args, **_kwargs: self._refuse(f".{attribute}")

    def __call__(self, *_args: object, **_kwargs: object) -> None:
        self._refuse("")

    def _refuse(self, attribute: str) -> None:
        raise InvalidArgument(
            f"hops.{self._name}{attribute} is not supported by this store.",
            hint=_MODULES[self._name],
        )


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _Module(name)
    if name in _INSTEAD:
        return lambda *_args, **_kwargs: _refuse(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def project_featurestore() -> str:
    """Return the name of the store: its directory name with the suffix ``_featurestore``."""
    return f"{os.path.basename(current_store().location)}_featurestore"


def get_project_featurestores() -> list[str]:
    """Return the names of the project's stores, which is only the connected one."""
    return [project_featurestore()]


# -- feature groups ---------------------------------------------------------------------------


def create_featuregroup(
    df: object,
    featuregroup: str,
    primary_key: str | Sequence[str] = (),
    description: str = "",
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    jobs: Sequence[str] = (),
    descriptive_statistics: bool = True,
    feature_correlation: bool = True,
    feature_histograms: bool = True,
    cluster_analysis: bool = True,
    stat_columns: Sequence[str] | None = None,
    partition_by: str | Sequence[str] = (),
    online: bool = False,
) -> None:
    """Create a version of a feature group; any of the flags enables statistics."""
    _check_store(featurestore, online=online)
    flags = (descriptive_statistics, feature_correlation, feature_histograms, cluster_analysis)
    fs.create_featuregroup(
        df,
        featuregroup,
        primary_key=primary_key,
        description=description,
        version=featuregroup_version,
        partition_by=partition_by,
        statistics=any(flags),
    )


def create_on_demand_featuregroup(
    sql_query: str,
    featuregroup: str,
    jdbc_connector_name: str | None = None,
    featurestore: str | None = None,
    description: str = "",
    featuregroup_version: int = 1,
) -> None:
    """Create a feature group from the current result of a query, which is run only once."""
    _check_store(featurestore)
    warnings.warn(
        f"{featuregroup!r} stores the current result of its query; sql(...) runs a query again.",
        stacklevel=2,
    )
    # hops runs the query at every read; here the rows are stored, so that they have versions.
    rows = fs.sql(_replace_tables(sql_query))
    fs.create_featuregroup(
        rows, featuregroup, description=description, version=featuregroup_version
    )


def insert_into_featuregroup(
    df: object,
    featuregroup: str,
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    mode: str = "append",
    descriptive_statistics: bool = True,
    feature_correlation: bool = True,
    feature_histograms: bool = True,
    cluster_analysis: bool = True,
    stat_columns: Sequence[str] | None = None,
    online: bool = False,
) -> None:
    """Write rows to a feature group; its definition determines whether statistics are computed."""
    _check_store(featurestore, online=online)
    if mode not in ("append", "overwrite"):
        raise InvalidArgument(f"mode={mode!r} is not one of 'append', 'overwrite'.")
    fs.insert_into_featuregroup(
        df,
        featuregroup,
        version=featuregroup_version,
        mode=mode,  # type: ignore[arg-type]
    )


def get_featuregroup(
    featuregroup: str,
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    dataframe_type: str = "spark",
    online: bool = False,
) -> Any:
    """Return the rows of a feature group."""
    _check_store(featurestore, online=online)
    return _convert_frame(
        fs.get_featuregroup(featuregroup, version=featuregroup_version), dataframe_type
    )


def get_featuregroup_partitions(
    featuregroup: str,
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    dataframe_type: str = "spark",
) -> Any:
    """Return the partitions of a feature group, one row each, such as ``score=1/team=2``."""
    _check_store(featurestore)
    rows = []
    for values in fs.get_featuregroup_partitions(featuregroup, version=featuregroup_version):
        pairs = [f"{column}={value}" for column, value in values.items()]
        rows.append(("/".join(pairs),))
    return _convert_frame(_rows_to_frame(("partition",), rows), dataframe_type)


def get_featuregroups(featurestore: str | None = None) -> list[str]:
    """Return the names of all feature groups with their versions, such as ``teams_features_1``."""
    _check_store(featurestore)
    return [f"{group.name}_{group.version}" for group in fs.get_featuregroups()]


def get_latest_featuregroup_version(featuregroup: str, featurestore: str | None = None) -> int:
    """Return the latest version of a feature group, 0 if it does not exist."""
    _check_store(featurestore)
    return fs.get_latest_featuregroup_version(featuregroup)


def update_featuregroup_stats(
    featuregroup: str,
    featuregroup_version: int = 1,
    featurestore: str | None = None,
    descriptive_statistics: bool = True,
    feature_correlation: bool = True,
    feature_histograms: bool = True,
    cluster_analysis: bool = True,
    stat_columns: Sequence[str] | None = None,
) -> None:
    """Recompute the statistics of a feature group for all its columns."""
    _check_store(featurestore)
    fs.update_featuregroup_statistics(featuregroup, version=featuregroup_version)


def set_featuregroup_tag(
    name: str,
    tag: str,
    value: str = "",
    featurestore: str | None = None,
    featuregroup_version: int = 1,
) -> None:
    """Set a tag on a feature group."""
    _check_store(featurestore)
    fs.add_featuregroup_tag(name, tag, value, version=featuregroup_version)


def get_featuregroup_tags(
    name: str, featurestore: str | None = None, featuregroup_version: int = 1
) -> dict[str, str]:
    """Return the tags of a feature group."""
    _check_store(featurestore)
    return fs.get_featuregroup_tags(name, version=featuregroup_version)


def get_featuregroup_tag(
    name: str, tag: str, featurestore: str | None = None, featuregroup_version: int = 1
) -> str | None:
    """Return the value of a feature group tag, None if it is not set."""
    return get_featuregroup_tags(name, featurestore, featuregroup_version).get(tag)


def remove_featuregroup_tag(
    name: str, tag: str, featurestore: str | None = None, featuregroup_version: int = 1
) -> None:
    """Remove a tag from a feature group."""
    _check_store(featurestore)
    fs.remove_featuregroup_tag(name, tag, version=featuregroup_version)


def get_tags() -> list[str]:
    """Return all tag keys that are set on feature groups; other keys are also allowed."""
    names: set[str] = set()
    for group in fs.get_featuregroups():
        names.update(group.tags)
    return sorted(names)


# -- features ---------------------------------------------------------------------------------


def get_feature(
    feature: str,
    featurestore: str | None = None,
    featuregroup: str | None = None,
    featuregroup_version: int = 1,
    dataframe_type: str = "spark",
    online: bool = False,
) -> Any:
    """Return one feature."""
    _check_store(featurestore, online=online)
    versions = {}
    if featuregroup is not None:
        versions[featuregroup] = featuregroup_version
    (reference,) = _to_references([feature], versions)
    return _convert_frame(fs.get_feature(reference), dataframe_type)


def get_features(
    features: Sequence[str],
    featurestore: str | None = None,
    featuregroups_version_dict: Mapping[str, int] | None = None,
    join_key: str | None = None,
    dataframe_type: str = "spark",
    online: bool = False,
) -> Any:
    """Return features of several groups, inner-joined on a common column.

    If ``join_key`` is None, it is a common primary key column, or else the first common column.
    """
    _check_store(featurestore, online=online)
    references = _to_references(features, dict(featuregroups_version_dict or {}))
    groups = list(dict.fromkeys([reference.split(".")[0] for reference in references]))
    if join_key is None and len(groups) > 1:
        join_key = _shared_column(groups)
    frame = fs.get_features(references, join_key=join_key, join="inner")
    return _convert_frame(frame, dataframe_type)


def get_features_list(featurestore: str | None = None) -> list[str]:
    """Return the names of all features."""
    _check_store(featurestore)
    return [reference.split(".")[-1] for reference in fs.get_features_list()]


def sql(
    query: str, featurestore: str | None = None, dataframe_type: str = "spark", online: bool = False
) -> Any:
    """Return the result of a query over ``group_1`` tables, ``show tables`` or ``describe``."""
    _check_store(featurestore, online=online)
    describe_match = _DESCRIBE.fullmatch(query)
    if describe_match is not None:
        schema = fs.featuregroup(describe_match[1], version=int(describe_match[2])).schema
        columns = [(field.name, str(field.type)) for field in schema]
        return _convert_frame(_rows_to_frame(("col_name", "data_type"), columns), dataframe_type)
    if query.strip().rstrip(";").lower() == "show tables":
        names = [(name,) for name in get_featuregroups()]
        return _convert_frame(_rows_to_frame(("tableName",), names), dataframe_type)
    return _convert_frame(fs.sql(_replace_tables(query)), dataframe_type)


# -- training datasets ------------------------------------------------------------------------


def create_training_dataset(
    df: object,
    training_dataset: str,
    description: str = "",
    featurestore: str | None = None,
    data_format: str = "tfrecords",
    training_dataset_version: int = 1,
    jobs: Sequence[str] = (),
    descriptive_statistics: bool = True,
    feature_correlation: bool = True,
    feature_histograms: bool = True,
    cluster_analysis: bool = True,
    stat_columns: Sequence[str] | None = None,
    petastorm_args: Mapping[str, Any] | None = None,
) -> None:
    """Export rows as a training dataset with a single split and all columns.

    ``petastorm_args`` are ignored, since the schema is derived from the rows. The formats ORC,
    Avro, HDF5 and npy are replaced by Parquet, and tsv by csv, each with a warning.
    """
    _check_store(featurestore)
    written_format = _FORMATS.get(data_format, data_format)
    if written_format != data_format and data_format != "tfrecords":
        warnings.warn(
            f"{data_format!r} is not supported: writing {written_format!r} instead.", stacklevel=2
        )
    flags = (descriptive_statistics, feature_correlation, feature_histograms, cluster_analysis)
    fs.create_training_dataset(
        df,
        training_dataset,
        description=description,
        data_format=written_format,
        version=training_dataset_version,
        statistics=any(flags),
        progress=False,
    )


def get_training_dataset(
    training_dataset: str,
    featurestore: str | None = None,
    training_dataset_version: int = 1,
    dataframe_type: str = "spark",
) -> Any:
    """Return the rows of a training dataset."""
    _check_store(featurestore)
    # Datasets of this adapter have a single split.
    dataset = fs.get_training_dataset(training_dataset, version=training_dataset_version)
    return _convert_frame(dataset.read(dataset.splits[0]), dataframe_type)


def get_training_dataset_path(
    training_dataset: str, featurestore: str | None = None, training_dataset_version: int = 1
) -> str:
    """Return the directory that contains the files of a training dataset's first split."""
    _check_store(featurestore)
    dataset = fs.get_training_dataset(training_dataset, version=training_dataset_version)
    return dataset.path_of(dataset.splits[0])


def get_training_datasets(featurestore: str | None = None) -> list[str]:
    """Return the names of all training datasets with their versions."""
    _check_store(featurestore)
    return [f"{dataset.name}_{dataset.version}" for dataset in fs.get_training_datasets()]


def get_latest_training_dataset_version(
    training_dataset: str, featurestore: str | None = None
) -> int:
    """Return the latest version of a training dataset, 0 if it does not exist."""
    _check_store(featurestore)
    return fs.get_latest_training_dataset_version(training_dataset)


def get_training_dataset_tf_record_schema(
    training_dataset: str, training_dataset_version: int = 1, featurestore: str | None = None
) -> dict[str, Any]:
    """Return ``{column: tf.io feature}`` for a training dataset."""
    _check_store(featurestore)
    return fs.get_training_dataset_tf_record_schema(
        training_dataset, version=training_dataset_version
    )


def get_dataframe_tf_record_schema(df: object) -> dict[str, Any]:
    """Return ``{column: tf.io feature}`` for a dataframe."""
    return fs.get_dataframe_tf_record_schema(df)


def update_training_dataset_stats(
    training_dataset: str,
    training_dataset_version: int = 1,
    featurestore: str | None = None,
    descriptive_statistics: bool = True,
    feature_correlation: bool = True,
    feature_histograms: bool = True,
    cluster_analysis: bool = True,
    stat_columns: Sequence[str] | None = None,
) -> None:
    """Check that a training dataset has statistics; it is immutable, so they are not recomputed."""
    _check_store(featurestore)
    dataset = fs.get_training_dataset(training_dataset, version=training_dataset_version)
    for split in dataset.splits:
        dataset.statistics(split)


# -- plots ------------------------------------------------------------------------------------


def visualize_featuregroup_distributions(
    featuregroup_name: str,
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    figsize: tuple[float, float] | None = None,
    color: str = "lightblue",
    log: bool = False,
    align: str = "center",
    plot: bool = True,
) -> Any:
    """Plot the distributions of a feature group; color, log and align are ignored."""
    _check_store(featurestore)
    return fs.visualize_featuregroup_distributions(  # type: ignore[call-overload]
        featuregroup_name, version=featuregroup_version, figsize=figsize, plot=plot
    )


def visualize_featuregroup_correlations(
    featuregroup_name: str,
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    figsize: tuple[float, float] | None = None,
    cmap: str = "coolwarm",
    annot: bool = True,
    fmt: str = ".2f",
    linewidths: float = 0.05,
    plot: bool = True,
) -> Any:
    """Plot the correlations of a feature group."""
    _check_store(featurestore)
    return fs.visualize_featuregroup_correlations(  # type: ignore[call-overload]
        featuregroup_name,
        version=featuregroup_version,
        figsize=figsize,
        cmap=cmap,
        annot=annot,
        plot=plot,
    )


def visualize_featuregroup_clusters(
    featuregroup_name: str,
    featurestore: str | None = None,
    featuregroup_version: int = 1,
    figsize: tuple[float, float] | None = None,
    plot: bool = True,
) -> Any:
    """Plot the clusters of a feature group."""
    _check_store(featurestore)
    return fs.visualize_featuregroup_clusters(  # type: ignore[call-overload]
        featuregroup_name, version=featuregroup_version, figsize=figsize, plot=plot
    )


def visualize_featuregroup_descriptive_stats(
    featuregroup_name: str, featurestore: str | None = None, featuregroup_version: int = 1
) -> Any:
    """Return the descriptive statistics of a feature group as a pandas dataframe."""
    _check_store(featurestore)
    return fs.visualize_featuregroup_descriptive_stats(
        featuregroup_name, version=featuregroup_version
    )


def visualize_training_dataset_distributions(
    training_dataset_name: str,
    featurestore: str | None = None,
    training_dataset_version: int = 1,
    figsize: tuple[float, float] | None = None,
    color: str = "lightblue",
    log: bool = False,
    align: str = "center",
    plot: bool = True,
) -> Any:
    """Plot the distributions of a training dataset."""
    _check_store(featurestore)
    return fs.visualize_training_dataset_distributions(  # type: ignore[call-overload]
        training_dataset_name, version=training_dataset_version, figsize=figsize, plot=plot
    )


def visualize_training_dataset_correlations(
    training_dataset_name: str,
    featurestore: str | None = None,
    training_dataset_version: int = 1,
    figsize: tuple[float, float] | None = None,
    cmap: str = "coolwarm",
    annot: bool = True,
    fmt: str = ".2f",
    linewidths: float = 0.05,
    plot: bool = True,
) -> Any:
    """Plot the correlations of a training dataset."""
    _check_store(featurestore)
    return fs.visualize_training_dataset_correlations(  # type: ignore[call-overload]
        training_dataset_name,
        version=training_dataset_version,
        figsize=figsize,
        cmap=cmap,
        annot=annot,
        plot=plot,
    )


def visualize_training_dataset_clusters(
    training_dataset_name: str,
    featurestore: str | None = None,
    training_dataset_version: int = 1,
    figsize: tuple[float, float] | None = None,
    plot: bool = True,
) -> Any:
    """Plot the clusters of a training dataset."""
    _check_store(featurestore)
    return fs.visualize_training_dataset_clusters(  # type: ignore[call-overload]
        training_dataset_name, version=training_dataset_version, figsize=figsize, plot=plot
    )


def visualize_training_dataset_descriptive_stats(
    training_dataset_name: str, featurestore: str | None = None, training_dataset_version: int = 1
) -> Any:
    """Return the descriptive statistics of a training dataset as a pandas dataframe."""
    _check_store(featurestore)
    return fs.visualize_training_dataset_descriptive_stats(
        training_dataset_name, version=training_dataset_version
    )


# -- the store --------------------------------------------------------------------------------


def get_storage_connectors(featurestore: str | None = None) -> list[str]:
    """Return an empty list: storage connectors are not supported."""
    _check_store(featurestore)
    return []


def get_featurestore_metadata(
    featurestore: str | None = None, update_cache: bool = False
) -> dict[str, Any]:
    """Return the content of the store: column types of groups, and splits of training datasets."""
    _check_store(featurestore)
    groups: dict[str, Any] = {}
    for group in fs.get_featuregroups():
        columns = {field.name: str(field.type) for field in group.schema}
        groups[f"{group.name}_{group.version}"] = columns
    datasets: dict[str, Any] = {}
    for dataset in fs.get_training_datasets():
        datasets[f"{dataset.name}_{dataset.version}"] = list(dataset.splits)
    return {"featuregroups": groups, "training_datasets": datasets}


# -- conversions from hops to this store ------------------------------------------------------


def _refuse(name: str) -> None:
    raise InvalidArgument(f"{name} is not supported by this store.", hint=_INSTEAD[name])


def _check_store(featurestore: str | None, *, online: bool = False) -> None:
    """Refuse other stores and the online store."""
    if featurestore is not None and featurestore != project_featurestore():
        raise InvalidArgument(
            f"featurestore={featurestore!r} is not the connected store, "
            f"{project_featurestore()!r}.",
            hint="featurestore.connect('path') opens another store",
        )
    if online:
        raise InvalidArgument(
            "online=True is not supported: the store has no online store.",
            hint="get_features(features, labels=[{...}], label_time=now) reads the latest values",
        )


def _to_references(features: Sequence[str], versions: Mapping[str, int]) -> list[str]:
    """Convert feature names to references of this store, such as ``group@v1.feature``."""
    requested_columns = dict(versions)
    if not requested_columns:
        for group in fs.get_featuregroups():
            # hops reads version 1 by default; without a version 1, the lowest version is used.
            requested_columns[group.name] = min(
                group.version, requested_columns.get(group.name, group.version)
            )
    columns = {}
    for name, version in requested_columns.items():
        columns[f"{name}@v{version}"] = fs.featuregroup(name, version=version).schema.names
    return [_to_reference(feature, columns) for feature in features]


def _to_reference(feature: str, columns: Mapping[str, Sequence[str]]) -> str:
    """Return the reference of a feature: ``group_1.feature``, or the only group that has it."""
    matching_groups = _REFERENCE.fullmatch(feature)
    if matching_groups is not None:
        return f"{matching_groups[1]}@v{matching_groups[2]}.{matching_groups[3]}"
    if "." in feature:
        return feature
    groups_with_feature = [group for group, names in columns.items() if feature in names]
    if len(groups_with_feature) != 1:
        raise InvalidArgument(
            f"The feature {feature!r} is in {len(groups_with_feature)} of the feature groups "
            f"{listing(columns)}.",
            hint=f"name its group and version: 'group_1.{feature}'",
        )
    return f"{groups_with_feature[0]}.{feature}"


def _shared_column(groups: Sequence[str]) -> str:
    """Return the column to join groups on: a key column in all groups, or the first shared one."""
    shared: list[str] | None = None
    keys: set[str] = set()
    for reference in groups:
        name, _, version = reference.partition("@v")
        group = fs.featuregroup(name, version=int(version or 1))
        keys.update(group.primary_key)
        names = group.schema.names
        shared = names if shared is None else [column for column in shared if column in names]
    # The sort is stable: key columns first, in the order of the first group.
    shared_columns = sorted(shared or [], key=lambda name: name not in keys)
    if not shared_columns:
        raise InvalidArgument(
            f"The feature groups {listing(groups)} have no column in common.",
            hint="specify the join column with join_key=",
        )
    return shared_columns[0]


def _replace_tables(query: str) -> str:
    """Replace the tables ``group_1`` in a query by versioned group names."""
    known_groups = {f"{group.name}_{group.version}" for group in fs.get_featuregroups()}

    def quote_table(match: re.Match[str]) -> str:
        # The name of a common table expression or a subquery may have the same form.
        if f"{match[2]}_{match[3]}".lower() not in known_groups:
            return match[0]
        return f'{match[1]} "{match[2].lower()}@v{match[3]}"'

    return _TABLE.sub(quote_table, query)


def _rows_to_frame(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Any:
    """Return rows of strings as a frame."""
    if not rows:
        # VALUES needs at least one row.
        return fs.sql(f"select {', '.join(f'null::text as {name}' for name in columns)} limit 0")
    row_tuples = []
    for row in rows:
        cells = [_quote(cell) for cell in row]
        row_tuples.append(f"({', '.join(cells)})")
    return fs.sql(f"select * from (values {', '.join(row_tuples)}) as rows({', '.join(columns)})")


def _quote(cell: str) -> str:
    doubled = cell.replace("'", "''")
    return f"'{doubled}'"


def _convert_frame(frame: Any, dataframe_type: str) -> Any:
    """Convert a frame to one of the dataframe types of hops."""
    if dataframe_type == "spark":
        if frame.session.engine.name == "spark":
            return frame.to_spark()
        return frame
    if dataframe_type == "python":
        return [list(row_values.values()) for row_values in frame.to_arrow().to_pylist()]
    if dataframe_type == "pandas":
        return frame.to_pandas()
    if dataframe_type == "numpy":
        return frame.to_numpy()
    raise InvalidArgument(
        f"dataframe_type={dataframe_type!r} is not one of 'spark', 'pandas', 'numpy', 'python'."
    )

"""Replacements for methods of Spark's and pandas' dataframes that a FeatureFrame does not have."""

from __future__ import annotations

_SPARK_NAMES = """
agg alias approxQuantile cache checkpoint coalesce colRegex collect corr createGlobalTempView
createOrReplaceGlobalTempView createOrReplaceTempView createTempView crossJoin crosstab cube
distinct dropDuplicates dropna dtypes exceptAll explain fillna first foreach foreachPartition
groupBy intersect isEmpty join limit localCheckpoint mapInArrow mapInPandas orderBy persist
printSchema randomSplit rdd repartition rollup selectExpr sort storageLevel subtract summary
tail take toDF toJSON toLocalIterator toPandas transform union unionByName unpersist where
withColumn withColumnRenamed withColumns withWatermark write writeStream writeTo
"""
SPARK = frozenset(_SPARK_NAMES.split())
_PANDAS_NAMES = """
T apply applymap assign astype at copy describe drop_duplicates eval iat iloc index info insert
isna isnull items iterrows itertuples loc map mean median melt merge min max nlargest notna
nsmallest nunique pivot pivot_table plot pop query rename reset_index resample rolling round sem
set_index shape size sort_index sort_values std sum to_csv to_dict to_excel to_json to_parquet
to_records transpose value_counts values var groupby
"""
PANDAS = frozenset(_PANDAS_NAMES.split())
# Methods that the frame has under another name.
_FRAME_METHODS = {
    "collect": 'frame.to_arrow(), or dataframe_type="python"',
    "dtypes": "frame.schema",
    "limit": "frame.head(n)",
    "printSchema": "print(frame.schema)",
    "randomSplit": "frame.sample(fraction=..., seed=...), or splits= of create_training_dataset",
    "query": 'frame.filter("temp > 20")',
    "rename": '"group.feature as name" in get_features',
    "shape": "frame.count(), len(frame.columns)",
    "take": "frame.head(n)",
    "toPandas": "frame.to_pandas()",
    "where": 'frame.filter("temp > 20")',
    "withColumnRenamed": '"group.feature as name" in get_features',
}


def suggest_replacement(name: str) -> str | None:
    """Return the replacement for a method of another dataframe; None if none is known.

    >>> suggest_replacement("groupBy")
    'frame.to_spark().groupBy'
    >>> suggest_replacement("describe")
    'frame.to_pandas().describe'
    """
    suggestions = []
    if name in _FRAME_METHODS:
        suggestions.append(_FRAME_METHODS[name])
    if name in SPARK:
        suggestions.append(f"frame.to_spark().{name}")
    elif name in PANDAS:
        suggestions.append(f"frame.to_pandas().{name}")
    return ", or ".join(suggestions) or None

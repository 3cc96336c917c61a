"""Distributions of Python modules: the pip command that installs a missing module."""

from __future__ import annotations

from collections.abc import Mapping

# The extra that installs a module.
EXTRAS: Mapping[str, str] = {
    "PIL": "images",
    "adbc_driver_postgresql": "sources",
    "adbc_driver_sqlite": "sources",
    "authlib": "server",
    "boto3": "glue",
    "cloudpickle": "experiments",
    "confluent_kafka": "kafka",
    "cronsim": "jobs",
    "delta": "spark",
    "fastapi": "server",
    "fastavro": "kafka",
    "fsspec": "s3",
    "google.protobuf": "kafka",
    "great_expectations": "validation",
    "hdfs_native": "hdfs",
    "imagecodecs": "images-fast",
    "matplotlib": "plots",
    "mlflow": "mlflow",
    "narwhals": "jobs",
    "obstore": "s3",
    "openlineage": "lineage",
    "optuna": "experiments",
    "pandas": "pandas",
    "petastorm": "petastorm",
    "polars": "polars",
    "polars_deltalake": "sources",
    "prometheus_client": "metrics",
    "psycopg": "postgres",
    "pyiceberg": "iceberg",
    "pymysql": "mysql",
    "pyspark": "spark",
    "seaborn": "plots",
    "tensorboard": "experiments",
    "tensorflow": "tensorflow",
    "tf_keras": "keras2",
    "torch": "torch",
}
# The distribution of a module that no extra installs. A module that is missing here may have a
# distribution of any name, also one of an unrelated project.
DISTRIBUTIONS: Mapping[str, str] = {
    "MySQLdb": "mysqlclient",
    "attr": "attrs",
    "boto3": "boto3",
    "bs4": "beautifulsoup4",
    "catboost": "catboost",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "google.cloud.bigquery": "google-cloud-bigquery",
    "google.cloud.storage": "google-cloud-storage",
    "httpx": "httpx",
    "jax": "jax",
    "joblib": "joblib",
    "jwt": "pyjwt",
    "keras": "keras",
    "lightgbm": "lightgbm",
    "psycopg2": "psycopg2-binary",
    "requests": "requests",
    "scipy": "scipy",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "snowflake.connector": "snowflake-connector-python",
    "statsmodels": "statsmodels",
    "transformers": "transformers",
    "xgboost": "xgboost",
    "yaml": "pyyaml",
}


def install_command(module: str) -> str | None:
    """Return the pip command that installs a missing module, or None for an unknown module.

    >>> install_command("confluent_kafka.admin")
    "pip install 'featurestore[kafka]'"
    >>> install_command("sklearn")
    'pip install scikit-learn'
    >>> install_command("our_helpers")
    """
    levels = module.split(".")
    for level in range(len(levels), 0, -1):
        name = ".".join(levels[:level])
        if name in EXTRAS:
            return f"pip install 'featurestore[{EXTRAS[name]}]'"
        if name in DISTRIBUTIONS:
            return f"pip install {DISTRIBUTIONS[name]}"
    return None

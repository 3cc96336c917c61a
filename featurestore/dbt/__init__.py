"""dbt projects: their models as external feature groups, and the uses of these as exposures."""

from __future__ import annotations

from featurestore.dbt.exposures import write_exposures
from featurestore.dbt.importing import import_project, plan_import
from featurestore.dbt.results import DbtChange, DbtImport, DbtSkipped

__all__ = [
    "DbtChange",
    "DbtImport",
    "DbtSkipped",
    "import_project",
    "plan_import",
    "write_exposures",
]

"""dbt projects: their models as external feature groups, and the uses of these as exposures."""

from __future__ import annotations

from featurestore.dbt.exposures import write_exposures
from featurestore.dbt.importing import DbtChange, DbtImport, import_project, plan_import

__all__ = ["DbtChange", "DbtImport", "import_project", "plan_import", "write_exposures"]

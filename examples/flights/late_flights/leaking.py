"""A mistake on purpose.

Traffic of an hour stamped with the hour's beginning, when none of it was known.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import narwhals as nw

from featurestore.retrieval import FeatureFrame
from late_flights.features import origin_traffic


def leaking_traffic(departures: Any) -> Any:
    """Return what ``origin_traffic`` gives, stamped an hour too early.

    9:00 for what happened from 9:00 to 10:00.
    """
    honest = nw.from_native(origin_traffic(departures))
    return honest.with_columns(known_at=nw.col("known_at").dt.offset_by("-1h")).to_native()


def up_to(departures: FeatureFrame, moment: datetime) -> FeatureFrame:
    """Return the departures that had happened at a moment.

    What the feature could have been made of.
    """
    return departures.filter(f"left_at <= timestamptz '{moment.isoformat()}'")

"""What watches the weather, which the late-flights model was trained on from June to August."""

from __future__ import annotations

import featurestore

# The first commit of the group is what the model was trained on.
weather_watch = featurestore.monitor_job(
    "weather_watch",
    featuregroup="weather",
    schedule="0 0 * * 1",
    baseline=featurestore.baseline(as_of=1),
    features=["temp", "dewp", "humid", "wind_speed", "pressure", "visib"],
)

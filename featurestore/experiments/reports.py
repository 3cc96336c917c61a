"""Reports of a run: metrics by step, as lines of JSON and as TensorBoard events."""

from __future__ import annotations

import json
import math
import numbers
import os
import time
from collections.abc import Mapping
from typing import Any

from featurestore.errors import InvalidArgument, InvalidMetric, missing_extra
from featurestore.model.run_record import METRICS_FILE, metrics_line
from featurestore.storage.appending import AppendedFile
from featurestore.storage.machine import host_name

TENSORBOARD = "tensorboard"


def check_metrics(metrics: Mapping[str, Any], *, location: str) -> dict[str, float]:
    """Return metrics as finite numbers.

    Raises:
        InvalidMetric: A metric is not a number, NaN or infinite.

    >>> check_metrics({"loss": 1}, location="at step 3")
    {'loss': 1.0}
    """
    finite_metrics = {}
    for name, value in metrics.items():
        item = getattr(value, "item", None)
        number = item() if item is not None and getattr(value, "ndim", 0) == 0 else value
        if hasattr(number, "numpy"):
            number = number.numpy().item()
        if not isinstance(name, str) or not isinstance(number, numbers.Real):
            raise InvalidMetric(
                f"Metric {name!r} is {type(value).__name__} {location}, not a number.",
                hint="report plain numbers: float(value)",
            )
        if not math.isfinite(number):
            raise InvalidMetric(
                f"Metric {name!r} is {float(number)} {location}.",
                hint="the training diverged: a smaller learning rate, or inputs without nulls",
            )
        finite_metrics[name] = float(number)
    return finite_metrics


def check_step(step: object) -> int:
    """Return the number of a step."""
    index = getattr(step, "__index__", None)
    if index is None or isinstance(step, bool) or index() < 0:
        raise InvalidArgument(f"step={step!r} is not the number of a step: 0, 1, ...")
    return int(index())


class Reports:
    """Writer of the metrics file and the events of a run; only its first worker has one.

    Args:
        directory: The run's directory.
        params: Shown by TensorBoard's HParams, with the run's id.
    """

    def __init__(self, directory: str, params: Mapping[str, Any]) -> None:
        self._lines = AppendedFile(os.path.join(directory, METRICS_FILE))
        self._events = Events(os.path.join(directory, TENSORBOARD))
        self._events.write_params(params, trial=os.path.basename(directory))
        self._is_first = True

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step."""
        line = metrics_line(step, metrics, time=time.time(), begins=self._is_first)
        if self._is_first:
            self._events.discard_from(step)
        self._is_first = False
        self._lines.write(line.encode())
        self._events.write(step, metrics)

    def close(self) -> None:
        """Close both files."""
        self._lines.close()
        self._events.close()


class Events:
    """An event file of TensorBoard, written without TensorFlow."""

    def __init__(self, directory: str) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise missing_extra("tensorboard", "experiments") from error
        name = f"events.out.tfevents.{int(time.time())}.{host_name()}.{os.getpid()}"
        self._file = AppendedFile(os.path.join(directory, name))
        self._records: Any = RecordWriter(self._file)
        self._event: Any = Event
        self._put(file_version="brain.Event:2")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._put(step=step, summary=Summary(value=values))

    def discard_from(self, step: int) -> None:
        """Discard the events of earlier files from a step on, since they are written again."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._put(step=step, session_log=SessionLog(status=SessionLog.START))

    def write_params(self, params: Mapping[str, Any], *, trial: str) -> None:
        """Write the parameters for the HParams plugin."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        hparams = {}
        for name, value in params.items():
            plain = isinstance(value, bool | int | float | str)
            hparams[name] = value if plain else json.dumps(value)
        if hparams:
            self._put(summary=hparams_pb(hparams, trial_id=trial))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())

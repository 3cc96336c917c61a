"""Checkpoints of what is trained and of the position in the data: a run goes on at the next step.

A checkpoint is a directory ``step-<epoch>-<step>`` that appears by one rename, with the variables
and the reader's state in it: a killed run leaves either the whole or nothing. The first worker's
copy counts.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.readers.evaluation import refuse_metrics_over_padding
from featurestore.readers.heartbeat import Heartbeat
from featurestore.storage import files

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

STATE_FILE = "reader.json"
_PREFIX = "variables"
_ARRAYS = "arrays.npz"
_NAME = re.compile(r"step-(\d{6})-(\d{9})")
_HEARTBEATS = "heartbeats"


@dataclass
class ReaderCheckpoint:
    """Saves trackable objects with a reader's state, and restores both.

    Args:
        directory: Shared by all workers.
        reader: Whose state is kept.
        objects: What is trained, as ``tf.train.Checkpoint`` takes it, or numpy arrays, which are
            filled in place.
        strategy: The ``tf.distribute`` strategy, for the number of this worker.
        keep: How many checkpoints stay.
        position: Number of this worker and of all, where no strategy tells.
        begin: Name of the checkpoint to restore, "" for none; None is the newest. Workers that do
            not wait for one another need it: the first one may have saved again already.
    """

    directory: str
    reader: Reader
    objects: Mapping[str, Any]
    strategy: Any | None = None
    keep: int = 2
    position: tuple[int, int] | None = None
    begin: str | None = None

    @property
    def worker(self) -> int:
        """Number of this worker."""
        return self._worker_of()[0]

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._worker_of()[1]

    def save(self, epoch: int, step: int) -> None:
        """Save the objects and the state.

        Under a strategy all workers must call this after the same step.

        Args:
            epoch: The epoch to go on with.
            step: The next step of it.
        """
        state = self.reader.state(epoch, step)
        name = f"step-{state['epoch']:06d}-{state['step']:09d}"
        # Variables of some kinds are reduced over all workers when they are read, so all must
        # write; one copy counts.
        temporary = os.path.join(self.directory, f".{name}.worker-{self.worker}")
        files.remove(temporary, below=self.directory)
        files.make_directory(temporary)
        self._write(temporary)
        if self.worker > 0:
            files.remove(temporary, below=self.directory)
            return
        files.write_json(os.path.join(temporary, STATE_FILE), state)
        final = os.path.join(self.directory, name)
        files.remove(final, below=self.directory)
        files.rename(temporary, final)
        self._prune()

    def latest(self) -> str | None:
        """Return the directory of the newest checkpoint, None when there is none."""
        newest = newest_checkpoint(self.directory)
        return os.path.join(self.directory, newest) if newest else None

    def restore(self) -> tuple[int, int]:
        """Set the objects to the newest checkpoint and return (epoch, step) to go on with.

        (0, 0) without one.

        Raises:
            ManifestMismatch: The checkpoint was made with another dataset.
            ReaderConfigError: The checkpoint's reader had other settings.
        """
        from featurestore.readers.reader import resume

        newest = self._chosen()
        if newest is None:
            return 0, 0
        state = files.read_json(os.path.join(newest, STATE_FILE))
        then, epoch, step = resume(self.reader.path, self.reader.manifest, state)
        if then.settings != self.reader.settings:
            changed = []
            for name, value in then.settings.items():
                now = self.reader.settings.get(name)
                if value != now:
                    changed.append(f"{name}={value!r}, now {now!r}")
            raise ReaderConfigError(
                f"The checkpoint {newest!r} was made by a reader with other settings: "
                f"{'; '.join(changed)}.",
                hint="use these settings, or start in another directory",
            )
        self._read(newest)
        return epoch, step

    def position_of(self) -> tuple[int, int]:
        """Return (epoch, step) of what ``restore`` restores, (0, 0) for nothing."""
        newest = self._chosen()
        if newest is None:
            return 0, 0
        found = _NAME.fullmatch(os.path.basename(newest))
        assert found is not None
        return int(found[1]), int(found[2])

    def heartbeat(
        self, *, directory: str | os.PathLike[str] | None = None, timeout: float = 600.0
    ) -> Heartbeat:
        """Return the heartbeat of this worker, in ``directory`` or beside the checkpoints."""
        if directory is None:
            directory = os.path.join(self.directory, _HEARTBEATS)
        return Heartbeat(directory, worker=self.worker, workers=self.workers, timeout=timeout)

    def callback(
        self,
        model: Any,
        *,
        epoch: int = 0,
        step: int = 0,
        save_every: int = 1000,
        heartbeat: Heartbeat | None = None,
    ) -> Any:
        """Return a Keras callback that saves every ``save_every`` steps and after each epoch.

        Args:
            model: The model that is fitted.
            epoch: Where the fit begins.
            step: Where the fit begins.
            save_every: Steps between two checkpoints.
            heartbeat: Told of every step.
        """
        from featurestore.readers.tensorflow import keras_callback

        if save_every < 1:
            raise InvalidArgument(f"save_every={save_every} must be at least 1.")
        total = self.reader.steps_per_epoch
        progress = {"begin": epoch * total + step, "now": epoch * total + step}

        def begin() -> None:
            progress["begin"] = progress["now"]

        def after(made: int) -> None:
            before, now = progress["now"], progress["begin"] + made
            progress["now"] = now
            if heartbeat is not None:
                heartbeat.beat(*divmod(now, total))
            if now // save_every > before // save_every or now % total == 0:
                self.save(*divmod(now, total))

        return keras_callback(model, begin=begin, after=after)

    def fit(
        self,
        model: Any,
        epochs: int,
        *,
        save_every: int = 1000,
        timeout: float = 600.0,
        heartbeat_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Fit a compiled ``tf_keras`` model up to ``epochs`` epochs, from the newest checkpoint on.

        Returns the histories: one of the epoch that was entered in the middle, if any, and one of
        the whole epochs.

        Args:
            model: A compiled model, made in the strategy's scope.
            epochs: The epoch to stop before, counted from the first start.
            save_every: Steps between two checkpoints.
            timeout: Seconds without a step after which the worker reports all workers' steps and
                ends.
            heartbeat_dir: Where steps are written; None is beside the checkpoints.
            options: What ``model.fit`` takes beside data, epochs, steps and callbacks;
                ``callbacks`` are added to ours.
        """
        refuse_metrics_over_padding(self.reader, model)
        epoch, step = self.restore()
        callbacks = list(options.pop("callbacks", None) or ())
        histories = []
        with self.heartbeat(directory=heartbeat_dir, timeout=timeout) as heartbeat:
            while epoch < epochs:
                # Keras counts whole epochs: one that is entered in the middle is a fit of its own.
                last = epoch + 1 if step else epochs
                mine = self.callback(
                    model, epoch=epoch, step=step, save_every=save_every, heartbeat=heartbeat
                )
                history = model.fit(
                    self._dataset(last - epoch, epoch, step),
                    epochs=last,
                    initial_epoch=epoch,
                    steps_per_epoch=self.reader.steps_per_epoch - step,
                    callbacks=[*callbacks, mine],
                    **options,
                )
                histories.append(history)
                if getattr(model, "stop_training", False):
                    break
                epoch, step = last, 0
        return histories

    def _write(self, directory: str) -> None:
        if not self.objects:
            return
        if not _are_arrays(self.objects):
            from featurestore.readers.tensorflow import write_objects

            write_objects(os.path.join(directory, _PREFIX), self.objects)
            return
        content = io.BytesIO()
        np.savez(content, **self.objects)
        files.write_atomically(os.path.join(directory, _ARRAYS), content.getvalue())

    def _read(self, directory: str) -> None:
        if not self.objects:
            return
        if not _are_arrays(self.objects):
            from featurestore.readers.tensorflow import read_objects

            read_objects(os.path.join(directory, _PREFIX), self.objects)
            return
        content = io.BytesIO(files.read_bytes(os.path.join(directory, _ARRAYS)))
        with np.load(content, allow_pickle=False) as saved:
            for name, array in self.objects.items():
                array[...] = saved[name]

    def _worker_of(self) -> tuple[int, int]:
        if self.strategy is not None:
            from featurestore.readers.tensorflow import worker_of

            return worker_of(self.strategy)
        return self.position or (0, 1)

    def _dataset(self, epochs: int, epoch: int, step: int) -> Any:
        if self.strategy is None:
            return self.reader.tf_dataset(epochs, start_epoch=epoch, start_step=step)
        return self.reader.distribute(self.strategy, epochs, start_epoch=epoch, start_step=step)

    def _chosen(self) -> str | None:
        """Return the directory of the checkpoint to restore."""
        if self.begin is None:
            return self.latest()
        return os.path.join(self.directory, self.begin) if self.begin else None

    def _prune(self) -> None:
        for name in _checkpoints(self.directory)[: -self.keep]:
            if name != self.begin:  # another worker may not have restored it yet
                files.remove(os.path.join(self.directory, name), below=self.directory)


def newest_checkpoint(directory: str) -> str:
    """Return the name of the newest checkpoint in a directory, "" when there is none."""
    found = _checkpoints(directory)
    return found[-1] if found else ""


def _checkpoints(directory: str) -> list[str]:
    return [name for name in files.list_directory(directory) if _NAME.fullmatch(name)]


def _are_arrays(objects: Mapping[str, Any]) -> bool:
    """Tell whether numpy keeps the objects; TensorFlow does where there is any other."""
    return all(isinstance(each, np.ndarray) for each in objects.values())

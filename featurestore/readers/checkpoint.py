"""Checkpoints of trained objects and the reader position, from which a run resumes.

A checkpoint is a directory ``step-<epoch>-<step>`` with the variables and the reader state. A
single rename publishes it, so a killed run never leaves a partial checkpoint. Only the first worker
publishes checkpoints.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.readers.evaluation import refuse_metrics_over_padding
from featurestore.readers.heartbeat import Heartbeat
from featurestore.readers.tensorflow import KerasModel, Strategy
from featurestore.readers.transformed import refuse_bytes_labels
from featurestore.storage import files, storage_for

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

STATE_FILE = "reader.json"
_PREFIX = "variables"
_ARRAYS = "arrays.npz"
_CALLBACKS = "callbacks.npz"
_CHECKPOINT_NAME = re.compile(r"step-(\d{6})-(\d{9})")
HEARTBEATS = "heartbeats"


@dataclass
class ReaderCheckpoint:
    """The checkpoints of trackable objects and reader state in one directory.

    Args:
        directory: Directory of the checkpoints, shared by all workers.
        reader: The reader whose state is saved.
        objects: Trackable objects as for ``tf.train.Checkpoint``, or numpy arrays, which are filled
            in place.
        strategy: The ``tf.distribute`` strategy, for the number of this worker.
        keep: Number of checkpoints to keep.
        position: (worker, workers) without a strategy.
        begin: Name of the checkpoint to restore, or "" to restore none; None restores the newest.
            Unsynchronized workers need this name, since the first worker may already have saved
            a newer checkpoint.
    """

    directory: str
    reader: Reader
    objects: Mapping[str, Any]
    strategy: Strategy | None = None
    keep: int = 2
    position: tuple[int, int] | None = None
    begin: str | None = None
    # Keras callback states: the states to save with the next checkpoint, and the restored states.
    _callback_states: bytes | None = field(default=None, init=False, repr=False)
    _restored_states: bytes | None = field(default=None, init=False, repr=False)

    @property
    def worker(self) -> int:
        """Number of this worker."""
        return self._worker_position()[0]

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._worker_position()[1]

    def save(self, epoch: int, step: int) -> None:
        """Save the objects and the state.

        With a strategy, all workers must call this method after the same step.

        Args:
            epoch: The epoch to resume.
            step: The next step of that epoch.
        """
        storage = storage_for(self.directory)
        state = self.reader.state(epoch, step)
        name = f"step-{state['epoch']:06d}-{state['step']:09d}"
        # Reading a variable may reduce it over all workers, so every worker writes a copy. Only
        # the first worker's copy is published.
        temporary = os.path.join(self.directory, f".{name}.worker-{self.worker}")
        # Left by a worker that was killed while it saved this step.
        storage.remove(temporary, below=self.directory)
        storage.make_directory(temporary)
        self._write(temporary)
        if self.worker > 0:
            storage.remove(temporary, below=self.directory)
            return
        files.write_json(os.path.join(temporary, STATE_FILE), state)
        final = os.path.join(self.directory, name)
        # A rename cannot replace a directory. A resumed run may save the same step again.
        storage.remove(final, below=self.directory)
        storage.rename(temporary, final)
        self._prune()

    def latest(self) -> str | None:
        """Return the directory of the newest checkpoint, if any."""
        newest = newest_checkpoint(self.directory)
        return os.path.join(self.directory, newest) if newest else None

    def restore(self) -> tuple[int, int]:
        """Restore the objects from the newest checkpoint and return (epoch, step) to resume at.

        Returns (0, 0) without a checkpoint.

        Raises:
            ManifestMismatch: The checkpoint belongs to another dataset.
            ReaderConfigError: The checkpoint was saved by a reader with different settings.
        """
        from featurestore.readers.opening import resume

        newest = self._checkpoint_to_restore()
        if newest is None:
            return 0, 0
        state = files.read_json(os.path.join(newest, STATE_FILE))
        saved_reader, epoch, step = resume(self.reader.path, self.reader.manifest, state)
        if saved_reader.settings != self.reader.settings:
            changed_settings = []
            for name, value in saved_reader.settings.items():
                current_value = self.reader.settings.get(name)
                if value != current_value:
                    changed_settings.append(f"{name}={value!r}, now {current_value!r}")
            raise ReaderConfigError(
                f"The checkpoint {newest!r} belongs to a reader with other settings: "
                f"{'; '.join(changed_settings)}.",
                hint="use these settings, or start in another directory",
            )
        self._read(newest)
        return epoch, step

    def position_of(self) -> tuple[int, int]:
        """Return (epoch, step) of the checkpoint to restore, (0, 0) without one."""
        newest = self._checkpoint_to_restore()
        if newest is None:
            return 0, 0
        # The name contains the position, so the state file is not read.
        match = _CHECKPOINT_NAME.fullmatch(os.path.basename(newest))
        assert match is not None
        return int(match[1]), int(match[2])

    def heartbeat(
        self, *, directory: str | os.PathLike[str] | None = None, timeout: float = 600.0
    ) -> Heartbeat:
        """Return the heartbeat of this worker, by default in the directory of the checkpoints."""
        if directory is None:
            directory = os.path.join(self.directory, HEARTBEATS)
        return Heartbeat(directory, worker=self.worker, workers=self.workers, timeout=timeout)

    def callback(
        self,
        model: KerasModel,
        *,
        epoch: int = 0,
        step: int = 0,
        save_every: int = 1000,
        heartbeat: Heartbeat | None = None,
        callbacks: Sequence[Any] = (),
    ) -> Any:
        """Return a Keras callback that saves every ``save_every`` steps and after each epoch.

        It must come after the other callbacks, so that a checkpoint includes their changes at the
        end of an epoch.

        Args:
            model: The model that is fitted.
            epoch: The first epoch of the fit.
            step: The first step of that epoch.
            save_every: Steps between two checkpoints.
            heartbeat: Heartbeat that records every step.
            callbacks: Callbacks whose state is saved with the model and restored at the start of
                the fit: EarlyStopping, ReduceLROnPlateau and ModelCheckpoint.
        """
        from featurestore.readers.tensorflow import keras_callback

        if save_every < 1:
            raise InvalidArgument(f"save_every={save_every} must be at least 1.")
        first = epoch * self.reader.steps_per_epoch + step
        progress = _FitProgress(self, callbacks, heartbeat, save_every, first, first)
        return keras_callback(
            model,
            on_fit_start=progress.start,
            on_epoch_start=progress.begin_epoch,
            after_step=progress.after_step,
            after_epoch=progress.end_epoch,
        )

    def fit(
        self,
        model: KerasModel,
        epochs: int,
        *,
        validation: Any = None,
        class_weights: Any = None,
        save_every: int = 1000,
        timeout: float = 600.0,
        heartbeat_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Any:
        """Fit a compiled Keras model up to ``epochs`` epochs, resuming from the newest checkpoint.

        Returns the Keras ``History`` of the epochs of this call. The first one covers the steps
        after the checkpoint. EarlyStopping, ReduceLROnPlateau and ModelCheckpoint resume with their
        saved state; a training that EarlyStopping has stopped is not continued.

        Args:
            model: A compiled model, created in the strategy's scope.
            epochs: The epoch to stop before, counted from the first start.
            validation: A reader of another split, with any ``remainder``. After each epoch the
                logs have its loss and metrics over every row once, as ``val_loss`` and so on.
            class_weights: As for ``reader``; ``class_weight=`` of Keras is equivalent.
            save_every: Steps between two checkpoints.
            timeout: Seconds without a step after which the worker reports the steps of all workers
                and exits.
            heartbeat_dir: Directory of the heartbeats; None is a folder in the directory of the
                checkpoints.
            options: Other arguments of ``model.fit``, without data, epochs and steps. Checkpoint
                callbacks are added to ``callbacks``. ``validation_data=checks.distribute(strategy)``
                is equivalent to ``validation=checks``.
        """
        from featurestore.readers import keras
        from featurestore.readers.keras_losses import weight_losses_by_rows

        refuse_bytes_labels(self.reader.manifest, self.reader.columns)
        keras.refuse_fit(model)
        refuse_metrics_over_padding(self.reader.plan, model)
        weight_losses_by_rows(model)
        validation_plan = keras.pop_validation_plan(validation, options)
        if class_weights is None:
            class_weights = options.pop("class_weight", None)
        data = self.reader if class_weights is None else self.reader.weighed(class_weights)
        options.setdefault("shuffle", False)  # the reader shuffles; Keras 3 warns of its default
        user_callbacks = list(options.pop("callbacks", None) or ())
        # The validation callback replaces the validation of Keras.
        frequency = options.pop("validation_freq", 1) if validation_plan is not None else 1
        histories: list[Any] = []
        # Restoring is watched, too, since it waits for the storage and for the other workers.
        with self.heartbeat(directory=heartbeat_dir, timeout=timeout) as heartbeat:
            epoch, step = self.restore()
            if self._restored_states is not None and keras.restore_callback_states(
                user_callbacks, self._restored_states
            ):
                return keras.merge_histories(model, [])
            heartbeat.extend()
            while epoch < epochs:
                # Keras counts complete epochs, so a partial first epoch needs its own ``fit`` call,
                # and so does an epoch whose dataset must end with its last step.
                is_single = step or keras.overruns_epochs(model, self.reader.steps_per_epoch)
                last = epoch + 1 if is_single else epochs
                callbacks = self._fit_callbacks(
                    model,
                    user_callbacks,
                    step=step,
                    is_first_fit=not histories,
                    is_last_fit=last == epochs,
                )
                if validation_plan is not None:
                    # It comes first, so that all callbacks see the metrics of the validation.
                    metrics = keras.validation_callback(
                        model, validation_plan, frequency=frequency, after_batch=heartbeat.extend
                    )
                    callbacks.insert(0, metrics)
                saving_callback = self.callback(
                    model,
                    epoch=epoch,
                    step=step,
                    save_every=save_every,
                    heartbeat=heartbeat,
                    callbacks=user_callbacks,
                )
                history = model.fit(
                    self._dataset(data, last - epoch, epoch, step),
                    epochs=last,
                    initial_epoch=epoch,
                    steps_per_epoch=self.reader.steps_per_epoch - step,
                    # Saving comes last, so that a checkpoint contains the changes of all callbacks.
                    callbacks=[*callbacks, saving_callback],
                    **options,
                )
                histories.append(history)
                if getattr(model, "stop_training", False):
                    break
                epoch, step = last, 0
        return keras.merge_histories(model, histories)

    def _fit_callbacks(
        self,
        model: KerasModel,
        callbacks: Sequence[Any],
        *,
        step: int,
        is_first_fit: bool,
        is_last_fit: bool,
    ) -> list[Any]:
        """Wrap callbacks so that several ``fit`` calls appear to them as one training run."""
        from featurestore.readers.keras import wrap_for_fit

        if is_first_fit and is_last_fit:
            return list(callbacks)

        def is_last() -> bool:
            return is_last_fit or bool(getattr(model, "stop_training", False))

        return [
            wrap_for_fit(model, callback, is_first_fit=is_first_fit, is_last_fit=is_last)
            for callback in callbacks
        ]

    def _write(self, directory: str) -> None:
        """Write the objects and the callback states to a directory."""
        storage = storage_for(directory)
        if self._callback_states is not None:
            storage.write_atomically(os.path.join(directory, _CALLBACKS), self._callback_states)
        if not self.objects:
            return
        if not _are_numpy_arrays(self.objects):
            from featurestore.readers.tensorflow import write_objects

            write_objects(os.path.join(directory, _PREFIX), self.objects)
            return
        content = io.BytesIO()
        np.savez(content, **self.objects)
        storage.write_atomically(os.path.join(directory, _ARRAYS), content.getvalue())

    def _read(self, directory: str) -> None:
        """Restore the objects and the callback states from a directory."""
        storage = storage_for(directory)
        callbacks = os.path.join(directory, _CALLBACKS)
        self._restored_states = storage.read_bytes(callbacks) if storage.exists(callbacks) else None
        if not self.objects:
            return
        if not _are_numpy_arrays(self.objects):
            from featurestore.readers.tensorflow import read_objects

            read_objects(os.path.join(directory, _PREFIX), self.objects)
            return
        content = io.BytesIO(storage.read_bytes(os.path.join(directory, _ARRAYS)))
        # Pickled arrays could run code when they are loaded.
        with np.load(content, allow_pickle=False) as saved:
            for name, array in self.objects.items():
                # In place, since the training function keeps references to the arrays.
                array[...] = saved[name]

    def _worker_position(self) -> tuple[int, int]:
        if self.strategy is not None:
            from featurestore.readers.tensorflow import worker_position

            return worker_position(self.strategy)
        return self.position or (0, 1)

    def _dataset(self, reader: Reader, epochs: int, epoch: int, step: int) -> Any:
        if self.strategy is None:
            return reader.tf_dataset(epochs, start_epoch=epoch, start_step=step)
        return reader.distribute(self.strategy, epochs, start_epoch=epoch, start_step=step)

    def _checkpoint_to_restore(self) -> str | None:
        """Return the directory of the checkpoint to restore."""
        if self.begin is None:
            return self.latest()
        return os.path.join(self.directory, self.begin) if self.begin else None

    def _prune(self) -> None:
        for name in _checkpoints(self.directory)[: -self.keep]:
            if name != self.begin:  # another worker may not have restored it yet
                storage_for(self.directory).remove(
                    os.path.join(self.directory, name), below=self.directory
                )


@dataclass
class _FitProgress:
    """A counter of training steps that saves checkpoints at regular intervals."""

    checkpoint: ReaderCheckpoint
    callbacks: Sequence[Any]
    heartbeat: Heartbeat | None
    save_every: int
    epoch_start: int
    steps: int

    def start(self) -> None:
        """Restore the callback states, which Keras resets at the start of ``fit``."""
        from featurestore.readers import keras

        restored = self.checkpoint._restored_states
        if restored is not None:
            keras.restore_callback_states(self.callbacks, restored)
            # Only the first ``fit`` call restores: later calls continue with the current states.
            self.checkpoint._restored_states = None

    def begin_epoch(self) -> None:
        self.epoch_start = self.steps

    def after_step(self, steps_of_epoch: int) -> None:
        """Count a step and save a checkpoint if one is due; ``end_epoch`` handles the last step."""
        from featurestore.readers.keras import count_steps

        previous_steps = self.steps
        steps_per_epoch = self.checkpoint.reader.steps_per_epoch
        self.steps = count_steps(self.epoch_start, steps_of_epoch, steps_per_epoch)
        epoch, step = self._position()
        if self.heartbeat is not None:
            self.heartbeat.beat(epoch, step)
        # With ``steps_per_execution`` Keras reports several steps at once, so a multiple may be
        # skipped.
        if self.steps // self.save_every > previous_steps // self.save_every and step:
            self._save()

    def end_epoch(self) -> None:
        if self._position()[1] == 0:
            self._save()

    def _save(self) -> None:
        from featurestore.readers.keras import dump_callback_states

        states = dump_callback_states(self.callbacks) if self.callbacks else None
        self.checkpoint._callback_states = states
        self.checkpoint.save(*self._position())

    def _position(self) -> tuple[int, int]:
        return divmod(self.steps, self.checkpoint.reader.steps_per_epoch)


def newest_checkpoint(directory: str) -> str:
    """Return the name of the newest checkpoint in a directory, or "" if it has none."""
    names = _checkpoints(directory)
    return names[-1] if names else ""


def _checkpoints(directory: str) -> list[str]:
    """Return the checkpoint names in ascending order; symbolic links are ignored."""
    storage = storage_for(directory)
    return [
        name
        for name in storage.list_directory(directory)
        if _CHECKPOINT_NAME.fullmatch(name) and not storage.is_link(os.path.join(directory, name))
    ]


def _are_numpy_arrays(objects: Mapping[str, object]) -> bool:
    """Return whether all objects are numpy arrays, which are saved without TensorFlow."""
    return all(isinstance(array, np.ndarray) for array in objects.values())

"""What ``fit`` adds to Keras: validation over every row once, one history, callbacks that resume."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import InvalidArgument
from featurestore.readers.keras_data import reader_of, refuse_unknown_steps
from featurestore.readers.tensorflow import keras_of

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

# The state of EarlyStopping, ReduceLROnPlateau and ModelCheckpoint.
_COUNTERS = (
    "wait",
    "best",
    "best_epoch",
    "stopped_epoch",
    "cooldown_counter",
    "epochs_since_last_save",
    "_batches_seen_since_last_saving",
)
_KEPT = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_WEIGHTS = "best_weights"
_HOOKS = (
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_train_begin",
    "on_train_end",
)


def validation_callback(model: Any, validation: Reader, *, frequency: int = 1) -> Any:
    """Return a Keras callback that adds the figures of ``validation.evaluate`` to each epoch's logs.

    It has to be the first callback: those after it see ``val_loss`` and the others.
    """
    keras = keras_of(model)

    class ValidationCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        _supports_tf_logs = True  # the logs themselves, and not a copy for this callback

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if (epoch + 1) % frequency == 0 and logs is not None:
                figures = validation.evaluate(self.model)
                logs.update({f"val_{name}": value for name, value in figures.items()})

    return ValidationCallback()


def continued(model: Any, callback: Any, *, begins: bool, ends: Callable[[], bool]) -> Any:
    """Return a callback for one of two fits that are one training.

    Args:
        model: The model that is fitted.
        callback: Whose hooks are called.
        begins: Whether this fit is the first.
        ends: Returns whether this fit is the last.
    """
    keras = keras_of(model)

    def hook(name: str) -> Callable[..., None]:
        def call(self: Any, *arguments: Any, **named: Any) -> None:
            if name == "on_train_begin" and not begins:
                return
            if name == "on_train_end" and not ends():
                return
            getattr(callback, name)(*arguments, **named)

        return call

    def set_model(self: Any, model: Any) -> None:
        callback.set_model(model)

    def set_params(self: Any, params: Any) -> None:
        callback.set_params(params)

    methods: dict[str, Any] = {name: hook(name) for name in _HOOKS}
    methods |= {"set_model": set_model, "set_params": set_params}
    methods["_supports_tf_logs"] = getattr(callback, "_supports_tf_logs", False)
    made: Any = type("Continued", (keras.callbacks.Callback,), methods)()
    return made


def merged_history(model: Any, histories: Sequence[Any]) -> Any:
    """Return one Keras ``History`` of fits that followed one another."""
    merged = keras_of(model).callbacks.History()
    merged.set_model(model)
    merged.epoch, merged.history = [], {}
    for each in histories:
        merged.epoch.extend(each.epoch)
        for name, values in each.history.items():
            merged.history.setdefault(name, []).extend(values)
        merged.params = each.params
    return merged


def callback_states(callbacks: Sequence[Any]) -> bytes:
    """Return the state of the callbacks that count epochs, as an ``.npz`` file."""
    states: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for number, callback in enumerate(callbacks):
        kind = _kind(callback)
        state = {}
        for name in _COUNTERS if kind else ():
            value = vars(callback).get(name)
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                state[name] = float(value).hex()
        weights = vars(callback).get(_WEIGHTS) if kind else None
        for index, array in enumerate(weights or ()):
            arrays[f"{number}-{index:06d}"] = np.asarray(array)
        states.append({"kind": kind, "state": state})
    content = io.BytesIO()
    np.savez(content, states=np.frombuffer(json.dumps(states).encode(), np.uint8), **arrays)
    return content.getvalue()


def restore_callbacks(callbacks: Sequence[Any], content: bytes) -> bool:
    """Set the state of callbacks to what was saved; return whether one of them had stopped.

    Callbacks of another kind than the saved ones, or in another order, begin anew.
    """
    stopped = False
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        states = json.loads(saved["states"].tobytes())
        for number, callback in enumerate(callbacks):
            if number >= len(states) or states[number]["kind"] != (_kind(callback) or None):
                continue
            _set_state(callback, states[number]["state"])
            names = sorted(name for name in saved.files if name.startswith(f"{number}-"))
            if names:
                setattr(callback, _WEIGHTS, [saved[name] for name in names])
            stopped |= getattr(callback, "stopped_epoch", 0) > 0
    return stopped


def _set_state(callback: Any, state: Mapping[str, str]) -> None:
    for name, text in state.items():
        value = float.fromhex(text)
        whole = name in _COUNTERS and name != "best" and math.isfinite(value)
        setattr(callback, name, int(value) if whole else value)


def _kind(callback: Any) -> str | None:
    """Return which of the callbacks that are saved one is, None for another."""
    for each in type(callback).__mro__:
        if each.__name__ in _KEPT and each.__module__.split(".")[0] in ("keras", "tf_keras"):
            return each.__name__
    return None


def validation_of(validation: Any, options: dict[str, Any]) -> Any:
    """Return the reader that validates, and take it out of the options of ``fit``.

    ``validation_data=`` that a reader's ``distribute`` made, with all its steps, is that reader.

    Raises:
        InvalidArgument: There are two of them, or Keras cannot know the steps of a dataset.
    """
    data = options.get("validation_data")
    if validation is not None and data is not None:
        raise InvalidArgument(
            "validation= and validation_data= are two data sets to validate with.",
            hint="fit(model, epochs, validation=reader)",
        )
    reader = reader_of(data)
    if reader is None:
        refuse_unknown_steps(options)
        return getattr(validation, "reader", validation)
    if options.get("validation_steps") not in (None, reader.steps_per_epoch):
        return None
    options.pop("validation_data")
    options.pop("validation_steps", None)
    return reader

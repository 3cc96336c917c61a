"""Additions of ``fit`` to Keras: validation over every row once, one history, resumable callbacks."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import InvalidArgument
from featurestore.readers.keras_data import attached_reader, refuse_unknown_steps
from featurestore.readers.tensorflow import keras_module

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

# State attributes of EarlyStopping, ReduceLROnPlateau and ModelCheckpoint.
_COUNTERS = (
    "wait",
    "best",
    "best_epoch",
    "stopped_epoch",
    "cooldown_counter",
    "epochs_since_last_save",
    "_batches_seen_since_last_saving",
)
_SAVED_CLASSES = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_BEST_WEIGHTS = "best_weights"
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
    """Return a Keras callback that adds the metrics of ``validation.evaluate`` to the epoch's logs.

    It must be the first callback, so that the others see ``val_loss`` and its siblings.
    """
    keras = keras_module(model)

    class ValidationCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        _supports_tf_logs = True  # get the logs themselves and not a copy for this callback

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if (epoch + 1) % frequency == 0 and logs is not None:
                figures = validation.evaluate(self.model)
                logs.update({f"val_{name}": value for name, value in figures.items()})

    return ValidationCallback()


def wrap_for_fit(model: Any, callback: Any, *, begins: bool, ends: Callable[[], bool]) -> Any:
    """Return a wrapper of a callback for one of several fits of one training.

    Args:
        model: The model that is fitted.
        callback: The callback to wrap.
        begins: Whether this fit is the first.
        ends: Returns True if this fit is the last.
    """
    keras = keras_module(model)

    def hook(name: str) -> Callable[..., None]:
        def call(self: Any, *arguments: Any, **keywords: Any) -> None:
            if name == "on_train_begin" and not begins:
                return
            if name == "on_train_end" and not ends():
                return
            getattr(callback, name)(*arguments, **keywords)

        return call

    def set_model(self: Any, model: Any) -> None:
        callback.set_model(model)

    def set_params(self: Any, params: Any) -> None:
        callback.set_params(params)

    methods: dict[str, Any] = {name: hook(name) for name in _HOOKS}
    methods |= {"set_model": set_model, "set_params": set_params}
    methods["_supports_tf_logs"] = getattr(callback, "_supports_tf_logs", False)
    wrapper: Any = type("Continued", (keras.callbacks.Callback,), methods)()
    return wrapper


def merged_history(model: Any, histories: Sequence[Any]) -> Any:
    """Return one Keras ``History`` of consecutive fits."""
    merged = keras_module(model).callbacks.History()
    merged.set_model(model)
    merged.epoch, merged.history = [], {}
    for each in histories:
        merged.epoch.extend(each.epoch)
        for name, values in each.history.items():
            merged.history.setdefault(name, []).extend(values)
        merged.params = each.params
    return merged


def callback_states(callbacks: Sequence[Any]) -> bytes:
    """Return the state of callbacks as an ``.npz`` file."""
    states: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for number, callback in enumerate(callbacks):
        kind = _saved_class(callback)
        state = {}
        for name in _COUNTERS if kind else ():
            value = vars(callback).get(name)
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                state[name] = float(value).hex()
        weights = vars(callback).get(_BEST_WEIGHTS) if kind else None
        for index, array in enumerate(weights or ()):
            arrays[f"{number}-{index:06d}"] = np.asarray(array)
        states.append({"kind": kind, "state": state})
    content = io.BytesIO()
    np.savez(content, states=np.frombuffer(json.dumps(states).encode(), np.uint8), **arrays)
    return content.getvalue()


def restore_callbacks(callbacks: Sequence[Any], content: bytes) -> bool:
    """Restore the state of callbacks; return True if one of the callbacks had stopped the training.

    Callbacks whose class or position differs from the saved one start without a state.
    """
    stopped = False
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        states = json.loads(saved["states"].tobytes())
        for number, callback in enumerate(callbacks):
            if number >= len(states) or states[number]["kind"] != (_saved_class(callback) or None):
                continue
            _set_state(callback, states[number]["state"])
            names = sorted(name for name in saved.files if name.startswith(f"{number}-"))
            if names:
                setattr(callback, _BEST_WEIGHTS, [saved[name] for name in names])
            stopped |= getattr(callback, "stopped_epoch", 0) > 0
    return stopped


def _set_state(callback: Any, state: Mapping[str, str]) -> None:
    for name, text in state.items():
        value = float.fromhex(text)
        is_integer = name in _COUNTERS and name != "best" and math.isfinite(value)
        setattr(callback, name, int(value) if is_integer else value)


def _saved_class(callback: Any) -> str | None:
    """Return the class name of a callback whose state can be saved, else None."""
    for each in type(callback).__mro__:
        if each.__name__ in _SAVED_CLASSES and each.__module__.split(".")[0] in (
            "keras",
            "tf_keras",
        ):
            return each.__name__
    return None


def take_validation_reader(validation: Any, options: dict[str, Any]) -> Any:
    """Return the validation reader, and remove it from the options of ``fit``.

    ``validation_data=`` from a reader's ``distribute``, with all its steps, is that reader.

    Raises:
        InvalidArgument: There are two validation datasets, or the steps of one are unknown.
    """
    data = options.get("validation_data")
    if validation is not None and data is not None:
        raise InvalidArgument(
            "validation= and validation_data= exclude each other.",
            hint="fit(model, epochs, validation=reader)",
        )
    reader = attached_reader(data)
    if reader is None:
        refuse_unknown_steps(options)
        return getattr(validation, "reader", validation)
    if options.get("validation_steps") not in (None, reader.steps_per_epoch):
        return None
    options.pop("validation_data")
    options.pop("validation_steps", None)
    return reader

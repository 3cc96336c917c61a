"""Training functions: which arguments they take, and how they travel to other processes."""

from __future__ import annotations

import inspect
import io
import json
import os
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from featurestore.errors import InvalidArgument, InvalidTrainFunction, listing, missing_extra
from featurestore.model.names import suggest_name

TrainFunction = Callable[..., Any]
# Names that a function may take beside those of its parameters.
GIVEN = ("params", "context")

_OWN_PACKAGES = ("featurestore", "featurestore_connectors", "featurestore_schemas")


def check_function(function: TrainFunction, names: Iterable[str]) -> None:
    """Refuse a function that cannot be called with parameters of these names.

    Raises:
        InvalidTrainFunction: It needs an argument that is no parameter, or takes none of one.

    >>> check_function(lambda lr, context: None, ["lr"])
    """
    if not callable(function):
        raise InvalidTrainFunction(
            f"train_fn={function!r} is no function.", hint="def train_fn(params, context): ..."
        )
    names = set(names)
    taken, needed, takes_all = _arguments(function)
    absent = [name for name in needed if name not in names and name not in GIVEN]
    if absent:
        raise InvalidTrainFunction(
            f"{name_of(function)} needs {listing(absent)}; it is given {listing(sorted(names))}, "
            "params and context.",
            hint=f"params={{{absent[0]!r}: ...}}, or a default in the function",
        )
    unknown = sorted(names - taken)
    if unknown and not takes_all and not taken.intersection(GIVEN):
        raise InvalidTrainFunction(
            f"{name_of(function)} does not take {listing(unknown)}; it takes {listing(taken)}.",
            hint="arguments are given by name; one called params gets them all",
        )


def call(function: TrainFunction, params: Mapping[str, Any], context: Any) -> Any:
    """Call a function with what it takes, by name."""
    taken, _, takes_all = _arguments(function)
    values = {**params}
    for name, value in zip(GIVEN, (dict(params), context), strict=True):
        values.setdefault(name, value)
    if not takes_all:
        values = {name: value for name, value in values.items() if name in taken}
    return function(**values)


def check_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return parameters as their record holds them: JSON, so that they can be read again.

    >>> check_params({"lr": 0.1, "units": (16, 8)})
    {'lr': 0.1, 'units': [16, 8]}
    """
    if params is None:
        return {}
    try:
        told = json.loads(json.dumps(dict(params), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"params={params!r} are not numbers, texts, lists and objects of such: {error}.",
            hint="what a function needs beside them it can make itself, or close over",
        ) from error
    wrong = [name for name in params if not isinstance(name, str) or not name.isidentifier()]
    if wrong:
        raise InvalidArgument(f"params have names that no argument can have: {listing(wrong)}.")
    return dict(told)


def dump_function(function: TrainFunction, *, by_value: bool = False) -> bytes:
    """Return a function as bytes for a fresh process.

    Functions of scripts and notebooks travel whole; those of modules by their names, where the
    other process finds the module.

    Args:
        function: What trains.
        by_value: The other process may be on another machine, and has installed packages only.

    Raises:
        InvalidTrainFunction: Something that it refers to cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise missing_extra("cloudpickle", "experiments") from error
    module = inspect.getmodule(function)
    travels = module is not None and (_is_of_the_user(module) if by_value else _is_lost(module))
    try:
        if travels:
            cloudpickle.register_pickle_by_value(module)
        try:
            dumped = _pickle(function)
        finally:
            if travels:
                cloudpickle.unregister_pickle_by_value(module)
    except (TypeError, ValueError, AttributeError, NotImplementedError, RecursionError) as error:
        raise _unpicklable(function, error) from error
    except pickle.PicklingError as error:
        raise _unpicklable(function, error) from error
    return dumped


def _pickle(function: TrainFunction) -> bytes:
    """Return a function as cloudpickle does, without the content of files that it has open.

    Raises:
        PicklingError: The function refers to an open file: cloudpickle would send the text that is
            left to read in it.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            is_stream = any(value is each for each in (sys.stdin, sys.stdout, sys.stderr))
            is_memory = isinstance(value, io.BytesIO | io.StringIO)
            if isinstance(value, io.IOBase) and not is_memory and not is_stream:
                raise pickle.PicklingError(f"it refers to {value!r}")
            return super().reducer_override(value)

    content = io.BytesIO()
    Pickler(content).dump(function)
    return content.getvalue()


def name_of(function: TrainFunction) -> str:
    """Return what a function is called."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def experiment_name(function: TrainFunction) -> str:
    """Return the name of an experiment that was given none.

    >>> def train_fn(lr): ...
    >>> experiment_name(train_fn)
    'train_fn'
    """
    return suggest_name(name_of(function).split(".")[-1])


def reference(function: TrainFunction) -> str:
    """Return ``module:name``, which tells where a function comes from."""
    return f"{getattr(function, '__module__', None) or '?'}:{name_of(function)}"


def loaded_function(named: str) -> TrainFunction | None:
    """Return the function that a reference names, if this process has loaded its module.

    Nothing is imported, and functions of Python itself and of installed packages are not
    returned: a record's text must neither load code nor choose what runs with its parameters.

    >>> loaded_function("no.such.module:train_fn"), loaded_function("shutil:rmtree")
    (None, None)
    """
    module_name, _, path = named.partition(":")
    found: Any = sys.modules.get(module_name)
    for name in path.split("."):
        found = vars(found).get(name) if isinstance(found, ModuleType | type) else None
    if not inspect.isfunction(found) or not _is_written_here(inspect.getmodule(found)):
        return None
    return found


def _is_written_here(module: ModuleType | None) -> bool:
    """Return whether a module is a script, a notebook or a module of the user's own."""
    if module is None:
        return False
    if module.__name__ == "__main__":
        return True
    package = module.__name__.partition(".")[0]
    return _is_of_the_user(module) and package not in _OWN_PACKAGES


def _arguments(function: TrainFunction) -> tuple[set[str], list[str], bool]:
    """Return the names a function takes, those without a default, and whether it takes any."""
    taken, needed, takes_all = set(), [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidTrainFunction(
                f"{name_of(function)} takes {parameter.name!r} by position only.",
                hint="arguments of a training function are given by name",
            )
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            taken.add(parameter.name)
            if parameter.default is parameter.empty:
                needed.append(parameter.name)
    return taken, needed, takes_all


def _is_of_the_user(module: ModuleType) -> bool:
    """Tell whether a module is no part of Python and of no installed package."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return False  # cloudpickle takes scripts and notebooks whole by itself
    roots = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(os.path.realpath(file).startswith(os.path.realpath(root)) for root in roots)


def _is_lost(module: ModuleType) -> bool:
    """Tell whether a fresh process of this machine would not find a module by its name."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return False
    inside = module.__name__.replace(".", os.sep)
    known = set()
    for root in sys.path:
        path = os.path.join(os.path.abspath(root), inside)
        known |= {f"{path}.py", os.path.join(path, "__init__.py")}
    return _is_of_the_user(module) and os.path.abspath(file) not in known


def _unpicklable(function: TrainFunction, error: Exception) -> InvalidTrainFunction:
    return InvalidTrainFunction(
        f"{name_of(function)} cannot be sent to another process: {error}.",
        hint="open files, connections, locks and sessions inside the function",
    )

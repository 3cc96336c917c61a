"""Training functions: their arguments, serialization and provenance."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import pickle
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import distributions
from types import ModuleType
from typing import Any

from featurestore.errors import InvalidArgument, InvalidTrainFunction, listing, missing_extra
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.names import suggest_name
from featurestore.model.runtime import user_name
from featurestore.storage.locks import host_name

_GIT_SECONDS = 10


TrainFunction = Callable[..., Any]
# Arguments that a function may accept in addition to its parameters.
PROVIDED = ("params", "context")

# In a development checkout these packages are outside site-packages, but are not user code.
_OWN_PACKAGES = ("featurestore", "featurestore_connectors", "featurestore_schemas")


def check_function(function: TrainFunction, names: Iterable[str]) -> None:
    """Check that a function can be called with parameters of these names.

    Raises:
        InvalidTrainFunction: The function requires an unknown argument, or lacks one.

    >>> check_function(lambda lr, context: None, ["lr"])
    """
    if not callable(function):
        raise InvalidTrainFunction(
            f"train_fn={function!r} is not a function.", hint="def train_fn(params, context): ..."
        )
    names = set(names)
    accepted, required, accepts_all = _parse_signature(function)
    missing = [name for name in required if name not in names and name not in PROVIDED]
    if missing:
        raise InvalidTrainFunction(
            f"{qualified_name(function)} requires {listing(missing)}. Available: "
            f"{listing([*sorted(names), *PROVIDED])}.",
            hint=f"params={{{missing[0]!r}: ...}}, or a default in the function",
        )
    unknown = sorted(names - accepted)
    # A function with an argument ``params`` or ``context`` reads the other parameters from it.
    if unknown and not accepts_all and not accepted.intersection(PROVIDED):
        raise InvalidTrainFunction(
            f"{qualified_name(function)} has no argument {listing(unknown)}. Its arguments: {listing(accepted)}.",
            hint="arguments are passed by name; an argument named params receives all of them",
        )


def call(function: TrainFunction, params: JsonMapping, context: Any) -> Any:
    """Call a function with those arguments that its signature accepts, by name."""
    accepted, _, accepts_all = _parse_signature(function)
    values = {**params}
    for name, value in zip(PROVIDED, (dict(params), context), strict=True):
        # A parameter named "params" or "context" takes precedence.
        values.setdefault(name, value)
    if not accepts_all:
        values = {name: value for name, value in values.items() if name in accepted}
    return function(**values)


def check_params(params: JsonMapping | None) -> JsonDict:
    """Validate parameters and return them as the plain JSON values of the run record.

    >>> check_params({"lr": 0.1, "units": (16, 8)})
    {'lr': 0.1, 'units': [16, 8]}
    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise InvalidArgument(f"params={params!r} is not a dict.", hint="params={'lr': 0.1}")
    try:
        # The round trip converts tuples to lists: a resumed run reads its parameters from the
        # record and must get equal values.
        plain_params = json.loads(json.dumps(dict(params), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"params={params!r} contains values other than finite numbers, strings, lists and dicts: {error}.",
            hint="create other objects inside the function, or let it close over them",
        ) from error
    invalid_names = [
        name for name in params if not isinstance(name, str) or not name.isidentifier()
    ]
    if invalid_names:
        raise InvalidArgument(f"params contains invalid argument names: {listing(invalid_names)}.")
    return dict(plain_params)


def dump_function(function: TrainFunction, *, by_value: bool = False) -> bytes:
    """Serialize a function for another process.

    Functions of scripts and notebooks are pickled by value; functions of modules by reference, if
    the other process can import the module.

    Args:
        function: The training function.
        by_value: Whether the other process may run on another machine without the user's modules.

    Raises:
        InvalidTrainFunction: The function refers to an object that cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise missing_extra("cloudpickle", "experiments") from error
    module = inspect.getmodule(function)
    is_pickled_by_value = module is not None and (
        _is_user_module(module) if by_value else _is_unimportable(module)
    )
    try:
        if is_pickled_by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            dumped = _pickle(function)
        finally:
            if is_pickled_by_value:
                # The registration applies to the process, so it would change later pickles of the
                # user.
                cloudpickle.unregister_pickle_by_value(module)
    except (TypeError, ValueError, AttributeError, NotImplementedError, RecursionError) as error:
        raise _unpicklable_error(function, error) from error
    except pickle.PicklingError as error:
        raise _unpicklable_error(function, error) from error
    return dumped


def _pickle(function: TrainFunction) -> bytes:
    """Pickle a function with cloudpickle, but refuse open files.

    Raises:
        PicklingError: The function refers to an open file, whose unread content cloudpickle
            would serialize.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            # cloudpickle pickles stdout and stderr by name, and refuses stdin.
            is_stream = any(value is stream for stream in (sys.stdin, sys.stdout, sys.stderr))
            is_memory = isinstance(value, io.BytesIO | io.StringIO)
            if isinstance(value, io.IOBase) and not is_memory and not is_stream:
                raise pickle.PicklingError(f"it refers to the open file {value!r}")
            return super().reducer_override(value)

    content = io.BytesIO()
    Pickler(content).dump(function)
    return content.getvalue()


def qualified_name(function: TrainFunction) -> str:
    """Return the qualified name of a function."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def experiment_name(function: TrainFunction) -> str:
    """Return the default experiment name of a function.

    >>> def train_fn(lr): ...
    >>> experiment_name(train_fn)
    'train_fn'
    """
    return suggest_name(qualified_name(function).split(".")[-1])


def reference(function: TrainFunction) -> str:
    """Return the reference ``module:name`` of a function."""
    return f"{getattr(function, '__module__', None) or '?'}:{qualified_name(function)}"


def find_loaded_function(function_reference: str) -> TrainFunction | None:
    """Return the function with this reference if this process has loaded its module.

    Nothing is imported, and functions of Python and of installed packages are never returned: a
    stored record must neither load code nor select an arbitrary function to call.

    >>> find_loaded_function("no.such.module:train_fn"), find_loaded_function("shutil:rmtree")
    (None, None)
    """
    module_name, _, path = function_reference.partition(":")
    target: Any = sys.modules.get(module_name)
    for name in path.split("."):
        # ``getattr`` could run a module's ``__getattr__``, which may import code.
        target = vars(target).get(name) if isinstance(target, ModuleType | type) else None
    if not inspect.isfunction(target) or not _is_user_code(inspect.getmodule(target)):
        return None
    return target


def _is_user_code(module: ModuleType | None) -> bool:
    """Return True for a script, a notebook or a user module."""
    if module is None:
        return False
    if module.__name__ == "__main__":
        return True
    package = module.__name__.partition(".")[0]
    return _is_user_module(module) and package not in _OWN_PACKAGES


def _parse_signature(function: TrainFunction) -> tuple[set[str], list[str], bool]:
    """Return the argument names, the required names, and whether there is a ``**kwargs``."""
    accepted, required, accepts_all = set(), [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            accepts_all = True
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidTrainFunction(
                f"{qualified_name(function)} has the positional-only argument {parameter.name!r}.",
                hint="arguments of a training function are passed by name",
            )
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            accepted.add(parameter.name)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
    return accepted, required, accepts_all


def _is_user_module(module: ModuleType) -> bool:
    """Return True if a module belongs neither to Python nor to an installed package."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return False  # cloudpickle already pickles these by value
    roots = {
        sysconfig.get_path(path_name)
        for path_name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    return not any(os.path.realpath(file).startswith(os.path.realpath(root)) for root in roots)


def _is_unimportable(module: ModuleType) -> bool:
    """Return True if a fresh process on this machine cannot import a module by name."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return False
    # Workers get the import path of this process. Compare paths, since an import would run code.
    relative_path = module.__name__.replace(".", os.sep)
    importable_paths = set()
    for root in sys.path:
        path = os.path.join(os.path.abspath(root), relative_path)
        importable_paths |= {f"{path}.py", os.path.join(path, "__init__.py")}
    return _is_user_module(module) and os.path.abspath(file) not in importable_paths


def _unpicklable_error(function: TrainFunction, error: Exception) -> InvalidTrainFunction:
    return InvalidTrainFunction(
        f"{qualified_name(function)} cannot be sent to another process: {error}.",
        hint="open files, connections, locks and sessions inside the function",
    )


def describe_code(function: TrainFunction) -> JsonDict:
    """Describe the code of a function: its reference, source and git commit."""
    try:
        source = inspect.getsource(function)
        file = inspect.getsourcefile(function)
    except (OSError, TypeError):
        source, file = None, None
    digest = None
    if source is not None:
        digest = hashlib.sha256(source.encode()).hexdigest()
    # Code without a source file is assigned to the commit of the working directory.
    folder = os.getcwd()
    if file is not None and os.path.isabs(file):
        folder = os.path.dirname(file)
    return {
        "function": reference(function),
        "source": source,
        "sha256": digest,
        "git": read_git_state(folder),
    }


def read_git_state(folder: str) -> JsonDict | None:
    """Return the checked-out commit and whether the checkout has changes; None without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: str, *words: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        # The commit is optional information: a missing or slow git must not fail the launch.
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def environment() -> JsonDict:
    """Describe the environment: Python, platform, user, host and all package versions."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "user": user_name(),
        "host": host_name(),
        "command": list(sys.argv),
        "packages": dict(_packages()),
    }


@cache
def _packages() -> dict[str, str]:
    versions = {}
    for distribution in distributions():
        metadata = distribution.metadata  # parsed on each access, also by ``each.version``
        if metadata["Name"]:
            versions[metadata["Name"]] = metadata["Version"]
    return dict(sorted(versions.items()))

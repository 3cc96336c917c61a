"""Definitions out of modules, files and folders, and back from where a job was registered."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from featurestore.errors import InvalidJob, listing
from featurestore.jobs.definitions import JobDefinition


def load(
    module_or_path: ModuleType | str | os.PathLike[str],
) -> dict[str, tuple[JobDefinition, str]]:
    """Return the jobs of a module, a Python file or a folder of such: ``{name: (definition, origin)}``.

    Raises:
        InvalidJob: Nothing there, no job in it, or two jobs of one name.
    """
    found: dict[str, tuple[JobDefinition, str]] = {}
    for module, origin in _modules(module_or_path):
        for definition in _definitions(module):
            name = definition.spec.name
            if name in found and found[name][0] is not definition:
                raise InvalidJob(
                    f"Job {name!r} is defined twice: in {found[name][1]} and in {origin}."
                )
            found[name] = (definition, origin)
    if not found:
        raise InvalidJob(
            f"{module_or_path!r} defines no jobs.",
            hint="decorate functions with @featurestore.job, or call featurestore.sql_job at the module's top level",
        )
    return found


def load_one(name: str, origin: str) -> JobDefinition:
    """Return a job from where it was registered; InvalidJob when it is not there any more."""
    found = load(origin)
    if name not in found:
        raise InvalidJob(
            f"Job {name!r} is not defined in {origin} any more; there are {listing(found)}.",
            hint=f"featurestore job register {origin}",
        )
    return found[name][0]


def _definitions(module: ModuleType) -> list[JobDefinition]:
    return [each for each in vars(module).values() if isinstance(each, JobDefinition)]


def _modules(place: ModuleType | str | os.PathLike[str]) -> Iterator[tuple[ModuleType, str]]:
    if isinstance(place, ModuleType):
        file = getattr(place, "__file__", None)
        yield (
            place,
            os.path.abspath(file) if place.__name__ == "__main__" and file else place.__name__,
        )
        return
    text = os.path.expanduser(os.fspath(place))
    if os.path.isdir(text):
        for name in sorted(os.listdir(text)):
            if name.endswith(".py") and not name.startswith("_"):
                path = os.path.abspath(os.path.join(text, name))
                yield _from_file(path), path
    elif os.path.isfile(text):
        yield _from_file(os.path.abspath(text)), os.path.abspath(text)
    else:
        yield _from_name(text), text


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", None)
        if (
            isinstance(error, ModuleNotFoundError)
            and missing is not None
            and not name.startswith(missing)
        ):
            raise
        raise InvalidJob(
            f"{name!r} is neither a file, a folder nor a module.", hint="jobs/traffic.py"
        ) from error


def _from_file(path: str) -> ModuleType:
    # A name of its own for each file: two folders may both have a jobs.py.
    name = f"featurestore_jobs_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__mtime__", None) == os.stat(path).st_mtime_ns:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidJob(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    module.__mtime__ = os.stat(path).st_mtime_ns  # type: ignore[attr-defined]
    sys.modules[name] = module
    folder = os.path.dirname(path)
    sys.path.insert(0, folder)  # neighbours can be imported while the file runs, as in a script
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    finally:
        sys.path.remove(folder)
    return module

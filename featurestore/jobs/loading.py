"""Job files, loaded when they are registered, and again, while they are unchanged, to run jobs.

A registry names the file or module of each job. It may come from elsewhere, so what it names is run
only where somebody registered it: registering writes a receipt with the file's hash
(``storage/receipts.py``), and a run compares the hash before a line of the file is executed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from featurestore.errors import FeatureStoreError, InvalidJob, listing
from featurestore.jobs.definitions import MADE_HERE, JobDefinition
from featurestore.storage import files
from featurestore.storage.receipts import find_receipt, write_receipt

_RECEIPTS = "registered-jobs"
# A half loaded module is no module: who needs the same file at the same time waits.
_loading = threading.RLock()


@dataclass(frozen=True)
class JobFile:
    """A file or module that defines jobs, and the hash of what was executed.

    ``origin`` is what the registry names. ``file`` and ``sha256`` are None for a module that has
    no file, such as a notebook.
    """

    origin: str
    file: str | None
    sha256: str | None


def load(
    module_or_path: ModuleType | str | os.PathLike[str],
) -> dict[str, tuple[JobDefinition, JobFile]]:
    """Return the jobs of a module, a file or a folder by name, and where each is defined.

    The files are executed: this is for what a person names, not for what a registry names.

    Raises:
        InvalidJob: Nothing there, no job in it, a file that cannot be executed, or two jobs of one
            name.
    """
    found: dict[str, tuple[JobDefinition, JobFile]] = {}
    for module, file in _modules(module_or_path):
        for definition in _definitions(module):
            name = definition.spec.name
            if name in found and found[name][0] is not definition:
                raise InvalidJob(
                    f"Job {name!r} is defined twice: in {found[name][1].origin} and in "
                    f"{file.origin}."
                )
            found[name] = (definition, file)
    if not found:
        raise InvalidJob(
            f"{module_or_path!r} defines no jobs.",
            hint=(
                "decorate functions with @featurestore.job, or call featurestore.sql_job at the "
                "module's top level"
            ),
        )
    return found


def trust(location: str, file: JobFile) -> None:
    """Write down that a file was registered on this machine for the store at ``location``."""
    receipt = {
        "location": location,
        "origin": file.origin,
        "file": file.file,
        "sha256": file.sha256,
    }
    write_receipt(_RECEIPTS, location, file.origin, receipt)


def load_registered(location: str, name: str, origin: str) -> JobDefinition:
    """Return a job from where it was registered.

    Raises:
        InvalidJob: Nobody registered the origin on this machine, it changed since, or it lacks the
            job.
    """
    with _loading:
        module = _registered_module(location, name, origin)
        found = {each.spec.name: each for each in _definitions(module)}
    if name not in found:
        raise InvalidJob(
            f"Job {name!r} is not defined in {origin} any more; there are {listing(found)}.",
            hint=f"featurestore job register {origin}",
        )
    return found[name]


def _registered_module(location: str, name: str, origin: str) -> ModuleType:
    receipt = find_receipt(_RECEIPTS, location, origin)
    if receipt is None:
        raise InvalidJob(
            f"Job {name!r} comes from {origin}, which was not registered on this machine for "
            f"{location}.",
            hint=f"read it, then: featurestore job register {origin}",
        )
    file, expected = receipt.get("file"), receipt.get("sha256")
    if file is None:
        return _module_in_memory(name, origin)
    if not files.is_file(file):
        raise InvalidJob(
            f"Job {name!r} comes from {file}, which is gone.",
            hint="featurestore job register path/to/jobs.py",
        )
    if file == origin:
        return _from_file(file, expected=expected)[0]
    _check_unchanged(files.sha256(file), expected, origin)
    return _from_name(origin)


def _check_unchanged(found: str, expected: str | None, origin: str) -> None:
    if expected is not None and found != expected:
        raise InvalidJob(
            f"{origin} changed since it was registered on this machine.",
            hint=f"featurestore job register {origin}",
        )


def _module_in_memory(name: str, origin: str) -> ModuleType:
    module = sys.modules.get(origin)
    if module is None:
        raise InvalidJob(
            f"Job {name!r} was defined in {origin} of a process that has ended.",
            hint="write it into a file, and: featurestore job register jobs.py",
        )
    return module


def _definitions(module: ModuleType) -> list[JobDefinition]:
    """Return the jobs that a module has names for, and those that it only made."""
    names = vars(module)
    named = [each for each in names.values() if isinstance(each, JobDefinition)]
    return [*named, *names.get(MADE_HERE, ())]


def _modules(place: ModuleType | str | os.PathLike[str]) -> Iterator[tuple[ModuleType, JobFile]]:
    if isinstance(place, ModuleType):
        yield place, _file_of(place)
        return
    path = os.path.abspath(os.path.expanduser(os.fspath(place)))
    if files.is_directory(path):
        for name in files.list_directory(path):
            if name.endswith(".py") and not name.startswith("_"):
                yield _from_file(os.path.join(path, name))
    elif files.is_file(path):
        yield _from_file(path)
    else:
        module = _from_name(os.fspath(place))
        yield module, _file_of(module)


def _file_of(module: ModuleType) -> JobFile:
    """Return where a loaded module came from; a script is known by its file."""
    file = getattr(module, "__file__", None)
    if file is None or not files.is_file(file):
        return JobFile(module.__name__, None, None)
    path = os.path.abspath(file)
    origin = path if module.__name__ == "__main__" else module.__name__
    return JobFile(origin, path, files.sha256(path))


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", None)
        if missing is not None and not name.startswith(missing):
            raise InvalidJob(
                f"{name!r} cannot be loaded: {error}.", hint="install what it imports"
            ) from error
        raise InvalidJob(
            f"{name!r} is neither a file, a folder nor a module.", hint="jobs/traffic.py"
        ) from error


def _from_file(path: str, *, expected: str | None = None) -> tuple[ModuleType, JobFile]:
    """Return the module of a file, executed unless this process has executed the same text before.

    Args:
        path: The file.
        expected: The hash that its text must have; None: any.
    """
    # A name of its own for each file: two folders may both have a jobs.py.
    name = f"featurestore_jobs_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    with _loading:
        source = files.read_bytes(path)
        sha256 = hashlib.sha256(source).hexdigest()
        _check_unchanged(sha256, expected, path)
        file = JobFile(path, path, sha256)
        known = sys.modules.get(name)
        if known is not None and getattr(known, "__sha256__", None) == sha256:
            return known, file
        return _executed(name, path, source, sha256), file


def _line_in(error: BaseException, path: str) -> int:
    """Return the last line of a file that an error came through."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 0
    line = 0
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line = frame.lineno or 0
    return line


def _missing(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"pip install {error.name.split('.')[0]}"
    return None


def _executed(name: str, path: str, source: bytes, sha256: str) -> ModuleType:
    """Execute the text that was hashed: a compiled file beside it might be of another one."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InvalidJob(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    module.__sha256__ = sha256  # type: ignore[attr-defined]
    sys.modules[name] = module
    folder = os.path.dirname(path)
    sys.path.insert(0, folder)  # neighbours can be imported while the file runs, as in a script
    try:
        exec(compile(source, path, "exec"), vars(module))
    except FeatureStoreError:
        sys.modules.pop(name, None)
        raise
    except Exception as error:  # a job's code may raise anything
        sys.modules.pop(name, None)
        raise InvalidJob(
            f"{path} cannot be loaded, line {_line_in(error, path)}: "
            f"{type(error).__name__}: {error}",
            hint=_missing(error),
        ) from error
    finally:
        sys.path.remove(folder)
    return module

"""Loading of a project: the definitions in the Python files of a folder, with their positions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from featurestore.define.definitions import DEFINITIONS, Definition, JobContent
from featurestore.errors import DefinitionsRefused, FeatureStoreError, InvalidArgument
from featurestore.jobs.registration import (
    JobFile,
    jobs_in_module,
    last_line_number,
    load_module_file,
    module_name,
)
from featurestore.model.project import JOB, VERSIONED, format_object
from featurestore.storage import storage_for

# The maximum number of refusals in an error message.
_LISTED = 20


@dataclass(frozen=True)
class Refusal:
    """A definition that cannot be applied, with its position and the reason."""

    position: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.position}: {' '.join(self.message.split())}{hint}"


def refuse(refusals: Sequence[Refusal]) -> DefinitionsRefused:
    """Return the error for definitions that cannot be applied."""
    lines = [str(refusal) for refusal in refusals[:_LISTED]]
    if len(refusals) > _LISTED:
        lines.append(f"and {len(refusals) - _LISTED} more")
    return DefinitionsRefused("Refused, so nothing is applied:\n" + "\n".join(lines))


@dataclass(frozen=True)
class Project:
    """The definitions of a folder."""

    folder: str
    definitions: tuple[Definition, ...]

    def position(self, definition: Definition) -> str:
        """Return the file and line of a definition, relative to the folder's parent."""
        return self.format_position(definition.file, definition.line)

    def format_position(self, file: str, line: int) -> str:
        """Return a file and line, relative to the folder's parent."""
        return f"{os.path.relpath(file, os.path.dirname(self.folder))}:{line}"


def load_project(folder: str | os.PathLike[str]) -> Project:
    """Execute the Python files of a folder and its subfolders, and return their definitions.

    Files and folders whose names start with "_" or "." are not executed; other files may import
    them.

    Raises:
        InvalidArgument: The folder does not exist or has no definitions.
        DefinitionsRefused: A file cannot be executed, or an object is defined twice.
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    if not storage_for(root).is_directory(root):
        raise InvalidArgument(
            f"{os.fspath(folder)!r} is not a folder with definitions.",
            hint="pass the folder of the project's Python files, such as 'features'",
        )
    project = Project(root, ())
    definitions: list[Definition] = []
    refusals = []
    with importing_from(root):
        for path in _python_files(root):
            # A file is executed again even if it is unchanged, because it may import a changed one.
            sys.modules.pop(module_name(path), None)
            try:
                module, file = load_module_file(path)
                definitions += definitions_in(module, file)
            except FeatureStoreError as error:
                refusals.append(refuse_file(project, path, error))
    unique_definitions, repeated = remove_repetitions(project, definitions)
    refusals += repeated
    if refusals:
        raise refuse(refusals)
    # An empty folder is more likely a wrong path than the removal of all objects.
    if not definitions:
        raise InvalidArgument(
            f"{os.fspath(folder)!r} has no definitions.",
            hint="call define.featuregroup(...) or featurestore.sql_job(...) in its files",
        )
    return Project(root, tuple(unique_definitions))


def _python_files(folder: str) -> Iterator[str]:
    """Yield the Python files of a folder and its subfolders, in the order of their names."""
    storage = storage_for(folder)
    for name in sorted(storage.list_directory(folder)):
        path = os.path.join(folder, name)
        if name.startswith(("_", ".")):
            continue
        if storage.is_directory(path):
            yield from _python_files(path)
        elif name.endswith(".py"):
            yield path


@contextmanager
def importing_from(root: str) -> Iterator[None]:
    """Let files import modules of the folder, and forget these modules at the end."""
    earlier_modules = set(sys.modules)
    sys.path.insert(0, root)
    try:
        yield
    finally:
        sys.path.remove(root)
        # The next load must execute edited modules again. Modules of definition files remain,
        # since jobs run their functions.
        for name in set(sys.modules) - earlier_modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(root + os.sep) and name != module_name(file):
                del sys.modules[name]


def definitions_in(module: ModuleType, file: JobFile) -> Iterator[Definition]:
    """Yield the definitions of a module, and the imported ones that its variables refer to."""
    names = vars(module)
    yield from names.get(DEFINITIONS, ())
    yield from [value for value in names.values() if isinstance(value, Definition)]
    for job in jobs_in_module(module):
        path, line = job.position or (file.origin, 0)
        yield Definition(JOB, job.spec.name, JobContent(job, file), path, line)


def refuse_file(project: Project, path: str, error: FeatureStoreError) -> Refusal:
    """Return the refusal of a file, with the line that raised the error."""
    cause: BaseException = error
    message, hint = error.message, error.hint
    # The cause is an error of the user's code; the store's error repeats the path.
    if error.__cause__ is not None and not isinstance(error.__cause__, FeatureStoreError):
        line = last_line_number(error.__cause__, path)
        if line:
            cause, message = error.__cause__, f"{type(error.__cause__).__name__}: {error.__cause__}"
    position = project.format_position(path, last_line_number(cause, path))
    return Refusal(position, message, hint)


def remove_repetitions(
    project: Project, definitions: Sequence[Definition]
) -> tuple[list[Definition], list[Refusal]]:
    """Return each definition once, and refusals of objects with two definitions."""
    unique: dict[tuple[str, str, int | None], Definition] = {}
    refusals = []
    for definition in definitions:
        version = getattr(definition.content, "version", None)
        key = (definition.object_type, definition.name, version)
        earlier = unique.setdefault(key, definition)
        # A file may import the definitions of another one, which is executed again by the import.
        if (earlier.file, earlier.line) != (definition.file, definition.line):
            refusals.append(_refuse_repetition(project, earlier, definition))
    for definition in unique.values():
        latest = unique.get((definition.object_type, definition.name, None), definition)
        if latest is not definition and definition.object_type in VERSIONED:
            refusals.append(_refuse_repetition(project, latest, definition))
    return list(unique.values()), refusals


def _refuse_repetition(project: Project, first: Definition, second: Definition) -> Refusal:
    title = format_object(first.object_type, first.name, None)
    hint = "give each definition its version=" if first.object_type in VERSIONED else None
    return Refusal(
        project.position(second), f"{title} is also defined in {project.position(first)}.", hint
    )

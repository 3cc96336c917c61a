"""Definition files of registered sources, from which the registry is rebuilt.

They contain references to secrets, never secrets. A machine sends a secret only to addresses for
which it was registered on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, RegistryError
from featurestore.model.paths import StorePaths
from featurestore.model.source import SourceSpec
from featurestore.registry import sources
from featurestore.storage import files

_SUFFIX = ".json"


def write(location: str, spec: SourceSpec) -> None:
    """Write the definition of a source atomically."""
    paths = StorePaths(location)
    files.make_directory(paths.sources)
    files.write_json(paths.source(spec.name), spec.to_json())


def remove(location: str, name: str) -> None:
    """Remove the definition of a source and its decisions about tables, if they exist."""
    files.remove(StorePaths(location).source(name), below=location)
    files.remove(StorePaths(location).source_decisions(name), below=location)


def definitions(location: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of every definition, by name."""
    paths = StorePaths(location)
    for entry in sorted(files.list_directory(paths.sources)):
        if entry.endswith(_SUFFIX) and not entry.startswith("."):
            name = entry.removesuffix(_SUFFIX)
            yield name, f"{paths.sources}/{entry}"


def register(connection: Connection, name: str, path: str) -> SourceSpec:
    """Register the source of a definition file, unless its name is registered.

    Raises:
        RegistryError: The file is not a definition, or has another name.
    """
    try:
        spec = SourceSpec.from_text(files.read_text(path))
    except (FeatureStoreError, ValueError, TypeError, RecursionError) as error:
        raise RegistryError(
            f"{path} is not a definition of a source: {type(error).__name__}.",
            hint=f"remove it, and featurestore.add_source({name!r}, uri) writes it again",
        ) from error
    if spec.name != name:
        raise RegistryError(f"{path} defines the source {spec.name!r}.", hint="rename it")
    if name not in sources.names(connection):
        sources.add(connection, spec)
    return spec

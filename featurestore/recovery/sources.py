"""Definitions of registered sources as files of the store, from which the registry is rebuilt.

They say where a secret is, never what it is; and this machine gives a secret to no address for
which nobody registered it here.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, RegistryError
from featurestore.model.paths import StorePaths
from featurestore.model.source import SourceSpec
from featurestore.registry import sources
from featurestore.storage import files

_ENDING = ".json"


def write(location: str, spec: SourceSpec) -> None:
    """Write the definition of a source: the whole file, or the one that was there before."""
    paths = StorePaths(location)
    files.make_directory(paths.sources)
    files.write_json(paths.source(spec.name), spec.to_json())


def remove(location: str, name: str) -> None:
    """Remove the definition of a source, if there is one, and what it decided about its tables."""
    files.remove(StorePaths(location).source(name), below=location)
    files.remove(StorePaths(location).source_decisions(name), below=location)


def defined(location: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of every definition, by name."""
    paths = StorePaths(location)
    for entry in sorted(files.list_directory(paths.sources)):
        if entry.endswith(_ENDING) and not entry.startswith("."):
            name = entry.removesuffix(_ENDING)
            yield name, f"{paths.sources}/{entry}"


def register(connection: Connection, name: str, path: str) -> SourceSpec:
    """Register the source that a file defines; nothing happens when one of its name is there.

    Raises:
        RegistryError: It is no definition, or that of another name.
    """
    try:
        spec = SourceSpec.from_text(files.read_text(path))
    except (FeatureStoreError, ValueError, TypeError, RecursionError) as error:
        raise RegistryError(
            f"{path} is no definition of a source: {type(error).__name__}.",
            hint=f"remove it, and featurestore.add_source({name!r}, uri) writes it anew",
        ) from error
    if spec.name != name:
        raise RegistryError(f"{path} says that it is source {spec.name!r}.", hint="rename it")
    if name not in sources.names(connection):
        sources.add(connection, spec)
    return spec

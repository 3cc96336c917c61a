"""Samples of WebDataset shards: the adjacent files of a tar archive whose names share a base name.

The base name ends at the first point after the folders of a file, and the extension begins there:
``a/0001.left.jpg`` is the file ``left.jpg`` of the sample ``a/0001``. Only needed files are read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from featurestore.errors import FeatureStoreError
from featurestore.storage.tar_files import TarMember, TarReader
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.options import TableName
from featurestore_connectors.sources.folders.tables import unreadable_file_error

# A file is read completely, for one cell.
_MAX_BYTES = 256 << 20
# Returns how many bytes of the files with an extension are needed; None for all.
NeededBytes = Callable[[str], int | None]


@dataclass
class Sample:
    """The files of a sample by lowercase extension; files that are not needed are empty.

    ``number`` counts the samples of an archive from 1. ``problem`` is the reason why it is invalid.
    """

    number: int
    key: str
    files: dict[str, bytes] = field(default_factory=dict)
    problem: str | None = None


def read_samples(file: FolderFile, table: TableName, needed: NeededBytes) -> Iterator[Sample]:
    """Yield the samples of an archive in order.

    Raises:
        InvalidSourceFile: The archive is damaged or truncated, has links, or the files of a sample are
            not adjacent.
    """
    sample = Sample(0, "")
    # Hashes of the keys, which take less memory than the keys.
    earlier: set[int] = set()
    try:
        with file.open() as stream:
            reader = TarReader(stream)
            for member in reader:
                key, extension = split_name(member.name)
                if _is_hidden(key):
                    continue
                if key != sample.key or not sample.number:
                    if sample.number:
                        yield sample
                    sample = Sample(sample.number + 1, key)
                    if hash(key) in earlier:
                        raise table.invalid_file_error(
                            f"{file.name}: the files of the sample {key!r} are not adjacent.",
                            hint="tar --sort=name -cf shard.tar folder",
                        )
                    earlier.add(hash(key))
                _add_file(sample, member, extension, reader, needed, table, file)
    except FeatureStoreError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable_file_error(file, table, error) from error
    if sample.number:
        yield sample


def split_name(name: str) -> tuple[str, str]:
    """Return the key and the lowercase extension of a file in an archive.

    >>> split_name("./a.b/0001.left.JPG"), split_name("README")
    (('a.b/0001', 'left.jpg'), ('README', ''))
    """
    folder, base = posixpath.split(name.removeprefix("./"))
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension.lower()


def _is_hidden(key: str) -> bool:
    # The names of files that systems add to archives, such as ``._0001.jpg``, begin with a point.
    name = posixpath.basename(key)
    return not name or (name.startswith("__") and name.endswith("__"))


def _add_file(
    sample: Sample,
    member: TarMember,
    extension: str,
    reader: TarReader,
    needed: NeededBytes,
    table: TableName,
    file: FolderFile,
) -> None:
    """Add a file to a sample, with as many of its bytes as needed."""
    if not extension:
        sample.problem = f"the file {member.name!r} has no extension"
        return
    if extension in sample.files:
        sample.problem = f"it has two files {extension!r}"
        return
    size = needed(extension)
    if size is None and member.size > _MAX_BYTES:
        raise table.invalid_file_error(
            f"{file.name}: the file {member.name!r} has {member.size:,} bytes; at most "
            f"{_MAX_BYTES:,} are read.",
            hint="columns=[...] of the call reads other columns",
        )
    sample.files[extension] = reader.read(size)

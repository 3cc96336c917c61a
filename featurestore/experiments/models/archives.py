"""Zip archives of models, whose entries are checked before an entry is unpacked.

Archives come from other people, and the library that loads a model reads them with its own parser.
An entry with two meanings (a name that occurs twice, a path out of the archive) would be checked in
one meaning and loaded in the other. Such archives are refused.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping

from featurestore.errors import ModelDamaged

_MAX_ENTRIES = 100_000
# Keras and PyTorch store their entries without compression. An archive that was compressed again
# is a few times smaller. An archive that unpacks to many times its bytes is an attack.
_FREE_BYTES = 64 << 20
_MAX_RATIO = 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_UNSAFE_NAME = re.compile(r"[\x00-\x1f\\:]|^/|(^|/)\.{1,2}(/|$)|//")


def read_archive(content: bytes, *, title: str, writer: str) -> dict[str, bytes]:
    """Return the entries of an archive by their names, without folders.

    Args:
        content: The bytes of the archive.
        title: The name of the file, for messages.
        writer: The function that writes such files, for messages.

    Raises:
        ModelDamaged: The archive is damaged, names an entry twice or outside of the archive, or
            would unpack to many times its size.

    >>> read_archive(write_archive({"config.json": b"{}"}), title="'a.keras'", writer="Keras")
    {'config.json': b'{}'}
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
            problem = _find_problem(entries, len(content))
            if problem is not None:
                raise ModelDamaged(f"{title} was not written by {writer}: {problem}.")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,  # a compression or encryption that Python does not support
        EOFError,
        OSError,  # an offset outside of the file
        ValueError,
        RuntimeError,
    ) as error:
        raise ModelDamaged(f"{title} was not written by {writer}: {error}") from error


def write_archive(entries: Mapping[str, bytes]) -> bytes:
    """Return an archive with these entries, stored without compression."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, entry in entries.items():
            archive.writestr(name, entry)
    return content.getvalue()


def _find_problem(entries: list[zipfile.ZipInfo], size: int) -> str | None:
    """Return the reason to refuse an archive of ``size`` bytes, or None."""
    if len(entries) > _MAX_ENTRIES:
        return f"it has {len(entries)} entries, at most {_MAX_ENTRIES} are allowed"
    names: set[str] = set()
    for entry in entries:
        if entry.filename in names:
            return f"it has two entries {entry.filename[:100]!r}"
        names.add(entry.filename)
        if _UNSAFE_NAME.search(entry.filename):
            return f"the path of the entry {entry.filename[:100]!r} is not relative and plain"
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
            return (
                f"the entry {entry.filename[:100]!r} is encrypted or compressed by another method"
            )
    total = sum(entry.file_size for entry in entries)
    if total > _FREE_BYTES + _MAX_RATIO * size:
        return f"its {size} bytes would unpack to {total} bytes"
    return None

"""Check the files of a wheel and a source distribution: scripts/release_files.py ARCHIVE ...

Every file must be a tracked file of the repository with the same content, or metadata of the build.
Builds take all files of a folder that git does not ignore, so a key, a database or an output of a
test next to the sources would be published. Links, absolute paths, files that other users may write, and files
above two megabytes are refused.
"""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2_000_000
# Where the packages of a wheel are in the repository.
PACKAGES = {
    "featurestore": "featurestore",
    "featurestore_connectors": "connectors/featurestore_connectors",
    "featurestore_schemas": "schemas/featurestore_schemas",
}
# Wheels are read by all users of a machine, and changed by none but the owner.
PERMISSIONS = 0o755
METADATA = re.compile(
    r"featurestore-[\w.]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|licenses/LICENSE)"
)
SOURCE_METADATA = ("PKG-INFO",)


@dataclass(frozen=True)
class ArchivedFile:
    """A file of an archive: its name, its path in the repository, its mode and its content."""

    name: str
    source: str | None
    mode: int
    content: bytes
    is_plain: bool = True


def read_wheel(path: Path) -> Iterator[ArchivedFile]:
    """Yield the files of a wheel; metadata has no source."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            package, _, rest = entry.filename.partition("/")
            # Other folders, such as tests, are not packages of the wheel.
            source = f"{PACKAGES[package]}/{rest}" if package in PACKAGES else ""
            mode = entry.external_attr >> 16
            yield ArchivedFile(
                entry.filename,
                None if METADATA.fullmatch(entry.filename) else source,
                mode,
                archive.read(entry),
                is_plain=not entry.is_dir() and not stat.S_ISLNK(mode),
            )


def read_sdist(path: Path) -> Iterator[ArchivedFile]:
    """Yield the files of a source distribution; metadata has no source."""
    with tarfile.open(path) as archive:
        for entry in archive:
            source = entry.name.partition("/")[2]
            file = archive.extractfile(entry) if entry.isreg() else None
            yield ArchivedFile(
                entry.name,
                None if source in SOURCE_METADATA else source,
                entry.mode,
                b"" if file is None else file.read(),
                is_plain=entry.isreg(),
            )


def find_problems(files: list[ArchivedFile], tracked: set[str], root: Path) -> list[str]:
    """Return a line for each file that must not be published."""
    problems = []
    for file in files:
        if not file.is_plain:
            problems.append(f"{file.name} is not a plain file")
        elif file.name.startswith("/") or "\\" in file.name or ".." in file.name.split("/"):
            problems.append(f"{file.name} leads out of the archive")
        elif len(file.content) > MOST_BYTES:
            problems.append(f"{file.name} has {len(file.content):,} bytes")
        elif file.source is not None and file.source not in tracked:
            problems.append(f"{file.name} is not tracked by git")
        elif file.source is not None and (root / file.source).read_bytes() != file.content:
            problems.append(f"{file.name} differs from the file of the repository")
        elif stat.S_IMODE(file.mode) & ~PERMISSIONS:
            problems.append(f"{file.name} has the mode {stat.S_IMODE(file.mode):o}")
    names = [file.name for file in files]
    problems += [f"{name} occurs twice" for name in sorted(set(names)) if names.count(name) > 1]
    return problems


def tracked_files() -> set[str]:
    """Return the paths that git tracks."""
    command = ["git", "ls-files", "-z"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(filter(None, output.split("\0")))


def main(arguments: list[str]) -> None:
    """Check each archive; exit with 1 and a line for each problem."""
    tracked = tracked_files()
    problems = []
    for path in map(Path, arguments):
        files = list(read_wheel(path) if path.suffix == ".whl" else read_sdist(path))
        problems += [f"{path.name}: {problem}" for problem in find_problems(files, tracked, ROOT)]
        print(f"{path.name}: {len(files)} files")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main(sys.argv[1:])

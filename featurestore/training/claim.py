"""Claims on dataset versions: who exports what, and what a killed export left behind.

A version is claimed by making its directory, under a short lock on the dataset's name, and holding a lock on the file
``.export`` in it. The operating system drops that lock when the process dies, so a directory without a manifest whose
lock is free is what a killed export left, and may be removed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from featurestore.errors import InvalidArgument, TrainingDatasetExists
from featurestore.storage import files, locks
from featurestore.storage.manifests import is_finished


@dataclass
class Claim:
    """A claimed version: its directory, held until ``release``."""

    version: int
    directory: str
    handle: int
    location: str

    def release(self, *, keep: bool) -> None:
        """Give the claim back; without ``keep`` everything written goes."""
        files.remove(os.path.join(self.directory, locks.HOLD), below=self.location)
        if not keep:
            files.remove(self.directory, below=self.location)
        os.close(self.handle)


def claim_version(parent: str, version: int | None, *, floor: int = 0) -> Claim:
    """Claim a version of the dataset whose versions lie in ``parent``; None takes the next one above ``floor``.

    Raises:
        TrainingDatasetExists: The version exists, or another export is writing it.
    """
    if version is not None and (
        not isinstance(version, int) or isinstance(version, bool) or version < 1
    ):
        raise InvalidArgument(
            f"version={version!r} is not a version.", hint="versions are 1, 2, ..."
        )
    files.make_directory(parent)
    with locks.locked(os.path.join(parent, ".lock")):
        remove_abandoned(parent)
        taken = versions_in(parent)
        chosen = max([floor, *taken], default=0) + 1 if version is None else version
        directory = os.path.join(parent, f"v{chosen}")
        if chosen in taken:
            raise TrainingDatasetExists(
                f"Version {chosen} of training dataset {os.path.basename(parent)!r} exists or is being written.",
                hint="leave version= out to make the next one",
            )
        handle = locks.make_held(directory)
    return Claim(chosen, directory, handle, parent)


def versions_in(parent: str) -> list[int]:
    """Return the versions that have a directory, finished or not."""
    return sorted(
        int(name[1:])
        for name in files.list_directory(parent)
        if name[:1] == "v" and name[1:].isdigit()
    )


def remove_abandoned(parent: str) -> list[str]:
    """Remove what killed exports left; return the directories. Finished datasets and running exports stay."""
    removed = []
    for version in versions_in(parent):
        directory = os.path.join(parent, f"v{version}")
        if not is_finished(directory) and not locks.is_held(directory):
            files.remove(directory, below=parent)
            removed.append(directory)
    return removed


def clean(parent: str) -> list[str]:
    """Remove what killed exports of one dataset left, safely beside running ones; return the directories."""
    if not files.exists(parent):
        return []
    with locks.locked(os.path.join(parent, ".lock")):
        return remove_abandoned(parent)

"""Files of a run: checksums at the end of the run, verification before use."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence

from featurestore.errors import RunDamaged, UntrustedModel
from featurestore.model.run_record import METRICS_FILE, RunRecord
from featurestore.storage import files

ARTIFACTS = "artifacts"
PROJECTOR_FILE = "projector_config.pbtxt"
TEMPORARY = ".saving-"  # prefix of the directories in which models are written


def checksums_below(directory: str, folder: str) -> dict[str, str]:
    """Return the SHA-256 of a file or of all files of a folder, by path in a run's directory.

    Symbolic links are skipped, since they may lead outside the run.
    """
    checksums = {}
    top = os.path.join(directory, folder)
    if files.is_link(top):
        return {}
    if files.is_file(top):
        return {folder: files.sha256(top)}
    for path in files.walk(top, enter=lambda name: not name.startswith(TEMPORARY)):
        if files.is_file(path) and not files.is_link(path):
            checksums[_relative(path, directory)] = files.sha256(path)
    return checksums


def final_checksums(directory: str, saved: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of the metrics file and of all artifacts of a run that has ended.

    Args:
        directory: The directory of the run.
        saved: The checksums that the first worker computed when it saved models.

    Raises:
        RunDamaged: A saved model is missing or changed, or a ``.keras`` file is damaged.
    """
    checksums = checksums_below(directory, ARTIFACTS)
    for relative, digest in saved.items():
        path = os.path.join(directory, relative)
        if relative not in checksums:
            raise damaged_file(path, "context.save wrote it, and it is missing")
        if checksums[relative] != digest:
            raise damaged_file(path, "it is not what context.save wrote")
    for relative in checksums:
        if relative.endswith(".keras"):
            _check_archive(os.path.join(directory, relative))
    metrics = os.path.join(directory, METRICS_FILE)
    if files.exists(metrics):
        checksums[METRICS_FILE] = files.sha256(metrics)
    return checksums


def check_files(directory: str, record: RunRecord, *, below: Sequence[str]) -> None:
    """Compare files of a run with the checksums of its record.

    Args:
        directory: The directory of the run.
        record: The record of the run; without checksums until the run has ended.
        below: The files and folders to check, relative to the directory.

    Raises:
        RunDamaged: A file is missing or differs from its checksum.
    """
    for relative, digest in record.files.items():
        if not any(relative == each or relative.startswith(f"{each}/") for each in below):
            continue
        path = files.inside(directory, relative)
        if not files.exists(path):
            raise damaged_file(path, "it is missing")
        if files.sha256(path) != digest:
            raise damaged_file(path, "it has changed since the run ended")


def check_own_files(directory: str, relative: str) -> None:
    """Check that a file, or all files of a folder, are inside the directory of the run.

    Raises:
        StorageError: The path, or one below it, is a symbolic link or leads outside.
    """
    top = files.inside(directory, relative)
    for path in files.walk(top):
        files.inside(directory, _relative(path, directory))


def check_tensorboard(directory: str) -> None:
    """Raise an error if a directory contains a projector configuration of TensorBoard.

    The projector serves any file of this machine that ``projector_config.pbtxt`` names.

    Raises:
        UntrustedModel: The directory contains one.
    """
    for path in files.walk(directory):
        if os.path.basename(path) == PROJECTOR_FILE:
            raise UntrustedModel(
                f"{path!r} names files that TensorBoard would serve.",
                hint=f"if you trust its author: tensorboard --logdir {directory}",
            )


def damaged_file(path: str, reason: str) -> RunDamaged:
    """Return the error of a damaged file of a run."""
    return RunDamaged(
        f"The file {path!r} of a run is damaged: {reason}.",
        hint="restore the file from a copy, or run the training again",
    )


def temporary_directories(directory: str) -> Iterator[str]:
    """Yield the directories that interrupted saves left in a folder."""
    for name in files.list_directory(directory):
        if name.startswith(TEMPORARY):
            yield os.path.join(directory, name)


def _check_archive(path: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise damaged_file(path, str(error)) from error
    if member is not None:
        raise damaged_file(path, f"the checksum of its member {member!r} does not match")


def _relative(path: str, directory: str) -> str:
    return os.path.relpath(path, directory)

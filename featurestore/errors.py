"""The exceptions of the feature store: each has a message and a hint."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence

MANY_FILES_HINT = (
    "allow more open files (ulimit -n 65536), or let the group have fewer: "
    "compact_featuregroup(name)"
)


class FeatureStoreError(Exception):
    """Base of every error that the feature store raises on purpose.

    Args:
        message: The failed request and the available alternatives, in one or more sentences.
        hint: The thing to type or do next; shown after ``Hint:``.
        command: The hint of the command line, in place of the one for Python.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, command: str | None = None
    ) -> None:
        self.message = message
        self.hint = hint
        self.command = command
        super().__init__(message if hint is None else f"{message}\nHint: {hint}")


class InvalidName(FeatureStoreError, ValueError):
    """A name of a group, dataset, job or feature breaks the naming rule."""


class InvalidArgument(FeatureStoreError, ValueError):
    """An argument has a value that the call cannot take."""


class OutOfRange(InvalidArgument):
    """A time, duration or integer is outside of the supported range."""


class LimitExceeded(InvalidArgument):
    """An argument or request exceeds a limit that the message names."""


class UnknownArgument(FeatureStoreError, TypeError):
    """A call was given an argument that it does not take, or lacks one that it needs."""


class InvalidReference(FeatureStoreError, ValueError):
    """A feature reference cannot be parsed."""


class InvalidSql(FeatureStoreError, ValueError):
    """User SQL cannot be parsed, or cannot be transpiled for the engine."""


class UnsupportedDataframe(FeatureStoreError, TypeError):
    """A dataframe argument is of a kind that the engine cannot take."""


class UnsupportedType(FeatureStoreError, TypeError):
    """Columns have types that cannot be stored or exported; lists all of these columns."""


class UnsupportedLocation(FeatureStoreError, ValueError):
    """The location of the store is not a local or shared POSIX directory."""


class UnsupportedTable(FeatureStoreError, ValueError):
    """A Delta table uses a feature that the store does not know.

    Reading it would give wrong rows.
    """


class LocationNotWritable(FeatureStoreError, OSError):
    """The location of the store cannot be written."""


class ConfigurationError(FeatureStoreError, ValueError):
    """A configuration file or environment variable has a wrong value."""


class MissingExtra(FeatureStoreError, ImportError):
    """A library of an optional extra is not installed."""


class MissingJava(FeatureStoreError, RuntimeError):
    """The Spark engine needs Java 17 or 21 and found none, or another version."""


class EngineError(FeatureStoreError, RuntimeError):
    """An engine failed at a task that it should be able to do."""


class StorageError(FeatureStoreError, OSError):
    """A file could not be written or read (disk full, permission, damaged file)."""


class FeatureViewWarning(UserWarning):
    """What is done to a group keeps a feature view from following it, or breaks the view."""


class PublicationWarning(UserWarning):
    """A write landed, and something after it went wrong.

    Recovery finishes the rest, nothing is to be repeated.
    """


class DataWarning(UserWarning):
    """Rows were accepted, but look suspicious."""


class TableDamaged(StorageError):
    """A Delta log or data file is missing or unreadable; the message names the file."""


class RegistryError(FeatureStoreError, RuntimeError):
    """The registry database cannot be used."""


class RegistryTooNew(RegistryError):
    """The registry was written by a newer release of the feature store."""


# --- feature groups -------------------------------------------------------------------


class FeatureGroupNotFound(FeatureStoreError, LookupError):
    """No feature group of this name and version exists."""


class FeatureGroupExists(FeatureStoreError, ValueError):
    """The version of the feature group exists already."""


class DefinitionMismatch(FeatureStoreError, ValueError):
    """The definition that was given differs from the stored one."""


class SchemaMismatch(FeatureStoreError, ValueError):
    """Columns of a write do not match the group's; lists all of these columns."""


class KeyRequired(FeatureStoreError, ValueError):
    """The operation needs a key that the group does not declare."""


class WriteConflict(FeatureStoreError, RuntimeError):
    """Concurrent writers kept winning; nothing of this write landed."""


class NotIterable(FeatureStoreError, TypeError):
    """A reader was passed where its batches are expected."""


class VersionNotFound(FeatureStoreError, LookupError):
    """No Delta version at or before the requested time."""


class VersionVacuumed(VersionNotFound):
    """The data files of a Delta version were removed by a vacuum; lists the readable versions."""


class PinnedByTrainingDataset(FeatureStoreError, RuntimeError):
    """A training dataset depends on the data that was to be removed."""


# --- retrieval ------------------------------------------------------------------------


class FeatureNotFound(FeatureStoreError, LookupError):
    """No feature of this name exists."""


class AmbiguousFeature(FeatureStoreError, LookupError):
    """A plain feature name exists in several groups; the candidates are listed as typed."""


class ColumnConflict(FeatureStoreError, ValueError):
    """Two columns of a result would have one name."""


class NoJoinKey(FeatureStoreError, ValueError):
    """A group's primary key is not in the columns of the left side."""


class LabelTimeRequired(FeatureStoreError, ValueError):
    """The time column of the labels is missing or ambiguous."""


# --- validation -----------------------------------------------------------------------


class ValidationFailed(FeatureStoreError, ValueError):
    """Data broke its expectations and was not written.

    Args:
        report: The validation report (``featurestore.model.validation.ValidationReport``).
    """

    def __init__(self, message: str, *, report: object = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.report = report


class DuplicateKeys(ValidationFailed):
    """One batch holds a key more than once; the message shows examples."""


class InvalidExpectation(FeatureStoreError, ValueError):
    """An expectation cannot be read or names a column that does not exist."""


class StatisticsNotFound(FeatureStoreError, LookupError):
    """No statistics are stored for this version."""


# --- training datasets and readers ----------------------------------------------------


class TrainingDatasetNotFound(FeatureStoreError, LookupError):
    """No training dataset of this name and version exists."""


class TrainingDatasetExists(FeatureStoreError, ValueError):
    """The version of the training dataset exists already."""


class FeatureViewNotFound(FeatureStoreError, LookupError):
    """No feature view of this name and version exists."""


class FeatureViewExists(FeatureStoreError, ValueError):
    """The version of the feature view exists already."""


class FeatureViewDamaged(FeatureStoreError, RuntimeError):
    """The file of a feature view is not what was written."""


class FeatureViewBroken(FeatureStoreError, RuntimeError):
    """A group no longer has features that a feature view reads; lists all of them."""


class UsedByFeatureView(FeatureStoreError, RuntimeError):
    """Feature views read what is to be deleted."""


class InvalidSplit(FeatureStoreError, ValueError):
    """A split rule cannot be applied."""


class DatasetDamaged(FeatureStoreError, RuntimeError):
    """Files of a training dataset differ from its manifest; the message names the file."""


class ManifestMismatch(FeatureStoreError, ValueError):
    """A reader state belongs to another manifest; both hashes are named."""


class ReaderConfigError(FeatureStoreError, ValueError):
    """Batch, lanes and workers do not fit together; the message lists what does."""


class NullsInColumns(FeatureStoreError, ValueError):
    """Columns have nulls and no policy for them was chosen."""


class TransformationNotKnown(FeatureStoreError, LookupError):
    """A dataset's transformation needs a Python function that this process has not named."""


class WorkerStalled(FeatureStoreError, RuntimeError):
    """A worker made no step within the timeout; the message lists each worker's step."""


# --- sources --------------------------------------------------------------------------


class SourceNotFound(FeatureStoreError, LookupError):
    """No source of this name is registered."""


class SourceExists(FeatureStoreError, ValueError):
    """A source of this name is registered already."""


class SourceUnavailable(FeatureStoreError, ConnectionError):
    """A source cannot be reached, or refuses the user."""


class SourceTableNotFound(FeatureStoreError, LookupError):
    """A source has no such table, file or version."""


class ExternalRowsError(FeatureStoreError, ValueError):
    """The rows of an external feature group are elsewhere, and this needs rows of the store."""


class SourceChanged(FeatureStoreError, RuntimeError):
    """A source was changed while it was read, or no longer has what was registered."""


class InvalidSourceFile(FeatureStoreError, ValueError):
    """A file of a source does not fit its dialect or its schema; names the file, and where it is."""


class OffsetsLost(SourceChanged):
    """Records that a stream has yet to read are gone, or its topic is another one."""


class BadRecord(FeatureStoreError, ValueError):
    """A record of a stream cannot be read, and the job is to fail at those."""


class StreamOvertaken(WriteConflict):
    """Another process committed records of these partitions first; nothing was written."""


class SourceError(FeatureStoreError, RuntimeError):
    """A source failed at a task that it should be able to do."""


# --- jobs -----------------------------------------------------------------------------


class JobNotFound(FeatureStoreError, LookupError):
    """No job of this name is registered."""


class InvalidJob(FeatureStoreError, ValueError):
    """A job definition is wrong."""


class RowsOutsideWindow(FeatureStoreError, ValueError):
    """A job returned rows with event times outside of its window."""


class JobLeased(FeatureStoreError, RuntimeError):
    """Another process runs this job at the moment."""


class JobFailed(FeatureStoreError, RuntimeError):
    """A run of a job failed; the cause is chained and kept in the history."""


# --- experiments ----------------------------------------------------------------------


class RunNotFound(FeatureStoreError, LookupError):
    """No run of an experiment has this id."""


class RunDamaged(FeatureStoreError, RuntimeError):
    """The record of a run cannot be read; the message names the file and what is wrong."""


class RunFailed(FeatureStoreError, RuntimeError):
    """A training function failed, or its workers died more often than they may."""


class RunRunning(FeatureStoreError, RuntimeError):
    """A run that is to be resumed runs still."""


class InvalidTrainFunction(FeatureStoreError, TypeError):
    """A training function cannot be pickled, or takes other arguments than it would be given."""


class InvalidMetric(FeatureStoreError, ValueError):
    """A reported metric is not a finite number, or the objective was never reported."""


class MlflowError(FeatureStoreError, RuntimeError):
    """MLflow does not answer, or did not take a run."""


class ModelNotFound(FeatureStoreError, LookupError):
    """No registered model has this name, version or stage."""


class ModelExists(FeatureStoreError, ValueError):
    """The version of the model exists already."""


class ModelDamaged(FeatureStoreError, RuntimeError):
    """A file of a registered model is not what was written; the message names it."""


class UntrustedModel(FeatureStoreError, PermissionError):
    """Loading the model runs code from its files, which needs permission."""


class UsedByModel(FeatureStoreError, RuntimeError):
    """Registered models were trained on what is to be deleted."""


class UserNotFound(FeatureStoreError, LookupError):
    """No user of this name is known to the server."""


class UserExists(FeatureStoreError, ValueError):
    """There is a user of this name."""


class TokenNotFound(FeatureStoreError, LookupError):
    """No token of this id is known to the server."""


class QueryEnded(FeatureStoreError, TimeoutError):
    """A query was stopped: it exceeded its time limit, or the client disconnected."""


class ServerUnavailable(FeatureStoreError, ConnectionError):
    """A served store does not answer, or breaks off."""


class UnsupportedRemotely(FeatureStoreError, NotImplementedError):
    """A call needs the files of a store, and only its server can be reached."""


class NotSignedIn(FeatureStoreError, PermissionError):
    """The server requires authentication: the token is missing or unknown."""


class NotAllowed(FeatureStoreError, PermissionError):
    """The user does not have the permission for the request."""


class TooManyAttempts(NotSignedIn):
    """Sign-in failed too often of late."""


class LauncherNotFound(FeatureStoreError, LookupError):
    """No launcher has this name."""


class NotEnoughSlots(FeatureStoreError, RuntimeError):
    """A cluster has fewer free slots than workers are to run at once."""


class Stopped(FeatureStoreError):
    """The search gave this trial up: end the function, what was reported counts."""


def listing(names: Iterable[object], *, limit: int = 10) -> str:
    """Return names as a readable list, cut after ``limit``.

    >>> listing(["a", "b"])
    "'a', 'b'"
    >>> listing([])
    'none'
    """
    shown: Sequence[str] = [repr(str(name)) for name in names]
    if not shown:
        return "none"
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more


def did_you_mean(
    unknown_name: object, known_names: Iterable[str], *, write: str = "{}", most: int = 3
) -> str | None:
    """Return the hint for a mistyped name; None without a similar known name.

    Args:
        unknown_name: The mistyped name.
        known_names: The valid names.
        write: The text of the hint, with ``{}`` for the name.
        most: The maximum number of suggestions, at most three.

    >>> did_you_mean("Parket", ["parquet", "csv"], write="data_format={!r}")
    "did you mean data_format='parquet'?"
    """
    near = names_near(unknown_name, known_names)[:most]
    if not near:
        return None
    return meaning([write.format(name) for name in near])


def names_near(unknown_name: object, known_names: Iterable[str]) -> list[str]:
    """Return at most three similar known names, the nearest first.

    >>> names_near("temprature", ["temp", "temperature", "id"])
    ['temperature']
    """
    folded: dict[str, str] = {}
    for name in known_names:
        folded.setdefault(name.lower(), name)
    text = str(unknown_name).lower()
    if text in folded:
        return [folded[text]]
    near = difflib.get_close_matches(text, list(folded), n=3, cutoff=0.6)
    if not near and len(text) > 2:
        near = [name for name in folded if name.startswith(text)][:3]
    return [folded[name] for name in near]


def meaning(suggestions: Iterable[str]) -> str:
    """Return the question that offers what may be meant.

    >>> meaning(["'csv'", "'parquet'"])
    "did you mean 'csv' or 'parquet'?"
    """
    return f"did you mean {' or '.join(suggestions)}?"


def missing_extra(library: str, extra: str) -> MissingExtra:
    """Return the error for a library whose extra is not installed.

    >>> print(missing_extra("tensorflow", "tensorflow"))
    This needs the library 'tensorflow', which is not installed.
    Hint: pip install 'featurestore[tensorflow]'
    """
    return MissingExtra(
        f"This needs the library {library!r}, which is not installed.",
        hint=f"pip install 'featurestore[{extra}]'",
    )


def refusal_hint(error: OSError) -> str | None:
    """Return what to do about a refusal of the operating system that has one way out, else None.

    >>> refusal_hint(OSError(errno.ENOSPC, "No space left on device"))
    'free some space and repeat'
    """
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return MANY_FILES_HINT
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and repeat"
    return None

"""The exceptions of the feature store: each has a message and an optional hint."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence
from typing import ClassVar

MANY_FILES_HINT = (
    "raise the limit of open files (ulimit -n 65536), or merge the files of the group: "
    "compact_featuregroup(name)"
)


class FeatureStoreError(Exception):
    """Base of all errors that the feature store raises.

    Args:
        message: The failed request and the available alternatives, in one or more sentences.
        hint: The next step for the user, shown after ``Hint:``.
        command: The hint on the command line, instead of the Python hint.
    """

    # The hint of a class whose errors all have the same next step.
    default_hint: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, hint: str | None = None, command: str | None = None
    ) -> None:
        hint = self.default_hint if hint is None else hint
        self.message = message
        self.hint = hint
        self.command = command
        super().__init__(message if hint is None else f"{message}\nHint: {hint}")

    def replace_hint(self, hint: str) -> None:
        """Replace the hint, also in the text of the error."""
        self.hint = hint
        self.args = (f"{self.message}\nHint: {hint}",)


class InvalidName(FeatureStoreError, ValueError):
    """The name of a group, dataset, job or feature violates the naming rules."""


class InvalidArgument(FeatureStoreError, ValueError):
    """The value of an argument is invalid."""


class OutOfRange(InvalidArgument):
    """A time, duration or integer is outside the supported range."""


class LimitExceeded(InvalidArgument):
    """An argument or request exceeds a limit that the message names."""


class UnknownArgument(FeatureStoreError, TypeError):
    """A call has an unknown argument, or lacks a required one."""


class InvalidReference(FeatureStoreError, ValueError):
    """A feature reference cannot be parsed."""


class InvalidSql(FeatureStoreError, ValueError):
    """User SQL cannot be parsed, or cannot be transpiled for the engine."""


class UnsupportedDataframe(FeatureStoreError, TypeError):
    """The engine does not support this kind of dataframe."""


class UnsupportedType(FeatureStoreError, TypeError):
    """The types of columns cannot be stored or exported; lists all of these columns."""


class UnsupportedLocation(FeatureStoreError, ValueError):
    """The location of the store is not a local or shared POSIX directory."""


class UnsupportedTable(FeatureStoreError, ValueError):
    """A Delta table uses a feature that the store does not support.

    Reading the table would return wrong rows.
    """


class LocationNotWritable(FeatureStoreError, OSError):
    """The location of the store is not writable."""


class ConfigurationError(FeatureStoreError, ValueError):
    """A configuration file or environment variable has an invalid value."""


class MissingExtra(FeatureStoreError, ImportError):
    """A library of an optional extra is not installed."""


class MissingJava(FeatureStoreError, RuntimeError):
    """The Spark engine needs Java 17 or 21, which is missing or has another version."""


class EngineError(FeatureStoreError, RuntimeError):
    """An engine failed in an unexpected way."""


class ThreadsUnavailable(FeatureStoreError, RuntimeError):
    """The system refuses to start a thread; the message names the limits."""


class ForkedProcess(FeatureStoreError, RuntimeError):
    """An object of the parent process was used in a child that was created with ``fork``."""


class InvalidPlan(FeatureStoreError, ValueError):
    """A feature plan uses a column or a time that its rows do not have."""


class StorageError(FeatureStoreError, OSError):
    """A file could not be written or read (disk full, no permission, damaged file)."""


class FeatureViewWarning(UserWarning):
    """A change to a group breaks a feature view or prevents it from following the group."""


class PublicationWarning(UserWarning):
    """A write was committed, but a later step failed.

    Recovery completes the remaining steps; the write must not be repeated.
    """


class RegistryWarning(UserWarning):
    """The location contains objects that the registry lacks, so that they are not listed."""


class DataWarning(UserWarning):
    """Rows were accepted, but look suspicious."""


class JobWarning(UserWarning):
    """A feature group has writers besides its job, whose runs may replace their rows."""


class TableDamaged(StorageError):
    """A Delta log or data file is missing or unreadable; the message names the file."""

    default_hint = (
        "restore the file from a copy; featurestore fg verify NAME lists all damaged files"
    )


class RegistryError(FeatureStoreError, RuntimeError):
    """The registry database cannot be used."""


class RegistryDamaged(RegistryError):
    """The registry is damaged, incomplete or lost; it can be rebuilt from the files of the store."""

    default_hint = "featurestore registry rebuild"


class RegistryTooNew(RegistryError):
    """The registry was written by a newer release of the feature store."""


class FormatTooNew(FeatureStoreError, RuntimeError):
    """A newer release wrote a definition or file in a format that this release cannot read."""


# --- feature groups -------------------------------------------------------------------


class FeatureGroupNotFound(FeatureStoreError, LookupError):
    """No feature group has this name and version."""


class FeatureGroupExists(FeatureStoreError, ValueError):
    """This version of the feature group already exists."""


class DefinitionMismatch(FeatureStoreError, ValueError):
    """A definition differs from the stored one."""


class DefinitionsRefused(FeatureStoreError, ValueError):
    """Definitions of a project cannot be applied; lists each with its file and line."""


class SchemaMismatch(FeatureStoreError, ValueError):
    """The columns of a write do not match the group; lists all of these columns."""


class KeyRequired(FeatureStoreError, ValueError):
    """The operation requires a key that the group does not declare."""


class WriteConflict(FeatureStoreError, RuntimeError):
    """Concurrent writers won repeatedly; nothing was written."""


class NotIterable(FeatureStoreError, TypeError):
    """A reader was passed instead of its batches."""


class VersionNotFound(FeatureStoreError, LookupError):
    """No Delta version exists at or before the requested time."""


class VersionVacuumed(VersionNotFound):
    """A vacuum removed the data files of a Delta version; lists the readable versions."""


class PinnedByTrainingDataset(FeatureStoreError, RuntimeError):
    """A training dataset depends on the data to be removed."""


# --- retrieval ------------------------------------------------------------------------


class FeatureNotFound(FeatureStoreError, LookupError):
    """No feature has this name."""


class AmbiguousFeature(FeatureStoreError, LookupError):
    """Several groups have a feature of this name; lists the references to use instead."""


class ColumnConflict(FeatureStoreError, ValueError):
    """Two result columns would have the same name."""


class NoJoinKey(FeatureStoreError, ValueError):
    """The left side lacks the primary-key columns of a group."""


class LabelTimeRequired(FeatureStoreError, ValueError):
    """The time column of the labels is missing or ambiguous."""


# --- validation -----------------------------------------------------------------------


class ValidationFailed(FeatureStoreError, ValueError):
    """Data violated its expectations and was not written.

    Args:
        report: The validation report (``featurestore.model.validation.ValidationReport``).
    """

    def __init__(self, message: str, *, report: object = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.report = report


class DuplicateKeys(ValidationFailed):
    """A batch contains a key more than once; the message shows examples."""


class InvalidExpectation(FeatureStoreError, ValueError):
    """An expectation cannot be parsed, or names a missing column."""


class StatisticsNotFound(FeatureStoreError, LookupError):
    """No statistics are stored for this version."""


# --- training datasets and readers ----------------------------------------------------


class TrainingDatasetNotFound(FeatureStoreError, LookupError):
    """No training dataset has this name and version."""


class TrainingDatasetExists(FeatureStoreError, ValueError):
    """This version of the training dataset already exists."""


class FeatureViewNotFound(FeatureStoreError, LookupError):
    """No feature view has this name and version."""


class FeatureViewExists(FeatureStoreError, ValueError):
    """This version of the feature view already exists."""


class FeatureViewDamaged(FeatureStoreError, RuntimeError):
    """The file of a feature view differs from what was written."""


class FeatureViewBroken(FeatureStoreError, RuntimeError):
    """A group no longer has features that a feature view reads; lists all of these features."""


class UsedByFeatureView(FeatureStoreError, RuntimeError):
    """Feature views read the data to be deleted."""


class InvalidSplit(FeatureStoreError, ValueError):
    """A split rule cannot be applied."""


class DatasetDamaged(FeatureStoreError, RuntimeError):
    """Files of a training dataset differ from its manifest; the message names the file."""

    default_hint = (
        "featurestore td verify lists the damage; restore the files, or create the dataset again"
    )


class ManifestMismatch(FeatureStoreError, ValueError):
    """A reader state belongs to another manifest; the message has both hashes."""


class ReaderConfigError(FeatureStoreError, ValueError):
    """Batch size, lanes and workers are incompatible; the message lists valid combinations."""


class NullsInColumns(FeatureStoreError, ValueError):
    """Columns contain nulls, and no null policy was chosen."""


class TransformationNotKnown(FeatureStoreError, LookupError):
    """A transformation needs a Python function that is not registered in this process."""


class WorkerStalled(FeatureStoreError, RuntimeError):
    """A worker made no progress within the timeout; the message lists each worker's step."""


# --- sources --------------------------------------------------------------------------


class SourceNotFound(FeatureStoreError, LookupError):
    """No source with this name is registered."""


class SourceExists(FeatureStoreError, ValueError):
    """A source with this name is already registered."""


class SourceUnavailable(FeatureStoreError, ConnectionError):
    """A source is not reachable, or denies access to the user."""


class SourceTableNotFound(FeatureStoreError, LookupError):
    """A source does not have this table, file or version."""


class ExternalRowsError(FeatureStoreError, ValueError):
    """An operation needs stored rows, but the rows of an external feature group are not stored."""


class SourceChanged(FeatureStoreError, RuntimeError):
    """A source changed while it was read, or no longer has the registered tables."""


class InvalidDbtProject(FeatureStoreError, ValueError):
    """A dbt manifest cannot be read, or nodes cannot be imported; the message names them."""


class InvalidSourceFile(FeatureStoreError, ValueError):
    """A source file does not match its dialect or schema; names the file and the position."""


class OffsetsLost(SourceChanged):
    """Unread records of a stream were deleted, or its topic was replaced."""


class BadRecord(FeatureStoreError, ValueError):
    """A record of a stream cannot be parsed, and the job's policy is to fail."""


class StreamOvertaken(WriteConflict):
    """Another process already committed records of these partitions; nothing was written."""


class NotPublished(FeatureStoreError, LookupError):
    """A feature view is not published to an online store."""


class PublishedStateDamaged(FeatureStoreError, RuntimeError):
    """The state record of a published view differs from what was written."""


class PublishedValueDamaged(FeatureStoreError, RuntimeError):
    """A value in an online store differs from what was published for its key."""


class PublicationSuperseded(FeatureStoreError, RuntimeError):
    """Another process took over the publication of a view, since this one did not respond."""


class PublishedValueMismatch(FeatureStoreError, RuntimeError):
    """Published values have other columns, or are those of another table, store or release."""


class SourceError(FeatureStoreError, RuntimeError):
    """A source failed in an unexpected way."""


# --- online stores --------------------------------------------------------------------


class OnlineStoreNotFound(FeatureStoreError, LookupError):
    """No online store with this name is registered."""


class OnlineStoreExists(FeatureStoreError, ValueError):
    """An online store with this name is already registered."""


class OnlineStoreError(FeatureStoreError, RuntimeError):
    """An online store refused a call, or its configuration is unsuitable."""


class OnlineStoreUnavailable(OnlineStoreError, ConnectionError):
    """An online store is not reachable, or did not respond in time."""


class OnlineWritesLost(OnlineStoreError):
    """An online store lost writes that it had acknowledged, during the publication of a view."""


# --- jobs -----------------------------------------------------------------------------


class JobNotFound(FeatureStoreError, LookupError):
    """No job with this name is registered."""


class InvalidJob(FeatureStoreError, ValueError):
    """A job definition is invalid."""


class RowsOutsideWindow(FeatureStoreError, ValueError):
    """A job returned rows with event times outside its window."""


class JobLeased(FeatureStoreError, RuntimeError):
    """Another process is currently running this job."""


class JobFailed(FeatureStoreError, RuntimeError):
    """A job run failed; the cause is chained and stored in the history."""


# --- experiments ----------------------------------------------------------------------


class RunNotFound(FeatureStoreError, LookupError):
    """No experiment run has this ID."""


class RunDamaged(FeatureStoreError, RuntimeError):
    """The record of a run cannot be read; the message names the file and the problem."""

    default_hint = "restore the file from a copy; other runs are not affected"


class RunFailed(FeatureStoreError, RuntimeError):
    """A training function failed, or its workers failed more often than allowed."""


class RunRunning(FeatureStoreError, RuntimeError):
    """The run to be resumed is still running."""


class InvalidTrainFunction(FeatureStoreError, TypeError):
    """A training function cannot be pickled, or has an incompatible signature."""


class InvalidMetric(FeatureStoreError, ValueError):
    """A reported metric is not a finite number, or the objective was never reported."""


class MlflowError(FeatureStoreError, RuntimeError):
    """MLflow does not respond, or rejected a run."""


class ModelNotFound(FeatureStoreError, LookupError):
    """No registered model has this name, version or stage."""


class ModelExists(FeatureStoreError, ValueError):
    """This version of the model already exists."""


class ModelDamaged(FeatureStoreError, RuntimeError):
    """A file of a registered model differs from what was written; the message names it."""

    default_hint = "restore the file from a copy, or register the model again"


class PredictionsDiffer(FeatureStoreError, ValueError):
    """A model predicts other values from its dataset than in the run that trained it."""


class UntrustedModel(FeatureStoreError, PermissionError):
    """Loading the model runs code from its files, which requires permission."""


class UsedByModel(FeatureStoreError, RuntimeError):
    """Registered models were trained on the data to be deleted."""


class UserNotFound(FeatureStoreError, LookupError):
    """The server has no user with this name."""


class UserExists(FeatureStoreError, ValueError):
    """A user with this name already exists."""


class TokenNotFound(FeatureStoreError, LookupError):
    """The server has no token with this ID."""


class QueryEnded(FeatureStoreError, TimeoutError):
    """A query was stopped: it exceeded its time limit, or the client disconnected."""


class ServerUnavailable(FeatureStoreError, ConnectionError):
    """A store server does not respond, or closed the connection."""


class UnsupportedRemotely(FeatureStoreError, NotImplementedError):
    """A call needs direct access to the files of a store, which a remote client does not have."""


class NotSignedIn(FeatureStoreError, PermissionError):
    """The server requires authentication: the token is missing or unknown."""


class NotAllowed(FeatureStoreError, PermissionError):
    """The user does not have the required permission."""


class TooManyRequests(FeatureStoreError):
    """A server runs as many requests of this person as it allows, and others wait.

    Args:
        message: The limit.
        hint: The next step for the user.
        seconds: The time after which the request can be repeated.
    """

    def __init__(self, message: str, *, hint: str | None = None, seconds: float = 1.0) -> None:
        self.seconds = seconds
        super().__init__(message, hint=hint)


class TooManyAttempts(NotSignedIn, TooManyRequests):
    """Sign-in failed too often within a short time."""


class LauncherNotFound(FeatureStoreError, LookupError):
    """No launcher has this name."""


class NotEnoughSlots(FeatureStoreError, RuntimeError):
    """A cluster has fewer free slots than concurrent workers are requested."""


class Stopped(FeatureStoreError):
    """The search stopped this trial; the function should end, and its reported metrics are kept."""


def listing(names: Iterable[object], *, limit: int = 10) -> str:
    """Format names as a readable list, truncated after ``limit``.

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
    """Return the hint for a mistyped name, or None without a similar known name.

    Args:
        unknown_name: The mistyped name.
        known_names: The valid names.
        write: The template of the hint, with ``{}`` for the name.
        most: The maximum number of suggestions, at most three.

    >>> did_you_mean("Parket", ["parquet", "csv"], write="data_format={!r}")
    "did you mean data_format='parquet'?"
    """
    near = find_similar_names(unknown_name, known_names)[:most]
    if not near:
        return None
    return suggestion_question([write.format(name) for name in near])


def suggest_spelling(unknown_word: object, known_words: Iterable[str], *, write: str) -> str | None:
    """Return the hint for a word with one wrong letter, or None.

    For words whose meanings differ, such as functions: ``mean`` looks like ``median``.

    Args:
        unknown_word: The mistyped word.
        known_words: The valid words.
        write: The template of the hint, with ``{}`` for the word.

    >>> suggest_spelling("maen", ["min", "mean"], write="function={!r}")
    "did you mean function='mean'?"
    >>> suggest_spelling("median", ["min", "mean"], write="function={!r}")
    """
    text = str(unknown_word).lower()
    near = [word for word in known_words if _has_one_wrong_letter(text, word.lower())]
    if not near:
        return None
    return suggestion_question([write.format(word) for word in near[:3]])


def _has_one_wrong_letter(text: str, word: str) -> bool:
    """Return whether two words differ by one letter, or by two letters in another order."""
    start = 0
    while text[start : start + 1] == word[start : start + 1] != "":
        start += 1
    text_end, word_end = text[start:], word[start:]
    swapped = word_end[1::-1] + word_end[2:]
    return (
        text_end in (word_end, word_end[1:], swapped)
        or word_end == text_end[1:]
        or (len(text_end) == len(word_end) and text_end[1:] == word_end[1:])
    )


def find_similar_names(unknown_name: object, known_names: Iterable[str]) -> list[str]:
    """Return at most three similar known names, the most similar first.

    >>> find_similar_names("temprature", ["temp", "temperature", "id"])
    ['temperature']
    """
    # Compared without regard to case, and returned as written.
    folded: dict[str, str] = {}
    for name in known_names:
        folded.setdefault(name.lower(), name)
    text = str(unknown_name).lower()
    # A name in another case is certain, so no other names are suggested.
    if text in folded:
        return [folded[text]]
    near = difflib.get_close_matches(text, list(folded), n=3, cutoff=0.6)
    # The beginning of a long name is too short to be similar.
    if not near and len(text) > 2:
        near = [name for name in folded if name.startswith(text)][:3]
    return [folded[name] for name in near]


def suggestion_question(suggestions: Iterable[str]) -> str:
    """Return a question that offers suggestions.

    >>> suggestion_question(["'csv'", "'parquet'"])
    "did you mean 'csv' or 'parquet'?"
    """
    return f"did you mean {' or '.join(suggestions)}?"


def missing_extra(library: str, extra: str) -> MissingExtra:
    """Return the error for a missing library of an optional extra.

    >>> print(missing_extra("tensorflow", "tensorflow"))
    This needs the library 'tensorflow', which is not installed.
    Hint: pip install 'featurestore[tensorflow]'
    """
    return MissingExtra(
        f"This needs the library {library!r}, which is not installed.",
        hint=f"pip install 'featurestore[{extra}]'",
    )


def refusal_hint(error: OSError) -> str | None:
    """Return the hint for an operating system error, or None without a single solution.

    >>> refusal_hint(OSError(errno.ENOSPC, "No space left on device"))
    'free some disk space and retry'
    """
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return MANY_FILES_HINT
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some disk space and retry"
    if error.errno == errno.EROFS:
        return "the file system is read-only: check the disk, mount it for writing, and retry"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "give the user of this process access to the file and its folders, and retry"
    return None

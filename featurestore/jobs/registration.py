"""Registration of jobs, and loading of their files at run time.

The registry stores the definition of each job, and the name of its file or module. Because a registry
may be imported from another machine, a job runs only if it was registered on this machine:
registration grants the definition and the hash of the file (``storage/grants.py``), and a run compares
both before it executes anything.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType

from featurestore.errors import (
    FeatureStoreError,
    InvalidExpectation,
    InvalidJob,
    InvalidSql,
    listing,
)
from featurestore.featuregroups.definition import normalize_expectations
from featurestore.featuregroups.existing import notify
from featurestore.jobs.definitions import DEFINED_JOBS, JobDefinition
from featurestore.jobs.publish_jobs import check_catalog_job
from featurestore.jobs.query import JobQuery
from featurestore.jobs.recovery import recover_dead_runs
from featurestore.jobs.shared_targets import (
    Registration,
    check_targets,
    claim_target,
    release_target,
)
from featurestore.jobs.window_changes import can_change_windows, find_target_version, put_job
from featurestore.jobs.window_jobs import check_window_job, with_primary_key
from featurestore.model.display import Listing
from featurestore.model.distributions import install_command
from featurestore.model.job import (
    CatalogWork,
    GroupWork,
    JobSpec,
    MonitorWork,
    PublishWork,
    SqlWork,
    StreamWork,
    WindowWork,
)
from featurestore.model.runtime import ForkSafeLock
from featurestore.recovery.liveness import hold_job_lease
from featurestore.registry import alerts, jobs
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.session import Session
from featurestore.storage import files, storage_for
from featurestore.storage.grants import acting_job, acting_job_file, authorize, grant
from featurestore.streams import check_stream_job

# Threads that need the same file wait until it is loaded completely. The lock is reentrant, because
# ``load_registered`` holds it while ``load_module_file`` acquires it.
_loading = ForkSafeLock()


@dataclass(frozen=True)
class JobFile:
    """A file or module that defines jobs, with the hash of the executed source.

    ``origin`` is the name in the registry. ``file`` and ``sha256`` are None for a module without a
    file, such as a notebook.
    """

    origin: str
    file: str | None
    sha256: str | None


def register_jobs(
    session: Session, module_or_path: ModuleType | str | os.PathLike[str]
) -> list[RegisteredJob]:
    """Register all jobs of a module, file or folder; return the registered jobs by name."""
    definitions = load_jobs(module_or_path)
    specs = {name: definition.spec for name, (definition, _) in definitions.items()}
    check_channels(session, list(specs.values()))
    check_expectations(list(specs.values()))
    check_queries(session, list(specs.values()))
    for spec in specs.values():
        check_catalog_job(session, spec)
    specs = _specs_to_register(session, specs)
    # All notebooks have the same module name, so a missing job may be that of another notebook.
    origins = {file.origin for _, file in definitions.values() if file.file is not None}
    registration = Registration(specs, origins)
    with session.registry.reading() as connection:
        check_targets(connection, session, registration)
    registered_jobs = [
        register_job(session, specs[name], file, registration=registration)
        for name, (_, file) in sorted(definitions.items())
    ]
    for job in registered_jobs:
        for line in job.changes:
            notify(f"{job.spec.name}: {line}")
    return Listing(registered_jobs)


def register_job(
    session: Session, spec: JobSpec, file: JobFile, *, registration: Registration | None = None
) -> RegisteredJob:
    """Register one checked job, and allow its file to be executed on this machine.

    Args:
        session: The connection.
        spec: The definition.
        file: The file or module of the job.
        registration: The definitions that are registered together; None: only this one.

    Raises:
        InvalidJob: The definition does not fit the computed windows, or another job writes its
            target.
        JobLeased: The windows of the job change, and a process is running it.
    """
    if isinstance(spec.work, StreamWork):
        check_stream_job(session, spec.name, spec.work)
    registration = registration or Registration({spec.name: spec})
    with ExitStack() as stack:
        with session.registry.reading() as connection:
            earlier = jobs.find(connection, spec.name)
        if earlier is not None and can_change_windows(spec, earlier.spec):
            # A run of the earlier definition must not commit windows after the comparison.
            stack.enter_context(hold_job_lease(session, spec.name))
            recover_dead_runs(session, spec.name)
        version = find_target_version(session, spec)
        with session.registry.transaction() as connection:
            # Two jobs that are registered at the same time must see each other's targets.
            jobs.lock_definitions(connection)
            former = check_targets(connection, session, registration, name=spec.name, warns=False)
            job = put_job(
                connection, session, spec, origin=file.origin, version=version, former=former
            )
            # Before the commit: a registered job without a grant could not run on this machine,
            # whereas a grant without a job has no effect. In the transaction: of two processes, the
            # last one to register also writes the last grant.
            grant_job(session, spec, file)
    if earlier is not None and earlier.spec.target != spec.target:
        release_target(session, earlier.spec)
    claim_target(session, spec, former=former)
    return job


def _specs_to_register(session: Session, specs: Mapping[str, JobSpec]) -> dict[str, JobSpec]:
    """Return the definitions to register; raise an error for jobs that cannot run."""
    if not any(isinstance(spec.work, WindowWork) for spec in specs.values()):
        return dict(specs)
    with session.registry.reading() as connection:
        target_names = {job.spec.target for job in jobs.list_all(connection)}
    target_names.update([spec.target for spec in specs.values()])
    definitions = {}
    for name, spec in specs.items():
        definitions[name] = with_primary_key(session, spec)
        check_window_job(session, definitions[name], future_groups=target_names)
    return definitions


def check_channels(session: Session, specs: Sequence[JobSpec]) -> None:
    """Raise an error for jobs whose alert channels are not registered in the store."""
    with session.registry.reading() as connection:
        channel_names = [channel.name for channel in alerts.channels(connection)]
    for spec in specs:
        unknown = [name for name in spec.alerts.channels if name not in channel_names]
        if unknown:
            raise InvalidJob(
                f"Job {spec.name!r}: unknown alert channels {listing(unknown)}. Available: "
                f"{listing(channel_names)}.",
                hint=f"store.add_alert_channel({unknown[0]!r}, 'log')",
                command=f"featurestore alert add {unknown[0]} log",
            )


def check_queries(session: Session, specs: Sequence[JobSpec]) -> None:
    """Raise InvalidSql for SQL jobs whose query the engine cannot parse or is not equal on it.

    The types of inputs that do not exist yet are checked before the first window.
    """
    group_specs = RegisteredSpecs(session)
    for spec in specs:
        if not isinstance(spec.work, SqlWork):
            continue
        try:
            JobQuery(spec.work.code, session.engine).check(spec.work.inputs, group_specs)
        except InvalidSql as error:
            raise InvalidSql(f"Job {spec.name!r}: {error.message}", hint=error.hint) from error


def check_expectations(specs: Sequence[JobSpec]) -> None:
    """Raise InvalidExpectation for jobs whose expectations cannot be evaluated."""
    for spec in specs:
        if not isinstance(spec.work, GroupWork):
            continue
        try:
            normalize_expectations(spec.work.options.expectations)
        except InvalidExpectation as error:
            raise InvalidExpectation(
                f"Job {spec.name!r}: {error.message}", hint=error.hint
            ) from error


def load_definition(session: Session, job: RegisteredJob) -> JobDefinition:
    """Load the function or query of a job from the file where it was registered.

    Raises:
        ConfigurationError: The job was not registered on this machine with this definition.
        InvalidJob: The definition in the file differs from the registered one.
    """
    file = authorize_job(session, job)
    if isinstance(job.spec.work, MonitorWork | PublishWork | CatalogWork):  # needs no file
        return JobDefinition(job.spec)
    definition = load_registered(job.spec.name, file)
    # The registered definition contains the primary key of its groups, which the file may omit.
    if isinstance(definition.spec.work, WindowWork):
        definition = replace(definition, spec=with_primary_key(session, definition.spec))
    if definition.spec.hash != job.spec.hash:
        raise InvalidJob(
            f"Job {job.spec.name!r} in {job.origin} differs from the registered version "
            f"{job.version}.",
            hint=f"featurestore job register {job.origin}",
        )
    return definition


def load_jobs(
    module_or_path: ModuleType | str | os.PathLike[str],
) -> dict[str, tuple[JobDefinition, JobFile]]:
    """Load the jobs of a module, file or folder by name, each with its file.

    The files are executed: use this function for names from a user, not from a registry.

    Raises:
        InvalidJob: The path does not exist or defines no job, a file cannot be executed, or two
            jobs have the same name.
    """
    definitions: dict[str, tuple[JobDefinition, JobFile]] = {}
    for module, file in _iter_modules(module_or_path):
        for definition in jobs_in_module(module):
            name, action = definition.spec.name, definition.spec.schedule.on_failure
            if action is not None and action.function is not None:
                find_function(module, action.function, job=name)
            if name in definitions and definitions[name][0] is not definition:
                raise InvalidJob(
                    f"Job {name!r} is defined twice: in {definitions[name][1].origin} and in "
                    f"{file.origin}."
                )
            definitions[name] = (definition, file)
    if not definitions:
        raise InvalidJob(
            f"{module_or_path!r} defines no jobs.",
            hint=(
                "decorate functions with @featurestore.job, or call featurestore.sql_job at the "
                "module's top level"
            ),
        )
    return definitions


def grant_job(session: Session, spec: JobSpec, file: JobFile) -> None:
    """Allow a job to run on this machine, and its file to be executed, since a user registered it."""
    grant(acting_job(session.location, spec, origin=file.origin))
    # Jobs of one file share this grant, also those that the file no longer defines.
    grant(acting_job_file(session.location, file.origin), path=file.file, sha256=file.sha256)


def authorize_job(session: Session, job: RegisteredJob) -> JobFile:
    """Return the granted file of a job; jobs without code pass this function, too.

    Raises:
        ConfigurationError: The job was not registered on this machine with this definition.
    """
    authorize(acting_job(session.location, job.spec, origin=job.origin))
    file = authorize(acting_job_file(session.location, job.origin))
    return JobFile(job.origin, file.get("path"), file.get("sha256"))


def load_failure_function(
    session: Session, job: RegisteredJob, name: str
) -> Callable[[Run], object]:
    """Return the function of a job's file that ``on_failure=`` names.

    Raises:
        ConfigurationError: The job was not registered on this machine with this definition.
        InvalidJob: The file has changed, or has no such function.
    """
    with _loading:
        module = _registered_module(job.spec.name, authorize_job(session, job))
    return find_function(module, name, job=job.spec.name)


def find_function(module: ModuleType, name: str, *, job: str) -> Callable[[Run], object]:
    """Return a top-level function of a module; raise InvalidJob if it does not exist."""
    function = vars(module).get(name)
    if not isinstance(function, FunctionType):
        raise InvalidJob(
            f"Job {job!r}: on_failure= names the function {name!r}, which is not at the top level of "
            f"{module.__name__}.",
            hint=f"def {name}(run): ... in the file of the job",
        )
    return function


def load_registered(name: str, file: JobFile) -> JobDefinition:
    """Load a job from the file where it was registered.

    Raises:
        InvalidJob: The file has changed since, or the job is missing.
    """
    origin = file.origin
    with _loading:
        module = _registered_module(name, file)
        definitions = {definition.spec.name: definition for definition in jobs_in_module(module)}
    if name not in definitions:
        raise InvalidJob(
            f"Job {name!r} is no longer defined in {origin}. Available: {listing(definitions)}.",
            hint=f"featurestore job remove {name}",
        )
    return definitions[name]


def _registered_module(name: str, file: JobFile) -> ModuleType:
    """Return the module of a granted job, after checking the hash of its file."""
    origin, path = file.origin, file.file
    if path is None:
        return _module_in_memory(name, origin)
    if not storage_for(path).is_file(path):
        raise InvalidJob(
            f"Job {name!r} is defined in {path}, which does not exist.",
            hint=f"featurestore job register path/to/jobs.py, or: featurestore job remove {name}",
        )
    if path == origin:
        return load_module_file(path, expected=file.sha256)[0]
    _check_unchanged(files.sha256(path), file.sha256, origin)
    return _import_module(origin)


def _check_unchanged(actual: str, expected: str | None, origin: str) -> None:
    if expected is not None and actual != expected:
        raise InvalidJob(
            f"{origin} has changed since it was registered on this machine.",
            hint=f"featurestore job register {origin}",
        )


def _module_in_memory(name: str, origin: str) -> ModuleType:
    """Return a module without a file, such as a notebook of this process."""
    module = sys.modules.get(origin)
    if module is None:
        raise InvalidJob(
            f"Job {name!r} was defined in the module {origin} of an earlier process.",
            hint="save it in a file, then: featurestore job register jobs.py",
        )
    return module


def jobs_in_module(module: ModuleType) -> list[JobDefinition]:
    """Return the jobs assigned to module variables, and the jobs created without a name."""
    names = vars(module)
    named_jobs = [value for value in names.values() if isinstance(value, JobDefinition)]
    return [*named_jobs, *names.get(DEFINED_JOBS, ())]


def _iter_modules(
    module_or_path: ModuleType | str | os.PathLike[str],
) -> Iterator[tuple[ModuleType, JobFile]]:
    """Yield the modules of a module, file or folder, each with its file."""
    if isinstance(module_or_path, ModuleType):
        yield module_or_path, _describe_module_file(module_or_path)
        return
    path = os.path.abspath(os.path.expanduser(os.fspath(module_or_path)))
    storage = storage_for(path)
    if storage.is_directory(path):
        for name in storage.list_directory(path):
            if name.endswith(".py") and not name.startswith("_"):
                yield load_module_file(os.path.join(path, name))
    elif storage.is_file(path):
        yield load_module_file(path)
    else:
        module = _import_module(os.fspath(module_or_path))
        yield module, _describe_module_file(module)


def _describe_module_file(module: ModuleType) -> JobFile:
    """Return the file of a loaded module; the origin of a script is its path."""
    file = getattr(module, "__file__", None)
    if file is None or not storage_for(file).is_file(file):
        return JobFile(module.__name__, None, None)
    path = os.path.abspath(file)
    origin = path if module.__name__ == "__main__" else module.__name__
    return JobFile(origin, path, files.sha256(path))


def _import_module(name: str) -> ModuleType:
    """Import a module by its name; InvalidJob names the missing module."""
    try:
        return importlib.import_module(name)
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", None)
        # Either the module itself or a module that it imports is missing.
        if missing is not None and not name.startswith(missing):
            raise InvalidJob(
                f"{name!r} cannot be loaded: {error}.", hint=_install_hint(error)
            ) from error
        raise InvalidJob(
            f"{name!r} is not a file, a folder or a module.", hint="jobs/traffic.py"
        ) from error


def module_name(path: str) -> str:
    """Return the name of the module of a file."""
    # Module names contain a hash of the path, since two folders may both contain a jobs.py.
    return f"featurestore_jobs_{hashlib.sha256(path.encode()).hexdigest()[:16]}"


def load_module_file(path: str, *, expected: str | None = None) -> tuple[ModuleType, JobFile]:
    """Load the module of a file, unless this process has already executed the same source.

    Args:
        path: The file.
        expected: The required hash of its source; None allows any.
    """
    name = module_name(path)
    with _loading:
        source = storage_for(path).read_bytes(path)
        sha256 = hashlib.sha256(source).hexdigest()
        _check_unchanged(sha256, expected, path)
        file = JobFile(path, path, sha256)
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__sha256__", None) == sha256:
            return loaded, file
        return _execute(name, path, source, sha256), file


def last_line_number(error: BaseException, path: str) -> int:
    """Return the last line number of a file in the traceback of an error."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 0
    line = 0
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line = frame.lineno or 0
    return line


def _install_hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return install_command(error.name)
    return None


def _execute(name: str, path: str, source: bytes, sha256: str) -> ModuleType:
    """Execute the hashed source, because a cached bytecode file might differ from it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InvalidJob(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    module.__sha256__ = sha256  # type: ignore[attr-defined]
    # The module is added before it runs, as by importlib: dataclasses look up their module by name.
    sys.modules[name] = module
    folder = os.path.dirname(path)
    sys.path.insert(0, folder)  # neighbors can be imported while the file runs, as in a script
    try:
        exec(compile(source, path, "exec"), vars(module))
    except FeatureStoreError:
        # The next call must not find a module that was executed only partially.
        sys.modules.pop(name, None)
        raise
    except (Exception, SystemExit) as error:  # a job's code may raise anything
        sys.modules.pop(name, None)
        raise InvalidJob(
            f"{path} cannot be loaded, line {last_line_number(error, path)}: "
            f"{type(error).__name__}: {error}",
            hint=_install_hint(error),
        ) from error
    finally:
        sys.path.remove(folder)
    return module

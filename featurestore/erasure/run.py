"""Erasure of entities: search, removal, and the check of a certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from featurestore.erasure import certificates
from featurestore.erasure.areas import Area, Scan, search_areas
from featurestore.erasure.datasets import TrainingDatasets, trained_models
from featurestore.erasure.key_versions import KeyVersions
from featurestore.erasure.keys import parse_entities
from featurestore.erasure.online import OnlineValues
from featurestore.erasure.other_files import OtherFiles
from featurestore.erasure.tables import (
    GroupTables,
    StoredStatistics,
    check_no_writers,
    group_tables,
)
from featurestore.erasure.texts import RegistryTexts
from featurestore.errors import FormatTooNew, InvalidArgument, MissingExtra, did_you_mean, listing
from featurestore.model.erasure import (
    DATASET_ACTIONS,
    ErasureCheck,
    ErasureReport,
)
from featurestore.model.job import CatalogWork
from featurestore.model.online_store import EMBEDDED
from featurestore.plugins.catalog import CatalogSource
from featurestore.plugins.source import find_source
from featurestore.recovery.recover import recover
from featurestore.registry import featuregroups, jobs, sources
from featurestore.registry.audit_log import Actor, process_actor
from featurestore.serving.purge import count_other_keys
from featurestore.serving.stores import get_online_stores
from featurestore.session import Session

# Datasets and online values are found by the rows of groups, so the tables are searched first, and
# erased last: a killed erasure finds all places again.
AREAS: tuple[Area, ...] = (
    GroupTables(),
    StoredStatistics(),
    KeyVersions(),
    TrainingDatasets(),
    OnlineValues(),
    OtherFiles(),
    RegistryTexts(),
)


def erase(
    session: Session,
    subject: Mapping[str, object] | Sequence[Mapping[str, object]],
    *,
    columns: Mapping[str, str] | None = None,
    dry_run: bool = True,
    datasets: str = "export",
    actor: Actor | None = None,
) -> ErasureReport:
    """Report or erase all data of entities; see ``FeatureStore.erase``.

    Raises:
        InvalidArgument: The subject is invalid, or the store has no column with its keys.
        WriteConflict: Other processes write groups with these rows; nothing was erased.
    """
    entities = parse_entities(subject, columns)
    if datasets not in DATASET_ACTIONS:
        raise InvalidArgument(
            f"datasets={datasets!r} is not one of {listing(DATASET_ACTIONS)}.",
            hint=did_you_mean(str(datasets), DATASET_ACTIONS, write="datasets={!r}")
            or 'datasets="export"',
        )
    if not dry_run:
        session.registry.check_writable()
        # Staged rows of dead writers are removed, or registered.
        recover(session)
    scan = Scan(session, entities, datasets)
    findings = search_areas(scan, AREAS)
    _check_keys(scan)
    models = tuple(trained_models(scan))
    not_searched = _places_not_searched(session)
    if dry_run:
        return ErasureReport(
            entities.keys, dry_run, tuple(findings), models=models, not_searched=not_searched
        )
    # Before anything is erased.
    for table in group_tables(session):
        if (table.group, table.version) in scan.key_rows:
            check_no_writers(session, table)
    for area in reversed(AREAS):
        area.erase(scan)
    session.registry.discard_deleted()
    after = Scan(session, entities, datasets, key_rows=scan.key_rows)
    remaining = tuple(finding for finding in search_areas(after, AREAS) if finding.action != "list")
    certificate = certificates.issue(
        session,
        entities,
        actor=actor or process_actor("command line"),
        findings=findings,
        remaining=remaining,
        models=models,
        datasets=scan.exported,
        key_hashes=scan.key_hashes,
        not_searched=not_searched,
    )
    return ErasureReport(
        entities.keys,
        dry_run,
        tuple(findings),
        remaining=remaining,
        models=models,
        datasets=scan.exported,
        certificate=certificate,
        not_searched=not_searched,
    )


def verify_erasure(
    session: Session, certificate: Mapping[str, object] | str | bytes
) -> ErasureCheck:
    """Check a certificate and search the store; see ``FeatureStore.verify_erasure``.

    Raises:
        InvalidArgument: It is not a certificate.
    """
    parsed = certificates.parse_certificate(session, parse_certificate_json(certificate))
    scan = Scan(session, parsed.entities, key_hashes=parsed.key_hashes)
    findings = search_areas(scan, AREAS)
    return ErasureCheck(
        parsed.data.text("id"),
        tuple(finding for finding in findings if finding.action != "list"),
        tuple(certificates.find_problems(session, parsed.data.data)),
        dict(scan.scanned),
        tuple(finding for finding in findings if finding.action == "list"),
        _places_not_searched(session),
    )


def parse_certificate_json(certificate: Mapping[str, object] | str | bytes) -> object:
    """Return a certificate that may be JSON text as a JSON value.

    Raises:
        InvalidArgument: The text is not JSON.
    """
    if not isinstance(certificate, str | bytes):
        return certificate
    try:
        return json.loads(certificate)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            "The certificate is not JSON.", hint="store.verify_erasure(report.certificate)"
        ) from error


def _check_keys(scan: Scan) -> None:
    """Check that the store has columns of all keys.

    Raises:
        InvalidArgument: The message lists the keys of the store's groups.
    """
    unknown = [key for key in scan.entities.keys if key not in scan.key_names]
    if not unknown:
        return
    with scan.session.registry.reading() as connection:
        groups = featuregroups.list_all(connection)
    key_columns = sorted({name for group in groups for name in group.spec.primary_key})
    raise InvalidArgument(
        f"No feature group has a column {listing(unknown)}. Keys of the store: "
        f"{listing(key_columns) or 'none'}.",
        hint=did_you_mean(unknown[0], key_columns, write="{!r}")
        or 'store.erase({"user": "u-7731"}, columns={"orders.buyer": "user"})',
    )


def _places_not_searched(session: Session) -> tuple[str, ...]:
    """Return a line for each place that may have copies of the store's metadata or values."""
    return (*_catalogs(session), *_shared_databases(session))


def _catalogs(session: Session) -> Iterator[str]:
    """Yield the catalogs in which tables were or may have been registered."""
    with session.registry.reading() as connection:
        registered_sources = sources.list_all(connection)
        registered_jobs = jobs.list_all(connection)
    schemas: dict[str, list[str]] = {}
    for source in registered_sources:
        try:
            factory = find_source(source.kind)
        except (InvalidArgument, MissingExtra):  # not installed on this machine
            continue
        if isinstance(factory, type) and issubclass(factory, CatalogSource):
            schemas[source.name] = []
    for job in registered_jobs:
        if isinstance(job.spec.work, CatalogWork):
            target = job.spec.work.registers
            # The job may run on another machine, which has the library of the catalog.
            by_source = schemas.setdefault(target.source, [])
            by_source.append(f"schema {target.schema!r} by the job {job.spec.name!r}")
    for name, by_source in sorted(schemas.items()):
        registered = ", ".join(["tables of register_in", *by_source])
        yield f"catalog {name!r}: descriptions and columns of registered tables ({registered})"


def _shared_databases(session: Session) -> Iterator[str]:
    """Yield the online stores whose database has keys of other stores and applications."""
    for spec in get_online_stores(session):
        if spec.name == EMBEDDED:
            continue
        try:
            other_keys = count_other_keys(session, spec.name)
        except FormatTooNew:
            yield f"online store {spec.name!r}: values of a newer release in its database"
            continue
        if other_keys:
            yield (
                f"online store {spec.name!r}: {other_keys:,} keys of other feature stores and "
                "applications in its database"
            )

"""Feature group pages: list, schema, rows, history, statistics and validation."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from featurestore.errors import InvalidArgument, StatisticsNotFound
from featurestore.featuregroups import FeatureGroup
from featurestore.model.arguments import parse_version
from featurestore.model.validation import describe, format_outcome
from featurestore.registry import overview
from featurestore.registry.featuregroups import KIND
from featurestore.registry.overview import GroupFilter
from featurestore.server import featuregroups as records
from featurestore.server import rendering
from featurestore.server.charts import heatmap, histogram
from featurestore.server.guard import FullStore, Settings, Store, parse_as_of
from featurestore.server.rendering import PageNumber
from featurestore.server.routes import Router
from featurestore.statistics import compare_statistics
from featurestore.store import FeatureStore

pages = Router(prefix="/groups")
_MAX_REPORTS = 50
_COLUMNS = ["name", "version", "features", "changed", "description"]
_SCHEMA_COLUMNS = ["name", "type", "role", "missing", "description"]
Before = Annotated[int | None, Query(ge=0)]


@pages.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    q: str = "",
    tag: str = "",
    owner: str = "",
    fresh: str = "",
    sort: str = "name",
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """List the feature groups that match a filter."""
    group_filter = GroupFilter(
        text=q.strip(),
        tag=tag,
        owner=owner,
        changed_within=rendering.AGES.get(fresh),
        newest_first=sort == "changed",
    )
    current_page = rendering.load_page(
        partial(records.lines, store, group_filter), number=number, size=settings.page
    )
    if format == "csv":
        return rendering.objects_to_csv("feature-groups", _COLUMNS, current_page.items)
    with store.session.registry.reading() as connection:
        tags, owners = overview.tag_values(connection), overview.owners(connection)
        names = [group.name for group in current_page.items]
        owner_tags = overview.read_owners(connection, KIND, names)
        failed = {
            (validation.name, validation.version)
            for validation in overview.failed_validations(connection)
        }
        jobs = {group.job for group in current_page.items if group.job is not None}
        failing_jobs = {run.job for run in overview.failing_jobs(connection, among=jobs)}
    return rendering.page(
        request,
        "featuregroups_table.html" if rendering.is_partial(request) else "featuregroups.html",
        title="Feature groups",
        current_page=current_page,
        filters={"q": q, "tag": tag, "owner": owner, "fresh": fresh, "sort": sort},
        tags=tags,
        owners=owners,
        owner_tags=owner_tags,
        failed=failed,
        failing_jobs=failing_jobs,
        fresh=list(rendering.AGES),
    )


@pages.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    group = store.featuregroup(name)
    return RedirectResponse(f"/groups/{group.name}/{group.version}")


@pages.get("/{name}/{version}")
def group_page(
    request: Request, store: Store, name: str, version: int, format: str = "html"
) -> Response:
    """Display the schema of a group with statistics of each feature."""
    group, common = _open_group(store, name, version)
    definition = records.definition(group)
    statistics = records.statistics(group)
    columns = records.columns(definition, statistics)
    if format == "csv":
        return rendering.objects_to_csv(f"{name}-v{version}-schema", _SCHEMA_COLUMNS, columns)
    return rendering.page(
        request,
        "featuregroup.html",
        **common,
        tab="schema",
        definition=definition,
        columns=columns,
        has_statistics=statistics is not None,
        histogram=histogram,
    )


@pages.get("/{name}/{version}/rows")
def rows_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    version: int,
    as_of: str = "",
    format: str = "html",
) -> Response:
    """Display the first rows of the latest or an earlier table version."""
    group, common = _open_group(store, name, version)
    bounds = records.RowBounds(settings.rows, settings.answer)
    frame = group.read(as_of=parse_as_of(as_of))
    if format == "csv":
        all_rows = records.first_rows(group, frame, bounds)
        return rendering.csv_file(f"{name}-v{version}", all_rows["columns"], all_rows["rows"])
    first_rows = records.leading_rows(group, frame, bounds)
    return rendering.page(
        request, "featuregroup_rows.html", **common, tab="rows", first_rows=first_rows, as_of=as_of
    )


@pages.get("/{name}/{version}/history")
def history_page(
    request: Request,
    store: Store,
    full_store: FullStore,
    settings: Settings,
    name: str,
    version: int,
    before: Before = None,
    format: str = "html",
) -> Response:
    """Display the commits, newest first."""
    group, common = _open_group(store, name, version)
    commits = group.history(limit=settings.page, before=before)
    if format == "csv":
        columns = list(commits[0]._summary()) if commits else []
        rows = [list(commit._summary().values()) for commit in commits]
        return rendering.csv_file(f"{name}-v{version}-history", columns, rows)
    # A full page may be followed by older commits.
    next_before = commits[-1].delta_version if len(commits) == settings.page else None
    # The predecessor of the oldest commit is on the next page, so that commit has no drift link.
    previous_versions = [commit.delta_version for commit in commits[1:]]
    return rendering.page(
        request,
        "featuregroup_history.html",
        **common,
        tab="history",
        commits=list(zip_longest(commits, previous_versions)),
        next_before=next_before,
        authors=records.commit_authors(full_store, group, commits),
    )


@pages.get("/{name}/{version}/statistics")
def statistics_page(
    request: Request,
    store: Store,
    name: str,
    version: int,
    against: str = "",
    before: str = "",
    after: str = "",
    format: str = "html",
) -> Response:
    """Display stored statistics, correlations, and the drift from another version or time."""
    group, common = _open_group(store, name, version)
    statistics = records.statistics(group)
    if format == "csv":
        return rendering.statistics_file(f"{name}-v{version}-statistics", statistics)
    drift, refusal = None, None
    try:
        if parse_as_of(before) is not None:
            earlier = records.require_statistics(group, parse_as_of(before))
            drift = compare_statistics(
                earlier, records.require_statistics(group, parse_as_of(after))
            )
        elif against:
            other = store.featuregroup(name, version=_parse_group_version(against))
            earlier = records.require_statistics(other)
            drift = compare_statistics(earlier, records.require_statistics(group))
    except StatisticsNotFound as error:
        refusal = error
    return rendering.page(
        request,
        "featuregroup_statistics.html",
        **common,
        tab="statistics",
        statistics=statistics,
        heatmap=heatmap,
        histogram=histogram,
        drift=drift,
        refusal=refusal,
        against=against,
        before=before,
        after=after,
    )


@pages.get("/{name}/{version}/validation")
def validation_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    version: int,
    format: str = "html",
) -> Response:
    """Display the validation reports, and the quarantined rows with their reasons."""
    group, common = _open_group(store, name, version)
    bounds = records.RowBounds(settings.rows, settings.answer)
    if format == "csv":
        all_rows = records.first_rows(group, records.quarantine(group), bounds)
        return rendering.csv_file(
            f"{name}-v{version}-quarantine", all_rows["columns"], all_rows["rows"]
        )
    quarantined = records.leading_rows(group, records.quarantine(group), bounds)
    reports = store.get_validation_history(name, version=version, limit=_MAX_REPORTS)[::-1]
    return rendering.page(
        request,
        "featuregroup_validation.html",
        **common,
        tab="validation",
        reports=reports,
        quarantined=quarantined,
        describe=describe,
        outcome=format_outcome,
    )


def _open_group(
    store: FeatureStore, name: str, version: int
) -> tuple[FeatureGroup, dict[str, object]]:
    """Return a group and the values that all of its pages display."""
    group = store.featuregroup(name, version=version)
    common: dict[str, object] = {
        "group": group,
        "title": f"{name} v{version}",
        "versions": records.versions(store, name),
    }
    return group, common


def _parse_group_version(text: str) -> int:
    # isdigit() would accept characters such as "²", which int() cannot parse.
    if not text.isdecimal():
        raise InvalidArgument(f"{text!r} is not a version number.", hint="against=1")
    return parse_version(text)

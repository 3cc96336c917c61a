"""The list of feature groups, and the pages of one."""

from __future__ import annotations

from itertools import zip_longest
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from featurestore.errors import InvalidArgument, StatisticsNotFound
from featurestore.featuregroups import FeatureGroup
from featurestore.model.counts import parse_version
from featurestore.model.validation import describe, outcome_text
from featurestore.registry import overview
from featurestore.registry.overview import GroupFilter
from featurestore.server.context import Settings, Store, Whole, moment
from featurestore.server.drawing.heatmap import heatmap
from featurestore.server.drawing.histogram import histogram
from featurestore.server.pages.paging import FRESH, PageNumber, one_page
from featurestore.server.pages.rendering import csv_file, csv_of, is_partial, page, statistics_file
from featurestore.server.records import featuregroups as records
from featurestore.statistics import compare_statistics
from featurestore.store import FeatureStore

router = APIRouter(prefix="/groups")
_REPORTS = 50
_COLUMNS = ["name", "version", "features", "changed", "description"]
_SCHEMA = ["name", "type", "role", "missing", "description"]
Before = Annotated[int | None, Query(ge=0)]


@router.get("")
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
    """Show the feature groups that a filter lets through."""
    wanted = GroupFilter(
        text=q.strip(),
        tag=tag,
        owner=owner,
        changed_within=FRESH.get(fresh),
        newest_first=sort == "changed",
    )
    found = one_page(
        lambda limit, offset: records.lines(store, wanted, limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        return csv_of("feature-groups", _COLUMNS, found.items)
    with store.session.registry.reading() as connection:
        tags, owners = overview.tag_values(connection), overview.owners(connection)
    return page(
        request,
        "featuregroups_table.html" if is_partial(request) else "featuregroups.html",
        title="Feature groups",
        found=found,
        chosen={"q": q, "tag": tag, "owner": owner, "fresh": fresh, "sort": sort},
        tags=tags,
        owners=owners,
        fresh=list(FRESH),
    )


@router.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Lead to the latest version."""
    group = store.featuregroup(name)
    return RedirectResponse(f"/groups/{group.name}/{group.version}")


@router.get("/{name}/{version}")
def group_page(
    request: Request, store: Store, name: str, version: int, format: str = "html"
) -> Response:
    """Show the schema of a group, and what its statistics say of each feature."""
    group, shown = _opened(store, name, version)
    definition = records.definition(group)
    counted = records.statistics(group)
    columns = records.columns(definition, counted)
    if format == "csv":
        return csv_of(f"{name}-v{version}-schema", _SCHEMA, columns)
    return page(
        request,
        "featuregroup.html",
        **shown,
        tab="schema",
        definition=definition,
        columns=columns,
        counted=counted is not None,
        histogram=histogram,
    )


@router.get("/{name}/{version}/rows")
def rows_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    version: int,
    as_of: str = "",
    format: str = "html",
) -> Response:
    """Show the first rows, as they are or as they were."""
    group, shown = _opened(store, name, version)
    bounds = records.RowBounds(settings.rows, settings.answer, settings.query_seconds)
    if format == "csv":
        every = records.rows(group, bounds, as_of=moment(as_of))
        return csv_file(f"{name}-v{version}", every["columns"], every["rows"])
    found = records.leading_rows(group, bounds, as_of=moment(as_of))
    return page(request, "featuregroup_rows.html", **shown, tab="rows", found=found, as_of=as_of)


@router.get("/{name}/{version}/history")
def history_page(
    request: Request,
    store: Store,
    whole: Whole,
    settings: Settings,
    name: str,
    version: int,
    before: Before = None,
    format: str = "html",
) -> Response:
    """Show the commits, the newest first."""
    group, shown = _opened(store, name, version)
    commits = group.history(limit=settings.page, before=before)
    if format == "csv":
        columns = list(commits[0]._summary()) if commits else []
        rows = [list(each._summary().values()) for each in commits]
        return csv_file(f"{name}-v{version}-history", columns, rows)
    older = commits[-1].delta_version if len(commits) == settings.page else None
    before_each = [each.delta_version for each in commits[1:]]
    return page(
        request,
        "featuregroup_history.html",
        **shown,
        tab="history",
        commits=list(zip_longest(commits, before_each)),
        older=older,
        who=records.committers(whole, group, commits),
    )


@router.get("/{name}/{version}/statistics")
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
    """Show the stored statistics, correlations, and the drift against another version or time."""
    group, shown = _opened(store, name, version)
    counted = records.statistics(group)
    if format == "csv":
        return statistics_file(f"{name}-v{version}-statistics", counted)
    drift, refused = None, None
    try:
        if moment(before) is not None:
            earlier = records.needed_statistics(group, moment(before))
            drift = compare_statistics(earlier, records.needed_statistics(group, moment(after)))
        elif against:
            other = store.featuregroup(name, version=_number(against))
            earlier = records.needed_statistics(other)
            drift = compare_statistics(earlier, records.needed_statistics(group))
    except StatisticsNotFound as error:
        refused = error
    return page(
        request,
        "featuregroup_statistics.html",
        **shown,
        tab="statistics",
        counted=counted,
        heatmap=heatmap,
        histogram=histogram,
        drift=drift,
        refused=refused,
        against=against,
        before=before,
        after=after,
    )


@router.get("/{name}/{version}/validation")
def validation_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    version: int,
    format: str = "html",
) -> Response:
    """Show the reports of the audits, and the rows that were put aside with their reasons."""
    group, shown = _opened(store, name, version)
    bounds = records.RowBounds(settings.rows, settings.answer, settings.query_seconds)
    if format == "csv":
        every = records.quarantined_rows(group, bounds)
        return csv_file(f"{name}-v{version}-put-aside", every["columns"], every["rows"])
    aside = records.leading_quarantined_rows(group, bounds)
    reports = store.get_validation_history(name, version=version, limit=_REPORTS)[::-1]
    return page(
        request,
        "featuregroup_validation.html",
        **shown,
        tab="validation",
        reports=reports,
        aside=aside,
        describe=describe,
        outcome=outcome_text,
    )


def _opened(store: FeatureStore, name: str, version: int) -> tuple[FeatureGroup, dict[str, object]]:
    group = store.featuregroup(name, version=version)
    shown: dict[str, object] = {
        "group": group,
        "title": f"{name} v{version}",
        "versions": records.versions(store, name),
    }
    return group, shown


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"{text!r} is no version of a group.", hint="against=1")
    return parse_version(text)

"""Selection of dbt nodes with the selectors of dbt: names, ``tag:``, ``path:``, ``+`` and others.

A space separates alternatives, a comma conditions that must all be met, as in ``dbt --select``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from featurestore.dbt.manifest import DbtNode, DbtProject
from featurestore.errors import InvalidArgument, did_you_mean, listing

_FILE_ENDINGS = (".sql", ".py", ".csv", ".yml")
_SELECTOR = re.compile(
    r"(?P<parents>(?P<parent_depth>\d*)\+)?"
    r"(?:(?P<method>[a-z_.]+):)?"
    r"(?P<value>[^+@:]+)"
    r"(?P<children>\+(?P<child_depth>\d*))?"
)


@dataclass(frozen=True)
class _Condition:
    """A parsed selector; a depth of None is unlimited, of 0 excludes the direction."""

    method: str
    value: str
    parent_depth: int | None
    child_depth: int | None


def select_nodes(project: DbtProject, select: str | Sequence[str] | None) -> list[DbtNode]:
    """Return the selected tables in the order of their ids; None selects models and snapshots.

    Raises:
        InvalidArgument: A selector is invalid, is not supported, or selects no table.
    """
    if select is None:
        return [
            node
            for unique_id, node in sorted(project.nodes.items())
            if node.resource_type in ("model", "snapshot") and not node.is_excluded
        ]
    selectors = [select] if isinstance(select, str) else list(select)
    selected: set[str] = set()
    for selector in selectors:
        if not isinstance(selector, str) or not selector.strip():
            raise InvalidArgument(f"select={selector!r} is not a selector.", hint='"tag:features"')
        for alternative in selector.split():
            matches = [find_matching_ids(project, method) for method in alternative.split(",")]
            matching_ids = set.intersection(*matches)
            if not matching_ids:
                raise describe_empty_selection(project, alternative)
            selected |= matching_ids
    return [
        project.nodes[unique_id]
        for unique_id in sorted(selected)
        if not project.nodes[unique_id].is_excluded
    ]


def describe_empty_selection(project: DbtProject, selector: str) -> InvalidArgument:
    """Return the error for a selector without matches, with the available names."""
    names = sorted(node.name for node in project.nodes.values())
    is_disabled = [
        unique_id for unique_id in project.disabled if unique_id.rpartition(".")[2] == selector
    ]
    if is_disabled:
        return InvalidArgument(f"dbt node {is_disabled[0]!r} is disabled.", hint="enabled: true")
    names = list(dict.fromkeys(names))
    tags = sorted({tag for node in project.nodes.values() for tag in node.tags})
    return InvalidArgument(
        f"select={selector!r} selects no table of the dbt project {project.name!r}. Available: "
        f"{listing(names)}; tags: {listing(tags)}.",
        hint=did_you_mean(selector, [*names, *(f"tag:{tag}" for tag in tags)]),
    )


def find_matching_ids(project: DbtProject, selector: str) -> set[str]:
    """Return the tables that match one selector, with the parents and children it includes."""
    condition = parse_selector(selector)
    matches = _METHODS[condition.method]
    matching_ids = {
        unique_id for unique_id, node in project.nodes.items() if matches(node, condition.value)
    }
    children: dict[str, list[str]] = {}
    for unique_id, parents in project.parents.items():
        for parent in parents:
            children.setdefault(parent, []).append(unique_id)
    related = _reachable(matching_ids, project.parents, condition.parent_depth)
    related |= _reachable(matching_ids, children, condition.child_depth)
    return (matching_ids | related) & set(project.nodes)


def parse_selector(selector: str) -> _Condition:
    """Parse one selector; raise an error for methods that are not supported."""
    if "@" in selector:
        raise InvalidArgument(
            f"select={selector!r}: the operator @ of dbt is not supported.",
            hint='"+orders", "orders+" and "2+orders" select parents and children',
        )
    match = _SELECTOR.fullmatch(selector)
    if match is None:
        raise InvalidArgument(f"select={selector!r} is not a selector.", hint='"tag:features"')
    value, method = match["value"], match["method"]
    if method is None:
        method = "path" if "/" in value else "fqn"
        if method == "fqn" and value.endswith(_FILE_ENDINGS):
            method = "file"
    if method not in _METHODS:
        raise InvalidArgument(
            f"select={selector!r}: the method {method!r} of dbt is not supported. Available: "
            f"{listing(_METHODS)}.",
            hint=did_you_mean(method, _METHODS) or "'tag:features', or names of models",
        )
    return _Condition(
        method,
        value,
        _parse_depth(match["parents"], match["parent_depth"]),
        _parse_depth(match["children"], match["child_depth"]),
    )


def _parse_depth(operator: str | None, depth: str | None) -> int | None:
    if operator is None:
        return 0
    return int(depth[:6]) if depth else None


def _reachable(
    start: Iterable[str], edges: Mapping[str, Sequence[str]], depth: int | None
) -> set[str]:
    """Return the nodes that are reachable by at most ``depth`` edges, all for None."""
    visited: set[str] = set()
    level, step = set(start), 0
    while level and (depth is None or step < depth):
        level = {target for unique_id in level for target in edges.get(unique_id, ())} - visited
        visited |= level
        step += 1
    return visited


def matches_fqn(node: DbtNode, value: str) -> bool:
    """Match the name, or the folders of a node with or without its package, as dbt does."""
    # Sources have a method of their own.
    if node.resource_type == "source":
        return False
    parts = value.split(".")
    if node.model_version is not None and "_".join(node.fqn[-2:]) == "_".join(parts[-2:]):
        return True
    return fnmatchcase(node.name, value) or any(
        _is_prefix(parts, path) for path in (node.fqn, node.fqn[1:])
    )


def _is_prefix(patterns: Sequence[str], path: Sequence[str]) -> bool:
    if len(patterns) > len(path):
        return False
    return all(fnmatchcase(part, pattern) for pattern, part in zip(patterns, path, strict=False))


def matches_path(node: DbtNode, value: str) -> bool:
    """Match the file of a node or a folder that contains it."""
    path, pattern = PurePosixPath(node.path.replace("\\", "/")), value.rstrip("/")
    if pattern.startswith("./"):
        pattern = pattern[2:]
    candidates = [path, *path.parents]
    return any(fnmatchcase(str(candidate), pattern) for candidate in candidates)


def matches_file(node: DbtNode, value: str) -> bool:
    """Match the name of the file of a node, with or without its ending."""
    file = PurePosixPath(node.path.replace("\\", "/"))
    return fnmatchcase(file.name, value) or fnmatchcase(file.stem, value)


def matches_source(node: DbtNode, value: str) -> bool:
    """Match ``raw``, ``raw.payments`` or ``package.raw.payments``."""
    if node.resource_type != "source":
        return False
    # source:raw, source:raw.payments or source:package.raw.payments
    parts = value.split(".")
    names = [node.package, *node.fqn[-2:]]
    if len(parts) == 3:
        return _is_prefix(parts, names)
    return len(parts) < 3 and _is_prefix(parts, names[1:])


_METHODS: Mapping[str, Callable[[DbtNode, str], bool]] = {
    "fqn": matches_fqn,
    "tag": lambda node, value: any(fnmatchcase(tag, value) for tag in node.tags),
    "path": matches_path,
    "file": matches_file,
    "resource_type": lambda node, value: node.resource_type == value,
    "package": lambda node, value: fnmatchcase(node.package, value),
    "source": matches_source,
    "group": lambda node, value: node.group is not None and fnmatchcase(node.group, value),
}

"""Exposures: the training datasets, feature views and models that depend on dbt tables, as YAML.

dbt renders the Jinja of YAML files, so stored text is written without the starts of Jinja tags.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.dbt.definitions import NODE_TAG, PROJECT_TAG
from featurestore.dbt.importing import imported_groups
from featurestore.dbt.manifest import is_node_id
from featurestore.errors import InvalidArgument, InvalidDbtProject
from featurestore.registry import artifacts, featuregroups, lineage
from featurestore.session import Session
from featurestore.storage import storage_for

MARKER = "# Written by featurestore: an import of dbt exposures replaces this file.\n"
_PROJECT_FILE = "dbt_project.yml"
_ENDINGS = (".yml", ".yaml")
_LABELS = {"feature_view": "Feature view", "model": "Model", "training_dataset": "Training dataset"}
_JINJA_START = re.compile(r"\{(?=[{%#])")
_MODEL_PARTS = 4


@dataclass
class _Exposure:
    """A dependent of dbt tables: its versions, and the ids of the tables."""

    object_type: str
    name: str
    owner: str
    versions: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    @property
    def title(self) -> str:
        return f"featurestore_{self.object_type}_{self.name}"

    def yaml_lines(self) -> list[str]:
        """Return the lines of the exposure in YAML. Every value is JSON, which is also YAML."""
        versions = ", ".join(f"v{version}" for version in sorted(self.versions))
        label = f"{_LABELS[self.object_type]} {self.name}"
        values: Mapping[str, Any] = {
            "name": self.title,
            "label": label,
            "type": "ml",
            "description": f"{label} of the feature store, {versions}",
            "owner": {"email" if "@" in self.owner.strip("@") else "name": self.owner},
            "depends_on": sorted(self.nodes),
        }
        return [
            f"{'    ' if index else '  - '}{key}: {_to_json(value)}"
            for index, (key, value) in enumerate(values.items())
        ]


def write_exposures(session: Session, path: str | os.PathLike[str], *, owner: str) -> list[str]:
    """Write the exposures of the dbt project that contains a path, and return their names.

    Raises:
        InvalidDbtProject: The path is not in a dbt project, or contains a file of someone else.
        InvalidArgument: The owner or the ending of the file is invalid.
    """
    # A served store refuses this call before the arguments are checked.
    with session.registry.reading() as connection:
        file = _check_path(path)
        if not isinstance(owner, str) or not owner.strip():
            raise InvalidArgument(f"owner={owner!r} is not a name.", hint="owner='ml@example.com'")
        exposures = _find_exposures(session, connection, owner=owner.strip())
    lines = [line for exposure in exposures for line in exposure.yaml_lines()]
    body = "\n".join(["exposures:", *lines]) if exposures else "exposures: []"
    text = f"{MARKER}version: 2\n{body}\n"
    # dbt parses changed files again.
    storage = storage_for(file)
    if not storage.exists(file) or storage.read_text(file) != text:
        storage.write_atomically(file, text.encode())
    return [exposure.title for exposure in exposures]


def _check_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a YAML file in a dbt project."""
    file = os.path.abspath(os.fspath(path))
    storage = storage_for(file)
    if not file.endswith(_ENDINGS):
        raise InvalidArgument(
            f"{file!r} is not the name of a YAML file.", hint="models/featurestore_exposures.yml"
        )
    directory = os.path.dirname(storage.resolve(file))
    if not storage.is_directory(directory):
        raise InvalidDbtProject(f"{directory!r} is not a directory.", hint="the folder models")
    while not storage.is_file(os.path.join(directory, _PROJECT_FILE)):
        parent = os.path.dirname(directory)
        if parent == directory:
            raise InvalidDbtProject(
                f"{file!r} is not in a dbt project: no folder above it has a {_PROJECT_FILE}.",
                hint="models/featurestore_exposures.yml in the folder of the project",
            )
        directory = parent
    if storage.exists(file) and not storage.read_text(file).startswith(MARKER):
        raise InvalidDbtProject(
            f"{file!r} was not written by featurestore, so it is not replaced.",
            hint="models/featurestore_exposures.yml, or another new file",
        )
    return file


def _find_exposures(session: Session, connection: Connection, *, owner: str) -> list[_Exposure]:
    """Return the dependents of all imported groups, directly or through other groups."""
    exposures: dict[tuple[str, str], _Exposure] = {}
    for group in imported_groups(session):
        node = group.tags[NODE_TAG]
        # Tags are stored text that any writer may change.
        if not is_node_id(node):
            continue
        node_reference = to_reference(node, group.tags.get(PROJECT_TAG, ""))
        for object_type, dependent, version in _find_dependents(connection, group.name):
            exposure = exposures.setdefault(
                (object_type, dependent), _Exposure(object_type, dependent, owner)
            )
            exposure.versions.add(version)
            exposure.nodes.add(node_reference)
            tagged_owner = artifacts.tags_of(connection, object_type, dependent, version).get(
                "owner"
            )
            exposure.owner = tagged_owner or exposure.owner
    return [exposures[key] for key in sorted(exposures)]


def _find_dependents(connection: Connection, group: str) -> set[tuple[str, str, int]]:
    """Return kind, name and version of everything derived from a group."""
    dependents, visited, waiting = set(), {group}, [group]
    while waiting:
        for edge in lineage.results(connection, waiting.pop()):
            if edge.kind in _LABELS:
                dependents.add((edge.kind, edge.name, edge.version))
            elif edge.kind == featuregroups.KIND and edge.name not in visited:
                visited.add(edge.name)
                waiting.append(edge.name)
    return dependents


def to_reference(node: str, project: str) -> str:
    """Return the reference to a dbt node in ``depends_on``.

    >>> to_reference("model.shop.orders", "shop"), to_reference("model.shop.orders.v2", "shop")
    ("ref('orders')", "ref('orders', v='2')")
    >>> to_reference("source.shop.raw.payments", "shop"), to_reference("seed.lib.codes", "shop")
    ("source('raw', 'payments')", "ref('lib', 'codes')")
    """
    resource_type, package, *names = node.split(".")
    if resource_type == "source":
        return f"source({names[0]!r}, {'.'.join(names[1:])!r})"
    arguments = [] if package == project else [repr(package)]
    if resource_type == "model" and len(names) == _MODEL_PARTS - 2 and names[1].startswith("v"):
        return f"ref({', '.join([*arguments, repr(names[0])])}, v={names[1][1:]!r})"
    return f"ref({', '.join([*arguments, repr('.'.join(names))])})"


def _to_json(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(_JINJA_START.sub("{ ", value))
    if isinstance(value, Mapping):
        members = [f"{_to_json(key)}: {_to_json(item)}" for key, item in value.items()]
        return "{" + ", ".join(members) + "}"
    return "[" + ", ".join(map(_to_json, value)) + "]"

"""Privacy follows stored origins through deletions, renames and rebuilds.

The expected visibility is computed by a model in plain Python that has each creation of an object
and what it was computed from.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import FeatureStoreError
from featurestore.model.run_record import RunRecord
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import experiments, origins
from featurestore.registry.audit_log import Actor, entries
from featurestore.registry.filtered import RegistryViews
from featurestore.registry.hidden import find_hidden_objects, find_opened_objects
from featurestore.registry.origins import GROUP, MODEL, RUN, Object
from featurestore.server.access import changes
from featurestore.store import FeatureStore

ROOT = Actor("root", "test")
NOON = "2024-03-01T12:00:00+00:00"
NAMES = ["pay", "bonus", "visits", "trips", "late"]
PRIVATE = NAMES[:2]
READERS: list[Collection[str]] = [(), ("pay",), ("bonus", "visits")]
KINDS = ("group", "dataset", "view")


def store_of(store: FeatureStore, granted: Collection[str] = ()) -> FeatureStore:
    """Return the store as seen by a reader with roles on some groups."""
    views = RegistryViews(store.session.registry)
    registry = views.registry_for(granted=granted, reads_store=True)
    return FeatureStore(replace(store.session, registry=registry))


@dataclass(eq=False)
class Creation:
    """One creation of an object, and the creations that it was computed from."""

    kind: str
    name: str
    version: int
    parents: list[Creation]
    exists: bool = True
    sealed: bool = False


@dataclass
class Model:
    """All creations, and the names of the private groups."""

    creations: list[Creation] = field(default_factory=list)
    private: set[str] = field(default_factory=set)

    def add(self, created: Creation) -> None:
        """Add a creation; views refer to groups by name and version, also to later groups."""
        for view in self.creations:
            parents = [(each.kind, each.name, each.version) for each in view.parents]
            is_named = (created.kind, created.name, created.version) in parents
            if view.kind == "view" and view.exists and is_named:
                view.parents.append(created)
        self.creations.append(created)

    def latest(self, kind: str, name: str) -> Creation | None:
        """Return the existing object with the highest version."""
        versions = [each for each in self.creations_of(kind, name) if each.exists]
        return max(versions, key=lambda each: each.version, default=None)

    def creations_of(self, kind: str, name: str) -> list[Creation]:
        """Return all creations with a name."""
        return [each for each in self.creations if (each.kind, each.name) == (kind, name)]

    def is_last(self, creation: Creation) -> bool:
        """Return whether no later object was created with the same name and version."""
        same = [
            each for each in self.creations_of(creation.kind, creation.name)
            if each.version == creation.version
        ]  # fmt: skip
        return same[-1] is creation

    def hidden(self, granted: Collection[str]) -> set[Creation]:
        """Return the hidden creations: the smallest set that satisfies the rules."""
        hidden: set[Creation] = set()
        while True:
            more = {each for each in self.creations if self._hides(each, granted, hidden)} - hidden
            if not more:
                return hidden
            hidden |= more

    def _hides(self, creation: Creation, granted: Collection[str], hidden: set[Creation]) -> bool:
        if creation.kind == "group":
            if creation.name in granted:
                return False
            if self.is_last(creation) and self._hides_name(creation.name, hidden):
                return True
        return creation.sealed or any(parent in hidden for parent in creation.parents)

    def _hides_name(self, name: str, hidden: set[Creation]) -> bool:
        """Return whether all versions of a group are hidden, because a version is hidden."""
        last = [each for each in self.creations_of("group", name) if self.is_last(each)]
        existing = [each for each in last if each.exists]
        return name in self.private or any(each in hidden for each in existing or last)


class History:
    """A store and its model, changed by random operations."""

    def __init__(self, location: Path, seed: int) -> None:
        self.location, self.random = location, random.Random(seed)
        self.store = featurestore.connect(location)
        changes.add_user(self.store.session, ROOT, "root", role="admin")
        self.model = Model()

    def create(self) -> None:
        """Create a base group, or an object from one of the newest, so that chains are long."""
        kind, name = self.random.choice(KINDS), self.random.choice(NAMES)
        sources = [each for each in self.model.creations if each.exists and each.kind != "view"]
        if kind != "group":
            sources = [each for each in sources if each.kind == "group"]
        source = self.random.choice(sources[-2:]) if sources else None
        if source is None or (kind == "group" and self.random.random() < 0.2):
            kind, source = "group", None
            name = self.random.choice(PRIVATE)
        parents = [] if source is None else [source]
        version = self._create(kind, name, source)
        self.model.add(Creation(kind, name, version, parents))

    def _create(self, kind: str, name: str, source: Creation | None) -> int:
        store = self.store
        # Without a version, rows that exist already are not written again.
        last = self.model.latest("group", name)
        version = 1 if last is None else last.version + 1
        if source is None:
            rows = [{"k": 1, "v": 2.0, "n": 3.0}]
            return store.create_featuregroup(rows, name, primary_key="k", version=version).version
        if source.kind == "group":
            rows = store.get_featuregroup(source.name, version=source.version)
        else:
            rows = store.get_training_dataset(source.name, version=source.version).read("train")
        if kind == "view":
            feature = f"{source.name}@v{source.version}.v"
            return store.create_feature_view(name, features=[feature]).version
        if kind == "dataset":
            return store.create_training_dataset(rows, name, progress=False).version
        # pandas copies carry their inputs, also after the group was removed.
        if self.random.random() < 0.5:
            rows = rows.to_pandas()
        return store.create_featuregroup(rows, name, primary_key="k", version=version).version

    def delete(self) -> None:
        """Delete any object, mostly one from which others were computed."""
        existing = [each for each in self.model.creations if each.exists]
        if not existing:
            return
        parents = [each for child in existing for each in child.parents if each.exists]
        removed = self.random.choice(parents or existing)
        store, key = self.store, {"version": removed.version}
        if removed.kind == "group":
            store.delete_featuregroup(removed.name, force=True, **key)
            removed.sealed = removed.name in self.model.private
        elif removed.kind == "dataset":
            store.delete_training_dataset(removed.name, force=True, **key)
        else:
            store.delete_feature_view(removed.name, **key)
        removed.exists = False

    def hide(self) -> None:
        """Make a group private."""
        self._set_private(self.random.choice(PRIVATE), is_private=True)

    def show(self) -> None:
        """Make a group public, and compare what this opens with the audit log and the model."""
        name = self.random.choice(PRIVATE)
        with suppress(FeatureStoreError):
            listed = changes.list_opened_objects(self.store.session, name)
            before = self._hidden_texts()
            readable_objects = self._set_private(name, is_private=False)
            assert readable_objects == listed == sorted(before - self._hidden_texts())
            with self.store.session.registry.reading() as connection:
                entry = entries(connection, limit=1)[0]
            assert entry.action == "make public"
            assert entry.detail.get("opens", []) == readable_objects

    def _hidden_texts(self) -> set[str]:
        texts = set()
        for each in self.model.hidden(()):
            if each.kind == "group":
                last = [
                    every for every in self.model.creations_of("group", each.name) if every.exists
                ]
                if self.model.is_last(each) and (each.exists or not last):
                    texts.add(f"feature group {each.name}")
            elif self.model.is_last(each):
                noun = "training dataset" if each.kind == "dataset" else "feature view"
                texts.add(f"{noun} {each.name}@v{each.version}")
        return texts | {f"feature group {name}" for name in self.model.private}

    def _set_private(self, name: str, *, is_private: bool) -> list[str]:
        with suppress(FeatureStoreError):
            readable_objects = changes.set_private(self.store.session, ROOT, name, is_private)
            (self.model.private.add if is_private else self.model.private.discard)(name)
            return readable_objects
        return []

    def rename(self) -> None:
        """Rename a feature, which creates the next version of the group."""
        group = self.model.latest("group", self.random.choice(NAMES))
        if group is not None:
            column = self.store.get_featuregroup(group.name).columns[-1]
            renamed = self.store.rename_feature(group.name, column, f"{column}n")
            self.model.add(Creation("group", group.name, renamed.version, [group]))

    def rebuild(self) -> None:
        """Lose the registry, and rebuild it from the location."""
        self.store.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.location}/registry.db{suffix}").unlink(missing_ok=True)
        report = rebuild(str(self.location))
        assert report.unreadable == []
        self.store = featurestore.connect(self.location)

    def check(self) -> None:
        """Compare what each reader sees with the model."""
        for granted in READERS:
            hidden = self.model.hidden(granted)
            visible = {
                (each.kind, each.name, each.version)
                for each in self.model.creations
                if each.exists and each not in hidden
            }
            assert self._listed(store_of(self.store, granted)) == visible, (granted, self.steps())

    def _listed(self, store: FeatureStore) -> set[tuple[str, str, int]]:
        lists = {
            "group": store.get_featuregroups(),
            "dataset": store.get_training_datasets(),
            "view": store.get_feature_views(),
        }
        return {
            (kind, each.name, each.version) for kind, objects in lists.items() for each in objects
        }

    def steps(self) -> list[tuple[str, str, int, bool, list[tuple[str, str, int]]]]:
        """Return the creations for the message of a failure."""
        return [
            (each.kind, each.name, each.version, each.exists,
             [(parent.kind, parent.name, parent.version) for parent in each.parents])
            for each in self.model.creations
        ]  # fmt: skip


@pytest.mark.filterwarnings("ignore::featurestore.errors.FeatureViewWarning")
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 60))]
)
def test_random_derivations_are_visible_as_in_model(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "store", seed)
    operations = [history.create] * 6 + [history.delete] * 3
    operations += [history.hide, history.hide, history.show, history.rename, history.rebuild]
    for _ in range(25):
        history.random.choice(operations)()
        history.check()
    history.rebuild()
    history.check()
    history.store.close()


def fill_chain(store: FeatureStore) -> None:
    """Create a private group, a dataset of its rows, and a group of the rows of the dataset."""
    store.create_featuregroup([{"k": 1, "v": 2.0, "w": 3.0}], "pay", primary_key="k")
    rows = store.get_featuregroup("pay")
    dataset = store.create_training_dataset(rows, "middle", progress=False)
    store.create_featuregroup(dataset.read("train"), "last", primary_key="k")
    changes.add_user(store.session, ROOT, "root", role="admin")
    changes.set_private(store.session, ROOT, "pay", True)


def test_names_among_many_words_are_origins(tmp_path: Path) -> None:
    # More words than a database compares in one statement; digits precede names in their order.
    words = [*map(str, range(300_000)), "pay"]
    record = RunRecord("20240301-120000-many", "many", "launch", "running", NOON)
    trial = replace(record, id="20240301-120000-many-0", kind="trial", parent=record.id, number=0)
    with featurestore.connect(tmp_path / "store") as store:
        fill_chain(store)
        with store.session.registry.transaction() as connection:
            named_objects = experiments.find_objects_named(connection, words)
            experiments.register(connection, replace(record, params={"used": words[-2000:]}))
            experiments.register(connection, trial)
            model, trained = Object(MODEL, "trained", 1), [Object(RUN, trial.id)]
            origins.record(connection, model, trained)
        with store.session.registry.reading() as connection:
            hidden = find_hidden_objects(connection, granted=(), reads_store=True)
            newly_public = find_opened_objects(connection, "pay")
    assert named_objects == [Object(GROUP, "pay")]
    assert {(RUN, record.id, 1), (RUN, trial.id, 1), tuple(model)} <= hidden.outputs
    assert f"experiment run {trial.id}" in newly_public


def test_rebuild_makes_object_of_damaged_origins_private(tmp_path: Path) -> None:
    location = tmp_path / "store"
    with featurestore.connect(location) as store:
        fill_chain(store)
        store.delete_training_dataset("middle", version=1)
        changes.set_private(store.session, ROOT, "pay", False)
        assert len(store_of(store).get_featuregroups()) == 2
    path = location / "_origins" / "training_dataset" / "middle@v1.json"
    for content in (
        b"",
        b"[" * 10_000,
        b'{"format": 1}',
        path.read_bytes().replace(b"middle", b"other"),
    ):
        path.write_bytes(content)
        for file in location.glob("registry.db*"):
            file.unlink()
        report = rebuild(str(location))
        assert [unreadable for unreadable, _ in report.unreadable] == [str(path)]
        with featurestore.connect(location) as store:
            assert [group.name for group in store_of(store).get_featuregroups()] == ["pay"]

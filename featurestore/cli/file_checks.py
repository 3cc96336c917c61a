"""``doctor --deep``: all files of a store, compared with their checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from featurestore.cli.setup import OK, PROBLEM, Check
from featurestore.errors import FeatureStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurestore.store import FeatureStore


class _Report(Protocol):
    @property
    def problems(self) -> Sequence[object]: ...


def check_store_files(store: FeatureStore) -> Iterator[Check]:
    """Yield a check for each feature group, training dataset, run and model; reads all files."""
    for group in store.get_featuregroups():
        yield from _check_report(
            f"feature group {group.name}@v{group.version}",
            lambda name=group.name, version=group.version: (  # type: ignore[misc]
                store.verify_featuregroup(name, version=version)
            ),
        )
    for dataset in store.get_training_datasets():
        name = f"training dataset {dataset.name}@v{dataset.version}"
        yield from _check_report(name, dataset.verify)
    yield from _check_experiments(store)


def _check_experiments(store: FeatureStore) -> Iterator[Check]:
    from featurestore.experiments import catalog, get_models, get_runs
    from featurestore.experiments.models import loading
    from featurestore.experiments.run_files import ARTIFACTS

    for run in get_runs(trials=True, store=store):
        yield _check_call(
            f"run {run.id}",
            lambda run=run: catalog.verify(  # type: ignore[misc]
                run.session, run.record, artifacts=[ARTIFACTS]
            ),
        )
    for model in get_models(store=store):
        yield _check_call(
            f"model {model.name}@v{model.version}",
            lambda model=model: loading.check_files(model.path, model.spec),  # type: ignore[misc]
        )


def _check_report(name: str, verify: Callable[[], _Report]) -> Iterator[Check]:
    """Yield a check for each problem in a report, or one without problems."""
    try:
        problems = verify().problems
    except FeatureStoreError as error:
        yield Check(name, PROBLEM, error.message, error.hint)
        return
    if not problems:
        yield Check(name, OK, "all files match their checksums")
    for problem in problems:
        yield Check(name, PROBLEM, str(problem), getattr(problem, "hint", None))


def _check_call(name: str, verify: Callable[[], None]) -> Check:
    try:
        verify()
    except FeatureStoreError as error:
        return Check(name, PROBLEM, error.message, error.hint)
    return Check(name, OK, "all files match their checksums")

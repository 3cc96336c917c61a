"""Comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.experiments import catalog
from featurestore.model.printable import value_text

if TYPE_CHECKING:
    from featurestore.experiments.run import Run

Differences = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class RunComparison:
    """The differences of two runs: ``{name: (first, second)}`` by kind.

    ``metrics`` holds all metrics of both.
    """

    a: str
    b: str
    params: Differences
    settings: Differences
    dataset: Differences
    code: Differences
    environment: Differences
    metrics: Differences

    def __str__(self) -> str:
        lines = [f"{self.a} -> {self.b}"]
        for kind in ("params", "settings", "dataset", "code", "environment", "metrics"):
            for name, (first, second) in getattr(self, kind).items():
                lines.append(f"  {kind} {name}: {value_text(first)} -> {value_text(second)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return dict(vars(self))


def compare_runs(a: Run, b: Run) -> RunComparison:
    """Return the differences of two runs.

    Raises:
        RunDamaged: The record or the metrics of a run are damaged.
    """
    for run in (a, b):
        catalog.verify(run.session, run.record)
    first, second = a.record, b.record
    shared = {"seed", *first.settings, *second.settings}
    settings = []
    for record in (first, second):
        all_settings = {"kind": record.kind, "seed": record.seed, **record.settings}
        settings.append({name: all_settings.get(name) for name in ("kind", *sorted(shared))})
    return RunComparison(
        a=first.id,
        b=second.id,
        params=differing(first.params, second.params),
        settings=differing(*settings),
        dataset=differing(_dataset_fields(first.dataset), _dataset_fields(second.dataset)),
        code=differing(_code(first.code), _code(second.code)),
        environment=differing(_packages(first.environment), _packages(second.environment)),
        metrics=pair_values(a.metrics, b.metrics),
    )


def pair_values(first: Mapping[str, Any], second: Mapping[str, Any]) -> Differences:
    """Return pairs of values by name, with None for a missing value."""
    return {name: (first.get(name), second.get(name)) for name in {**first, **second}}


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> Differences:
    """Return the values that differ.

    >>> differing({"lr": 1, "units": 8}, {"lr": 2, "units": 8, "dropout": 0.5})
    {'lr': (1, 2), 'dropout': (None, 0.5)}
    """
    return {name: pair for name, pair in pair_values(first, second).items() if pair[0] != pair[1]}


def _dataset_fields(dataset: Any) -> dict[str, Any]:
    return {} if dataset is None else vars(dataset)


def _code(code: Mapping[str, Any]) -> dict[str, Any]:
    git = code.get("git") or {}
    return {
        "function": code.get("function"),
        "source": code.get("source"),
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
    }


def _packages(environment: Mapping[str, Any]) -> dict[str, Any]:
    versions = {"python": environment.get("python"), "platform": environment.get("platform")}
    packages = environment.get("packages")
    if isinstance(packages, Mapping):
        return {**versions, **packages}
    return versions

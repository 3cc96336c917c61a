"""What the global options say, and the store that they mean."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


class Output(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Settings:
    """The global options of one call; None: as ``featurestore.config`` finds it."""

    location: str | None = None
    engine: str | None = None
    registry: str | None = None
    output: Output = Output.TEXT
    wide: bool = False


def settings(context: typer.Context) -> Settings:
    """Return the global options."""
    return context.find_object(Settings) or Settings()


def store(context: typer.Context) -> FeatureStore:
    """Return the store that the global options mean, closed when the command ends."""
    from featurestore.store import connect

    options = settings(context)
    connected = connect(options.location, engine=options.engine, registry=options.registry)
    return context.with_resource(connected)

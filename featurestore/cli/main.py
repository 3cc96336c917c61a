"""Global options, nouns, and errors as exit codes: 0 done, 1 a FeatureStoreError, 2 wrong usage."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from featurestore import __version__
from featurestore.cli.logs import LogFormat, log_to_stderr
from featurestore.cli.output import show_error
from featurestore.cli.state import OutputFormat, Settings
from featurestore.cli.terminal import escaping
from featurestore.errors import FeatureStoreError

# Options that mean the same for every command and may stand anywhere on the line.
_GLOBAL = ("--location", "--engine", "--registry", "--output", "--log-format", "--token")
_GLOBAL_FLAGS = ("--wide",)


class _OptionsAnywhere(TyperGroup):
    """Takes the global options before and after the words of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _global_first(args))


app = typer.Typer(
    name="featurestore",
    cls=_OptionsAnywhere,
    help="Compute, version and retrieve features for deep learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The modules of commands without a noun, and the nouns, each with its module.
_WITHOUT_NOUN = ("setup", "server")
_NOUNS = {
    "fg": "featuregroups",
    "features": "features",
    "fv": "feature_views",
    "td": "training_datasets",
    "job": "jobs",
    "stream": "streams",
    "monitor": "monitors",
    "alert": "alerts",
    "scheduler": "scheduler",
    "registry": "registry",
    "source": "sources",
    "run": "runs",
    "model": "models",
    "user": "users",
    "token": "tokens",
    "access": "access",
}


def main() -> None:
    """Run the command line."""
    with escaping():
        try:
            app()
        except FeatureStoreError as error:
            show_error(error, output=_output())
            sys.exit(1)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"featurestore {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    location: Annotated[
        str | None,
        typer.Option(
            help="Directory of the store, or http://host:8787 of a served one.",
            envvar="FEATURESTORE_LOCATION",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="duckdb, spark or another engine.", envvar="FEATURESTORE_ENGINE"),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(help="SQLAlchemy URL of the registry.", envvar="FEATURESTORE_REGISTRY"),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option(help="Tables for people or JSON for programs.")
    ] = OutputFormat.TEXT,
    wide: Annotated[
        bool, typer.Option("--wide", help="Tables with all columns, wider than 80 characters.")
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            help="Log to standard error: text, or a JSON object a line with the run's id.",
            envvar="FEATURESTORE_LOG_FORMAT",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Of a served store; better in FEATURESTORE_TOKEN.", show_default=False),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Compute, version and retrieve features for deep learning."""
    context.obj = Settings(location, engine, registry, output, wide, log_format, token)
    if log_format is not None:
        log_to_stderr(log_format)


def _global_first(args: list[str]) -> list[str]:
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _GLOBAL_FLAGS:
            first.append(word)
        elif word.split("=")[0] in _GLOBAL:
            first.append(word)
            if "=" not in word:
                first.append(next(words, ""))
        else:
            rest.append(word)
    return [*first, *rest]


def _add_nouns() -> None:
    for module in _WITHOUT_NOUN:
        app.add_typer(importlib.import_module(f"featurestore.cli.{module}").app)
    for word, module in _NOUNS.items():
        app.add_typer(importlib.import_module(f"featurestore.cli.{module}").app, name=word)


def _output() -> OutputFormat:
    """Return how to print an error, also when the options were never parsed to the end."""
    given = sys.argv[1:]
    asked = "--output=json" in given or any(
        pair == ("--output", "json") for pair in pairwise(given)
    )
    return OutputFormat.JSON if asked else OutputFormat.TEXT


_add_nouns()

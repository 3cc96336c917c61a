"""Global options and command groups; exit codes: 0 success, 1 FeatureStoreError, 2 usage error."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from featurestore import __version__
from featurestore.cli.output import escaping, show_error
from featurestore.cli.state import LogFormat, OutputFormat, Settings, log_to_stderr
from featurestore.errors import FeatureStoreError

# Options with the same meaning in every command; they may appear anywhere on the command line.
_GLOBAL = ("--location", "--engine", "--registry", "--output", "--log-format", "--token")
_GLOBAL_FLAGS = ("--wide",)


class _OptionsAnywhere(TyperGroup):
    """Accepts the global options anywhere on the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _move_global_options_first(args))


app = typer.Typer(
    name="featurestore",
    cls=_OptionsAnywhere,
    help="Compute, version and retrieve features for deep learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help texts contain brackets, which Rich would read as markup.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The command groups, each with its module and the name of its Typer app there.
_NOUNS = {
    "fg": ("featuregroups", "app"),
    "features": ("features", "app"),
    "fv": ("features", "view_app"),
    "td": ("training_datasets", "app"),
    "job": ("jobs", "app"),
    "stream": ("jobs", "stream_app"),
    "monitor": ("monitors", "app"),
    "alert": ("monitors", "alert_app"),
    "scheduler": ("jobs", "scheduler_app"),
    "registry": ("setup", "registry_app"),
    "source": ("sources", "app"),
    "run": ("runs", "app"),
    "model": ("runs", "model_app"),
    "user": ("users", "app"),
    "token": ("users", "token_app"),
    "access": ("users", "access_app"),
}


def main() -> None:
    """Run the command line."""
    # Everything that a command prints may contain stored text, so the streams are replaced first.
    with escaping():
        try:
            app()
        except FeatureStoreError as error:
            show_error(error, output=_error_output_format())
            sys.exit(1)


def _show_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"featurestore {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    location: Annotated[
        str | None,
        typer.Option(
            help="Directory of the store, or the URL of a served store: http://host:8787.",
            envvar="FEATURESTORE_LOCATION",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine: duckdb, spark or another installed one.", envvar="FEATURESTORE_ENGINE"
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(help="SQLAlchemy URL of the registry.", envvar="FEATURESTORE_REGISTRY"),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option(help="Output format: tables or stable JSON.")
    ] = OutputFormat.TEXT,
    wide: Annotated[
        bool, typer.Option("--wide", help="Show all columns, beyond 80 characters.")
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            help="Log to standard error: text, or one JSON object per line with the run id.",
            envvar="FEATURESTORE_LOG_FORMAT",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Token for a served store; prefer $FEATURESTORE_TOKEN, which is not visible to "
            "other users.",
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Compute, version and retrieve features for deep learning."""
    context.obj = Settings(location, engine, registry, output, wide, log_format, token)
    if log_format is not None:
        log_to_stderr(log_format)


def _move_global_options_first(args: list[str]) -> list[str]:
    """Move the global options before the command, where Typer expects them."""
    global_words: list[str] = []
    other_words: list[str] = []
    words = iter(args)
    for word in words:
        # Words after -- are arguments, even if they look like options.
        if word == "--":
            other_words += [word, *words]
        elif word in _GLOBAL_FLAGS:
            global_words.append(word)
        elif word.split("=")[0] in _GLOBAL:
            global_words.append(word)
            if "=" not in word:
                # The value of an option is the next word; Typer reports a missing one.
                global_words.append(next(words, ""))
        else:
            other_words.append(word)
    return [*global_words, *other_words]


def _error_output_format() -> OutputFormat:
    """Return the output format for an error, even if the options were not parsed completely."""
    arguments = sys.argv[1:]
    is_json = "--output=json" in arguments or any(
        pair == ("--output", "json") for pair in pairwise(arguments)
    )
    return OutputFormat.JSON if is_json else OutputFormat.TEXT


app.add_typer(importlib.import_module("featurestore.cli.setup").app)
for _noun, (_module, _commands) in _NOUNS.items():
    _app = getattr(importlib.import_module(f"featurestore.cli.{_module}"), _commands)
    app.add_typer(_app, name=_noun)

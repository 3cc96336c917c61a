"""Global options and command groups; exit codes: 0 success, 1 FeatureStoreError, 2 usage error."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group_from_info
from typer.models import TyperInfo

from featurestore import __version__
from featurestore.cli.output import escaping, option, show_error
from featurestore.cli.state import GlobalOptions, LogFormat, OutputFormat, log_to_stderr
from featurestore.errors import FeatureStoreError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

# Options with the same meaning in every command; they may appear anywhere on the command line.
_GLOBAL = ("--location", "--engine", "--registry", "--output", "--log-format", "--token")
_GLOBAL_FLAGS = ("--wide",)


# The command groups: the module of each, the name of its Typer app there, and its help. The help is
# here, since `featurestore --help` should not import the modules.
_NOUNS = {
    "fg": ("featuregroups", "app", "Feature groups."),
    "features": ("features", "app", "Features of all groups."),
    "fv": ("features", "view_app", "Feature views."),
    "td": ("training_datasets", "app", "Training datasets."),
    "job": ("jobs", "app", "Scheduled jobs."),
    "stream": ("jobs", "stream_app", "Replay the quarantined records of stream jobs."),
    "monitor": ("monitors", "app", "Monitors of feature groups."),
    "alert": ("monitors", "alert_app", "Alert channels and their messages."),
    "scheduler": ("jobs", "scheduler_app", "Run due jobs."),
    "registry": ("setup", "registry_app", "The registry: the index of the store."),
    "source": ("sources", "app", "Sources: databases, folders, lake tables."),
    "catalog": ("sources", "catalog_app", "Catalogs: tables of the store in them."),
    "dbt": ("dbt", "app", "dbt projects: tables as external groups."),
    "online": ("online", "app", "Online stores: Redis, Postgres, SQLite."),
    "run": ("runs", "app", "Runs of experiments."),
    "model": ("runs", "model_app", "Registered models."),
    "user": ("users", "app", "Users of the server."),
    "token": ("users", "token_app", "Tokens for programs."),
    "erasure": ("erasure", "app", "Erasure of entities, and its certificates."),
    "access": ("users", "access_app", "Private groups, roles and the audit log."),
}


class _Noun(TyperGroup):
    """A command group that imports its module when its commands are first used."""

    _loaded: MutableMapping[str, Any] | None = None

    @property
    def commands(self) -> MutableMapping[str, Any]:
        if self._loaded is None:
            module, attribute, _ = _NOUNS[str(self.name)]
            nested_app = getattr(importlib.import_module(f"featurestore.cli.{module}"), attribute)
            group = get_group_from_info(
                TyperInfo(nested_app),
                pretty_exceptions_short=True,
                rich_markup_mode=None,
                suggest_commands=True,
            )
            self._loaded = group.commands
        return self._loaded

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        """Ignore the empty commands of the constructor."""


class _Root(TyperGroup):
    """Adds the command groups, and accepts the global options anywhere on the command line."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, _, help_text) in _NOUNS.items():
            noun = _Noun(name=name, help=help_text, no_args_is_help=True, rich_markup_mode=None)
            self.add_command(noun)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _move_global_options_first(args))


app = typer.Typer(
    name="featurestore",
    cls=_Root,
    help="Compute, version and retrieve features for deep learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help texts contain brackets, which Rich would read as markup.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    # Imports create many objects that live until the end; searching them for garbage after each
    # 700, and again when the interpreter exits, takes a fifth of the time of a short command.
    gc.set_threshold(200_000, 20, 20)
    atexit.register(gc.freeze)
    # Everything that a command prints may contain stored text, so the streams are replaced first.
    with escaping(), _short_warnings():
        try:
            app()
        except FeatureStoreError as error:
            show_error(error, output=_error_output_format())
            sys.exit(1)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print a warning as one line, since the line of code that issued it has no meaning here."""
    previous = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = previous


def _show_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"featurestore {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    location: Annotated[
        str | None,
        option(
            help="Directory of the store, or the URL of a served store: http://host:8787.",
            envvar="FEATURESTORE_LOCATION",
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
        option(
            help="Log to standard error: text, or one JSON object per line with the run id.",
            envvar="FEATURESTORE_LOG_FORMAT",
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            help="Token for a served store; prefer $FEATURESTORE_TOKEN, which is not visible to "
            "other users."
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version of the program and exit.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    """Compute, version and retrieve features for deep learning."""
    context.obj = GlobalOptions(location, engine, registry, output, wide, log_format, token)
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
        elif word.split("=")[0] == "--version" and other_words:
            raise typer.BadParameter(
                "--version is the version of the program; the second version of an object is "
                "NAME@v2"
            )
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


for _module in ("doctor", "setup", "projects"):
    app.add_typer(importlib.import_module(f"featurestore.cli.{_module}").app)

"""``init`` and ``apply``: new stores and projects, and the application of definitions."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from featurestore.cli.output import argument, option, show_record, show_text
from featurestore.cli.state import OutputFormat, settings, store
from featurestore.config import CONFIG_FILE, DEFAULT_LOCATION
from featurestore.errors import DefinitionsRefused, InvalidArgument

if TYPE_CHECKING:
    from featurestore.model.project import ProjectPlan

app = typer.Typer()


@app.command(epilog="Example: featurestore init my-store")
def init(
    context: typer.Context,
    directory: Annotated[
        str | None, typer.Argument(help="Directory of the store; default: --location.")
    ] = None,
    config: Annotated[
        bool, typer.Option(help="Write featurestore.toml to the current directory if missing.")
    ] = True,
    project: Annotated[
        bool,
        typer.Option(
            "--project", help="Write example definitions and a workflow for git to the directory."
        ),
    ] = False,
) -> None:
    """Create a store: its directory, its registry, and a featurestore.toml that names it."""
    from featurestore.store import connect

    options = settings(context)
    if project:
        show_record(context, _create_project(context, Path(directory or "."), options.location))
        return
    store = context.with_resource(
        connect(directory or options.location, engine=options.engine, registry=options.registry)
    )
    file = Path.cwd() / CONFIG_FILE
    # TOML strings have the escapes of JSON. An existing file may name another store, so it is never overwritten.
    if config and not file.exists():
        file.write_text(
            f"location = {json.dumps(store.location)}\nengine = {json.dumps(store.engine)}\n"
        )
    record = {"location": store.location, "engine": store.engine, "config": None}
    if file.exists():
        record["config"] = str(file)
    show_record(context, record)


@app.command(epilog="Example: featurestore apply features --check")
def apply(
    context: typer.Context,
    folder: Annotated[str, argument(help="Folder with Python definitions.")],
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only show the plan; exit 1 if it is not empty or is refused."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan; exit 1 if it is refused.")
    ] = False,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove what this project created and no longer defines."),
    ] = False,
    project: Annotated[
        str | None,
        option(
            help="Name of the project; default: project in featurestore.toml, or the name of the "
            "folder above."
        ),
    ] = None,
) -> None:
    """Show the changes between a folder of definitions and the store, and apply them."""
    connected = store(context)
    try:
        plan = connected.plan(folder, project=project)
        if check or dry_run:
            show_text(context, str(plan), data=_to_json(plan, applied=False))
            raise typer.Exit(1 if check and not plan.is_empty else 0)
        if plan.removals and not remove:
            remove = _confirm_removals(context, plan)
        plan = connected.apply(folder, project=project, remove=remove)
    except DefinitionsRefused as error:
        if settings(context).output is OutputFormat.JSON:
            raise
        # Other errors are printed as one line; here each refused definition has its own.
        sys.stderr.write(f"error: {error.message}\n")
        raise typer.Exit(1) from error
    text = str(plan)
    if plan.removals and not remove:
        text += f"\nnot removed: {len(plan.removals)}; --remove removes them"
    show_text(context, text, data=_to_json(plan, applied=True))


def _confirm_removals(context: typer.Context, plan: ProjectPlan) -> bool:
    """Return whether the user of a terminal confirms the removal of objects."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or settings(context).output is OutputFormat.JSON:
        return False
    sys.stdout.write(f"{plan}\n")
    return typer.confirm(f"Remove {len(plan.removals)} objects with their data?", default=False)


def _to_json(plan: ProjectPlan, *, applied: bool) -> dict[str, object]:
    return {
        "project": plan.project,
        "applied": applied,
        "changes": [vars(change) for change in plan.changes],
        "removals": [vars(change) for change in plan.removals],
    }


def _create_project(
    context: typer.Context, directory: Path, location: str | None
) -> dict[str, object]:
    """Write the files of a new project that do not exist yet, and create its store."""
    from featurestore.store import connect

    name = re.sub(r"[^a-z0-9_]+", "_", directory.resolve().name.lower()).strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
        raise InvalidArgument(
            f"{directory.resolve().name!r} is not a project name: it does not start with a letter.",
            hint="featurestore init --project demand",
        )
    store_location = location or DEFAULT_LOCATION
    contents = {**PROJECT_FILES, CONFIG_FILE: _CONFIG}
    created = []
    for relative_path, content in contents.items():
        path = directory / relative_path
        # An existing file may contain the user's work.
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = content.replace("PROJECT", name)
            path.write_text(text.replace("LOCATION", json.dumps(store_location)), encoding="utf-8")
            created.append(relative_path)
    options = settings(context)
    if "://" not in store_location:
        store_location = str((directory / store_location).resolve())
    with connect(store_location, engine=options.engine, registry=options.registry):
        pass
    return {
        "project": name,
        "directory": str(directory.resolve()),
        "location": store_location,
        "created": created,
    }


_CONFIG = """\
project = "PROJECT"
location = LOCATION
"""
_GROUPS = '''\
"""The feature groups of the project. New columns are added to a group in place."""

from featurestore import define

trips = define.featuregroup(
    "trips",
    schema={"trip": "int64", "zone": "int64", "left_at": "timestamp", "tip": "double"},
    primary_key="trip",
    event_time="left_at",
    description="One row for each taxi trip",
    descriptions={"tip": "in dollars"},
    tags={"owner": "PROJECT"},
)

# The job of the same name writes this group. Its columns are defined here, so that views can read
# it before the first run of the job.
zone_demand = define.featuregroup(
    "zone_demand",
    schema={"zone": "int64", "hour": "timestamp", "trips": "int64", "mean_tip": "double"},
    primary_key="zone",
    event_time="hour",
    ttl="2h",
    description="Trips in each zone and hour",
)
'''
_JOBS = '''\
"""The jobs and monitors of the project: `featurestore scheduler start` runs them."""

import featurestore

zone_demand = featurestore.sql_job(
    "zone_demand",
    sql="""
        select zone, date_trunc('hour', left_at) + interval 1 hour as hour,
            count(*) as trips, avg(tip) as mean_tip
        from trips
        where left_at >= $window_start and left_at < $window_end
        group by 1, 2
    """,
    primary_key="zone",
    event_time="hour",
    schedule="0 * * * *",
    start="2024-01-01T00:00Z",
    inputs={"trips": "trips"},
    alert="operations",
)

zone_demand_watch = featurestore.monitor_job(
    "zone_demand_watch", featuregroup="zone_demand", schedule="0 0 * * *", alert="operations"
)
'''
_VIEWS = '''\
"""The feature views of the project. A changed view becomes its next version."""

from featurestore import define

tips = define.feature_view(
    "tips",
    features=["zone_demand.trips", "zone_demand.mean_tip"],
    labels="trips",
    label="tip",
    label_time="left_at",
    description="The tip of a trip, from the demand in its zone",
)
'''
_ALERTS = '''\
"""The alert channels of the project. Secrets are references: secret="env:SMTP_PASSWORD"."""

from featurestore import define

operations = define.alert_channel("operations", "log")
'''
_WORKFLOW = """\
# Shows the plan on pull requests, and applies it on main.
name: features

on:
  pull_request:
  push:
    branches: [main]

env:
  # A store that the runner can reach: s3://bucket/prefix, with a registry on a database server.
  FEATURESTORE_LOCATION: ${{ vars.FEATURESTORE_LOCATION }}
  FEATURESTORE_REGISTRY: ${{ secrets.FEATURESTORE_REGISTRY }}

jobs:
  plan:
    if: github.event_name == 'pull_request'
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install featurestore
      - run: featurestore apply features --dry-run

  apply:
    if: github.event_name == 'push'
    runs-on: ubuntu-latest
    concurrency: features
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install featurestore
      - run: featurestore apply features
      # Fails while the store has objects that the project no longer defines: remove them by hand.
      - run: featurestore apply features --check
"""
_README = """\
# PROJECT

The features of this project are the definitions in `features/`. The store follows them:

```console
$ featurestore apply features --dry-run   # shows the plan
$ featurestore apply features             # applies it
$ featurestore apply features --check     # exit status 0 if nothing would change, else 1
$ featurestore apply features --remove    # also removes what was deleted here
```

- `features/groups.py`: feature groups. Rows come from `insert_into_featuregroup` or from jobs.
- `features/jobs.py`: jobs and monitors, which `featurestore scheduler start` runs.
- `features/views.py`: feature views for training and serving.
- `features/alerts.py`: alert channels.

`.github/workflows/features.yml` shows the plan on pull requests and applies it on main. Set the
variable `FEATURESTORE_LOCATION` and the secret `FEATURESTORE_REGISTRY` of the repository. A job runs
only on machines where its file was applied, so run `featurestore apply features` on the machine of
the scheduler, too.
"""
# The files of a new project by their paths.
PROJECT_FILES = {
    "features/groups.py": _GROUPS,
    "features/jobs.py": _JOBS,
    "features/views.py": _VIEWS,
    "features/alerts.py": _ALERTS,
    ".github/workflows/features.yml": _WORKFLOW,
    ".gitignore": "featurestore-data/\n__pycache__/\n",
    "README.md": _README,
}

"""Job files run only in the store and with the content that was registered."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

import featurestore
from featurestore.errors import ConfigurationError, InvalidJob
from featurestore.jobs.registration import load_definition, load_jobs
from featurestore.jobs.service import get_job
from featurestore.registry import tables
from featurestore.store import FeatureStore
from tests.jobs.conftest import START, expected, python_job, rows, sql_job

Define = Callable[..., Path]


def bomb(mark: Path) -> str:
    """Return a line of code that creates a file when executed."""
    return f"open({str(mark)!r}, 'w').close()\n"


def test_foreign_registry_job_files_are_not_executed(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    city.register_jobs(define(sql_job()))
    evil = define(bomb(mark), sql_job(), name="evil.py")
    with city.session.registry.transaction() as connection:
        connection.execute(tables.job_definitions.update().values(origin=str(evil)))
    with pytest.raises(ConfigurationError, match="registered on this machine"):
        city.run_job("demand", window=START)
    city.scheduler().run_due()
    assert not mark.exists()


def test_foreign_registry_job_modules_are_not_imported(
    city: FeatureStore, define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    city.register_jobs(define(sql_job()))
    define(bomb(mark), name="evil_module.py")
    monkeypatch.syspath_prepend(tmp_path / "definitions")
    with city.session.registry.transaction() as connection:
        connection.execute(tables.job_definitions.update().values(origin="evil_module"))
    with pytest.raises(ConfigurationError, match="registered on this machine"):
        city.run_job("demand", window=START)
    assert not mark.exists()


def test_copied_store_runs_jobs_only_after_registration(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    file = define(sql_job())
    city.register_jobs(file)
    city.close()
    shutil.copytree(city.location, tmp_path / "copy")
    with featurestore.connect(tmp_path / "copy") as copy:
        with pytest.raises(ConfigurationError, match="registered on this machine"):
            copy.run_job("demand", window=START)
        copy.register_jobs(file)
        assert copy.run_job("demand", window=START)[0].state == "done"


@pytest.mark.parametrize("origin", ["file", "module"])
def test_job_file_changed_since_registration_is_not_executed(
    city: FeatureStore, define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    mark = tmp_path / "executed"
    name = f"changing_{origin}"
    file = define(sql_job(), name=f"{name}.py")
    monkeypatch.syspath_prepend(file.parent)
    city.register_jobs(file if origin == "file" else name)
    file.write_text(bomb(mark) + file.read_text())
    sys.modules.pop(name, None)
    with pytest.raises(InvalidJob, match="changed since"):
        city.run_job("demand", window=START)
    assert not mark.exists()
    city.register_jobs(file)
    assert mark.exists()
    assert city.run_job("demand", window=START)[0].state == "done"


def test_job_file_compiled_bytecode_is_ignored(define: Define, tmp_path: Path) -> None:
    import py_compile

    mark = tmp_path / "executed"
    bomb_file = define(bomb(mark), name="other.py")
    file = define(sql_job())
    cached = Path(sys.modules["importlib.util"].cache_from_source(str(file)))
    py_compile.compile(
        str(bomb_file),
        cfile=str(cached),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert list(load_jobs(file)) == ["demand"]
    assert not mark.exists()


def test_due_jobs_of_one_file_all_run(city: FeatureStore, define: Define) -> None:
    names = [f"demand{number}" for number in range(4)]
    slow_to_load = "import time; time.sleep(0.2)"
    file = define(slow_to_load, *(sql_job(name) for name in names))
    city.register_jobs(file)
    for name in [name for name in sys.modules if name.startswith("featurestore_jobs_")]:
        del sys.modules[name]  # as in a scheduler that has just begun
    with ThreadPoolExecutor(4) as pool:
        session = city.session
        actual = list(
            pool.map(lambda name: load_definition(session, get_job(session, name)), names)
        )
    assert [job.spec.name for job in actual] == names
    city.scheduler().run_due()
    for name in names:
        assert rows(city, name) == expected()


def test_load_jobs_finds_jobs_without_variable_name(define: Define) -> None:
    single_job = sql_job().replace("demand = featurestore", "featurestore")
    many = "\n".join(
        [
            "import featurestore",
            "for zone in ('a', 'b'):",
            "    featurestore.sql_job(f'zone_{zone}', sql='select left_at as t from trips',",
            "        event_time='t', schedule='0 * * * *', inputs={'trips': 'trips'})",
            "def make():",
            "    @featurestore.job(featuregroup='made', event_time='t', schedule='0 * * * *',",
            "        inputs={'trips': 'trips'})",
            "    def made(window, trips):",
            "        return trips",
            "make()",
        ]
    )
    assert set(load_jobs(define(single_job, many))) == {"demand", "zone_a", "zone_b", "made"}


def test_notebook_redefinition_replaces_job(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for retries in (1, 2):
        exec(sql_job(rules=f"retries={retries}").replace("demand = ", ""), vars(main))
    (definition, file) = load_jobs(main)["demand"]
    assert (definition.spec.schedule.retries, file.origin) == (2, "__main__")


def test_load_jobs_broken_file_error_names_file(define: Define) -> None:
    with pytest.raises(InvalidJob, match=r"jobs\.py cannot be loaded, line 1: ZeroDivisionError"):
        load_jobs(define("1 / 0"))
    with pytest.raises(InvalidJob, match=r"cannot be loaded, line \d+: SyntaxError"):
        load_jobs(define(python_job().replace("def ", "deaf ")))


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("sklearn", "pip install scikit-learn"),
        ("yaml", "pip install pyyaml"),
        ("PIL.Image", "pip install 'featurestore[images]'"),
        ("confluent_kafka", "pip install 'featurestore[kafka]'"),
        ("our_helpers", None),
    ],
)
def test_missing_import_hint_names_the_distribution(
    define: Define, module: str, hint: str | None
) -> None:
    file = define(f"raise ModuleNotFoundError('No module named {module}', name={module!r})")
    with pytest.raises(InvalidJob, match="cannot be loaded") as refused:
        load_jobs(file)
    assert refused.value.hint == hint

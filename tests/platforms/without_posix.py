"""Use a store in an interpreter without the modules and functions that Windows does not have.

Run as ``python without_posix.py FOLDER``. The interpreter still has the paths of POSIX, so this
covers calls, not path syntax.
"""

from __future__ import annotations

import importlib
import mmap
import os
import select
import shutil
import signal
import sys
import warnings

_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios")
_FUNCTIONS = (
    "fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getuid", "killpg", "mkfifo",
    "posix_fadvise", "posix_fallocate", "pread", "preadv", "process_cpu_count", "pwrite", "pwritev",
    "register_at_fork", "sched_getaffinity", "sendfile", "setsid", "statvfs", "sysconf", "uname",
    "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "WNOHANG",
)  # fmt: skip
_JOBS = """
import featurestore

hourly = featurestore.sql_job(
    "hourly",
    sql="select 1 as id, $window_end as hour",
    primary_key=["id"],
    event_time="hour",
    schedule="0 * * * *",
    start="2026-01-01T00:00Z",
)
"""


def remove_posix() -> None:
    """Remove what Windows does not have, and refuse what it refuses."""
    # Libraries select their code by ``sys.platform``, so they are imported before the removal.
    for library in ("deltalake", "duckdb", "numpy", "pyarrow", "sqlalchemy"):
        importlib.import_module(library)
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in (
        (os, _FUNCTIONS),
        (select, ("epoll", "poll")),
        (mmap, ("MAP_SHARED", "PROT_READ")),
        (signal, ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "pthread_kill", "setitimer")),
    ):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.supports_dir_fd = set()
    shutil._use_fd_functions = False
    if hasattr(shutil, "_rmtree_impl"):  # since Python 3.14
        shutil._rmtree_impl = shutil._rmtree_unsafe
    real_open, real_fsync, real_kill = os.open, os.fsync, os.kill

    def open_file(path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, flags, mode)

    def fsync(handle):
        if os.readlink(f"/proc/self/fd/{handle}") and not _is_writable(handle):
            raise OSError(9, "Bad file descriptor")
        real_fsync(handle)

    def kill(pid, number):
        assert number != 0, "os.kill(pid, 0) ends the process on Windows"
        real_kill(pid, number)

    os.open, os.fsync, os.kill = open_file, fsync, kill


def _is_writable(handle: int) -> bool:
    with open(f"/proc/self/fdinfo/{handle}") as file:
        flags = next(line for line in file if line.startswith("flags:"))
    return int(flags.split()[1], 8) & 3 != os.O_RDONLY


def use_store(folder: str) -> None:
    """Create, insert, delete, retrieve, export, read, and remove; then print ``ok``."""
    import pyarrow as pa

    import featurestore

    with featurestore.connect(folder) as store:
        rows = pa.table({"id": [1, 2], "city": ["a", "b"], "temp": [0.5, 1.5]})
        weather = store.create_featuregroup(
            rows, "weather", primary_key=["id"], partition_by=["city"]
        )
        more = pa.table({"id": [2, 3], "city": ["b", "a"], "temp": [2.5, 3.5]})
        weather.insert(more, mode="upsert")
        labels = pa.table({"id": [3, 2, 1], "label": [0, 1, 0]})
        features = store.get_features(["weather.temp"], labels=labels, dataframe_type="arrow")
        assert features["temp"].to_pylist() == [3.5, 2.5, 0.5], features
        for format in ("tfrecord", "parquet", "csv"):
            dataset = store.create_training_dataset(features, f"set_{format}", data_format=format)
            assert dataset.verify().ok, dataset.verify()
            for options in ({}, {"cache": f"{folder}-cache", "cache_bytes": 1}):
                reader = dataset.reader("train", global_batch_size=1, **options)
                assert sum(len(batch["temp"]) for batch in reader.batches()) == 3
        store.delete_training_dataset("set_csv", version=1)
        assert not os.path.exists(os.path.join(folder, "trainingdatasets", "set_csv", "v1"))
    with featurestore.connect(folder) as store:
        assert store.get_featuregroup("weather").count() == 3
        with open(f"{folder}-jobs.py", "w", encoding="utf-8") as file:
            file.write(_JOBS)
        store.register_jobs(f"{folder}-jobs.py")
        (run,) = store.run_job("hourly", window="2026-01-01T00:00Z")
        assert run.state == "done", run
    print("ok")


if __name__ == "__main__":
    remove_posix()
    # On Linux, filelock has no lock of the operating system without fcntl; on Windows it has.
    warnings.filterwarnings("ignore", message=".*soft.*lock.*")
    use_store(sys.argv[1])

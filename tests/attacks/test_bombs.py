"""Small files that unpack to gigabytes: archives of models, and Parquet files of sources.

``test_images`` and ``test_arrow_bodies`` have the bombs of these formats.
"""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import ModelDamaged
from featurestore.experiments.models.archives import read_archive, write_archive
from featurestore_connectors.sources.folders import parquet_sizes

ENTRIES = {"config.json": b"{}", "model.weights.h5": bytes(range(256)) * 40, "assets/a/w.txt": b"a"}


def archive_of(*entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return content.getvalue()


def bomb(size: int) -> bytes:
    """Return an archive of one entry of zeros."""
    content = io.BytesIO()
    with (
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("config.json", "w", force_zip64=True) as entry,
    ):
        for _ in range(size >> 20):
            entry.write(bytes(1 << 20))
    return content.getvalue()


def test_archives_return_exactly_their_entries() -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        content = archive_of(*ENTRIES.items(), ("assets/", b""), method=method)
        assert read_archive(content, title="it", writer="Keras") == ENTRIES
    assert read_archive(write_archive(ENTRIES), title="it", writer="Keras") == ENTRIES


def overlapping() -> bytes:
    """Return an archive with many names for the bytes of one entry of zeros."""
    content = bytearray(bomb(8 << 20))
    end = content.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", content, end + 16)[0]
    record = bytes(content[start:end])
    records = b"".join(
        record.replace(b"config.json", f"{number:011}".encode()) for number in range(200)
    )
    tail = bytearray(content[end:])
    struct.pack_into("<HHI", tail, 8, 200, 200, len(records))
    return bytes(content[:start]) + records + bytes(tail)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_archives_with_bombs_and_two_meanings_are_refused(subtests: pytest.Subtests) -> None:
    encrypted = bytearray(archive_of(("config.json", b"{}")))
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    attacks = {
        "zeros": bomb(160 << 20),
        "overlap": overlapping(),
        "two names": archive_of(("config.json", b"{}"), ("config.json", b"[]")),
        "parent": archive_of(("../config.json", b"{}")),
        "deep parent": archive_of(("assets/../../x", b"{}")),
        "root": archive_of(("/etc/passwd", b"")),
        "backslash": archive_of(("assets\\..\\x", b"")),
        "drive": archive_of(("C:x", b"")),
        "empty name": archive_of(("a//b", b"")),
        "bzip2": archive_of(("config.json", b"{}"), method=zipfile.ZIP_BZIP2),
        "lzma": archive_of(("config.json", b"{}"), method=zipfile.ZIP_LZMA),
        "encrypted": bytes(encrypted),
        "many": archive_of(*((str(number), b"") for number in range(100_001))),
        "empty": b"",
        "text": b"PK\x05\x06",
    }
    for name, content in attacks.items():
        with subtests.test(name):
            if name in ("zeros", "overlap"):
                tracemalloc.start()
            with pytest.raises(ModelDamaged, match="was not written by Keras"):
                read_archive(content, title="it", writer="Keras")
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
            tracemalloc.stop()


def test_archives_with_changed_bytes_are_read_or_damaged() -> None:
    content = archive_of(*ENTRIES.items(), method=zipfile.ZIP_DEFLATED)
    outcomes = set()
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        try:
            read_archive(bytes(changed), title="it", writer="Keras")
            outcomes.add("read")
        except ModelDamaged:
            outcomes.add("damaged")
    assert "damaged" in outcomes


def write_repeated(path: Path, texts: list[str], indices: list[int | None]) -> None:
    """Write a Parquet file with a dictionary of texts."""
    words = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(texts))
    parquet.write_table(
        pa.table({"k": range(len(indices)), "s": words}),
        path,
        compression="zstd",
        row_group_size=random.choice((len(indices), 700)),
        store_schema=False,
        dictionary_pagesize_limit=1 << 30,
    )


def test_batches_of_parquet_files_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole batches have at most twice the bound, unless one row has more."""
    bound = 64 << 10
    monkeypatch.setattr(parquet_sizes, "_BATCH_BYTES", bound)
    monkeypatch.setattr(parquet_sizes, "_SMALL_BYTES", 16)
    for _ in range(30):
        longest = random.choice((1, 50, 5000, 100_000))
        texts = ["x" * random.randint(0, longest) for _ in range(random.randint(1, 6))]
        places = [None, *range(len(texts))]
        indices = [None] * random.choice((0, 1000)) + random.choices(places, k=2000)
        write_repeated(tmp_path / "a.parquet", texts, indices)
        rows = parquet_sizes.find_batch_rows(str(tmp_path / "a.parquet"))
        for batch in parquet.ParquetFile(tmp_path / "a.parquet").iter_batches(rows, columns=["s"]):
            row_bytes = max(map(len, texts))
            assert batch.nbytes <= max(2 * bound, 2 * row_bytes) + 64 * batch.num_rows


# Print the rows that a source reads under a limit of memory.
READ = """
import resource, sys
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
snapshot = find_source("file")(SourceConfig("files", sys.argv[1])).snapshot()
rows = 0
for batch in snapshot.read(SourceQuery(path=None)):
    assert batch.column("s")[0].as_py() == "x" * (1 << 20)
    rows += batch.num_rows
print(rows)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory")
def test_a_small_parquet_file_of_many_gigabytes_is_read_in_little_memory(tmp_path: Path) -> None:
    """The file has 40 KB and unpacks to 4 GiB."""
    path = tmp_path / "a.parquet"
    write_repeated(path, ["x" * (1 << 20)], [0] * 4000)
    command = [sys.executable, "-c", READ, tmp_path.as_uri()]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    assert output.stdout.strip() == "4000", output.stderr[-2000:]

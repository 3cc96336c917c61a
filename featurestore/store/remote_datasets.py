"""Training datasets of a served store: manifests, rows and downloads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from featurestore.errors import TrainingDatasetNotFound
from featurestore.model.html import Listing
from featurestore.model.manifest import Manifest
from featurestore.model.names import check_name
from featurestore.model.statistics import Statistics
from featurestore.storage import files
from featurestore.storage.shardcache import write_checked
from featurestore.store.connected import StoreBase
from featurestore.store.remote_handles import RemoteFrame
from featurestore.store.remote_session import Recipe, client_of, record_as, unsupported
from featurestore.training import TrainingDataset
from featurestore.training.download import download
from featurestore.training.transformations import read_registered
from featurestore.training.verification.problems import Problem, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurestore.plugins.remote import Client
    from featurestore.transform.fitted import Transformations

_FOLDER = "/training-datasets"


@dataclass(frozen=True)
class RemoteTrainingDataset(TrainingDataset):
    """One version of a training dataset at a server; ``download`` brings its files."""

    client: Client = field(kw_only=True, repr=False, compare=False)

    @property
    def _address(self) -> str:
        return f"{_FOLDER}/{self.name}/{self.version}"

    @property
    def _record(self) -> Mapping[str, Any]:
        record: Mapping[str, Any] = self.client.get(self._address)
        return record

    @property
    def description(self) -> str:
        return str(self._record["description"])

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._record["tags"])

    @property
    def stale(self) -> bool | None:
        is_stale: bool | None = self._record["stale"]
        return is_stale

    def read(self, split: str) -> RemoteFrame:
        self.manifest.split(split)
        assert self.session is not None
        read = {"kind": "split", "name": self.name, "version": self.version, "split": split}
        return RemoteFrame.from_recipe(self.session, Recipe(self.client, read))

    def statistics(self, split: str) -> Statistics:
        name = self.manifest.split(split).name
        return Statistics.from_json(self.client.get(f"{self._address}/statistics/{name}"))

    def verify(self, *, recompute: bool = False) -> VerifyReport:
        if recompute:
            self._refuse("verify(recompute=True)", "verify()")
        report = self.client.post(f"{self._address}/verify")
        problems = tuple(record_as(Problem, each) for each in report["problems"])
        notes = tuple(report["notes"])
        return record_as(VerifyReport, {**report, "problems": problems, "notes": notes})

    @property
    def transformations(self) -> Transformations | None:
        noted = self.manifest.transformations
        if noted is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            content = self.client.pieces(f"{self._address}/files/{noted['path']}")
            write_checked(content, files.inside(folder, noted["path"]), sha256=noted["sha256"])
            return read_registered(folder, self.manifest)

    def download(self, path: str | os.PathLike[str]) -> TrainingDataset:
        def file_content(file: str) -> Iterator[bytes]:
            return self.client.pieces(f"{self._address}/files/{file}")

        return TrainingDataset(
            download(self.manifest, file_content, os.fspath(path)), self.manifest
        )

    # -- what needs the files ---------------------------------------------------------------------

    def path_of(self, split: str) -> NoReturn:
        self._refuse("path_of()", "download('folder').path_of(...)")

    def url_of(self, split: str) -> NoReturn:
        self._refuse("url_of()", "download('folder').url_of(...)")

    def matrix(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("matrix()", "download('folder').matrix(...)")

    def reader(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("reader()", "download('folder').reader(...)")

    def resume(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("resume()", "download('folder').resume(...)")

    def petastorm_reader(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("petastorm_reader()", "download('folder').petastorm_reader(...)")

    def diff(self, other: TrainingDataset) -> NoReturn:
        self._refuse("diff()", "download('folder').diff(other.download('other'))")

    def fit(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("fit()", "download('folder').fit(...)")

    def preprocessor(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("preprocessor()", "download('folder').preprocessor(...)")

    def keras_inputs(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("keras_inputs()", "download('folder').keras_inputs(...)")

    def drift(self) -> NoReturn:
        raise unsupported(self.client.address, "drift()", hint="dataset.stale")

    def _refuse(self, feature: str, instead: str) -> NoReturn:
        raise unsupported(self.client.address, feature, hint=f"dataset.{instead}")


class RemoteTrainingDatasetCalls(StoreBase):
    """The calls on training datasets of a served store."""

    def get_training_dataset(self, name: str, *, version: int | None = None) -> TrainingDataset:
        client = client_of(self._session)
        check_name(name, noun="training dataset")
        if version is None:
            version = int(client.get(f"{_FOLDER}/{name}")["version"])
        path = f"{_FOLDER}/{name}/{version}"
        manifest = Manifest.from_bytes(client.content(f"{path}/manifest"), path=path)
        return RemoteTrainingDataset(
            f"{client.address}/api/v1{path}", manifest, self._session, client=client
        )

    def get_training_datasets(
        self, *, limit: int | None = None, offset: int = 0
    ) -> list[TrainingDataset]:
        end = None if limit is None else offset + limit
        datasets: list[TrainingDataset] = []
        for line in client_of(self._session).items(_FOLDER)[offset:end]:
            datasets.append(self.get_training_dataset(line["name"], version=line["version"]))
        return Listing(datasets)

    def get_latest_training_dataset_version(self, name: str) -> int:
        try:
            return int(client_of(self._session).get(f"{_FOLDER}/{check_name(name)}")["version"])
        except TrainingDatasetNotFound:
            return 0

    def get_training_dataset_tags(self, name: str, *, version: int | None = None) -> dict[str, str]:
        return self.get_training_dataset(name, version=version).tags

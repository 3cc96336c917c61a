"""A connection to ``featurestore serve``: the supported methods, and training datasets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from featurestore import ingest
from featurestore.errors import FeatureGroupNotFound, InvalidReference, TrainingDatasetNotFound
from featurestore.featuregroups.discovery import Match
from featurestore.featuregroups.table import parse_requested_version
from featurestore.model.display import Listing
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.manifest import Manifest
from featurestore.model.names import check_name
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.statistics import Statistics
from featurestore.model.suggestions import missing_member_error
from featurestore.model.verification import GroupVerifyReport
from featurestore.model.window_features import WindowFeature, window_to_json
from featurestore.plugins.remote import open_client
from featurestore.retrieval import check_dataframe_type, convert
from featurestore.storage import storage_for
from featurestore.storage.shards import write_verified
from featurestore.store import remote_handles
from featurestore.store.connected import StoreBase
from featurestore.store.facade import FeatureStore
from featurestore.store.remote_calls import (
    RemoteErasureCalls,
    RemoteFeatureViewCalls,
    RemoteWriteCalls,
)
from featurestore.store.remote_handles import Recipe, RemoteFeatureGroup, RemoteFrame
from featurestore.training import TrainingDataset
from featurestore.training.download import download
from featurestore.training.metadata import DatasetMetadata
from featurestore.training.transformations import read_registered
from featurestore.training.verification import DatasetProblem, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurestore.featuregroups import FeatureGroup
    from featurestore.jobs.scheduler import Options
    from featurestore.model.featuregroup import Commit
    from featurestore.model.requests import RetrievalRequest
    from featurestore.plugins.remote import Client
    from featurestore.retrieval.conversions import DataframeType
    from featurestore.retrieval.frame import FeatureFrame
    from featurestore.training import TrainingDataset
    from featurestore.transform import Transformations

_FOLDER = "/training-datasets"
# The methods of local datasets that a served one lacks, with the expression that works instead.
_REFUSED = {
    **{
        name: f"download('folder').{name}(...)"
        for name in (
            "path_of",
            "url_of",
            "matrix",
            "reader",
            "resume",
            "petastorm_reader",
            "fit",
            "preprocessor",
            "keras_inputs",
        )
    },
    "diff": "download('folder').diff(other.download('other'))",
    "staleness": "stale",
    "drift": "stale",
}


@dataclass(frozen=True)
class RemoteTrainingDataset(DatasetMetadata):
    """A version of a training dataset on a server; ``download`` copies its files."""

    client: Client = field(kw_only=True, repr=False, compare=False)

    @property
    def _address(self) -> str:
        return f"{_FOLDER}/{self.name}/{self.version}"

    @property
    def _record(self) -> JsonMapping:
        record: JsonMapping = self.client.get(self._address)
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
        problems = tuple(
            remote_handles.parse_record(DatasetProblem, problem) for problem in report["problems"]
        )
        notes = tuple(report["notes"])
        return remote_handles.parse_record(
            VerifyReport, {**report, "problems": problems, "notes": notes}
        )

    @property
    def transformations(self) -> Transformations | None:
        file_entry = self.manifest.transformations
        if file_entry is None:
            return None
        # The file is verified against the manifest and read like a file of a local dataset.
        with tempfile.TemporaryDirectory() as folder:
            content = self.client.file_chunks(f"{self._address}/files/{file_entry['path']}")
            write_verified(
                content,
                storage_for(folder).resolve_inside(folder, file_entry["path"]),
                sha256=file_entry["sha256"],
            )
            return read_registered(folder, self.manifest)

    def download(self, path: str | os.PathLike[str]) -> TrainingDataset:
        def file_content(file: str) -> Iterator[bytes]:
            return self.client.file_chunks(f"{self._address}/files/{file}")

        return TrainingDataset(
            download(self.manifest, file_content, os.fspath(path)), self.manifest
        )

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            """Return a function that refuses a method of local datasets, which needs the files."""
            if name not in _REFUSED:
                raise missing_member_error(self, name, "dataset.read(split)")
            return lambda *_, **__: self._refuse(f"{name}()", _REFUSED[name])

    def _refuse(self, feature: str, instead: str) -> NoReturn:
        raise remote_handles.unsupported_error(
            self.client.address, feature, hint=f"dataset.{instead}"
        )


class RemoteTrainingDatasetCalls(StoreBase):
    """Methods for training datasets in a served store."""

    def get_training_dataset(self, name: str, *, version: int | None = None) -> TrainingDataset:
        client = remote_handles.client_of(self._session)
        check_name(name, noun="training dataset")
        if version is None:
            version = int(client.get(f"{_FOLDER}/{name}")["version"])
        path = f"{_FOLDER}/{name}/{version}"
        manifest = Manifest.from_bytes(client.content(f"{path}/manifest"), path=path)
        dataset = RemoteTrainingDataset(
            f"{client.address}/api/v1{path}", manifest, self._session, client=client
        )
        # It has the methods of a dataset that need no files.
        return cast(TrainingDataset, dataset)

    def get_training_datasets(
        self, *, limit: int | None = None, offset: int = 0
    ) -> list[TrainingDataset]:
        end = None if limit is None else offset + limit
        datasets: list[TrainingDataset] = [
            self.get_training_dataset(line["name"], version=line["version"])
            for line in remote_handles.client_of(self._session).items(_FOLDER)[offset:end]
        ]
        return Listing(datasets)

    def get_latest_training_dataset_version(self, name: str) -> int:
        try:
            return int(
                remote_handles.client_of(self._session).get(f"{_FOLDER}/{check_name(name)}")[
                    "version"
                ]
            )
        except TrainingDatasetNotFound:
            return 0

    def get_training_dataset_tags(self, name: str, *, version: int | None = None) -> dict[str, str]:
        return self.get_training_dataset(name, version=version).tags


class RemoteFeatureStore(
    RemoteTrainingDatasetCalls,
    RemoteFeatureViewCalls,
    RemoteWriteCalls,
    RemoteErasureCalls,
    FeatureStore,
):
    """A connection to a served store; calls that need its files raise UnsupportedRemotely."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        self._client = open_client(address.rstrip("/"), token=token)
        super().__init__(remote_handles.remote_session(self._client))
        self._client.get("/store")  # an invalid token is refused now instead of at the first call

    # -- groups -----------------------------------------------------------------------------------

    def featuregroup(self, name: str, *, version: int | None = None) -> FeatureGroup:
        name, number = parse_requested_version(name, version)
        path = f"/featuregroups/{check_name(name)}"
        if number is not None:
            path += f"/{number}"
        record = self._client.get(path)
        return self._group(record["name"], record["version"])

    def get_featuregroups(self, *, limit: int | None = None, offset: int = 0) -> list[FeatureGroup]:
        end = None if limit is None else offset + limit
        groups: list[FeatureGroup] = []
        for line in self._client.items("/featuregroups"):
            if end is not None and len(groups) >= end:
                break
            # The server lists only the latest version of each group.
            versions = [line["version"]]
            if line["version"] > 1:
                versions = self._client.get(f"/featuregroups/{line['name']}")["versions"]
            for version in sorted(versions):
                groups.append(self._group(line["name"], version))
        return groups[offset:end]

    def get_featuregroup(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | str | int | None = None,
        dataframe_type: DataframeType | None = None,
        verify: Literal["sample", "all"] | None = None,
    ) -> Any:
        check_dataframe_type(dataframe_type)
        self._refuse_verified(verify)
        frame = self.featuregroup(name, version=version).read(as_of=as_of)
        return convert(frame, dataframe_type)

    def get_latest_featuregroup_version(self, name: str) -> int:
        try:
            return int(self._client.get(f"/featuregroups/{check_name(name)}")["version"])
        except FeatureGroupNotFound:
            return 0

    def get_featuregroup_history(
        self, name: str, *, version: int | None = None, limit: int = 100, before: int | None = None
    ) -> list[Commit]:
        return self.featuregroup(name, version=version).history(limit=limit, before=before)

    def verify_featuregroup(
        self, name: str, *, version: int | None = None, sample: int | None = None
    ) -> GroupVerifyReport:
        group = self.featuregroup(name, version=version)
        path = f"/featuregroups/{group.name}/{group.version}/verify"
        return GroupVerifyReport.from_json(self._client.post(path, sample=sample))

    def get_featuregroup_tags(self, name: str, *, version: int | None = None) -> dict[str, str]:
        return self.featuregroup(name, version=version).tags

    def get_featuregroup_statistics(
        self,
        name: str,
        *,
        version: int | None = None,
        delta_version: int | datetime | str | None = None,
    ) -> Statistics:
        return self.featuregroup(name, version=version).statistics(delta_version=delta_version)

    def get_features_list(self) -> list[str]:
        columns = self._client.items("/features")
        # Keys and times are columns, but not features.
        return [column["reference"] for column in columns if column["role"] == "feature"]

    def search(self, text: str, *, limit: int | None = None) -> list[Match]:
        page = self._client.get("/matches", q=text, limit=limit)
        return [remote_handles.parse_record(Match, match) for match in page["items"]]

    # -- features ---------------------------------------------------------------------------------

    def _retrieve(self, request: RetrievalRequest, *, verify: str | None) -> FeatureFrame:
        self._refuse_verified(verify)
        read: JsonDict = {
            "kind": "features",
            "features": _references_to_json(request.features),
            "label_time": remote_handles.times_to_strings(request.label_time, "label_time"),
            "versions": None if request.versions is None else dict(request.versions),
            "join_key": _to_json(request.join_key),
            "join": request.join,
            "as_of": remote_handles.times_to_strings(request.as_of, "as_of"),
            "include_keys": request.include_keys,
            "created_time_filter": request.created_time_filter,
        }
        labels, uploaded_labels = request.labels, None
        if isinstance(labels, str):
            read["labels"] = labels
        elif labels is not None:
            read["uploaded"] = True
            # Each read of the frame sends the labels again, so a stream must be collected.
            uploaded_labels = ingest.to_reader(labels).read_all()
        return RemoteFrame.from_recipe(self._session, Recipe(self._client, read, uploaded_labels))

    def _refuse_verified(self, verify: str | None) -> None:
        if verify is not None:
            hint = "store.verify_featuregroup(name) checks the files on the server"
            raise remote_handles.unsupported_error(self.location, f"verify={verify!r}", hint=hint)

    def scheduler(self, options: Options | None = None) -> NoReturn:
        raise remote_handles.unsupported_error(self.location, "A scheduler")

    def transform(
        self, frame: object, dataset: TrainingDataset | Transformations | str
    ) -> NoReturn:
        hint = "store.get_training_dataset(name).transformations.apply(batch), here"
        raise remote_handles.unsupported_error(
            self.location, "A lazily transformed frame", hint=hint
        )

    def _group(self, name: str, version: int) -> FeatureGroup:
        return RemoteFeatureGroup(self._session, self._client, name, version)


def _references_to_json(features: object) -> list[str | JsonDict]:
    """Convert references to strings, and aggregates and on-demand features to JSON objects."""
    items = [features]
    if isinstance(features, Sequence) and not isinstance(features, str):
        items = list(features)
    references: list[str | JsonDict] = []
    for feature in items:
        if isinstance(feature, WindowFeature):
            references.append({"window": window_to_json(feature)})
        elif isinstance(feature, OnDemandFeature):
            references.append({"on_demand": {"name": feature.name, "sql": feature.sql}})
        elif isinstance(feature, str):
            references.append(feature)
        else:
            raise InvalidReference(
                f"{feature!r} is not a feature.", hint="get_features(['group.feature', ...])"
            )
    return references


def _to_json(value: Any) -> Any:
    """Convert names, lists and mappings to JSON values."""
    if isinstance(value, Mapping):
        return {str(name): _to_json(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(map(_to_json, value))
    return value

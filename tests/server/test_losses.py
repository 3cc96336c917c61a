"""Pages and responses name the objects of a location that its registry lacks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureGroupNotFound, RegistryWarning
from featurestore.plugins.remote import NOTICE
from featurestore.server.access import changes
from tests.server.private_groups import ROOT, client_of, token_of
from tests.server.test_remote_client import served

PAGES = ("/", "/groups", "/datasets", "/search?q=visits", "/lineage")
LISTS = ("/featuregroups", "/training-datasets", "/search?q=visits")


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A store whose registry lacks a private group and a dataset that exist."""
    location = tmp_path / "störe"
    rows = pa.table({"x": [1, 2]})
    with featurestore.connect(location, progress=False) as store:
        for name in ("visits", "salaries"):
            group = store.create_featuregroup(rows, name)
            store.create_training_dataset(group.read(), f"of_{name}")
        changes.add_user(store.session, ROOT, "ann", role="admin")
        changes.add_user(store.session, ROOT, "rea", role="reader")
        changes.set_private(store.session, ROOT, "salaries", True)
    with closing(sqlite3.connect(location / "registry.db")) as connection:
        connection.executescript(
            "delete from features; delete from featuregroups where name = 'salaries'; "
            "delete from training_dataset_pins; "
            "delete from training_datasets where name = 'of_salaries'"
        )
    return location


def test_pages_and_lists_name_lost_objects(location: Path) -> None:
    with pytest.warns(RegistryWarning):
        store = featurestore.connect(location)
    with store, client_of(store) as client:
        admin, reader = token_of(store, "ann"), token_of(store, "rea")
        for address in PAGES:
            page = client.get(address, headers=admin).text
            assert "featuregroup salaries@v1" in page, address
            assert "training dataset of_salaries@v1" in page, address
            assert "registry rebuild" in page, address
            page = client.get(address, headers=reader).text
            assert "The registry lacks objects of this store" in page, address
            assert "salaries" not in page, address
        for path in LISTS:
            response = client.get(f"/api/v1{path}", headers=admin)
            assert "featuregroup salaries@v1" in unquote(response.headers[NOTICE]), path
            response = client.get(f"/api/v1{path}", headers=reader)
            assert unquote(response.headers[NOTICE]).startswith("The registry lacks objects")
            assert "salaries" not in response.text + str(response.headers), path
        response = client.get("/api/v1/featuregroups/salaries", headers=admin)
        assert (response.status_code, "registry rebuild" in response.text) == (404, True)
        response = client.get("/api/v1/featuregroups/salaries", headers=reader)
        assert response.json()["detail"].startswith("Unknown feature group 'salaries'")
        assert "lacks" not in client.get("/sign-in").text


def test_clients_warn_once_of_lost_objects(location: Path) -> None:
    with pytest.warns(RegistryWarning):
        store = featurestore.connect(location)
    with store, served(store) as address:
        token, _ = changes.make_token(store.session, ROOT, "ann")
        with pytest.warns(RegistryWarning, match=r"salaries@v1.* in .*störe"):
            remote = featurestore.connect(address, token=token)
        with remote:
            # A second warning would be an error.
            assert [group.name for group in remote.get_featuregroups()] == ["visits"]
            with pytest.raises(FeatureGroupNotFound, match="registry rebuild"):
                remote.get_featuregroup("salaries")

"""Files and directories of stores, on this machine or at a URI.

All files are opened through a ``Storage``, which ``storage_for`` chooses from the path: ``local`` for
paths of this machine, ``remote`` for URIs. ``files`` has the calls by path, ``location`` parses URIs,
and ``connections`` opens their buckets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.storage.local import LocalStorage
from featurestore.storage.location import is_uri
from featurestore.storage.remote import RemoteStorage

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

LOCAL = LocalStorage()
REMOTE = RemoteStorage()


def storage_for(path: str) -> Storage:
    """Return the storage of the files of a path.

    >>> storage_for("/data/store").is_local, storage_for("s3://models/features").is_local
    (True, False)
    """
    return REMOTE if is_uri(path) else LOCAL

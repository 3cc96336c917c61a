"""Access to the files of a store, on local disks or at a URI.

All files are opened through a ``Storage``, which ``storage_for`` selects by the path: ``local`` for
local paths, ``remote`` for URIs. ``files`` contains functions that take a path, ``location`` parses
URIs, and ``connections`` connects to their buckets.
"""

from featurestore.storage.files import storage_for

__all__ = ["storage_for"]

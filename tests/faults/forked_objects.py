"""Use a store in a bucket in a forked child, and then in the parent; write the outcomes as JSON.

``python forked_objects.py URI REGISTRY``; the options of the bucket are in ``FORKED_OPTIONS``.
"""

from __future__ import annotations

import json
import os
import sys

import featurestore
from featurestore.errors import FeatureStoreError
from tests.faults.forked_calls import wait_for_child
from tests.flights import planes


def main(location: str, registry: str) -> None:
    """Count the rows of a group in both processes."""
    options = json.loads(os.environ["FORKED_OPTIONS"])
    with featurestore.connect(location, registry=registry, storage_options=options) as store:
        store.create_featuregroup(planes(), "planes", primary_key="tailnum")

        def count() -> str:
            try:
                return str(store.get_featuregroup("planes").count())
            except FeatureStoreError as error:
                return type(error).__name__

        outcome = wait_for_child(count, exits=False)
        print(json.dumps({"child": outcome, "parent": store.get_featuregroup("planes").count()}))


if __name__ == "__main__":
    main(*sys.argv[1:])

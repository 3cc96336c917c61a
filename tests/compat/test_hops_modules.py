"""The modules beside ``hops.featurestore`` can be imported, and their calls say what to use."""

from __future__ import annotations

import importlib

import pytest

from featurestore.compat import hops
from featurestore.errors import InvalidArgument

NAMES = {
    "experiment": "experiments.launch",
    "tensorboard": "context.log_dir",
    "hdfs": "connect('hdfs://",
    "serving": "store.score",
    "model": "experiments.register_model",
    "kafka": "stream_job",
}


@pytest.mark.parametrize(("name", "instead"), NAMES.items())
def test_calls_of_other_modules_name_what_replaces_them(name: str, instead: str) -> None:
    module = getattr(importlib.import_module("featurestore.compat.hops"), name)
    for call in (module, module.launch, module.anything):
        with pytest.raises(InvalidArgument) as refused:
            call("argument", key=1)
        assert instead in str(refused.value.hint)
    assert not hasattr(module, "__path__")


def test_unknown_names_of_hops_are_attribute_errors() -> None:
    with pytest.raises(AttributeError):
        _ = hops.nothing_of_the_kind

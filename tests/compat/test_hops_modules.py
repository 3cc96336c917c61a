"""The modules next to ``hops.featurestore`` can be imported, and their calls name the replacement."""

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
def test_hops_module_calls_raise_with_replacement(name: str, instead: str) -> None:
    module = getattr(importlib.import_module("featurestore.compat.hops"), name)
    for call in (module, module.launch, module.anything):
        with pytest.raises(InvalidArgument) as refused:
            call("argument", key=1)
        assert instead in str(refused.value.hint)
    assert not hasattr(module, "__path__")


def test_hops_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = hops.nothing_of_the_kind

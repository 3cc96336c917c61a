"""The pip command for a missing module names an extra or a distribution that has the module."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from featurestore.model.distributions import DISTRIBUTIONS, EXTRAS, install_command

INSTALLED = packages_distributions()
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OWN_EXTRAS = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(module: str) -> set[str]:
    # The distributions of the tests have no libraries for GPUs.
    return {normalize(name).removesuffix("-cpu") for name in INSTALLED[module]}


def test_extra_of_module_installs_its_distribution(subtests: pytest.Subtests) -> None:
    for module in sorted(EXTRAS.keys() & INSTALLED.keys()):
        with subtests.test(module):
            requirements = OWN_EXTRAS[EXTRAS[module]]
            names = {
                normalize(re.split(r"[\[<>=]", requirement)[0]) for requirement in requirements
            }
            assert distributions(module) & names


def test_distribution_of_module_is_the_installed_one(subtests: pytest.Subtests) -> None:
    for module in sorted(DISTRIBUTIONS.keys() & INSTALLED.keys()):
        with subtests.test(module):
            assert normalize(DISTRIBUTIONS[module]) in distributions(module)


def test_install_command_without_known_distribution_is_none() -> None:
    assert install_command("google") is None
    assert install_command("our_helpers.days") is None
    assert install_command("google.cloud.storage") == "pip install google-cloud-storage"

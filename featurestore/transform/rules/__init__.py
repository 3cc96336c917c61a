"""The rules of transformations, by name."""

from __future__ import annotations

from featurestore.transform.rules.codes import (
    Bins,
    HashBucket,
    OneHot,
    QuantileBins,
    TextTokens,
    Vocabulary,
)
from featurestore.transform.rules.functions import Function
from featurestore.transform.rules.numbers import (
    Cast,
    Clip,
    Cyclical,
    Impute,
    Log1p,
    MinMax,
    Robust,
    Standardize,
)
from featurestore.transform.rules.rule import Rule
from featurestore.transform.rules.shapes import DecodeAudio, DecodeImage, Pad

__all__ = ["RULES", "Rule"]

_ALL: tuple[Rule, ...] = (
    Standardize(),
    MinMax(),
    Robust(),
    Log1p(),
    Clip(),
    Cyclical(),
    Cast(),
    Impute(),
    Bins(),
    QuantileBins(),
    Vocabulary(),
    HashBucket(),
    OneHot(),
    TextTokens(),
    DecodeImage(),
    DecodeAudio(),
    Pad(),
    Function(),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}

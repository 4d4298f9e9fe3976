"""Configs of well-known models, for `shape:NAME`: the same sizes with random weights, no download."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.models.shapes.base import Config
from headrace.models.shapes.dense import DENSE
from headrace.models.shapes.mixtures import MIXTURES
from headrace.models.shapes.recurrent import RECURRENT

__all__ = ["SHAPES", "Config"]

SHAPES: Mapping[str, Config] = MappingProxyType({**DENSE, **MIXTURES, **RECURRENT})

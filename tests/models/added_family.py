"""A family from outside of the package: what a new one takes. Nemotron (Adler et al. 2024)."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.config_reader import ConfigReader
from headrace.models.families import Family
from headrace.models.families.reading import decoder, read_attention, read_layer_count, read_mlp, stacked
from headrace.models.names import HF_NAMES
from headrace.models.spec import ModelSpec, NormSpec


def read_nemotron(config: ConfigReader) -> ModelSpec:
    """LayerNorm whose weights are stored less one, half of each head rotated, and a squared ReLU without gate."""
    mixer, longest = read_attention(config, rotated=0.5)
    norm = NormSpec(config.number("norm_eps", 1e-30, 1.0, 1e-5), "layer", bias=True, offset=1.0)
    mlp = read_mlp(config, activation="relu2", gated=False)
    return decoder(config, "nemotron", stacked([mixer] * read_layer_count(config), mlp), norm, longest)


NEMOTRON = Family("nemotron", read_nemotron, replace(HF_NAMES, gate=""))

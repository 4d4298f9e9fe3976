"""A model to plan for: its spec and its program, from its config. No weight is read, and nothing large is fetched."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

from headrace.errors import ModelNotFound
from headrace.models.families import read_spec, weight_names
from headrace.models.hub.fetch import locate
from headrace.models.hub.reference import parse_reference
from headrace.models.quantized.methods import quantization_of, read_method
from headrace.models.safetensors_reader import FilesMissing
from headrace.models.source import ModelSource, is_at_hand, resolve_model
from headrace.models.spec import ModelSpec
from headrace.models.stored import open_source, stored_spec
from headrace.plan.weights import parameter_count
from headrace.program.lower import lower
from headrace.program.records import Program, WeightRef


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """`program` is lowered with every row computed, as `sim.work` counts; `native` as the CPU kernels run it. source:
    where it comes from, None of a spec alone. unsized: the method whose codes the files hold, where these are not here:
    the spec has floats in their place; "" for all others."""

    name: str
    spec: ModelSpec
    program: Program
    native: Program
    source: ModelSource | None = field(default=None, repr=False, compare=False)
    unsized: str = ""

    @property
    def parameters(self) -> int:
        return _parameters(self.program)

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: of a mixture, its experts of one token."""
        top_k = {op.weights[0].name: op.attributes.top_k for op in self.program.of_kind("experts")}
        return sum(_active(weight, top_k.get(weight.name)) for weight in self.program.weights)


@functools.lru_cache(maxsize=64)
def _parameters(program: Program) -> int:
    return parameter_count(program)


def _active(weight: WeightRef, top_k: int | None) -> int:
    if weight.experts is None or top_k is None:
        return weight.elements
    return weight.elements // weight.experts * top_k


def open_model(name: str) -> PlannedModel:
    """The model with that name: bundled, a folder, a GGUF file, `shape:NAME` or a hub id.

    Of a hub id only the config is fetched, where it is not in the cache. Raises ModelError where there is none, or its
    family or the method that it was quantised with is not implemented.
    """
    source, unsized = _source(name), ""
    try:
        source = open_source(source)
        spec = stored_spec(source)
    except FilesMissing:  # of the config alone
        spec = read_spec(source.config, source.generation_config)
        named = quantization_of(source.config, source.path)
        unsized = "" if named is None else read_method(*named).name
    return replace(from_spec(name, spec, source), unsized=unsized)


def from_spec(name: str, spec: ModelSpec, source: ModelSource | None = None) -> PlannedModel:
    """The model of a spec that is at hand."""
    names = weight_names(spec)
    return PlannedModel(name, spec, lower(spec, names, narrow=False), lower(spec, names), source)


def _source(name: str) -> ModelSource:
    if is_at_hand(name):
        return resolve_model(name)
    reference = parse_reference(name)
    assert reference is not None  # or it would be at hand, or unknown
    if reference.tag is not None:
        raise ModelNotFound(
            f"{name} names one GGUF file, whose header says what it is: run `headrace pull {name}` and give the path "
            f"of the file, or plan for {reference.repository} with --formats"
        )
    return resolve_model(str(locate(reference, weights=False)))

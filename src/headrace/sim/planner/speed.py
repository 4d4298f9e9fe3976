"""How fast one copy of a model runs: prefill and decode by batch, TTFT and TPOT under a load, the roofline's bend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.plan.hardware import Hardware
from headrace.plan.hardware_table import THIS
from headrace.program.work import operations_per_pair, operations_per_row, touched
from headrace.sim.cost import CostModel
from headrace.sim.planner.memory import Footprint
from headrace.sim.profile import Profile
from headrace.sim.work import ModelWork, SliceShape, visible

MOST_BEND = 1 << 20
PROMPT, OUTPUT = 1024, 256
"""Tokens of a usual request."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What requests look like: tokens of the prompt and of the answer, and the share of the prompt that the prefix
    cache holds already."""

    prompt: int = PROMPT
    output: int = OUTPUT
    prefix_hit: float = 0.0

    @classmethod
    def within(
        cls, longest: int, prompt: int | None = None, output: int | None = None, prefix_hit: float = 0.0
    ) -> Traffic:
        """The sizes that are given; one that is None is as usual, or what a context of `longest` tokens leaves: three
        parts in four for the prompt."""
        if prompt is None:
            prompt = min(PROMPT, max(1, longest - output if output else longest * 3 // 4))
        return cls(prompt, min(OUTPUT, max(1, longest - prompt)) if output is None else output, prefix_hit)

    @property
    def context(self) -> int:
        """Tokens of a whole sequence."""
        return self.prompt + self.output

    @property
    def cached(self) -> int:
        """Tokens of the prompt that are not computed; the last one always is."""
        return min(self.prompt - 1, int(self.prompt * self.prefix_hit))

    @property
    def mean_context(self) -> int:
        """Tokens that a decoding sequence holds on average."""
        return self.prompt + self.output // 2


@dataclass(frozen=True, slots=True)
class Point:
    """One copy of the model with `batch` sequences in flight all the time. Times in seconds, means.

    decode_s: a step that decodes every sequence. prefill_s: one prompt alone. tpot_s: with prompts of others between
    the steps. ttft_s: with the wait for prompts that came before, where requests come at random. prefill_share: of the
    devices' time.
    """

    batch: int
    decode_s: float
    prefill_s: float
    tpot_s: float
    ttft_s: float
    requests_per_s: float
    output_per_s: float
    prefill_share: float


class Speed:
    """Prices one copy of a model on its devices."""

    def __init__(self, footprint: Footprint, costs: CostModel) -> None:
        """costs: of the same model, format and tensor parallel degree."""
        self.footprint, self.costs, self.profile = footprint, costs, costs.profile

    def decode_s(self, batch: int, context: int) -> float:
        """One step that decodes `batch` sequences of `context` tokens, as far as they have not evicted them."""
        return self.costs.decoding_s(batch, float(batch * (self.footprint.held(context) + 1)))

    def prefill_s(self, tokens: int, start: int = 0) -> float:
        """A prompt of one request alone, in the engine's chunks, and evicting what does not stay of it."""
        return self.costs.prefill_s(tokens, start, self.footprint.chunk) + self._evicting_s(start + tokens)

    def _evicting_s(self, keys: int) -> float:
        """Evicting tokens of one sequence that holds so many."""
        eviction = self.footprint.eviction
        if eviction is None or keys <= eviction.budget:
            return 0.0
        return self.costs.evicting_s(eviction.window, keys, eviction.budget)

    def point(self, batch: int, traffic: Traffic) -> Point:
        """The steady state with `batch` sequences in flight.

        A sequence takes `output` steps, so `batch / output` prompts are computed for each step. A pipeline of n stages
        works on n batches at once, each a part of the sequences, and a token passes all stages. TTFT is that of an
        M/D/1 queue of prompts, after the running step; `headrace simulate` gives distributions.
        """
        stages = self.footprint.placement.pp
        part = -(-batch // stages)
        decode = self.decode_s(part, traffic.mean_context)
        prefill = self.prefill_s(traffic.prompt - traffic.cached, traffic.cached)
        # Stages work at the same time, so that every sequence gets a token in the time of the largest part.
        if (eviction := self.footprint.eviction) is not None and traffic.context > eviction.budget:
            decode += part * self._evicting_s(eviction.most_tokens) / eviction.interval
        tpot = decode + part * prefill / traffic.output
        rate = batch / (tpot * traffic.output)
        share = rate * prefill / stages
        busy = min(0.99, share)
        first = prefill * (1 + busy / (2 * (1 - busy))) + decode
        return Point(batch, decode, prefill, tpot, first, rate, rate * traffic.output, share)

    def bend(self, context: int) -> int | None:
        """The batch from which a decode step is bound by compute, at the full rates of the profile; None: KV is read
        faster than it is multiplied at no batch."""
        if not self._compute_bound(MOST_BEND, context):
            return None
        low, high = 1, MOST_BEND
        while low < high:
            middle = (low + high) // 2
            if self._compute_bound(middle, context):
                high = middle
            else:
                low = middle + 1
        return low

    def _compute_bound(self, batch: int, context: int) -> bool:
        work, profile = self.costs.work, self.profile
        idle = sum(size * (1 - touched(count, top_k, batch)) for size, count, top_k in work.experts)
        kv, pairs = self._attention(context)
        memory = (work.layer_bytes + work.head_bytes - idle + batch * kv) / profile.bandwidth()
        products = sum(count / profile.peak(name) for name, count in self._products.items())
        return batch * (products + pairs / profile.peak(work.attention_product)) >= memory

    def _attention(self, context: int) -> tuple[float, float]:
        """(bytes, operations) of one sequence's attention in a decode step."""
        work, context = self.costs.work, self.footprint.held(context)
        attention = {op.attributes.cache: op for op in work.program.of_kind("attention")}
        part = SliceShape(1, context, 1)
        read, operations = 0.0, 0.0
        for layout, token_bytes in work.groups:
            if layout.state is not None:
                read += 8.0 * layout.slot_elements
                continue
            pairs, keys = visible(part, layout)
            read += keys * token_bytes
            operations += pairs * sum(operations_per_pair(attention[layer]) for layer in layout.layers)
        return read, operations

    @cached_property
    def _products(self) -> dict[str, float]:
        """Operations of one token's products, by type."""
        work = self.costs.work
        found: dict[str, float] = {}
        for op in work.program.ops:
            if count := operations_per_row(op):
                found[work.product(op)] = found.get(work.product(op), 0.0) + count
        return found


class Speeds:
    """Speeds of footprints, which share the cost models of equal work.

    profile: of "this" machine, where it was measured; None: of its data sheet, as of all others.
    """

    def __init__(self, profile: Profile | None = None) -> None:
        self._profile = profile
        self._profiles: dict[str, Profile] = {}
        self._costs: dict[tuple[str, str, str, str, int], CostModel] = {}
        self._works: dict[tuple[str, str, str, str], ModelWork] = {}

    def of(self, footprint: Footprint) -> Speed:
        """The speed of a footprint."""
        stored, hardware = footprint.stored, footprint.hardware
        key = (stored.model.name, hardware.name, stored.format, stored.kv)
        priced = (*key, footprint.placement.tp)
        if priced not in self._costs:
            if key not in self._works:
                self._works[key] = stored.work()
            self._costs[priced] = CostModel(
                self._works[key], self.profile_of(hardware), tp=footprint.placement.tp
            )
        return Speed(footprint, self._costs[priced])

    def profile_of(self, hardware: Hardware) -> Profile:
        """Measured, or of the data sheet."""
        if hardware.name == THIS and self._profile is not None:
            return self._profile
        if hardware.name not in self._profiles:
            self._profiles[hardware.name] = Profile.of_hardware(hardware)
        return self._profiles[hardware.name]

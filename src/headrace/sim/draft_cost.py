"""The time of drafting: what a model, layers or heads that draft add to the steps of the model that they draft for.

Tokens are drafted between two steps. A drafter first reads what the model has read since, and drafts a token of each
sequence with that; each further token is one more step of the drafter. Looking tokens up (n-grams, the history) takes
no time here: it reads no weight, and some microseconds a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.plan.drafts import DraftHeads, DraftModel
from headrace.sim.cost import FLOAT_BYTES, CostModel
from headrace.sim.profile import CPU_STEP, Profile, StepCost
from headrace.sim.work import CPU_PRODUCTS, ModelWork, SliceShape, StepShape, work_in

MODEL_SHARE, LAYERS_SHARE, HEAD_SHARE = 0.85, 2.2, 0.8
"""What a step of a drafter takes beside its ops, as shares of what the engine adds to a step of the model: arrays are
filled and tokens drawn, layers handle states and choices besides, and no scheduler runs. Measured with `tale` and its
drafters at batches of 1 and 8, chains of 4, on an AMD EPYC (Zen 4) with 2 cores."""


@dataclass(frozen=True, slots=True)
class DraftWork:
    """What is drafted after one step. reads: the tokens that the drafter reads, a part a sequence or several; those
    with `logits` draft the first token. rounds: (sequences, keys that they hold together) of each further token."""

    reads: tuple[StepShape, ...] = ()
    rounds: tuple[tuple[int, int], ...] = ()

    @property
    def drafted(self) -> int:
        """Tokens of all sequences together."""
        first = sum(part.logits for shape in self.reads for part in shape)
        return first + sum(count for count, _ in self.rounds)


class DraftCost(Protocol):
    """Prices drafting."""

    @property
    def name(self) -> str:
        """What drafts."""
        ...

    def seconds(self, work: DraftWork) -> float:
        """The time of what is drafted after one step."""
        ...


class ModelDrafts:
    """A model that drafts. model: prices its steps."""

    def __init__(self, name: str, model: CostModel) -> None:
        self.name, self._model = name, model

    def seconds(self, work: DraftWork) -> float:
        reads = sum(self._model.step_s(shape) for shape in work.reads)
        return reads + sum(self._model.decoding_s(count, keys) for count, keys in work.rounds)


class LayerDrafts:
    """Layers on the model's states, which end in the model's head. layers: prices their steps; target: the model's."""

    def __init__(self, name: str, layers: CostModel, target: CostModel) -> None:
        self.name, self._layers, self._target = name, layers, target

    def seconds(self, work: DraftWork) -> float:
        total = 0.0
        for shape in work.reads:
            total += self._layers.step_s(shape) + self._target.head_s(sum(part.logits for part in shape))
        for count, keys in work.rounds:
            total += self._layers.decoding_s(count, keys) + self._target.head_s(count)
        return total


class HeadDrafts:
    """Heads on the model's last state, which read no token and have no KV: products of floats, and the model's head for
    those that have none of their own, in one product for all of them."""

    def __init__(self, heads: DraftHeads, target: CostModel) -> None:
        self.name, self._heads, self._target = heads.name, heads, target
        self._step = _step_cost(target.profile, HEAD_SHARE)

    def seconds(self, work: DraftWork) -> float:
        first = sum(part.logits for shape in work.reads for part in shape)
        batches = [first, *(count for count, _ in work.rounds)] if first else []
        if not batches or not self._heads.count:
            return 0.0
        target, profile, size = self._target, self._target.profile, self._heads.bytes / self._heads.count
        working_set = target.weight_bytes + self._heads.bytes
        memory = size / (profile.bandwidth(working_set) * profile.reach.memory)
        compute = 2.0 * size / FLOAT_BYTES / (profile.peak("f32") * profile.reach.products)
        own = sum(max(memory, count * compute) + self._step(count, count, working_set) for count in batches)
        return own + target.head_s(sum(batches[: self._heads.shared])) + sum(map(target.draw_s, batches))


def make_draft_cost(
    draft: DraftModel | None,
    heads: DraftHeads | None,
    target: CostModel,
    products: Mapping[str, str] = CPU_PRODUCTS,
) -> DraftCost | None:
    """Prices what drafts for `target` under an engine's plan; None where tokens are looked up, or nothing drafts.

    products: as `work_in` takes it."""
    if heads is not None:
        return HeadDrafts(heads, target)
    if draft is None:
        return None
    return price_drafter(draft.name, work_in(draft.spec, draft.memory, products, draft.layers), target)


def price_drafter(name: str, work: ModelWork, target: CostModel) -> DraftCost:
    """Prices a model or layers that draft for `target`, on the same devices."""
    share = MODEL_SHARE if work.layers is None else LAYERS_SHARE
    model = CostModel(work, target.profile, tp=target.tp, step=_step_cost(target.profile, share))
    return ModelDrafts(name, model) if work.layers is None else LayerDrafts(name, model, target)


def steady_work(batch: int, context: int, drafts: int) -> DraftWork:
    """Of sequences that all decode, with `context` tokens each, and get `drafts` drafts: the drafter reads the token
    that was drawn, and drafts one after the other."""
    read = (SliceShape(1, context, 1),) * batch
    return DraftWork((read,), tuple((batch, batch * (context + at + 1)) for at in range(1, drafts)))


class PayingLength:
    """How many tokens to draft for each of the sequences that decode: as many as give the most tokens a second. The
    engine settles there when it has measured what drafts cost and how often they are right.

    acceptance: the share of drafted tokens that are right, each given that those before it are; most: tokens of a
    draft; drafts: None costs nothing."""

    def __init__(self, target: CostModel, drafts: DraftCost | None, acceptance: float, most: int) -> None:
        self._target, self._drafts, self._most = target, drafts, most
        self._expected = [sum(acceptance**depth for depth in range(length + 1)) for length in range(most + 1)]
        self._lengths: dict[tuple[int, int], int] = {}  # by batch and bits of the context

    def __call__(self, batch: int, context: int) -> int:
        """For `batch` sequences of about `context` tokens; 0 where no draft pays."""
        key = batch, context.bit_length()
        if key not in self._lengths:
            middle = 3 << max(0, key[1] - 2)  # of the contexts with so many bits
            rates = [
                self._expected[length] / self._seconds(batch, middle, length)
                for length in range(self._most + 1)
            ]
            self._lengths[key] = rates.index(max(rates))
        return self._lengths[key]

    def _seconds(self, batch: int, context: int, length: int) -> float:
        drafting_s = 0.0
        if length and self._drafts is not None:
            drafting_s = self._drafts.seconds(steady_work(batch, context, length))
        return self._target.verifying_s(batch, context, length) + drafting_s


def _step_cost(profile: Profile, share: float) -> StepCost:
    """Of a drafter. What a data sheet's GPU waits for between its steps is the processor of its machine."""
    step = profile.step if profile.source == "measured" else CPU_STEP
    return replace(
        step,
        step_s=step.step_s * share,
        sequence_s=step.sequence_s * share,
        cold_step_s=step.cold_step_s * share,
        cold_sequence_s=step.cold_sequence_s * share,
        prompt_s=0.0,
    )

"""Settings for a goal: batch, steps, KV type and speculation, by simulation on this machine's profile.

The closed formula gives a first guess, and the real scheduler in simulated time decides among its neighbours.
An answer's tokens stay what they are but where the KV is stored in int8, which is chosen only where it brings much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.draft_methods import draft_model_name
from headrace.plan.hardware import Hardware, Machine
from headrace.plan.units import round_up
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.speed import Point, Speeds, Traffic
from headrace.sim.tuning.choose import Chooser, Chosen, PromiseBroken, Tried, excess, promise_of
from headrace.sim.tuning.formula import SLOWER, Formula, Guess
from headrace.sim.tuning.gains import ACCEPTANCE
from headrace.sim.tuning.goal import LATENCY, PROMISE, THROUGHPUT, Goal
from headrace.sim.tuning.trials import ALONE, SHARE, Outcome, Settings, SpentError, Trials

FORMATS = ("int8", "int4")
"""Formats of weights that a refused promise may be kept with."""
EQUAL = 0.005
"""Figures that differ by less are said to be about the same."""
ROOM = 1.02
"""The nearest promise leaves so much room."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, by its name in EngineConfig, and why it has this value."""

    name: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The config with the choices in it. point: what the formula predicts for `traffic` with the batch full. chosen:
    what the simulation found; None where the guess does not fit or takes too long to simulate: the formula chose."""

    config: EngineConfig
    goal: Goal
    choices: tuple[Choice, ...]
    point: Point
    traffic: Traffic
    profile: str
    chosen: Chosen | None

    @property
    def reasons(self) -> Mapping[str, str]:
        return {choice.name: choice.why for choice in self.choices}

    def describe(self) -> list[str]:
        """Lines for people: what was simulated and found, then each setting."""
        return [
            f"--for {self.goal}, by {self.profile}: {self._found()}",
            *(f"  {choice.name} {choice.value}: {choice.why}" for choice in self.choices),
        ]

    def _found(self) -> str:
        point = self.point
        if self.chosen is None:
            return (
                f"by the formula alone, {point.batch} requests at once of {self.traffic.prompt} + "
                f"{self.traffic.output} tokens should see TTFT {point.ttft_s:.3g} s and TPOT {point.tpot_s:.3g} s at "
                f"{point.output_per_s:,.0f} output tokens/s"
            )
        found = self.chosen.outcome
        times = (
            f"{SHARE:.0%} of requests see TTFT up to {found.ttft_s:.3g} s and TPOT up to {found.tpot_s:.3g} s"
        )
        if found.rate is None:
            what = f"a full queue gets {found.tokens_per_s:,.0f} output tokens/s"
        elif found.rate == ALONE:
            what = f"one request at a time, {times}"
        else:
            what = f"at {found.rate:.3g} requests/s {times}"
        return (
            f"by simulation of {self.chosen.requests:,} requests of about {self.traffic.prompt} + "
            f"{self.traffic.output} tokens, up to {found.settings.max_num_seqs} at once: {what}"
        )


def settle(
    config: EngineConfig,
    given: Iterable[str],
    goal: Goal,
    model: PlannedModel,
    hardware: Hardware,
    speeds: Speeds,
    profile: str,
    machine: Machine,
) -> Settled:
    """Choose what `given`, names of options, leaves open. profile: where the rates come from, in words; machine: what
    the engine runs on, of which `hardware` is the data sheet.

    Raises ConfigError for a promise that this machine cannot keep, with the nearest one that it can.
    """
    native = bool(machine.kernels) and config.ops_force not in ("torch", "reference")
    formula = Formula(config, frozenset(given), goal, model, hardware, speeds, native)
    guess = formula.guess()

    def trials(tried: EngineConfig) -> Trials:
        return Trials(tried, model, machine, speeds.profile_of(hardware))

    chosen: Chosen | None = None
    try:
        chosen = Chooser(goal, formula, trials(config)).choose(guess)
    except PromiseBroken as broken:
        raise ConfigError(_refusal(config, goal, broken.nearest, formula, trials)) from None
    except (ConfigError, SpentError):
        pass  # too large to simulate, or to fit: the engine says by how much when it starts
    settings = guess.settings if chosen is None else chosen.outcome.settings
    point = formula.point(settings)
    choices = tuple(_choices(formula, guess, settings, chosen))
    changed = replace(config, **{choice.name: choice.value for choice in choices})
    return Settled(changed, goal, choices, point, formula.traffic, profile, chosen)


def _choices(formula: Formula, guess: Guess, settings: Settings, chosen: Chosen | None) -> Iterator[Choice]:
    """Each open setting with its reason: the formula's, and what the simulation found of other values."""
    free, kv = formula.open, settings.kv_cache_dtype
    point = formula.point(settings)
    tried = () if chosen is None else chosen.tried

    def choice(name: str, why: str) -> Choice:
        value = getattr(settings, name)
        others = [_said(formula.goal, one) for one in tried if one.name == name]
        return Choice(name, value, "; ".join([why] * bool(why) + others))

    if free.max_num_seqs:
        slower = formula.slower(point, kv)
        times = f"a step takes {1e3 * point.decode_s:.3g} ms, {slower:.2g} times that of one sequence"
        if formula.goal.kind == LATENCY and point.batch < formula.most_batch(kv):
            times += f"; more would make each wait longer than {SLOWER:g} times"
        yield choice("max_num_seqs", times)
    if free.kv_cache_dtype:
        yield choice(
            "kv_cache_dtype", "it changes answers a little" if kv == "int8" else "answers stay as they are"
        )
    if free.max_num_batched_tokens:
        why = "while nobody decodes; else the step time budget cuts prompts"
        if formula.goal.kind == THROUGHPUT:
            kept = settings.max_num_batched_tokens == guess.settings.max_num_batched_tokens
            why = "the smallest step that computes prompts at 99 % of the best rate" if kept else ""
        yield choice("max_num_batched_tokens", why)
    if free.step_time_budget:
        yield choice("step_time_budget", _why_budget(formula, settings))
    if free.speculative:
        why = "drafts need the KV cache"
        if formula.config.kv_cache:
            name = draft_model_name(formula.drafters.option)
            who = "looked up at no cost" if name is None else f"those of {name}, whose steps are counted"
            why = f"{100 * ACCEPTANCE:.0f} % of drafts are taken to be right, {who}"
            why += "" if settings.speculative is None else "; fewer are drafted where that does not pay"
        yield choice("speculative", why)


def _said(goal: Goal, tried: Tried) -> str:
    """How the value that was left compares with the one that was taken."""
    left, kept = (tried.before, tried.value) if tried.taken else (tried.value, tried.before)
    name, other = _named(tried.name, left), _named(tried.name, kept)
    if tried.gain is None:
        where = "" if tried.rate in (None, ALONE) else f" at {tried.rate:.3g} requests/s"
        return f"{name} would not do{where}: {tried.broken}"
    what = {THROUGHPUT: "the tokens/s", LATENCY: "the speed of answers", PROMISE: "the rate"}[goal.kind]
    gain = 1 / tried.gain if tried.taken else tried.gain
    if abs(gain - 1) < EQUAL:
        return f"{name} gives about {what} of {other}"
    little = ", too little to take it" if gain > 1 else ""
    return f"{name} gives {gain:.2f} times {what} of {other}{little}"


def _named(name: str, value: Any) -> str:
    if name == "speculative":
        return "no speculation" if value is None else "speculation"
    return "auto" if value is None else f"{value}"


def _why_budget(formula: Formula, settings: Settings) -> str:
    goal = formula.goal
    if not formula.chunked:
        return "prompts are not cut into chunks"
    if settings.step_time_budget == "off":
        return "no prompt is cut to keep streams even, which may wait for it"
    if settings.step_time_budget == "auto" or goal.tpot_s is None:
        return "prompts cost streams about one more step"
    if isinstance(settings.step_time_budget, float) and settings.step_time_budget > goal.tpot_s:
        return "longer than the promised TPOT, which leaves prompts less"
    return "no step with a prompt takes longer than the promised TPOT"


# ---- promises that cannot be kept ----


def _refusal(
    config: EngineConfig,
    goal: Goal,
    nearest: Outcome,
    formula: Formula,
    trials: Callable[[EngineConfig], Trials],
) -> str:
    near = Goal(
        PROMISE,
        None if goal.ttft_s is None else round_up(max(goal.ttft_s, ROOM * nearest.ttft_s), 2),
        None if goal.tpot_s is None else round_up(max(goal.tpot_s, ROOM * nearest.tpot_s), 2),
    )
    return (
        f"this machine cannot keep --for {goal} for {SHARE:.0%} of requests with {config.model:.80}, by simulation of "
        f"one request at a time of about {formula.traffic.prompt} + {formula.traffic.output} tokens; the nearest "
        f"possible is --for {near}{_hint(config, goal, nearest, formula, trials)}"
    )


def _hint(
    config: EngineConfig,
    goal: Goal,
    nearest: Outcome,
    formula: Formula,
    trials: Callable[[EngineConfig], Trials],
) -> str:
    """A format of weights that would keep the promise."""
    open_ones = "quantization" not in formula.given and config.quantization is None
    if not open_ones or formula.model.spec.codes is not None:
        return ""
    for format in FORMATS:
        try:
            found = trials(replace(config, quantization=format)).at_rate(
                nearest.settings, ALONE, replace(promise_of(goal), ttft=goal.ttft_s or math.inf)
            )
        except (ConfigError, SpentError):
            continue
        if excess(goal, found) <= 1:
            return f", and with --quantization {format} the promise can be kept"
    return ""

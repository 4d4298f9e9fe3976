"""The time budget of a step: while sequences decode, prompts are cut into chunks whose step stays within it.

A fixed chunk stalls every stream for as long as the chunk takes: some hundred milliseconds on a CPU, where a step that
only decodes takes some ten. The budget "auto" follows from the load instead:

- A step with prompts may take `DECODES` times as long as it would without them. So the 99th percentile of the gaps
  between tokens stays near that multiple of their median.
- Small chunks cost throughput, as fewer sequences decode together while the others wait for their prompts. So where
  many prompts wait after the first one for each sequence that decodes, as means over `WINDOW` steps, the budget
  rises, up to the time of the smallest step that computes tokens at `KNEE` of the best rate, by the steps that were
  measured. Then nearly every step has a prompt in it, and gaps are long but equal.

By Little's law the ratio of those means is that of the time that a request waits for its prompt's turn and the time
that it decodes: the budget rises where requests wait longer than `CALM` of the latter.
"""

from __future__ import annotations

from headrace.core.step_budget import StepLoad
from headrace.core.types import StepPlan
from headrace.models.spec import ModelSpec
from headrace.plan.resolved import ResolvedConfig
from headrace.sim.cost import CostModel
from headrace.sim.machine import profile_here
from headrace.sim.online import OnlineCost, SizeTimes, sums
from headrace.sim.work import model_work

DECODES = 2.2
"""Below 2.5, the bound for the 99th percentile of the gaps, because predictions have errors."""
CALM, PRESSED = 0.1, 0.6
"""Prompts that wait while another one is computed, for each sequence that decodes: up to CALM the budget does not
rise, from PRESSED on it is highest."""
WINDOW = 96
"""Steps with sequences that decode, of the exponential mean of the two numbers: about what a request decodes."""
KNEE = 0.97
ROWS = 16
"""Steps are filled up to whole tiles of the kernels' rows."""
REFIT = 16
"""Steps after which the line through measured steps is drawn again."""
LEAST_CHUNK = 8
"""Tokens that a prompt gets in every step, over the limit if need be."""


class TimeBudget:
    """A `core.step_budget.StepBudget`. seconds: fixed budget; None: "auto", as above. most: tokens of the largest
    step."""

    def __init__(self, cost: OnlineCost, most: int, seconds: float | None = None) -> None:
        self.cost, self.most, self.seconds = cost, most, seconds
        self._prompts = self._decoding = 0.0  # means
        self._pending = 0  # prompts, as the plan that runs was made
        self.efficient = self._knee()
        self._times, self._steps = SizeTimes(), 0

    def tokens(self, load: StepLoad) -> int:
        self._pending = load.prompts
        limit = self.limit_s(load.rows, load.keys)
        # Search the last whole number of tiles whose step stays within the limit.
        low = (load.rows + LEAST_CHUNK - 1) // ROWS + 1
        high = max(low, self.most // ROWS)
        while low < high:
            middle = (low + high + 1) // 2
            if self.cost.step_s(load.rows, load.keys, middle * ROWS - load.rows) <= limit:
                low = middle
            else:
                high = middle - 1
        return low * ROWS - load.rows

    def limit_s(self, rows: int, keys: int) -> float:
        """Seconds that the next step may take, if it has a prompt in it."""
        if self.seconds is not None:
            return self.seconds
        least = DECODES * self.cost.step_s(rows, keys, 0)
        most = self.cost.step_s(rows, keys, max(1, self.efficient - rows))
        return least + max(0.0, most - least) * self.pressure

    @property
    def pressure(self) -> float:
        """From 0, where prompts wait little, to 1."""
        ratio = self._prompts / self._decoding if self._decoding else 0.0
        return min(1.0, max(0.0, (ratio - CALM) / (PRESSED - CALM)))

    def observe(self, plan: StepPlan, seconds: float) -> None:
        rows, keys, prompt = sums(plan)
        self.cost.observe(rows, keys, prompt, seconds)
        self._times.add(rows + prompt, seconds)
        self._steps += 1
        if self._steps % REFIT == 0:
            self.efficient = self._measured_knee() or self.efficient
        pending, self._pending = self._pending, 0
        if rows:
            decoding = len(plan.slices) if not prompt else sum(
                len(work.tokens) == 1 + work.num_draft and work.sample for work in plan.slices
            )  # fmt: skip
            self._prompts += (max(0, pending - 1) - self._prompts) / WINDOW
            self._decoding += (decoding - self._decoding) / WINDOW

    def _measured_knee(self) -> int | None:
        """The same as `_knee` on the line through measured steps."""
        line = self._times.line()
        if line is None:
            return None
        fixed, each = line
        tokens = KNEE * fixed / (fixed / self.most + (1 - KNEE) * each)
        return min(self.most, -(-int(tokens + 1) // ROWS) * ROWS)

    def _knee(self) -> int:
        """Tokens of the smallest step with nearly the best rate, by the cost model."""
        sizes = range(ROWS, max(self.most, ROWS) + 1, ROWS)
        rates = [size / self.cost.tokens_s(size) for size in sizes]
        return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= KNEE * max(rates))


def step_budget(spec: ModelSpec, resolved: ResolvedConfig) -> TimeBudget | None:
    """The budget that `step_time_budget` asks for; None for "off"."""
    if resolved.step_time_budget == "off":
        return None
    model = CostModel(model_work(spec, resolved), profile_here(resolved.kernels, resolved.num_threads)[0])
    seconds = resolved.step_time_budget if isinstance(resolved.step_time_budget, float) else None
    return TimeBudget(OnlineCost(model), resolved.max_num_batched_tokens, seconds)

"""A step time budget cuts prompts anywhere, and changes no token and no bit of a logprob."""

from __future__ import annotations

from random import Random

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.step_budget import StepLoad
from headrace.core.types import NewRequest, StepPlan, TokenLogprobs


class Jumps:
    """Allows another number of tokens in every step."""

    def __init__(self) -> None:
        self.rng = Random(7)
        self.asked = 0

    def tokens(self, load: StepLoad) -> int:
        self.asked += 1
        return self.rng.choice((1, 2, 5, 9, 16, 31, 40))

    def observe(self, plan: StepPlan, seconds: float) -> None:
        pass


Answers = dict[str, tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]]


def answers(budget: Jumps | None) -> tuple[Answers, int]:
    """Tokens and logprobs by request, and how many slices left a prompt unfinished."""
    options = EngineConfig(
        "tale", num_threads=1, speculative="ngram", max_model_len=512, kv_cache_memory="32MiB"
    )
    parts = assemble(options, step_budget=lambda spec, resolved: budget)
    engine, rng, found, split = parts.engine, Random(3), {}, 0
    shared = tuple(rng.randrange(6, 2048) for _ in range(70))
    for number in range(8):
        prompt = (*(shared if number % 3 else ()), *(rng.randrange(6, 2048) for _ in range(20 + 23 * number)))
        params = SamplingParams(
            max_tokens=12, temperature=0.8 * (number % 2), seed=number, logprobs=2, ignore_eos=True
        )
        engine.add(NewRequest(f"r{number}", prompt, params), 0.0)
        for _ in range(2 if number < 7 else 500):
            if not engine.has_work:
                break
            plan = engine.begin(0.0)
            split += sum(not work.sample for work in plan.slices)
            for output in engine.finish(parts.executor.execute(plan), 0.0):
                assert output.error is None
                tokens, logprobs = found.get(output.request_id, ((), ()))
                found[output.request_id] = (tokens + output.tokens, logprobs + output.logprobs)
    assert not engine.has_work
    return found, split


def test_answers_do_not_depend_on_the_budget() -> None:
    budget = Jumps()
    cut, split = answers(budget)
    whole, few = answers(None)
    assert budget.asked > 10 and split > few + 10
    assert cut == whole and len(cut) == 8

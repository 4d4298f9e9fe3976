"""The interface that runs step plans and returns tokens."""

from __future__ import annotations

from typing import Protocol

from headrace.core.types import StepPlan, StepResult


class Executor(Protocol):
    """Runs step plans. The contract:

    - Plans come in the order of their step ids, and each is executed exactly once.
    - The result names every slice's request exactly once, in any order.
    - A failure of one sequence is its SliceResult.error; an exception means that the executor is unusable. The KV of a
      slice that failed counts as unwritten, and the core discards the results of the slices that read it.
    - In every layer, the KV of all slices is written before any slice reads.
    - KV blocks hold garbage until written; a block named in a table may have belonged to another request.
    """

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and block until its tokens are known."""
        ...

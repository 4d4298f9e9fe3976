"""What the executor's result of one slice does to its request, and when it counts as a failure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core import trees
from headrace.core.request import Request
from headrace.core.types import FinishReason, SeqSlice, SliceResult, TokenLogprobs


def fault(request: Request | None, work: SeqSlice, part: SliceResult) -> str | None:
    """Why an executor's answer counts as a failure; wrong tokens would poison the KV of all who share it."""
    if part.error is not None or request is None:
        return part.error
    if not trees.is_tree(part.draft_parents, len(part.draft)):
        return f"the executor drafted {len(part.draft)} tokens with the parents {part.draft_parents}"
    if request.pooling is not None:
        due = work.start + len(work.tokens) >= request.num_prompt
        if (part.pooled is not None) != due:
            return "the executor gave no embedding" if due else "the executor gave an embedding too early"
    if not work.num_draft and len(part.tokens) == work.sample:
        return None
    draft = work.tokens[len(work.tokens) - work.num_draft :]
    count = len(part.tokens)
    if bool(count) != work.sample or count > len(draft) + 1:
        return f"the executor returned {count} tokens for a slice with {len(draft)} drafts"
    if not trees.holds_path(draft, work.draft_parents, part.tokens[:-1]):
        return f"the executor accepted the drafts {part.tokens[:-1]}, but {draft} were to be verified"
    return None


def append_tokens(request: Request, tokens: Iterable[int]) -> tuple[int, FinishReason | None, int | None]:
    """Add sampled tokens up to the first that ends the request: (how many, why it ended, the stop id)."""
    params, count = request.params, 0
    for token in tokens:
        request.tokens.append(token)
        count += 1
        output = request.num_output
        if token in request.stop_ids and output > params.min_tokens:
            return count, FinishReason.STOP, token
        if len(request.tokens) >= request.limit or (
            params.max_tokens is not None and output >= params.max_tokens
        ):
            return count, FinishReason.LENGTH, None
    return count, None, None


def most_drafts(request: Request) -> int:
    """Drafts that can be accepted before the request ends."""
    left = request.limit - len(request.tokens)
    if request.params.max_tokens is not None:
        left = min(left, request.params.max_tokens - request.num_output)
    return max(0, left - 1)


def new_prompt_logprobs(request: Request, work: SeqSlice, part: SliceResult) -> tuple[TokenLogprobs, ...]:
    """Prompt positions that were not reported before: a recomputed prompt reports them again."""
    fresh = part.prompt_logprobs[max(0, request.prompt_logprobs_done - work.start) :]
    request.prompt_logprobs_done += len(fresh)
    return fresh

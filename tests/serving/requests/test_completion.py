"""Additions to a completion: what each token says does not depend on how outputs were merged on their way."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, Output, TokenLogprobs
from headrace.serving.requests.completion import Completion, Delta
from headrace.text.stop import StopAutomaton
from headrace.text.tokenizer import Tokenizer

STORY = "Once upon a time there was a little fox. She lived in the forest… café, naïve 🦊 end."


def grown(
    tokenizer: Tokenizer, tokens: list[int], cuts: list[int], stop: tuple[str, ...], stop_token: bool
) -> tuple[list[Delta], list[Delta]]:
    """(additions by token, additions as they came) of a completion whose outputs are cut at `cuts`."""
    params = SamplingParams(stop=stop)
    stops = StopAutomaton.of(stop) if stop else None
    completion = Completion(0, params, tokenizer, (7,), frozenset(), stops)
    came: list[Delta] = []
    bounds = [0, *sorted(set(cuts)), len(tokens)]
    for begin, end in itertools.pairwise(bounds):
        if begin == end:
            continue
        last = end == len(tokens)
        part = tuple(tokens[begin:end])
        delta = completion.take(
            Output(
                "r",
                0,
                part,
                tuple(TokenLogprobs(token, -0.5, 1, ()) for token in part),
                finish_reason=FinishReason.STOP if last else None,
                stop_token=part[-1] if last and stop_token else None,
            )
        )
        if delta is not None:
            came.append(delta)
    return [one for delta in came for one in delta.by_token()], came


@given(
    cuts=st.lists(st.integers(1, 40)),
    stop=st.sampled_from([(), ("forest",), ("🦊",), ("never said",), ("e",)]),
    stop_token=st.booleans(),
)
def test_additions_by_token_do_not_depend_on_merging(
    tokenizer: Tokenizer, cuts: list[int], stop: tuple[str, ...], stop_token: bool
) -> None:
    tokens = tokenizer.encode(STORY, add_special_tokens=False)
    cuts = [cut for cut in cuts if cut < len(tokens)]
    alone, _ = grown(tokenizer, tokens, list(range(1, len(tokens))), stop, stop_token)
    merged, came = grown(tokenizer, tokens, cuts, stop, stop_token)
    assert merged == alone
    assert len(came) <= len(set(cuts)) + 1 and all(len(one.token_ids) == 1 for one in alone)
    assert "".join(one.text for one in came) == "".join(one.text for one in alone)


def test_token_ends_are_computed_only_on_request(tokenizer: Tokenizer) -> None:
    tokens = tuple(tokenizer.encode(STORY, add_special_tokens=False))
    delta = Completion(0, SamplingParams(), tokenizer, (7,)).take(Output("r", 0, tokens))
    assert delta is not None and delta.ends == () and list(delta.by_token()) == [delta]

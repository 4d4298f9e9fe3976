"""Text from tokens: stop strings wherever they fall, several completions, and what comes after the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.params import SamplingParams
from headrace.core.types import CacheMiss, FinishReason, NewRequest, Output, RequestStats, TokenLogprobs
from headrace.errors import InvalidParams
from headrace.serving.requests.output_processor import OutputProcessor, Progress
from headrace.serving.requests.outputs import CompletionOutput, RequestOutput
from headrace.text.tokenizer import Tokenizer

STORY = "Once upon a time there was a little fox. She lived in the forest… café, naïve 🦊 end."
STATS = RequestStats(
    10.0, first_scheduled_s=10.5, first_token_s=11.0, last_token_s=13.0, finished_s=13.5,
    num_prompt=2, num_cached=1, num_preemptions=3, num_output=5,
)  # fmt: skip


def request(params: SamplingParams, name: str = "r") -> NewRequest:
    return NewRequest(name, (7, 8), params)


def ended(output: Output, reason: FinishReason = FinishReason.LENGTH) -> Output:
    return output._replace(finish_reason=reason, stats=STATS)


def run(
    tokenizer: Tokenizer | None, params: SamplingParams, steps: list[tuple[int, ...]], **last: object
) -> tuple[CompletionOutput, str, list[Progress]]:
    """Feed one completion step by step: (its result, the streamed text, what each step said)."""
    processor = OutputProcessor(tokenizer)
    processor.add(request(params))
    progress = [processor.process([Output("r", 0, tokens)]) for tokens in steps[:-1]]
    progress.append(processor.process([ended(Output("r", 0, steps[-1]))._replace(**last)]))  # type: ignore[arg-type]
    result = progress[-1].finished[0]
    return result.outputs[0], "".join(d.text for p in progress for d in p.deltas), progress


def test_text_is_that_of_the_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(STORY, add_special_tokens=False)
    result, streamed, progress = run(tokenizer, SamplingParams(), [(token,) for token in ids])
    assert result.text == streamed == tokenizer.decode(ids)
    assert result.token_ids == tuple(ids)
    assert (result.finish_reason, result.stop_reason, result.logprobs) == ("length", None, None)
    assert not any(step.to_stop for step in progress)


def test_an_unfinished_character_is_returned_at_the_end(tokenizer: Tokenizer) -> None:
    fox = tokenizer.encode("🦊", add_special_tokens=False)
    assert len(fox) > 1
    result, streamed, _ = run(tokenizer, SamplingParams(), [(fox[0],)])
    assert result.text == streamed == "\ufffd"


@given(data=st.data())
def test_a_stop_string_is_found_wherever_it_falls(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Any substring as the stop, tokens in any groups: the text ends before its first occurrence."""
    start = data.draw(st.integers(0, len(STORY) - 1))
    stop = STORY[start : data.draw(st.integers(start + 1, min(len(STORY), start + 12)))]
    include = data.draw(st.booleans())
    ids = tokenizer.encode(STORY, add_special_tokens=False)
    steps, rest = [], ids
    while rest:
        size = data.draw(st.integers(1, 4))
        steps.append(tuple(rest[:size]))
        rest = rest[size:]
    params = SamplingParams(stop=(stop,), include_stop_str_in_output=include)
    result, streamed, progress = run(tokenizer, params, steps)
    at = STORY.index(stop)
    assert result.text == streamed == STORY[: at + len(stop) * include]
    assert (result.finish_reason, result.stop_reason) == ("stop", stop)
    # The tokens up to and including the one that completed the stop, and none after it.
    count = len(result.token_ids)
    assert result.token_ids == tuple(ids[:count])
    assert stop in tokenizer.decode(ids[:count])
    assert stop not in tokenizer.decode(ids[: count - 1])
    # The engine is asked to stop once, unless the completion ended by itself.
    stopped = [step.to_stop for step in progress if step.to_stop]
    stopped_last = not any(delta.finish_reason for step in progress[:-1] for delta in step.deltas)
    assert stopped == ([] if stopped_last else [(("r", 0),)])


def test_what_comes_after_the_stop_is_ignored(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    processor.add(request(SamplingParams(stop=("fox",), logprobs=0)))
    ids = tokenizer.encode("A fox", add_special_tokens=False)
    first = processor.process([Output("r", 0, tuple(ids), tuple(TokenLogprobs(t, -1.0, 1) for t in ids))])
    assert first.to_stop == (("r", 0),)
    assert first.deltas[-1].finish_reason == "stop"
    assert not first.finished  # the engine has the last word: it knows the times
    late = processor.process([Output("r", 0, (50, 51), (TokenLogprobs(50, -1.0, 1),) * 2)])
    assert late == Progress()
    last = processor.process([ended(Output("r", 0), FinishReason.STOP)])
    assert last.deltas == ()
    (result,) = last.finished
    assert result.outputs[0].text == "A "
    assert result.outputs[0].token_ids == tuple(ids)
    assert len(result.outputs[0].logprobs or ()) == len(ids)
    assert result.finished and result.metrics.e2e_s == 3.5
    assert processor.process([Output("r", 0, (50,))]) == Progress()
    assert len(processor) == 0


def test_held_back_text_is_released_when_no_stop_can_come(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The end of", add_special_tokens=False)
    result, streamed, _ = run(tokenizer, SamplingParams(stop=("of course",)), [tuple(ids)])
    assert result.text == streamed == "The end of"
    assert result.finish_reason == "length"


def test_stops_count_only_after_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a fox and a fox and", add_special_tokens=False)
    second = tokenizer.encode("a fox and a", add_special_tokens=False)
    params = SamplingParams(stop=("fox",), min_tokens=len(second))
    result, _, _ = run(tokenizer, params, [(token,) for token in ids])
    assert result.text == "a fox and a "
    assert result.stop_reason == "fox"


@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_stop_token_is_left_out(tokenizer: Tokenizer, include: bool) -> None:
    a, fox = (
        tokenizer.encode("a", add_special_tokens=False),
        tokenizer.encode(" fox", add_special_tokens=False),
    )
    params = SamplingParams(stop_token_ids=(fox[-1],), include_stop_str_in_output=include)
    result, _, _ = run(
        tokenizer, params, [(a[0],), tuple(fox)], finish_reason=FinishReason.STOP, stop_token=fox[-1]
    )
    assert result.text == "a" + tokenizer.decode(fox if include else fox[:-1])
    assert result.token_ids == (a[0], *fox)
    assert (result.finish_reason, result.stop_reason) == ("stop", fox[-1])


@pytest.mark.parametrize("skip", [False, True])
def test_special_tokens(tokenizer: Tokenizer, skip: bool) -> None:
    special = min(tokenizer.special_ids)
    params = SamplingParams(skip_special_tokens=skip)
    result, _, _ = run(tokenizer, params, [(special,), (100,)])
    assert result.text == ("" if skip else tokenizer.token(special)) + tokenizer.decode([100])


def test_end_of_sequence_has_no_stop_reason(tokenizer: Tokenizer) -> None:
    eos = min(tokenizer.eos_ids)
    result, _, _ = run(
        tokenizer, SamplingParams(), [(100,), (eos,)], finish_reason=FinishReason.STOP, stop_token=eos
    )
    assert (result.finish_reason, result.stop_reason) == ("stop", None)
    assert result.token_ids == (100, eos)


def test_completions_end_one_by_one(tokenizer: Tokenizer) -> None:
    fox, cat = (tuple(tokenizer.encode(word, add_special_tokens=False)) for word in ("a fox", "a cat"))
    processor = OutputProcessor(tokenizer)
    processor.add(request(SamplingParams(n=2, stop=("fox",))), "once")
    progress = processor.process([Output("r", 0, fox), Output("r", 1, cat)])
    assert progress.to_stop == (("r", 0),)
    assert [delta.finish_reason for delta in progress.deltas] == ["stop", None]
    seen = processor.partial("r")
    assert seen is not None and not seen.finished and [one.text for one in seen.outputs] == ["a ", "a cat"]
    progress = processor.process([ended(Output("r", 1, cat), FinishReason.ABORT)])
    assert not progress.finished
    (result,) = processor.process([ended(Output("r", 0), FinishReason.STOP)]).finished
    assert isinstance(result, RequestOutput)
    assert (result.prompt, result.prompt_token_ids) == ("once", (7, 8))
    assert [one.finish_reason for one in result.outputs] == ["stop", "abort"]
    assert [one.index for one in result.outputs] == [0, 1]
    assert result.metrics.num_output_tokens == len(fox) + 2 * len(cat)


def test_errors_stay_with_their_request(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    processor.add(request(SamplingParams(), "bad"))
    processor.add(request(SamplingParams(), "good"))
    progress = processor.process(
        [ended(Output("bad", 0, error="broken"), FinishReason.ERROR), Output("good", 0, (100,))]
    )
    (result,) = progress.finished
    assert (result.request_id, result.outputs[0].finish_reason) == ("bad", "error")
    assert result.outputs[0].error == progress.deltas[0].error == "broken"
    assert len(processor) == 1


def test_logprobs_have_vllms_form(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    processor.add(request(SamplingParams(logprobs=2, prompt_logprobs=1)))
    at = (TokenLogprobs(100, -2.0, 3, ((101, -0.5, 1), (102, -1.0, 2))), TokenLogprobs(101, -0.25, 1, ()))
    (result,) = processor.process(
        [ended(Output("r", 0, (100, 101), at, prompt_logprobs=(TokenLogprobs(8, -3.0, 9),)))]
    ).finished
    first = (result.outputs[0].logprobs or [])[0]
    assert list(first) == [100, 101, 102]
    assert (first[100].logprob, first[100].rank) == (-2.0, 3)
    assert first[100].decoded_token == tokenizer.decode([100])
    assert result.outputs[0].cumulative_logprob == -2.25
    assert result.prompt_logprobs is not None and result.prompt_logprobs[0] is None
    assert (result.prompt_logprobs[1] or {})[8].rank == 9


def test_metrics() -> None:
    processor = OutputProcessor(None)
    processor.add(request(SamplingParams()))
    stats = replace(STATS, miss=CacheMiss("other salt", 0, "the same tokens are cached under another salt"))
    (result,) = processor.process([ended(Output("r", 0, (1, 2, 3, 4, 5)))._replace(stats=stats)]).finished
    metrics = result.metrics
    assert (metrics.queue_s, metrics.ttft_s, metrics.tpot_s, metrics.e2e_s) == (0.5, 1.0, 0.5, 3.5)
    assert (metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.num_preemptions) == (2, 5, 3)
    assert result.num_cached_tokens == metrics.num_cached_tokens == 1
    assert metrics.cache_miss == "never seen"  # whose salt it is stays between operator and engine


def test_without_a_tokenizer() -> None:
    result, streamed, _ = run(None, SamplingParams(logprobs=0), [(1,), (2,)])
    assert (result.text, streamed, result.token_ids) == ("", "", (1, 2))
    with pytest.raises(InvalidParams, match="tokenizer"):
        OutputProcessor(None).add(request(SamplingParams(stop=("x",))))


def test_discarded_and_doubled_requests(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    processor.add(request(SamplingParams()))
    with pytest.raises(InvalidParams, match="already running"):
        processor.add(request(SamplingParams()))
    processor.discard("r")
    processor.discard("r")
    assert processor.process([Output("r", 0, (1,))]) == Progress()
    processor.add(request(SamplingParams()))

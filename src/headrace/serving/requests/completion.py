"""One completion's tokens as text: detokenized, and watched for stop strings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.core.params import SamplingParams
from headrace.core.record import record
from headrace.core.types import FinishReason, Output, RequestStats, TokenLogprobs
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopAutomaton, StopChecker
from headrace.text.tokenizer import Tokenizer


@record
class Delta:
    """What one core output adds to a completion; the fields are those of CompletionOutput.

    `text` may be empty: a character or a possible stop string is not complete yet.
    """

    request_id: str  # NewRequest.key
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # from the second prompt token on
    ends: tuple[int, ...] = ()
    """Characters of `text` known after each token; empty with one token, or if not asked for."""

    def by_token(self) -> Iterator[Delta]:
        """The same token by token, so that a parser's results do not depend on how outputs were merged."""
        if not self.ends:
            yield self
            return
        begin, last = 0, len(self.ends) - 1
        for number, end in enumerate(self.ends):
            if number == last:
                end = len(self.text)  # with the text that was held back until the completion ended
            yield replace(
                self,
                text=self.text[begin:end],
                token_ids=self.token_ids[number : number + 1],
                logprobs=self.logprobs[number : number + 1],
                finish_reason=self.finish_reason if number == last else None,
                stop_reason=self.stop_reason if number == last else None,
                error=self.error if number == last else None,
                prompt_logprobs=self.prompt_logprobs if number == 0 else (),
                ends=(),
            )
            begin = end


class Completion:
    """Turns a completion's core outputs, in order, into what each adds.

    It ends for the caller with the token that ends it or completes a stop string (`finish_reason`), and for the
    engine with the output that carries the engine's statistics (`stats`), which may come later.

    Stop strings are looked for after the first `min_tokens` tokens only. The text of a stop token is left out unless
    `include_stop_str_in_output` asks for it. `visible` special tokens are always in the text; unless it is None, each
    addition also holds where the text of its tokens ends.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        prompt: tuple[int, ...],
        visible: frozenset[int] | None = None,
        stops: StopAutomaton | None = None,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.stats: RequestStats | None = None
        self._params = params
        self._by_token = visible is not None
        self._detokenizer = (
            None
            if tokenizer is None
            else IncrementalDetokenizer(tokenizer, params.skip_special_tokens, prompt, visible or frozenset())
        )
        self._stops = None if stops is None else StopChecker(stops, params.include_stop_str_in_output)

    def take(self, output: Output) -> Delta | None:
        """Process an output; None if it has nothing for the caller, such as tokens after a stop string."""
        if output.finish_reason is not None:
            self.stats = output.stats
        if self.finish_reason is not None:
            return None
        text, used, matched, ends = self._decode(output)
        if matched is None and output.finish_reason is not None:
            rest, matched = self._rest()
            text += rest
        if matched is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP.value, matched
        elif output.finish_reason is not None:
            self.finish_reason = output.finish_reason.value
            if output.stop_token in self._params.stop_token_ids:
                self.stop_reason = output.stop_token
            self.error = output.error
        tokens, logprobs = output.tokens, output.logprobs
        if used < len(tokens):
            tokens, logprobs = tokens[:used], logprobs[:used]
        self.num_tokens += len(tokens)
        return Delta(
            output.request_id, self.index, text, tokens, logprobs,
            self.finish_reason, self.stop_reason, self.error, output.prompt_logprobs,
            tuple(ends) if len(ends) > 1 else (),
        )  # fmt: skip

    def _decode(self, output: Output) -> tuple[str, int, str | None, list[int]]:
        """(text, how many tokens belong to the completion, the stop string that the last one completed, `ends`)."""
        tokens = output.tokens
        if self._detokenizer is None:
            return "", len(tokens), None, []
        spoken = tokens
        if output.stop_token is not None and not self._params.include_stop_str_in_output:
            spoken = tokens[:-1]
        by_token = self._by_token and len(tokens) > 1
        if self._stops is None and not by_token:
            return self._detokenizer.push(spoken), len(tokens), None, []
        text, matched = "", None
        ends: list[int] = []
        # One by one, to know which token completed a stop string, and where the text of each ends.
        for count, token in enumerate(spoken, start=1):
            piece = self._detokenizer.push((token,))
            if self._stops is not None and self.num_tokens + count > self._params.min_tokens:
                piece, matched = self._stops.push(piece)
            text += piece
            if by_token:
                ends.append(len(text))
            if matched is not None:
                return text, count, matched, ends
        if by_token and len(spoken) < len(tokens):
            ends.append(len(text))  # a stop token that is not shown
        return text, len(tokens), None, ends

    def _rest(self) -> tuple[str, str | None]:
        """At the end: text that was held back as the possible beginning of a character or stop string."""
        if self._detokenizer is None:
            return "", None
        tail = self._detokenizer.finish()
        if self._stops is None:
            return tail, None
        safe, matched = self._stops.push(tail)
        return (safe, matched) if matched is not None else (safe + self._stops.flush(), None)


def entries(item: Delta | Output) -> int:
    """Number of tokens and log-probabilities: the cost of processing and writing it."""
    count = len(item.token_ids if isinstance(item, Delta) else item.tokens)
    if item.logprobs or item.prompt_logprobs:  # rarely
        for scored in (item.logprobs, item.prompt_logprobs):
            count += sum(1 + len(entry.top) for entry in scored)
    return count

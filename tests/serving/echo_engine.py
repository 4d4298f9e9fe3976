"""The tiny engine with an executor that says what the last user said, and then ends. Run as a script, it is an engine
process, so that a test decides what the model answers, token by token, with everything but the model real.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from headrace.core.types import SeqSlice
from tests.serving.tiny_engine import TinyExecutor, main

END, USER = 1, 3  # ids of <|end|> and <|user|> in the tokenizer of tale

COMMAND = (sys.executable, str(Path(__file__).resolve()))


class EchoExecutor(TinyExecutor):
    """Answers with the tokens between the prompt's last <|user|> and the next <|end|>."""

    def __init__(self, step_s: float = 0.0, token_s: float = 0.0) -> None:
        super().__init__(step_s, token_s)
        self._answers: dict[int, tuple[int, tuple[int, ...]]] = {}

    def next_token(self, work: SeqSlice) -> int:
        if work.new is not None:
            prompt = work.new.tokens[: work.new.num_prompt]
            begin = len(prompt) - prompt[::-1].index(USER) if USER in prompt else len(prompt)
            end = prompt.index(END, begin) if END in prompt[begin:] else len(prompt)
            self._answers[work.request_id] = (work.new.num_prompt, prompt[begin:end])
        num_prompt, answer = self._answers[work.request_id]
        said = work.start + len(work.tokens) - num_prompt
        return answer[said] if 0 <= said < len(answer) else END


if __name__ == "__main__":
    sys.exit(main(EchoExecutor))

"""`headrace train-heads`: train draft heads for a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, engine_options
from headrace.cli.parser import add_command, add_number, check_range, needs_extra
from headrace.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.llm import LLM
    from headrace.text.tokenizer import Tokenizer

EXAMPLES = """\
examples:
  headrace train-heads --method medusa tale -o ./tale-medusa
  headrace train-heads --method eagle ./my-model --prompts questions.jsonl --tokens 500000 -o ./my-eagle
  headrace train-heads --method medusa ./my-model --data answers.jsonl -o ./my-medusa

A line of a .jsonl file is {"text": …}, {"prompt": …}, {"prompt": …, "completion": …} or {"messages": […]}; any other
file is text, in paragraphs. Of a prompt and its completion only the latter is trained on.
"""

_RATES = {"medusa": 1e-3, "eagle": 1e-3}


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "train-heads", "[options] --method NAME MODEL -o FOLDER", examples=EXAMPLES,
        summary="train draft heads for a model",
        description="Train heads that draft tokens for a model: Medusa's, which predict several tokens from one "
        "hidden state, or EAGLE's layer, which predicts the next hidden states. The model itself is not changed. It "
        "writes the text that they are trained on, unless --data gives some. One text in ten is held out, and the "
        "accuracy of each head on it is printed and stored with the heads. Needs torch.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="bundled name, folder, GGUF file or hub id")
    parser.add_argument("--method", required=True, choices=("medusa", "eagle"), help="what to train")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FOLDER", help="where to write: a new or empty folder"
    )  # fmt: skip
    group = parser.add_argument_group("training")
    group.add_argument(
        "--data", default="self", metavar="SELF|FILE",
        help="self: what the model writes itself, or a file of texts to train on (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="with --data self: what the model continues (default: bundled stories)",
    )
    add_number(group, "--tokens", 200_000, "tokens to train on")
    add_number(group, "--epochs", 4, "how often each is trained on")
    add_number(
        group,
        "--temperature",
        0.7,
        "of every other text that the model writes; the others are greedy",
        "T",
        float,
    )
    add_number(group, "--heads", 4, "of Medusa: tokens that are predicted")
    add_number(group, "--blocks", 1, "of Medusa: residual blocks of each head")
    add_number(group, "--tree-nodes", 64, "of Medusa: most nodes of the tree that is stored")
    add_number(group, "--learning-rate", None, f"highest rate (default: {_RATES['medusa']:g})", "R", float)
    add_number(
        group, "--batch-tokens", 2048, "tokens in a training step, with padding; fewer take less memory"
    )
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    from headrace.evaluation.documents import BUNDLED_TEXTS, read_records

    with needs_extra("torch", "training draft heads"):
        from headrace.speculative.training.fit import FitOptions
        from headrace.speculative.training.run import TrainOptions, train_heads
    from headrace.llm import LLM

    given = args.data != "self"
    texts = Path(args.data) if given else Path(args.prompts) if args.prompts else BUNDLED_TEXTS
    records = read_records(texts)
    if not records:
        raise ConfigError(f"{texts} holds no text")
    llm = LLM(args.model, **engine_options(args))
    parts = llm.parts
    rate = _RATES[args.method] if args.learning_rate is None else args.learning_rate
    options = TrainOptions(
        args.method, records, given, args.tokens, args.temperature, args.heads, args.blocks, args.tree_nodes,
        FitOptions(args.epochs, rate, args.batch_tokens, parts.resolved.seed), parts.resolved.num_threads,
    )  # fmt: skip
    bars = _Bars()
    try:
        done = train_heads(
            parts.source,
            parts.spec,
            parts.resolved.max_model_len,
            _Writer(llm),
            options,
            args.output,
            bars.stage,
        )
    finally:
        bars.close()
    _print(args, done)
    return 0


def _check(args: argparse.Namespace) -> None:
    from headrace.models.source import SHAPE_PREFIX

    for name, low, high in (
        ("tokens", 1, 1_000_000_000), ("epochs", 1, 1000), ("temperature", 0.0, 2.0), ("heads", 1, 16),
        ("blocks", 1, 8), ("tree-nodes", 1, 1024), ("learning-rate", 1e-7, 1.0), ("batch-tokens", 64, 1 << 20),
    ):  # fmt: skip
        check_range(name, getattr(args, name.replace("-", "_")), low, high)
    if args.model.startswith(SHAPE_PREFIX):
        raise ConfigError(f"{args.model} has random weights: there is nothing to train draft heads for")
    if args.prompts is not None and args.data != "self":
        raise ConfigError("--prompts is for --data self: the texts of a file are trained on as they are")


def _print(args: argparse.Namespace, done: Any) -> None:
    what = "head" if args.method == "medusa" else "depth"
    print(f"accuracy on {done.heldout_tokens} held-out tokens, trained on {done.tokens}:")
    print(f"{what:>6}{'top 1':>9}{'top 2':>9}{'top 3':>9}{'top 5':>9}")
    for number, row in enumerate(done.accuracy, 1):
        print(f"{number:>6}" + "".join(f"{share:>8.1%} " for share in row))
    if done.tree_tokens is not None:
        print(f"the tree adds {done.tree_tokens:.2f} tokens to a step, if all of its nodes are drafted")
    print(f"{args.output}: {done.parameters:,} parameters")


class _Writer:
    """An LLM as training sees it; see `speculative.training.run.Writer`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @property
    def encoder(self) -> Tokenizer:
        return self._llm.tokenizer

    def write(
        self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], seed: int, most: int
    ) -> list[list[int]]:
        from headrace.core.params import SamplingParams

        room = self._llm.parts.resolved.max_model_len
        params = [
            SamplingParams(
                temperature=temperature, seed=seed + i, max_tokens=max(1, min(most, room - len(prompt)))
            )
            for i, (prompt, temperature) in enumerate(zip(prompts, temperatures, strict=True))
        ]
        outputs = self._llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def hidden_states(self, documents: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        return self._llm.hidden_states([list(one) for one in documents], use_tqdm=False)


class _Bars:
    """One progress bar after the other."""

    def __init__(self) -> None:
        self._bar: Any = None

    def stage(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Close the last bar; gives what moves a new one."""
        from tqdm import tqdm

        self.close()
        self._bar = bar = tqdm(
            desc=title, unit=unit, unit_scale=True, disable=None, leave=False, file=sys.stderr
        )

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return show

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

"""EAGLE's formula of docs/speculation.md with the layer of transformers, for `tale-eagle`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from headrace import LLM
from headrace.speculative.base_model import base_model, read_ends
from headrace.speculative.heads import EagleHeads, heads_folder, load_heads
from tests import needs

transformers = needs.lazily("transformers")
H, V = 256, 2048
PROMPT = tuple(range(20, 70))
TALE = {"model": "tale", "speculative": "tale-eagle"}


class Reference:
    """The formula of docs/speculation.md with the layer of transformers."""

    def __init__(self) -> None:
        self._llm = LLM("tale", dtype="float32", num_threads=1, show_progress=False, kv_cache_memory="4MiB")
        source, spec = self._llm.parts.source, self._llm.parts.spec
        heads = load_heads(heads_folder("tale-eagle"), base_model(source, spec))
        assert isinstance(heads, EagleHeads)
        self._ends, layer = read_ends(source, spec), heads.layer
        config = transformers.LlamaConfig(
            hidden_size=H, intermediate_size=layer.intermediate_size, num_hidden_layers=1, vocab_size=8,
            num_attention_heads=layer.num_attention_heads, num_key_value_heads=layer.num_key_value_heads,
            head_dim=layer.head_dim, rms_norm_eps=layer.rms_norm_eps, rope_theta=layer.rope_theta,
        )  # fmt: skip
        self._layer = transformers.LlamaModel(config)
        own = {name.removeprefix("model."): torch.from_numpy(one) for name, one in heads.tensors.items()}
        self._fc = own.pop("fc.weight").numpy()
        self._layer.load_state_dict(own | {"embed_tokens.weight": torch.zeros(8, H)})

    def states(self, tokens: Sequence[int]) -> np.ndarray:
        (found,) = self._llm.hidden_states([list(tokens)], use_tqdm=False)
        return found

    def draft(self, tokens: Sequence[int], states: np.ndarray, count: int) -> tuple[int, ...]:
        """Greedily, after `tokens`; `states` of all of them but the last."""
        drafts: tuple[int, ...] = ()
        known: dict[tuple[int, ...], np.ndarray] = {}
        for _ in range(count):
            known[drafts] = self.predict(tokens, states, drafts, known)
            drafts = (*drafts, int(self.logits(known[drafts]).argmax()))
        return drafts

    @torch.inference_mode()
    def predict(
        self,
        tokens: Sequence[int],
        states: np.ndarray,
        path: tuple[int, ...],
        known: Mapping[tuple[int, ...], np.ndarray],
    ) -> np.ndarray:
        """The state after the drafts `path`, from those that are `known` after each of them."""
        predicted = [known[path[:count]][None] for count in range(len(path))]
        before = np.concatenate((np.zeros((1, H), np.float32), states, *predicted))
        joined = np.concatenate((before, self._ends.embedding[[*tokens, *path]]), axis=1).astype(np.float32)
        inputs = torch.from_numpy(joined @ self._fc.T)
        found: np.ndarray = self._layer(inputs_embeds=inputs[None]).last_hidden_state[0, -1].numpy()
        return found

    def logits(self, state: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._ends.head @ state
        return found


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()

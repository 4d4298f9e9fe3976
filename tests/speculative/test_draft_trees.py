"""Trees that an EAGLE layer grows: EAGLE-2's rule, with the layer of transformers as the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from headrace.build import survey
from headrace.config import EngineConfig
from headrace.core import trees
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, NewSequence
from headrace.errors import ConfigError
from headrace.runner.sampling.randomness import noise
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.speculative.draft_trees import BEAMS, CHOICES, LEVELS, confidence
from headrace.speculative.method import Proposal
from tests import needs
from tests.speculative.eagle_reference import PROMPT, TALE, Reference, reference
from tests.speculative.watched import drive

needs.native()
__all__ = ["reference"]
Path = tuple[int, ...]
NODES, DEPTH = 10, 4


def expected(
    reference: Reference,
    tokens: Sequence[int],
    states: np.ndarray,
    temperature: float,
    seed: int,
    output: int,
) -> dict[Path, float]:
    """Every node that the rule comes to, with its chance."""
    found: dict[Path, float] = {}
    beams: dict[Path, float] = {(): 1.0}
    known: dict[Path, np.ndarray] = {}
    for depth in range(DEPTH):
        new: dict[Path, float] = {}
        for path, chance in beams.items():
            known[path] = reference.predict(tokens, states, path, known)
            sums = reference.logits(known[path]).astype(np.float64)
            if temperature:
                sums = sums / temperature + noise([seed], [output + depth], np.arange(len(sums)))[0]
            best = np.argsort(-sums)[:CHOICES]
            shares = np.exp(sums[best] - sums[best[0]])
            new |= {
                (*path, int(token)): chance * share
                for token, share in zip(best, shares / shares.sum(), strict=True)
            }
        found |= new
        least = sorted(found.values(), reverse=True)[NODES - 1] if len(found) > NODES else 0.0
        going = sorted(new, key=lambda path: -new[path])[:BEAMS]
        beams = {path: new[path] for path in going if new[path] > least}
    return found


def paths_of(proposal: Proposal) -> list[Path]:
    parents = proposal.parents or tuple(range(-1, len(proposal.tokens) - 1))
    return [
        tuple(proposal.tokens[node] for node in trees.path_to(parents, node)) for node in range(len(parents))
    ]


def assert_is_best(proposal: Proposal, found: Mapping[Path, float]) -> None:
    """The NODES likeliest, but for such that are about as likely as the last of them."""
    paths = paths_of(proposal)
    assert len(paths) == len(set(paths)) == NODES
    least = sorted(found.values(), reverse=True)[NODES - 1]
    assert {path for path, chance in found.items() if chance > 1.02 * least} <= set(paths)
    assert all(found[path] > 0.98 * least for path in paths)
    for path, level in zip(paths, proposal.nodes, strict=True):
        share = found[path] / (found[path[:-1]] if len(path) > 1 else 1.0)
        assert abs(share * LEVELS - level - 0.5) < 0.6


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_likeliest_tokens_are_proposed(reference: Reference, temperature: float) -> None:
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=3, ignore_eos=True)
    _, watched = drive(
        [NewRequest("a", PROMPT, params)], **TALE, num_speculative_tokens=DEPTH, speculative_tree_nodes=NODES
    )
    states = reference.states(watched.trees[-1][0])
    full = [one for one in watched.trees if len(one[0]) + DEPTH < len(PROMPT) + 24]
    assert len(full) >= 4 and watched.copied > 4
    for tokens, proposal, seed, output in full[:4]:
        assert_is_best(
            proposal, expected(reference, tokens, states[: len(tokens) - 1], temperature, seed, output)
        )
    shapes = {proposal.parents for _, proposal, _, _ in full}
    assert len(shapes) > 2  # of another shape each time


def test_trees_bring_more_tokens_than_chains() -> None:
    prompts = [tuple(range(20 + at, 70 + at)) for at in range(3)]
    requests = [
        NewRequest(str(at), prompt, SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))
        for at, prompt in enumerate(prompts)
    ]
    steps = []
    for nodes in (0, 16):
        outputs, watched = drive(requests, **TALE, num_speculative_tokens=4, speculative_tree_nodes=nodes)
        steps.append(len(watched.trees))
        assert sum(len(output.tokens) for output in outputs) == 3 * 40
    assert steps[1] < 0.95 * steps[0]


def test_the_smallest_temperatures_draft_too() -> None:
    found = []
    for temperature in (0.0, 5e-324):
        params = SamplingParams(max_tokens=8, temperature=temperature, seed=1, ignore_eos=True)
        outputs, watched = drive(
            [NewRequest("a", PROMPT, params)], **TALE, num_speculative_tokens=3, speculative_tree_nodes=6
        )
        assert watched.trees and all(proposal.tokens for _, proposal, _, _ in watched.trees)
        found.append([token for output in outputs for token in output.tokens])
    assert found[0] == found[1]


@pytest.mark.parametrize("logits", [(np.inf, np.inf, 0.0), (-np.inf, -np.inf, -np.inf), (np.inf, 1.0, 0.0)])
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 0.7])
def test_infinite_logits_of_layers_give_confidences(logits: tuple[float, ...], temperature: float) -> None:
    new = NewSequence(SamplingParams(temperature=temperature), (5,), 1, 1, frozenset())
    state = SequenceState(new, 2048)
    row = SampleRow(state, ())
    shares = confidence([row] * 3, [(1, 2, 3), (7,), ()], [logits, (0.5,), ()])
    assert shares == [[pytest.approx(1 / 3)] * 3, [1.0], []]


def test_layers_draft_chains_where_a_tree_cannot_be_verified() -> None:
    with pytest.raises(ConfigError, match="speculative_tree_nodes 8: rejection sampling needs drafts"):
        survey(
            EngineConfig("tale", speculative="tale-eagle", acceptance="rejection", speculative_tree_nodes=8)
        )
    found = survey(EngineConfig("tale", speculative="tale-eagle", acceptance="rejection")).resolved
    assert found.speculative_tree_nodes == 0 and not any(group.scratch for group in found.kv_groups)
    own = survey(EngineConfig("tale", speculative="tale-eagle")).resolved
    assert own.speculative_tree_nodes == 16 and all(group.scratch for group in own.kv_groups)

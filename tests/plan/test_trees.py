"""Trees of drafts in the plan: scratch blocks, and trees that cannot be verified."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.plan.drafts import DraftHeads
from headrace.plan.hardware import Machine
from headrace.plan.kv import largest
from headrace.plan.ledger import ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import GIB

MakeSpec = Callable[..., ModelSpec]
MakeMachine = Callable[..., Machine]
HEADS = DraftHeads("heads", 1000, nodes=40)


@pytest.fixture
def decide(make_spec: MakeSpec, make_machine: MakeMachine) -> Callable[..., ResolvedConfig]:
    def resolved(heads: DraftHeads | None = HEADS, memory: int = GIB, **options: object) -> ResolvedConfig:
        config = EngineConfig.from_kwargs(model="m", speculative="heads", **options)
        return resolve(config, make_spec((None, 32)), make_machine(memory), heads=heads)

    return resolved


def test_branches_have_scratch_blocks_and_rows_beside_the_pools(
    decide: Callable[..., ResolvedConfig], make_spec: MakeSpec
) -> None:
    plain = decide(speculative_tree_nodes=0, block_size=16, kv_cache_memory="64KiB")
    trees = decide(block_size=16, num_speculative_tokens=4, kv_cache_memory="64KiB")
    assert (plain.tree_branches, trees.speculative_tree_nodes, trees.tree_branches) == (0, 16, 15)
    assert trees.most_segments == trees.max_num_seqs + 15
    assert [group.num_blocks for group in trees.kv_groups] == [group.num_blocks for group in plain.kv_groups]
    assert [group.scratch for group in trees.kv_groups] == [
        15 * 2,
        15 * 2,
    ]  # 4 tokens lie in up to 2 blocks of 16
    assert [group.memory_blocks - group.num_blocks for group in trees.kv_groups] == [30, 30]
    before, after = (ledger(make_spec((None, 32)), one) for one in (plain, trees))
    (line,) = [line for line in after.activations if line.name == "trees of drafts"]
    assert line.bytes == 30 * 16 * before.kv_token_bytes
    assert before.kv_pool_bytes == after.kv_pool_bytes
    assert "trees of drafts" not in [line.name for line in before.activations]


@pytest.mark.parametrize(
    ("heads", "options", "reason"),
    [
        (DraftHeads("heads", 1000), {}, "only heads with a tree"),
        (HEADS, {"kv_layout": "contiguous"}, "contiguous layout"),
    ],
)
def test_where_no_tree_can_be_drafted_drafts_are_chains(
    decide: Callable[..., ResolvedConfig], heads: DraftHeads, options: dict[str, object], reason: str
) -> None:
    found = decide(heads, **options)
    assert found.speculative_tree_nodes == 0 and all(group.scratch == 0 for group in found.kv_groups)
    assert reason in dict(found.reasons)["speculative_tree_nodes"]
    with pytest.raises(ConfigError, match=f"speculative_tree_nodes 8: .*{reason}"):
        decide(heads, speculative_tree_nodes=8, **options)


def test_a_tree_is_no_larger_than_a_step_or_that_of_the_heads(decide: Callable[..., ResolvedConfig]) -> None:
    assert decide(max_num_batched_tokens=9, max_num_seqs=2).speculative_tree_nodes == 8
    assert decide(DraftHeads("heads", 1000, nodes=5)).speculative_tree_nodes == 5
    with pytest.raises(ConfigError, match=r"speculative_tree_nodes 9: .* takes at most 9 tokens"):
        decide(max_num_batched_tokens=9, max_num_seqs=2, speculative_tree_nodes=9)


def test_trees_that_leave_no_room_for_the_kv_cache_are_named(decide: Callable[..., ResolvedConfig]) -> None:
    def fits(size: int, nodes: int) -> bool:
        try:
            decide(kv_cache_memory=size, speculative_tree_nodes=nodes, max_model_len=64)
        except ConfigError:
            return False
        return True

    most = largest(1 << 20, GIB, lambda size: fits(size, 0))
    with pytest.raises(ConfigError, match=r"lower --kv-cache-memory, or trees .* --speculative-tree-nodes"):
        decide(kv_cache_memory=most, speculative_tree_nodes=16, max_model_len=64)
    with pytest.raises(ConfigError, match=r"lower --kv-cache-memory$"):
        decide(kv_cache_memory=GIB, speculative_tree_nodes=16, max_model_len=64)


@pytest.mark.parametrize(
    ("acceptance", "words"),
    [
        ("exact", "drafts never change an answer"),
        ("rejection", "tokens of a seed depend on drafts"),
        ("typical", "not lossless"),
    ],
)
def test_the_reason_says_what_acceptance_keeps(
    decide: Callable[..., ResolvedConfig], acceptance: str, words: str
) -> None:
    assert words in dict(decide(acceptance=acceptance).reasons)["acceptance"]

"""The native decoder against the torch decoder on every kind of tiny model, and its own guarantees."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import BEST, parameters

_native = needs.native()

from headrace.core.types import BlockCopy  # noqa: E402
from headrace.runner.step import GroupTables  # noqa: E402
from tests.native.steps import BLOCKS, PagedRun, groups_of  # noqa: E402
from tests.native.tiny_models import (  # noqa: E402
    MAX_TOKENS,
    SPECS,
    VOCAB,
    native_model,
    random_weights,
    torch_model,
)

LENGTH = 90


def prompt(length: int = LENGTH, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def distance(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    return float(np.abs(ours - theirs).max())


def reference(name: str, tokens: list[int], block_size: int = 16, scale: float = 0.15) -> NDArray[np.float32]:
    """Logits of torch; those of a prompt are computed once for all instruction sets."""
    return _reference(name, tuple(tokens), block_size, scale)


@functools.lru_cache(maxsize=4)
def _reference(name: str, tokens: tuple[int, ...], block_size: int, scale: float) -> NDArray[np.float32]:
    spec = SPECS[name]
    model = torch_model(spec, random_weights(spec, scale), block_size)
    return PagedRun(model, groups_of(spec, block_size)).step({0: [*tokens]})[0]


@pytest.mark.parametrize("kernels", parameters())
@pytest.mark.parametrize("name", SPECS)
def test_float32_logits_match_torch(name: str, kernels: str) -> None:
    spec, tokens = SPECS[name], prompt()
    run = PagedRun(native_model(spec, random_weights(spec), 16, kernels), groups_of(spec, 16))
    parts = [run.step({0: tokens[at:end]})[0] for at, end in ((0, 50), (50, 57), (57, 80))]
    parts += [run.step({0: [token]})[0] for token in tokens[80:]]
    assert distance(np.concatenate(parts), reference(name, tokens)) < 1e-4
    if all(group.window is not None for group in run.groups):
        assert run.total_dropped > 0


@pytest.mark.parametrize("kernels", parameters())
@pytest.mark.parametrize("kv", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("name", ["gqa", "qk-norm", "full-and-window", "sinks", "biases", "latent"])
def test_bfloat16_logits_are_near_those_of_torch(name: str, kv: str, kernels: str) -> None:
    spec, tokens = SPECS[name], prompt()
    weights = random_weights(spec, 0.04)
    run = PagedRun(native_model(spec, weights, 16, kernels, format="bf16", kv=kv), groups_of(spec, 16))
    ours, theirs = run.step({0: tokens})[0], reference(name, tokens, scale=0.04)
    error = distance(ours, theirs)
    assert 0 < error < 5e-2
    best = np.sort(theirs, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 2 * error
    assert clear.any()
    assert np.array_equal(ours.argmax(1)[clear], theirs.argmax(1)[clear])


@pytest.mark.parametrize("block_size", [1, 4, 16, 32, 100])
def test_block_sizes_do_not_change_what_is_computed(block_size: int) -> None:
    for name in ("gqa", "full-and-window", "sinks", "latent-and-heads"):
        spec, tokens = SPECS[name], prompt()
        model = native_model(spec, random_weights(spec), block_size, BEST)
        logits = PagedRun(model, groups_of(spec, block_size)).step({0: tokens})[0]
        assert distance(logits, reference(name, tokens, block_size)) < 1e-4


KV_OF = {"f32": "float32", "bf16": "bfloat16", "int8": "bfloat16", "int4": "int8"}


@pytest.mark.parametrize("kernels", parameters())
@pytest.mark.parametrize("format", KV_OF)
@pytest.mark.parametrize("name", ["gqa", "full-and-window", "sinks", "qk-norm", "latent-and-heads"])
def test_logits_are_bitwise_the_same_in_any_batch(name: str, format: str, kernels: str) -> None:
    spec, tokens = SPECS[name], prompt()
    weights = random_weights(spec)

    def fresh(threads: int, seed: int) -> PagedRun:
        model = native_model(spec, weights, 16, kernels, threads=threads, format=format, kv=KV_OF[format])
        return PagedRun(model, groups_of(spec, 16), seed)

    whole = fresh(1, 0).step({0: tokens})[0]
    chunked = fresh(2, 1)
    parts = [chunked.step({0: tokens[a:b]})[0] for a, b in ((0, 1), (1, 33), (33, 70), (70, LENGTH))]
    assert np.array_equal(np.concatenate(parts), whole)

    crowd = fresh(2, 2)
    crowd.step({s: prompt(2 + s % 7, seed=s) for s in range(1, 32)})
    others = {s: prompt(1, seed=100 + s) for s in range(1, 16)}
    more = {s: prompt(1, seed=100 + s) for s in range(16, 32)}
    among = [crowd.step({**others, 0: tokens[:60], **more})[15]]
    among += [crowd.step({0: [token], **others, **more})[0] for token in tokens[60:]]
    assert np.array_equal(np.concatenate(among), whole)


def test_only_selected_rows_are_returned() -> None:
    for name in ("gqa", "one-layer", "tied"):
        spec, weights, tokens = SPECS[name], random_weights(SPECS[name]), prompt(40)
        groups = groups_of(spec, 16)
        whole = PagedRun(native_model(spec, weights, 16, BEST), groups).step({0: tokens})[0]
        run = PagedRun(native_model(spec, weights, 16, BEST), groups)
        assert run.step({0: tokens[:30]}, rows=[])[0].shape == (0, VOCAB)
        required = run.step({0: tokens[30:]}, rows=[9, 3, 3])[0]
        assert np.array_equal(required, whole[[39, 33, 33]])


@pytest.mark.parametrize("kernels", parameters())
@pytest.mark.parametrize("name", ["gqa", "one-layer", "tied", "sinks"])
def test_hidden_states_match_torch_and_leave_the_logits_alone(name: str, kernels: str) -> None:
    spec, weights, tokens = SPECS[name], random_weights(SPECS[name]), prompt(40)
    groups = groups_of(spec, 16)

    def step_of(model: Any, logits: list[int], hidden: list[int]) -> tuple[NDArray[np.float32], ...]:
        step = PagedRun(model, groups).plan({0: tokens[:11], 1: tokens})
        step.logits_rows = np.array(logits, dtype=np.int64)
        step.hidden_rows = np.array(hidden, dtype=np.int64)
        return np.asarray(model.forward(step)).copy(), np.asarray(model.hidden()).copy()

    rows = [50, 3, 3, *range(11, 20)]
    logits, hidden = step_of(native_model(spec, weights, 16, kernels), [10, 50], rows)
    required = step_of(torch_model(spec, weights, 16), [10, 50], rows)
    assert logits.shape == (2, VOCAB) and hidden.shape == (12, spec.hidden_size)
    assert distance(logits, required[0]) < 1e-4 and distance(hidden, required[1]) < 1e-4

    alone = PagedRun(native_model(spec, weights, 16, kernels), groups)
    assert np.array_equal(np.concatenate(alone.step({0: tokens[:11], 1: tokens}))[[10, 50]], logits)
    for row in range(len(rows)):  # each by itself, without logits
        none, one = step_of(native_model(spec, weights, 16, kernels), [], rows[row : row + 1])
        assert none.shape == (0, VOCAB) and np.array_equal(one[0], hidden[row])


@pytest.mark.parametrize("kernels", parameters())
@pytest.mark.parametrize("format", KV_OF)
def test_hidden_states_are_bitwise_the_same_in_any_batch(format: str, kernels: str) -> None:
    spec, tokens = SPECS["gqa"], prompt()
    weights, groups = random_weights(spec), groups_of(spec, 16)

    def fresh(threads: int, seed: int) -> PagedRun:
        model = native_model(spec, weights, 16, kernels, threads=threads, format=format, kv=KV_OF[format])
        return PagedRun(model, groups, seed)

    def states(run: PagedRun, slices: dict[int, list[int]], rows: list[int]) -> NDArray[np.float32]:
        step = run.plan(slices)
        step.logits_rows, step.hidden_rows = np.arange(1), np.array(rows)
        run.model.forward(step)
        return np.asarray(run.model.hidden()).copy()

    whole = states(fresh(1, 0), {0: tokens}, list(range(LENGTH)))
    run = fresh(2, 1)
    run.step({s: prompt(3 + s, seed=s) for s in range(1, 9)})
    others = {s: prompt(1, seed=50 + s) for s in range(1, 9)}
    parts = [states(run, {0: tokens[:40], **others}, list(range(40)))]
    parts += [states(run, {**others, 0: tokens[40:]}, list(range(8, 58)))]
    assert np.array_equal(np.concatenate(parts), whole)


def test_two_decoders_share_one_process() -> None:
    spec, tokens = SPECS["gqa"], prompt(30)
    first, second = (
        PagedRun(native_model(spec, random_weights(spec, seed=seed), 16, BEST), groups_of(spec, 16))
        for seed in (1, 2)
    )
    alone = [
        PagedRun(native_model(spec, random_weights(spec, seed=seed), 16, BEST), groups_of(spec, 16)).step(
            {0: tokens}
        )[0]
        for seed in (1, 2)
    ]
    parts: list[list[NDArray[np.float32]]] = [[], []]

    def generate(run: PagedRun, into: list[NDArray[np.float32]]) -> None:
        into += [run.step({0: [token]})[0] for token in tokens]

    threads = [
        threading.Thread(target=generate, args=(run, into))
        for run, into in zip((first, second), parts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for into, expected in zip(parts, alone, strict=True):
        assert np.array_equal(np.concatenate(into), expected)
    assert not np.array_equal(alone[0], alone[1])


def test_a_copied_block_reads_like_its_source() -> None:
    for name, kv in (("gqa", "float32"), ("gqa", "int8"), ("latent", "bfloat16"), ("latent", "int8")):
        spec = SPECS[name]
        model = native_model(spec, random_weights(spec), 16, BEST, kv=kv)
        run = PagedRun(model, groups_of(spec, 16))
        tokens = prompt(20)
        run.step({0: tokens})
        expected = run.step({0: [5]})[0]
        source, target = run.tables[0, 0][0], run.free[0].pop()
        model.copy_blocks([BlockCopy(0, source, target)])
        run.tables[0, 0][0] = target
        run.length[0] -= 1
        assert np.array_equal(run.step({0: [5]})[0], expected)


@pytest.mark.parametrize("kernels", parameters())
def test_keys_that_are_also_written_elsewhere_read_the_same_there(kernels: str) -> None:
    cases = [
        ("gqa", "float32"),
        ("gqa", "bfloat16"),
        ("gqa", "int8"),
        ("latent", "float32"),
        ("latent", "int8"),
    ]
    for name, kv in cases:
        spec = SPECS[name]
        model = native_model(spec, random_weights(spec), 16, kernels, kv=kv)
        run = PagedRun(model, groups_of(spec, 16))
        run.step({0: prompt(8)})
        step = run.plan({0: prompt(20), 1: prompt(3)})  # positions 8 to 27: the first 16 are in two blocks
        (group,) = step.groups
        assert isinstance(group, GroupTables)
        target = run.free[0].pop()
        step.more = np.cumsum([0, *([0] * 8), *([1] * 12), *([0] * 3)], dtype=np.int32)
        group.more_slots = target * 16 + np.arange(12)  # positions 16 to 27
        model.forward(step)
        expected = run.step({0: [5]})[0]
        run.length[0] -= 1
        run.tables[0, 0][1] = target
        assert np.array_equal(run.step({0: [5]})[0], expected), (name, kv)


def test_the_best_token_of_every_row() -> None:
    spec = SPECS["gqa"]
    model = native_model(spec, random_weights(spec), 16, BEST)
    step = PagedRun(model, groups_of(spec, 16)).plan({0: prompt(20), 1: prompt(3)})
    groups = [(group.block_tables, group.dropped, group.slots) for group in step.groups]
    best = np.full(23, -1, dtype=np.int64)
    logits = model.tape.run(step.ids, step.positions, step.cu_q, step.kv_lens, groups, step.logits_rows, best)
    assert np.array_equal(best, logits.argmax(axis=1))


def test_a_step_that_does_not_fit_is_refused_before_anything_runs() -> None:
    spec = SPECS["gqa"]
    model = native_model(spec, random_weights(spec), 16, BEST)
    run = PagedRun(model, groups_of(spec, 16))
    tokens = prompt(20)
    expected = run.step({0: tokens})[0]

    def refused(match: str, **changes: object) -> None:
        other = PagedRun(model, groups_of(spec, 16), seed=9)
        step = other.plan({0: prompt(7), 1: prompt(2)})
        for name, value in changes.items():
            setattr(step if hasattr(step, name) else step.groups[0], name, value)
        with pytest.raises(ValueError, match=match):
            model.forward(step)

    with pytest.raises(ValueError, match="257 tokens, the tape has room for 256"):
        PagedRun(model, groups_of(spec, 16)).step({0: prompt(MAX_TOKENS + 1)})
    with pytest.raises(ValueError, match="41 sequences"):
        PagedRun(model, groups_of(spec, 16)).step({s: [1] for s in range(41)})
    longs = np.arange(9)
    refused("outside the vocabulary", ids=longs + VOCAB - 8)
    refused("outside the vocabulary", ids=longs - 1)
    refused("must follow", positions=longs[::-1].copy())
    refused("cu_q", cu_q=np.array([0, 3, 8], dtype=np.int32))
    refused("cu_q", cu_q=np.array([0, 12, 9], dtype=np.int32))
    refused("kv_lens", kv_lens=np.array([7, 400], dtype=np.int32))
    refused("wanted_rows", logits_rows=np.array([9]))
    refused("wanted_rows", hidden_rows=np.array([9]))
    refused(
        "wanted rows", logits_rows=np.zeros(200, dtype=np.int64), hidden_rows=np.zeros(57, dtype=np.int64)
    )
    refused("slot", slots=longs + BLOCKS * 16 - 8)
    refused("outside the KV cache", block_tables=np.array([[BLOCKS], [1]], dtype=np.int32))
    refused("differ in length", positions=np.arange(8))

    def refused_more(match: str, firsts: list[int], slots: list[int]) -> None:
        step = PagedRun(model, groups_of(spec, 16), seed=9).plan({0: prompt(7), 1: prompt(2)})
        (group,) = step.groups
        assert isinstance(group, GroupTables)
        step.more, group.more_slots = np.array(firsts, dtype=np.int32), np.array(slots, dtype=np.int64)
        with pytest.raises(ValueError, match=match):
            model.forward(step)

    refused_more("more slots differ", [0] * 9 + [2], [1])
    refused_more("more slots differ", [0] * 9, [])
    refused_more("more slots must start", [1] * 10, [1])
    refused_more("more slots of tokens must follow", [0, 2, *[1] * 8], [1])
    refused_more("outside the KV cache", [0] * 9 + [1], [BLOCKS * 16])
    refused_more("outside the KV cache", [0] * 9 + [1], [-1])
    refused("shorter than its sequence", dropped=np.array([-1, 0], dtype=np.int32))
    assert np.array_equal(run.step({5: tokens})[0], expected)


def test_a_table_whose_dropped_blocks_would_hold_sinks_is_refused() -> None:
    """Entries of sinks would be read from after the live ones."""
    spec = SPECS["sinks"]
    model = native_model(spec, random_weights(spec), 16, BEST)
    step = PagedRun(model, groups_of(spec, 16)).plan({0: prompt(7)})
    step.groups[0].dropped = np.array([1], dtype=np.int32)
    with pytest.raises(ValueError, match="hold sinks"):
        model.forward(step)


def test_a_profile_accounts_for_every_call() -> None:
    spec = SPECS["gqa"]
    model = native_model(spec, random_weights(spec), 16, BEST)
    run = PagedRun(model, groups_of(spec, 16))
    run.step({0: prompt(20)})
    assert all(row[2:] == (0.0, 0.0, 0.0) for row in model.tape.costs())
    model.tape.profile(True)
    run.step({0: [1], 1: prompt(9)})
    costs = model.tape.costs()
    assert {layer for _, layer, *_ in costs} == {-1, 0, 1, 2}
    assert {"embed", "rotations", "norm", "qkv", "rope", "attention", "out", "gate_up", "down", "head"} <= {
        name for name, *_ in costs
    }
    assert all(seconds > 0 and size > 0 for _, _, seconds, size, _ in costs)
    down = next(row for row in costs if row[0] == "down")
    assert down[4] == 2 * 10 * 48 * 72
    model.tape.clear_costs()
    assert all(row[2] == 0 for row in model.tape.costs())


@pytest.mark.parametrize(
    ("states", "match"),
    [
        (([-2, 0], [0, 1, 2], [3, 2], [0, 1]), "outside its memory"),
        (([4, 0], [0, 1, 2], [3, 2], [0, 1]), "outside its memory"),
        (([-1, 0], [0, 1, 2], [3, 2], [0, 4]), "outside its memory"),
        (([-1, 0], [0, 1, 2], [3, 2], [-1, 1]), "outside its memory"),
        (([-1, 0], [0, 1_000_000_000, 2], [3, 2], [0, 1]), "must follow"),
        (([-1, 0], [0, -5, 2], [3, 2], [0, 1]), "must follow"),
        (([-1, 0], [1, 1, 2], [3, 2], [0, 1]), "differ in length"),
        (([-1, 0], [0, 1, 3], [3, 2], [0, 1]), "differ in length"),
        (([-1], [0, 1], [3], [0]), "differ in length"),
        (([-1, 0], [0, 1, 2], [2, 2], [0, 1]), "after the last token"),
        (([-1, 0], [0, 1, 2], [4, 2], [0, 1]), "after the last token"),
        (([-1, 0], [0, 2, 3], [3, 1, 2], [0, 1, 2]), "order of tokens"),
        (([-1, 0], [0, 1, 1], [3], [0]), "after the last token"),
    ],
)
def test_states_that_do_not_fit_are_refused(
    states: tuple[list[int], list[int], list[int], list[int]], match: str
) -> None:
    team = _native.Team(1)
    tape = _native.Tape(_native.Kernels(BEST), team, max_tokens=8, max_seqs=4, max_logits=1, vocab_size=VOCAB)
    tape.add_states(4)
    ids, cu_q, lengths = np.zeros(5, np.int64), np.array([0, 3, 5], np.int32), np.array([3, 2], np.int32)
    positions = np.array([0, 1, 2, 0, 1])
    sources, firsts, counts, slots = (np.array(one, np.int32) for one in states)
    with pytest.raises(ValueError, match=match):
        tape.run(ids, positions, cu_q, lengths, [], ids[:1], states=[(sources, firsts, counts, slots)])

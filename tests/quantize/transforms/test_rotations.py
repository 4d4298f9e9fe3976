"""Rotations: orthogonal matrices of all sizes, models that stay what they are, and rotated folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headrace.errors import HeadraceError
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.calibration.walk import Walk, segments
from headrace.quantize.options import QuantizeOptions
from headrace.quantize.rounding.scheme import Scheme, rtn
from headrace.quantize.run import quantize
from headrace.quantize.transforms.hadamard import rotation
from headrace.quantize.transforms.rotations import Rotations
from tests.quantize.streams import TEXTS, model, streams
from tests.tiny_checkpoint import CONFIGS, RECURRENT, write

FAMILIES = {name: one for name, one in (CONFIGS | RECURRENT).items() if name != "gemma4"}


@pytest.mark.parametrize("size", [1, 2, 4, 12, 28, 36, 64, 96, 180, 576])
def test_hadamard_matrices_of_many_sizes(size: int) -> None:
    turn = rotation(size, 1)
    matrix = turn.rows(torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64), rtol=0.0, atol=1e-12)
    torch.testing.assert_close(matrix.abs(), torch.full_like(matrix, size**-0.5), rtol=1e-12, atol=0.0)
    other = rotation(size, 2).rows(torch.eye(size, dtype=torch.float64))
    assert size < 12 or not torch.equal(matrix, other)


@pytest.mark.parametrize("size", [20 * 5, 45, 54])
def test_random_matrices_of_other_sizes(size: int) -> None:
    turn = rotation(size, 1)
    values = torch.randn(3, 2, size, dtype=torch.float64)
    torch.testing.assert_close(turn.rows(values).norm(dim=-1), values.norm(dim=-1))
    back = turn.rows(values) @ turn.rows(torch.eye(size, dtype=torch.float64)).T
    torch.testing.assert_close(back, values)
    matrix = torch.randn(size, 7, dtype=torch.float64)
    torch.testing.assert_close(turn.rows(values) @ turn.columns(matrix), values @ matrix)


@pytest.mark.parametrize(
    "family", ["delta", *(pytest.param(one, marks=pytest.mark.long) for one in FAMILIES if one != "delta")]
)
def test_a_rotated_model_has_a_rotated_stream(family: str, tmp_path: Path) -> None:
    program, weights = model(tmp_path, FAMILIES[family])
    for name, vector in weights.vectors.items():
        if name.endswith("norm"):
            vector *= torch.linspace(0.5, 2.0, len(vector))
    before = streams(program, weights)
    turn = Rotations(program, family, 0)
    for table in turn.tables:
        weights.tables[table.name].copy_(turn.stream.rows(weights.tables[table.name]))
    for layer in range(program.num_layers):
        turn.apply(weights, layer)
    after = streams(program, weights)
    assert len(before) == len(after) > 8
    for one, other in zip(before, after, strict=True):
        assert (turn.stream.rows(one) - other).norm() < 1e-4 * one.norm()


def test_a_model_whose_stream_meets_other_norms_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["gemma4"])
    source = resolve_model(str(tmp_path))
    options = QuantizeOptions("rtn", group=16, format="gptq", rotate=True)
    with pytest.raises(HeadraceError, match="cannot be rotated: add_out of layer 0 does not see"):
        quantize(source, stored_spec(source), options, [], tmp_path / "out", num_threads=1)
    assert not (tmp_path / "out").exists()


def test_layers_without_codes_are_rotated_too(tmp_path: Path) -> None:
    """Rows of 128 fit groups of 128 and those of 64 do not: most matrices change and stay floats."""
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 1})
    source = resolve_model(str(tmp_path / "model"))
    options = QuantizeOptions("rtn", 8, 128, format="gptq", rotate=True)
    report = quantize(source, stored_spec(source), options, [], tmp_path / "out", num_threads=1)
    assert set(report.errors) == {"0.down"} and len(report.kept) == 3
    made = resolve_model(str(tmp_path / "out"))
    one, other = (load_weights(each, stored_spec(each), dtype=torch.float32) for each in (source, made))
    turn = rotation(64, 0)
    expected = turn.rows(one.matrices["0.gate_up"].weight * one.vectors["0.post_norm"])
    torch.testing.assert_close(other.matrices["0.gate_up"].weight, expected)
    torch.testing.assert_close(other.tables["embed"], turn.rows(one.tables["embed"]))


def test_spread_features_lose_less_when_they_are_rounded() -> None:
    weight = torch.randn(32, 128, generator=torch.Generator().manual_seed(0))
    weight[:, 5] *= 30
    turned, scheme = rotation(128, 0).rows(weight), Scheme(4, 32)
    plain, better = ((rtn(one, scheme).dequantize() - one).norm() for one in (weight, turned))
    assert better < 0.7 * plain


@pytest.mark.parametrize("tied", [False, pytest.param(True, marks=pytest.mark.long)])
def test_logits_of_a_rotated_folder_are_those_of_the_model(tied: bool, tmp_path: Path) -> None:
    """8 bits are close; float32 throughout, and a head of its own."""
    from headrace import LLM

    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 2, "tie_word_embeddings": tied})
    source = resolve_model(str(tmp_path / "model"))
    options = QuantizeOptions("gptq", 8, 16, format="gptq", rotate=True, seed=3)
    report = quantize(source, stored_spec(source), options, TEXTS, tmp_path / "out", num_threads=1)
    assert max(report.errors.values()) < 0.01
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    made = resolve_model(str(tmp_path / "out"))
    norms = load_weights(made, stored_spec(made), dtype=torch.float32).vectors
    assert all((vector == 1.0).all() for vector in norms.values())
    logits = []
    for folder in ("model", "out"):
        llm = LLM(
            str(tmp_path / folder), tokenizer="tale", dtype="float32", num_threads=1, show_progress=False
        )
        states = llm.hidden_states([list(TEXTS[3])], use_tqdm=False)[0]
        logits.append(torch.from_numpy(llm.logits(states)))
    assert (logits[0] - logits[1]).norm() < 0.02 * logits[0].norm()


def test_the_head_is_calibrated_on_what_it_reads(tmp_path: Path) -> None:
    from headrace import LLM

    program, weights = model(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 1})
    weights.vectors["final_norm"].copy_(torch.ones(64))
    walk = Walk(program, TEXTS)
    for _ in segments(program):
        walk.advance(weights)
    llm = LLM(str(tmp_path), tokenizer="tale", dtype="float32", num_threads=1, show_progress=False)
    states = llm.hidden_states([list(one) for one in TEXTS], use_tqdm=False)
    expected = torch.cat([torch.from_numpy(one) for one in states])
    torch.testing.assert_close(walk.states(weights), expected, rtol=1e-3, atol=1e-3)

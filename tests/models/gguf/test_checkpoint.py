"""Tensors of GGUF files by the names of checkpoints, and models resolved to GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.errors import CheckpointError, ModelNotFound
from headrace.gguf.types import TYPES
from headrace.models.families import weight_names
from headrace.models.gguf.blocks import dequantize
from headrace.models.gguf.checkpoint import GGUFCheckpoint
from headrace.models.gguf.names import GGUF_NAMES, NameTable
from headrace.models.identity import weights_identity
from headrace.models.loader import load_weights
from headrace.models.names import HF_NAMES
from headrace.models.source import is_at_hand, resolve_model
from headrace.models.stored import open_weights, stored_spec
from headrace.models.tensor_sources import CheckpointTensors
from headrace.plan.weight_formats import weight_formats
from headrace.program.lower import lower
from headrace.quant.block_formats import BLOCK_CODES
from headrace.quant.coded import dequantize as dequantize_coded
from tests.gguf_bytes import HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, File, Tensor, model
from tests.gguf_files import write_gguf
from tests.places import TALE


def stored(file: File, name: str) -> NDArray[np.float32]:
    """A tensor as it lies in the file, as float32."""
    tensor = dict(file.tensors)[name]
    kind = {one.number: one for one in TYPES.values()}[tensor.kind]
    assert tensor.data is not None
    raw = np.frombuffer(tensor.data, dtype=np.uint8)
    return dequantize(raw.reshape(1, -1), kind).reshape(tensor.shape)


def in_halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Row 2i of a head is row i of its first half, and row 2i + 1 is row i of its second."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for row in range(size):
            out[head * size + row % 2 * (size // 2) + row // 2] = rows[head * size + row]
    return out


def test_names_go_both_ways() -> None:
    table = NameTable(HF_NAMES)
    assert table.names("token_embd.weight") == ("model.embed_tokens.weight",)
    assert table.names("blk.12.attn_q.bias") == ("model.layers.12.self_attn.q_proj.bias",)
    assert table.names("blk.0.ffn_norm.weight") == ("model.layers.0.post_attention_layernorm.weight",)
    assert table.names("rope_freqs.weight") == table.names("blk.3.attn_rot_embd.weight") == ()
    for unknown in ("blk.0.ssm_x.weight", "blk.00.attn_q.weight", "v.blk.0.attn_q.weight", "x"):
        assert table.names(unknown) == (unknown,)
    assert table.names("blk.0.ffn_up_exps.weight") == ("model.layers.0.mlp.experts.{e}.up_proj.weight",)
    assert table.names("blk.2.ffn_down.31.weight") == ("model.layers.2.mlp.experts.31.down_proj.weight",)
    experts = tuple(f"model.layers.2.mlp.experts.{{e}}.{part}_proj.weight" for part in ("gate", "up"))
    assert table.names("blk.2.ffn_gate_up_exps.weight") == experts
    assert NameTable(GGUF_NAMES).names("blk.7.attn_k_norm.weight") == ("blk.7.attn_k_norm.weight",)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "MXFP4"])
def test_every_tensor_is_what_the_file_holds(kind: str, tmp_path: Path) -> None:
    file = model(kind=TYPES[kind].number)
    source = resolve_model(str(file.write(tmp_path / "m.gguf")))
    spec = stored_spec(source)
    weights = load_weights(source, spec, dtype=torch.float32)
    assert np.array_equal(weights.tables["embed"].numpy(), stored(file, "token_embd.weight"))
    assert np.array_equal(weights.matrices["head"].weight.numpy(), stored(file, "output.weight"))
    for layer in range(2):
        q, k, v, out, gate, up, down = (
            stored(file, f"blk.{layer}.{part}.weight")
            for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        )
        qkv = np.concatenate([in_halves(q, HEADS), in_halves(k, KV_HEADS), v])
        assert np.array_equal(weights.matrices[f"{layer}.qkv"].weight.numpy(), qkv)
        assert np.array_equal(weights.matrices[f"{layer}.out"].weight.numpy(), out)
        assert np.array_equal(weights.matrices[f"{layer}.gate_up"].weight.numpy(), np.concatenate([gate, up]))
        assert np.array_equal(weights.matrices[f"{layer}.down"].weight.numpy(), down)
        norm = weights.vectors[f"{layer}.input_norm"].numpy()
        assert np.array_equal(norm, stored(file, f"blk.{layer}.attn_norm.weight"))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_biases_move_with_their_rows(arch: str, tmp_path: Path) -> None:
    file = model(arch, biases=arch == "llama")
    weights = load_weights(
        source := resolve_model(str(file.write(tmp_path / "m.gguf"))),
        stored_spec(source),
        dtype=torch.float32,
    )
    q, k, v = (stored(file, f"blk.1.attn_{part}.bias") for part in "qkv")
    if arch == "llama":
        q, k = in_halves(q, HEADS), in_halves(k, KV_HEADS)
    bias = weights.matrices["1.qkv"].bias
    assert bias is not None and np.array_equal(bias.numpy(), np.concatenate([q, k, v]))


def test_blocks_are_given_as_they_are_stored(tmp_path: Path) -> None:
    """For kernels that read them: q and k in the order of rows that the program expects."""
    file = model(kind=TYPES["Q4_0"].number)
    opened = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    tensors = dict(file.tensors)
    for part, heads in (("q", HEADS), ("k", KV_HEADS)):
        data = tensors[f"blk.0.attn_{part}.weight"].data
        assert data is not None
        raw = np.frombuffer(data, dtype=np.uint8).reshape(-1, 18)
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        kind, blocks = opened.blocks(name)
        assert kind.name == "Q4_0" and np.array_equal(blocks, in_halves(raw, heads))
        assert np.array_equal(opened.blocks(name, 3, 7)[1], in_halves(raw, heads)[3:7])
        assert np.array_equal(opened.rows(name, 3, 7), opened.array(name)[3:7])
    _, down = opened.blocks("model.layers.0.mlp.down_proj.weight")
    assert not down.flags.owndata and down.shape == (HIDDEN, 2 * 18)
    assert opened.stored_name("model.norm.weight") == "output_norm.weight"


def test_a_packer_gets_the_same_floats(tmp_path: Path) -> None:
    source = resolve_model(str(model(kind=TYPES["Q8_0"].number).write(tmp_path / "m.gguf")))
    stored, opened = open_weights(source, stored_spec(source)), source.files
    assert opened is not None
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    tensors = CheckpointTensors(stored, names)
    parts = tensors.matrices(names, [32, 16, 16], HIDDEN)
    for name, part, coded in zip(names, parts, tensors.coded(names), strict=True):
        assert part.dtype == np.float32 and np.array_equal(part, opened.array(name))
        assert np.array_equal(dequantize_coded(coded), part)
    tensors.done(names)
    table = tensors.table("model.embed_tokens.weight", VOCAB, HIDDEN, "float32")
    assert np.array_equal(table, opened.array("model.embed_tokens.weight"))
    vector = tensors.vector("model.norm.weight", HIDDEN)
    assert vector.flags.owndata and np.array_equal(vector, opened.array("model.norm.weight"))


def test_the_spec_says_how_matrices_are_stored(tmp_path: Path) -> None:
    file = model(kind=TYPES["Q4_0"].number)
    file.tensors = {**dict(file.tensors), "output.weight": Tensor((VOCAB, HIDDEN), TYPES["Q8_0"].number)}
    spec = stored_spec(resolve_model(str(file.write(tmp_path / "m.gguf"))))
    assert spec.codes is not None and spec.stored_dtype == "float32"
    assert spec.codes.method == "GGUF Q4_0, Q8_0"
    formats = dict(spec.codes.formats)
    assert len(formats) == 2 + 2 * 7 and formats["lm_head.weight"] == BLOCK_CODES["q8_0"]
    assert formats["model.layers.1.mlp.up_proj.weight"] == BLOCK_CODES["q4_0"]
    spec = stored_spec(resolve_model(str(model(kind=1).write(tmp_path / "f.gguf"))))
    assert (spec.codes, spec.stored_dtype) == (None, "float16")


def test_a_table_of_codes_keeps_no_16_bits(tmp_path: Path) -> None:
    """Embeddings are decoded: the other matrices' type does not hold them."""
    file = model(kind=1)
    assert stored_spec(resolve_model(str(file.write(tmp_path / "m.gguf")))).stored_dtype == "float16"
    file.tensors = {**dict(file.tensors), "token_embd.weight": Tensor((VOCAB, HIDDEN), TYPES["Q8_0"].number)}
    spec = stored_spec(resolve_model(str(file.write(tmp_path / "m.gguf"))))
    assert spec.stored_dtype == "float32"
    file.tensors = {
        **dict(model(kind=8).tensors),
        "token_embd.weight": Tensor((VOCAB, HIDDEN), TYPES["F16"].number),
    }
    spec = stored_spec(resolve_model(str(file.write(tmp_path / "m.gguf"))))
    assert spec.stored_dtype == "float16"


def changes(file: File, **tensors: Tensor | None) -> File:
    merged: Mapping[str, Tensor | None] = {
        **dict(file.tensors),
        **{k.replace("__", "."): v for k, v in tensors.items()},
    }
    file.tensors = {name: tensor for name, tensor in merged.items() if tensor is not None}
    return file


def mixture(**tensors: Tensor | None) -> File:
    """Four experts, of which two are chosen, in each layer."""
    file = model()
    file.metadata = {**dict(file.metadata), "llama.expert_count": 4, "llama.expert_used_count": 2}
    wide = next(
        tensor.shape[0] for name, tensor in dict(file.tensors).items() if name.endswith("ffn_up.weight")
    )
    for layer in range(LAYERS):
        for part, shape in (("gate", (wide, HIDDEN)), ("up", (wide, HIDDEN)), ("down", (HIDDEN, wide))):
            changes(file, **{f"blk__{layer}__ffn_{part}__weight": None})
            changes(file, **{f"blk__{layer}__ffn_{part}_exps__weight": Tensor((4, *shape))})
        changes(file, **{f"blk__{layer}__ffn_gate_inp__weight": Tensor((4, HIDDEN))})
    return changes(file, **tensors)


def test_a_mixture_has_a_matrix_for_each_expert(tmp_path: Path) -> None:
    source = resolve_model(str(mixture().write(tmp_path / "m.gguf")))
    weights = load_weights(source, stored_spec(source), dtype=torch.float32)
    assert weights.matrices["1.experts_down"].weight.shape == (4, HIDDEN, 64)
    assert weights.matrices["1.router"].weight.shape == (4, HIDDEN)


@pytest.mark.parametrize(("kind", "packed"), [(1, "f16"), (30, "bf16-a32")])
def test_routers_keep_the_float32_of_files_of_16_bits(kind: int, packed: str, tmp_path: Path) -> None:
    file = mixture()
    routers = {name for name in dict(file.tensors) if name.endswith("ffn_gate_inp.weight")}
    file.tensors = {
        name: tensor if len(tensor.shape) == 1 or name in routers else Tensor(tensor.shape, kind)
        for name, tensor in dict(file.tensors).items()
    }
    spec = stored_spec(resolve_model(str(file.write(tmp_path / "m.gguf"))))
    formats = weight_formats(spec, lower(spec), "float32", None)
    assert formats is not None
    assert (formats.of("0.experts_down").name, formats.of("0.router").name) == (packed, "f32")


def test_gates_of_experts_may_be_in_one_tensor_with_what_they_multiply(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).standard_normal((4, 128, HIDDEN), dtype=np.float32)
    together = {
        f"blk__{layer}__ffn_gate_up_exps__weight": Tensor(rows.shape, 0, rows.tobytes()) for layer in range(2)
    }
    alone = {f"blk__{layer}__ffn_{part}_exps__weight": None for layer in range(2) for part in ("gate", "up")}
    opened = GGUFCheckpoint(mixture(**together, **alone).write(tmp_path / "m.gguf"))
    for expert in range(4):
        name = f"model.layers.1.block_sparse_moe.experts.{expert}"
        assert np.array_equal(opened.array(f"{name}.w1.weight"), rows[expert, :64])
        assert np.array_equal(opened.array(f"{name}.w3.weight"), rows[expert, 64:])
        assert opened.stored_name(f"{name}.w3.weight") == f"blk.1.ffn_gate_up_exps.weight of expert {expert}"


BAD = {
    "missing experts": (
        mixture(blk__1__ffn_up_exps__weight=None),
        "lacks tensor model.layers.1.block_sparse_moe.experts.0.w3.weight",
    ),
    "too few experts": (
        mixture(blk__1__ffn_up_exps__weight=Tensor((3, 64, HIDDEN))),
        r"'blk.1.ffn_up_exps.weight' in m.gguf has shape \[3, 64, 32\], and the model has 4 experts",
    ),
    "experts of another size": (
        mixture(blk__1__ffn_up_exps__weight=Tensor((4, 63, HIDDEN))),
        r"blk.1.ffn_up_exps.weight of expert 0 has shape \[63, 32\], but the config asks for \[64, 32\]",
    ),
    "experts without a number": (
        changes(model(), blk__0__ffn_up_exps__weight=Tensor((1 << 14, 1, 1))),
        r"has shape \[16384, 1, 1\], and the model has 0 experts",
    ),
    "missing": (changes(model(), blk__1__attn_v__weight=None), "lacks tensor model.layers.1.self_attn.v_proj.weight"),
    "shape": (
        changes(model(), blk__0__ffn_up__weight=Tensor((63, HIDDEN))),
        r"tensor blk.0.ffn_up.weight has shape \[63, 32\], but the config asks for \[64, 32\]",
    ),
    "unknown": (
        changes(model(), blk__0__ssm_x__weight=Tensor((4, HIDDEN))),
        "holds tensor 'blk.0.ssm_x.weight', which the config does not account for",
    ),
    "layer too many": (changes(model(), blk__2__attn_norm__weight=Tensor((HIDDEN,))), "layers.2.input_layernorm"),
    "vector of codes": (
        changes(model(), output_norm__weight=Tensor((HIDDEN,), TYPES["Q8_0"].number)),
        "'output_norm.weight' in m.gguf is a vector, and stored as Q8_0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_tensors_that_do_not_fit_the_metadata(name: str, tmp_path: Path) -> None:
    file, words = BAD[name]
    path = file.write(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=words):
        load_weights(source := resolve_model(str(path)), stored_spec(source), dtype=torch.float32)


def test_rows_that_heads_cannot_share(tmp_path: Path) -> None:
    file = changes(model(), blk__0__attn_k__weight=Tensor((18, HIDDEN)))
    opened = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    with pytest.raises(
        CheckpointError, match=r"'blk.0.attn_k.weight' has 18 rows, which 2 heads cannot share"
    ):
        opened.array("model.layers.0.self_attn.k_proj.weight")


def test_a_folder_that_holds_one_model(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m-Q8_0.gguf")
    (tmp_path / "mmproj-m.gguf").write_bytes(b"")
    source = resolve_model(str(tmp_path))
    assert (source.kind, source.path, source.config["architectures"]) == (
        "folder",
        path,
        ["LlamaForCausalLM"],
    )
    assert source.files is not None and list(source.files.paths()) == [path]
    (tmp_path / "config.json").write_text("{}")  # many repositories keep the original's beside GGUF files
    assert resolve_model(str(tmp_path)).path == path
    model().write(tmp_path / "m-Q4_0.gguf")
    with pytest.raises(
        ModelNotFound, match=r"holds 2 GGUF models; give the path of one: m-Q4_0.gguf, m-Q8_0.gguf"
    ):
        resolve_model(str(tmp_path))


def test_safetensors_come_before_gguf(tmp_path: Path) -> None:
    model().write(tmp_path / "m.gguf")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert resolve_model(str(tmp_path)).config == {"model_type": "llama"}


def test_a_path_that_looks_like_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    model().write(tmp_path / "models" / "m.gguf")
    monkeypatch.chdir(tmp_path)
    assert is_at_hand("models/m.gguf") and resolve_model("models/m.gguf").kind == "folder"
    with pytest.raises(ModelNotFound, match=r"there is no file 'models/n\.gguf'"):
        resolve_model("models/n.gguf")


def test_identities_differ_with_the_weights(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m.gguf")
    first = weights_identity(resolve_model(str(path)), 0)
    assert first == weights_identity(resolve_model(str(path)), 0)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert weights_identity(resolve_model(str(path)), 0) != first


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's /proc")
def test_an_identity_keeps_no_pages(tmp_path: Path) -> None:
    """Reading an excerpt maps the pages around it, which would count as memory of the process."""
    path = tmp_path / "m.gguf"
    write_gguf(TALE, path, "F32")
    source = resolve_model(str(path))
    weights_identity(source, 0)
    mapping = Path("/proc/self/smaps").read_text().split(f"{path}\n")[1]
    size, resident = (int(mapping.split(f"{key}:")[1].split()[0]) for key in ("Size", "Rss"))
    assert resident < size / 20
    assert source.files is not None


def test_all_tensors_have_the_program_s_names(tmp_path: Path) -> None:
    for arch in ("llama", "qwen2", "qwen3"):
        source = resolve_model(str(model(arch).write(tmp_path / "m.gguf")))
        spec = stored_spec(source)
        assert source.files is not None
        assert set(source.files.names()) == lower(spec, weight_names(spec)).tensors().keys()

"""Packed folders: what is written is what is mapped, and files that lie are refused before anything is mapped."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import CheckpointError
from headrace.models.families import read_spec, weight_names
from headrace.models.packed.data import PackedWriter, verify
from headrace.models.packed.header import (
    DATA_FILE,
    HEADER_FILE,
    VERSION,
    PackedFacts,
    PackedHeader,
    read_header,
)
from headrace.models.packed.match import check_program
from headrace.models.source import resolve_model
from headrace.models.weights import Weights
from headrace.program.lower import lower
from headrace.quant.format import (
    BF16,
    F32,
    PAGE,
    WIDE_BF16,
    WIDE_F16,
    WeightFormat,
    WeightFormats,
    parse_format,
)
from tests import needs

native = needs.native()

from headrace.models import packed_loader  # noqa: E402
from headrace.models.packed import store  # noqa: E402
from headrace.models.packing import INPUTS  # noqa: E402
from tests.models.test_packed_loader import write  # noqa: E402

KERNELS = native.Kernels(native.available_kernels()[0])
TEAM = native.Team(1)
Config = dict[str, Any]

FORMATS: dict[str, tuple[WeightFormat, str]] = {
    "f32": (F32, "float32"),
    "bf16": (BF16, "bfloat16"),
    "bf16-a32": (WIDE_BF16, "bfloat16"),
    "f16": (WIDE_F16, "float16"),
    **{
        name: (parse_format(name), "bfloat16")
        for name in ("int8", "int8-channel", "int4", "int4-g32-asym", "int4-g64-a16", "int8-g32-asym-a16")
    },
}


@pytest.fixture
def config(llama_config: Config) -> Config:
    """Biases, norms on heads, and widths that are not multiples of a panel."""
    more = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": True,
        "head_dim": 8,
    }
    return {**llama_config, **more, "hidden_size": 20, "intermediate_size": 24}


def pack(folder: Path, target: Path, weights: WeightFormat, dtype: str) -> tuple[Weights, PackedHeader]:
    """The weights in memory, and the header of the same weights in a packed folder."""
    source = resolve_model(str(folder))
    spec = read_spec(source.config)
    options: Any = {"dtype": dtype, "weights": WeightFormats(weights), "kernels": KERNELS, "team": TEAM}
    target.mkdir()
    refs, maker = packed_loader.open_packer(source, spec, **options)
    writer = PackedWriter(target)
    store.save_packed(refs, maker, writer, lambda name: weights)
    quantization = weights.name if weights.quantized else None
    writer.finish(
        PackedFacts(VERSION, "0", "m", KERNELS.layout, KERNELS.name, "float32", "float32", quantization)
    )
    (target / "config.json").write_text((folder / "config.json").read_text())
    return packed_loader.load_packed(source, spec, **options), read_header(target)


def mapped(header: PackedHeader, dtype: str, **options: Any) -> Weights:
    spec = read_spec(json.loads((header.folder / "config.json").read_text()))
    program = lower(spec, weight_names(spec))
    found: Weights = store.map_packed(header, program, header.formats.of, dtype, **options)
    return found


def pieces(matrix: Any) -> list[bytes]:
    return [piece.tobytes() for piece in matrix.pieces]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_mapped_is_what_was_packed(tmp_path: Path, config: Config, name: str, tied: bool) -> None:
    weights, dtype = FORMATS[name]
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder, {**config, "tie_word_embeddings": tied})
    made, header = pack(folder, tmp_path / "packed", weights, dtype)
    seen: list[tuple[int, int]] = []
    found = mapped(header, dtype, progress=lambda done, total: seen.append((done, total)))
    assert found.matrices.keys() == made.matrices.keys() and found.vectors.keys() == made.vectors.keys()
    for key, expected in made.matrices.items():
        one, other = found.matrices[key], expected
        assert one.format == other.format and pieces(one.weight) == pieces(other.weight)
        for fact in ("format", "input", "rows", "cols", "group", "nbytes"):
            assert getattr(one.weight, fact) == getattr(other.weight, fact)
        x = np.random.default_rng(0).standard_normal((3, one.weight.cols)).astype(np.float32)
        epilogue = {"epilogue": "gate", "gate": "silu"} if key.endswith("gate_up") else {}
        products = [native.linear(KERNELS, TEAM, x, matrix.weight, **epilogue) for matrix in (one, other)]
        assert products[0].tobytes() == products[1].tobytes()
    for key, vector in made.vectors.items():
        assert found.vectors[key].dtype == np.float32 and np.array_equal(found.vectors[key], vector)
    if tied and not weights.quantized:
        assert found.tables["embed"] is found.matrices["embed"].weight
    else:
        assert found.tables["embed"].tobytes() == made.tables["embed"].tobytes()
        assert found.tables["embed"].dtype == made.tables["embed"].dtype
    assert seen[-1] == (len(seen), len(seen)) and len(seen) == len(lower(read_spec(config)).weights) - tied
    verify(header)


def test_the_plan_knows_the_size_of_the_file(tmp_path: Path, config: Config) -> None:
    """The bytes of each matrix are those that the plan counts, so what lies in the file is what a run maps."""
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder, config)
    weights = parse_format("int4-g32-asym")
    _, header = pack(folder, tmp_path / "packed", weights, "float32")
    for weight in lower(read_spec(config)).weights:
        if weight.kind == "matrix":
            planned = weights.packed_bytes(
                weight.rows, weight.columns, gated=weight.gated, bias=bool(weight.biases)
            )
            assert header.matrices[weight.name].bytes == planned
    assert (tmp_path / "packed" / DATA_FILE).stat().st_size == header.bytes


def test_nothing_is_copied(tmp_path: Path, config: Config) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder, config)
    _, header = pack(folder, tmp_path / "packed", F32, "float32")
    found = mapped(header, "float32")
    path = str(tmp_path / "packed" / DATA_FILE)
    spans = [
        tuple(int(edge, 16) for edge in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(path)
    ]
    addresses = [matrix.weight.panels.ctypes.data for matrix in found.matrices.values()]
    addresses += [array.ctypes.data for array in (*found.vectors.values(), found.tables["embed"])]
    assert all(any(first <= address < last for first, last in spans) for address in addresses)


def test_matrices_of_every_instruction_set_have_one_layout(tmp_path: Path, config: Config) -> None:
    """What sets with equal `layout` pack is equal, so that one may read what another packed."""
    rows = np.random.default_rng(0).standard_normal((40, 200)).astype(np.float32)
    by_layout: dict[str, list[list[bytes]]] = {}
    for name in native.available_kernels():
        kernels = native.Kernels(name)
        for weights, _ in FORMATS.values():
            matrix = native.PackedMatrix(
                kernels, TEAM, weights.storage, [rows], input=INPUTS[weights.activations],
                group=weights.group or 0, symmetric=weights.symmetric,
            )  # fmt: skip
            by_layout.setdefault(f"{kernels.layout} {weights.name}", []).append(pieces(matrix))
    assert all(len({tuple(one) for one in same}) == 1 for same in by_layout.values())


# ---- Files that lie ----


@pytest.fixture
def packed(tmp_path: Path, config: Config) -> PackedHeader:
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder, config, torch.bfloat16)
    return pack(folder, tmp_path / "packed", parse_format("int4"), "bfloat16")[1]


def load(folder: Path) -> Weights:
    return mapped(read_header(folder), "bfloat16")


Change = Callable[[dict[str, Any]], Any]

CHANGES: dict[str, tuple[Change, str]] = {
    "version": (lambda h: h["facts"].update(version=2), "in version 2 .* this is version 1: pack the model again"),
    "no version": (lambda h: h["facts"].pop("version"), "version None"),
    "type": (lambda h: h["facts"].update(dtype="int3"), "names the type 'int3'"),
    "quantization": (lambda h: h["facts"].update(quantization="int3"), "quantization 'int3' is none"),
    "format": (lambda h: form(h).update(storage="int9"), "weight '0.qkv' .* has storage 'int9'"),
    "facts": (lambda h: h.update(facts=[]), "describes no packed weights"),
    "unknown fact": (lambda h: h["facts"].update(run="rm"), "without exactly the fields"),
    "no weights": (lambda h: h.update(weights=[]), "lists no weights"),
    "a number": (lambda h: h["weights"].append(3), "not a weight: 3"),
    "lacks one": (lambda h: h["weights"].pop(), "bytes, but its header states|lacks weight"),
    "twice": (lambda h: h["weights"].append(h["weights"][0]), "where .* is the next page"),
    "overlap": (lambda h: h["weights"][3].update(offset=0), "bytes at 0, where"),
    "gap": (lambda h: h["weights"][3].update(offset=h["weights"][3]["offset"] + PAGE), "is the next page"),
    "negative": (lambda h: h["weights"][0].update(offset=-PAGE), "has offset -4096"),
    "huge": (lambda h: h["weights"][0].update(bytes=2**70), "has bytes 1180591620717411303424"),
    "float": (lambda h: h["weights"][0].update(bytes=4096.0), r"has bytes 4096\.0"),
    "true": (lambda h: h["weights"][0].update(offset=True), "has offset True"),
    "both": (lambda h: matrix(h).update(array=table(h)["array"]), "either as an array or as a matrix"),
    "no form": (lambda h: matrix(h).update(matrix=None), "either as an array or as a matrix"),
    "array type": (lambda h: table(h)["array"].update(dtype="object"), "has the type 'object'"),
    "array shape": (lambda h: table(h)["array"].update(rows=39), "does not fill its"),
    "array order": (lambda h: table(h)["array"].update(rows=20, columns=40), "is 20 x 40, but the config asks for 40"),
    "rows": (lambda h: matrix(h)["matrix"].update(rows=16), "weight 0.qkv .* is 16 x 20 with a bias, but the config"),
    "bias": (lambda h: matrix(h)["matrix"].update(bias=False), "is 64 x 20, but .* 64 x 20 with a bias"),
    "gate": (lambda h: matrix(h)["matrix"].update(gate=True), "with a gate with a bias, but"),
    "group": (lambda h: form(h).update(group=32), "is packed as int4-g32, not as int4"),
    "group of millions": (lambda h: form(h).update(group=2**40), "is packed as int4-g1099511627776, not"),
    "storage": (lambda h: form(h).update(storage="int8"), "is packed as int8, not as int4"),
    "unknown storage": (lambda h: form(h).update(storage="__import__"), "has storage '__import__'"),
    "input": (lambda h: form(h).update(activations="f32"), "int4 weights take int8 or bf16"),
    "name": (lambda h: matrix(h).update(name="9.qkv"), "lacks weight 0.qkv as matrix"),
    "long name": (lambda h: matrix(h).update(name="x" * 10**6), "has name 'xxx"),
    "one more": (lambda h: h["weights"].append(more(h)), "'extra' as array, which the config does not account for"),
    "no format": (lambda h: matrix(h)["matrix"].update(format=None), "has a WeightFormat without exactly the fields"),
    "a field of a format": (lambda h: form(h).pop("scale"), "has a WeightFormat without exactly the fields"),
    "half pages": (lambda h: matrix(h).update(bytes=matrix(h)["bytes"] - 1), "which are not whole pages"),
}  # fmt: skip


def matrix(header: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in header["weights"] if one["name"] == "0.qkv")


def form(header: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = matrix(header)["matrix"]["format"]
    return found


def table(header: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in header["weights"] if one["name"] == "embed")


def more(header: dict[str, Any]) -> dict[str, Any]:
    last = header["weights"][-1]
    at = -(-(last["offset"] + last["bytes"]) // PAGE) * PAGE
    return {**copy.deepcopy(table(header)), "name": "extra", "offset": at}


@pytest.mark.parametrize("name", CHANGES)
def test_a_header_that_lies_is_refused_in_one_sentence(packed: PackedHeader, name: str) -> None:
    change, said = CHANGES[name]
    path = packed.folder / HEADER_FILE
    header = json.loads(path.read_text())
    change(header)
    path.write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match=said) as caught:
        load(packed.folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no valid JSON"),
        (b"[]", "describes no packed weights"),
        (b"[" * 100_000, "no valid JSON"),
        (b"\xff\xfe{", "no valid JSON"),
    ],
)
def test_a_header_that_is_none(packed: PackedHeader, content: bytes, said: str) -> None:
    (packed.folder / HEADER_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        load(packed.folder)


@pytest.mark.parametrize("change", [-1, -PAGE, PAGE, None])
def test_data_of_another_size(packed: PackedHeader, change: int | None) -> None:
    path = packed.folder / DATA_FILE
    with path.open("r+b") as file:
        file.truncate(0 if change is None else path.stat().st_size + change)
    with pytest.raises(CheckpointError, match="it is not complete"):
        load(packed.folder)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        load(packed.folder)


def test_a_damaged_weight_is_found(packed: PackedHeader) -> None:
    entry = packed.matrices["1.down"]
    with (packed.folder / DATA_FILE).open("r+b") as file:
        file.seek(entry.offset + entry.bytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(CheckpointError, match=r"weight 1\.down in .* is damaged: its SHA-256 differs"):
        verify(packed)
    assert load(packed.folder).matrices  # wrong numbers, and nothing worse


def test_a_config_of_another_model(packed: PackedHeader, config: Config) -> None:
    for change in (
        {"hidden_size": 24},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 3},
        {"attention_bias": False},
    ):
        spec = read_spec({**config, **change})
        with pytest.raises(CheckpointError):
            check_program(packed, lower(spec, weight_names(spec)))


def _mutated(content: Any, rng: random.Random) -> Any:
    """A JSON value with one part of it replaced, removed or doubled."""
    odd = [None, True, -1, 0, 1, 31, 2**31, 2**63, 1e300, "", "f32", "int8", "x" * 50, [], {}, [1], {"a": 1}]
    if isinstance(content, dict) and content and rng.random() < 0.9:
        key = rng.choice(list(content))
        if rng.random() < 0.1:
            return {name: value for name, value in content.items() if name != key}
        return {**content, key: _mutated(content[key], rng)}
    if isinstance(content, list) and content and rng.random() < 0.9:
        at = rng.randrange(len(content))
        if rng.random() < 0.2:
            return [*content[:at], *content[at + 1 :]] if rng.random() < 0.5 else [*content, content[at]]
        return [*content[:at], _mutated(content[at], rng), *content[at + 1 :]]
    return rng.choice(odd)


def _hostile(packed: PackedHeader, count: int, seed: int) -> int:
    """Load the folder with so many mutated headers; gives how many loaded."""
    path, rng, loaded = packed.folder / HEADER_FILE, random.Random(seed), 0
    original = path.read_bytes()
    content = json.loads(original)
    for _ in range(count):
        if rng.random() < 0.3:
            raw = bytearray(original)
            for _ in range(rng.randint(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        else:
            raw = bytearray(json.dumps(_mutated(content, rng)).encode())
        path.write_bytes(raw)
        try:
            load(packed.folder)
            loaded += 1
        except CheckpointError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
    return loaded


def test_mutated_headers(packed: PackedHeader) -> None:
    assert 0 < _hostile(packed, 300, 0) < 300  # a checksum or the model's name may be anything


@pytest.mark.long
def test_ten_thousand_mutated_headers(packed: PackedHeader) -> None:
    assert 0 < _hostile(packed, 10_000, 1) < 10_000


# ---- The matrix itself ----


def test_memory_of_the_wrong_size_or_place_is_refused() -> None:
    rows = np.ones((20, 70), np.float32)
    made = native.PackedMatrix(KERNELS, TEAM, "int4", [rows], input="i8", group=32, symmetric=False)
    whole = b"".join(pieces(made))
    room = np.zeros(len(whole) + 2 * PAGE, np.uint8)
    start = -room.ctypes.data % PAGE
    kept = room[start : start + len(whole)]
    kept[:] = np.frombuffer(whole, np.uint8)
    facts: Any = {"rows": 20, "cols": 70, "input": "i8", "group": 32, "zeros": True}
    again = native.PackedMatrix.mapped(kept, "int4", **facts)
    assert pieces(again) == pieces(made)
    for wrong, words in (
        (kept[:-PAGE], "larger than its memory"),
        (room[start : start + len(whole) + PAGE], "smaller than its memory"),
        (room[start + 64 : start + 64 + len(whole)], "begins at a page"),
    ):
        with pytest.raises(ValueError, match=words):
            native.PackedMatrix.mapped(wrong, "int4", **facts)
    for change in (
        {"rows": 0},
        {"rows": 200},
        {"cols": 0},
        {"input": "f16"},
        {"group": 7},
        {"gate": True, "rows": 21},
    ):
        with pytest.raises(ValueError):
            native.PackedMatrix.mapped(kept, "int4", **{**facts, **change})
    with pytest.raises(ValueError, match="unknown"):
        native.PackedMatrix.mapped(kept, "q9", **facts)
    with pytest.raises(TypeError):
        native.PackedMatrix.mapped(kept, "int4", **{**facts, "rows": 2**40})
    with pytest.raises(TypeError):
        native.PackedMatrix.mapped(
            kept.view(np.uint16), "int4", **facts
        )  # would be a copy, which nobody keeps


def test_the_memory_lives_as_long_as_the_matrix() -> None:
    import gc
    import weakref

    made = native.PackedMatrix(KERNELS, TEAM, "f32", [np.ones((16, 64), np.float32)], input="f32")

    class Kept(np.ndarray):  # plain arrays take no weak references
        pass

    room = np.zeros(made.nbytes + PAGE, np.uint8)
    start = -room.ctypes.data % PAGE
    kept = room[start : start + made.nbytes].view(Kept)
    kept[:] = made.pieces[0]
    alive = weakref.ref(kept)
    matrix = native.PackedMatrix.mapped(kept, "f32", rows=16, cols=64, input="f32")
    del kept, room
    gc.collect()
    assert alive() is not None and pieces(matrix) == pieces(made)
    del matrix
    gc.collect()
    assert alive() is None

"""Quantised checkpoints that are wrong or not supported: one sentence that names the tensor or the key."""

from __future__ import annotations

import json
import random
import re
import shutil
import tracemalloc
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import needs

needs.native()

from headrace.errors import HeadraceError, ModelError  # noqa: E402
from headrace.models.quantized.layout import Method  # noqa: E402
from headrace.models.quantized.methods import METHODS, quantization_of, read_method  # noqa: E402
from headrace.models.source import resolve_model  # noqa: E402
from headrace.models.stored import open_weights, stored_spec  # noqa: E402
from tests.models.quantized.models import FOUR, change, describe, family, quantize  # noqa: E402
from tests.models.quantized.packers import CASES  # noqa: E402
from tests.models.quantized.test_models import load  # noqa: E402

Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with a quantised model for each method; tests copy it."""
    folders: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in folders:
            folders[method] = tmp_path_factory.mktemp(method)
            quantize(folders[method], family(FOUR[0]).build(folders[method]), CASES[method])
        return folders[method]

    return of


@pytest.fixture
def copy(written: Any, tmp_path: Path) -> Any:
    def of(method: str) -> Path:
        return Path(shutil.copytree(written(method), tmp_path / "model"))

    return of


def read(folder: Path) -> None:
    """Everything that a load does with codes."""
    source = resolve_model(str(folder))
    weights = open_weights(source, stored_spec(source))
    for one in weights.coded.values():
        one.floats()


def message(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read(folder)
    text = str(caught.value)
    assert len(text) < 700 and "\n" not in text
    return text


MISSING = [
    ("gptq-4", ".scales"), ("gptq-4", ".qzeros"), ("awq-gemm", ".qzeros"), ("awq-gemm", ".scales"),
    ("ct-int4-group", ".weight_scale"), ("ct-int4-group-asym", ".weight_zero_point"),
    ("ct-int8-channel", ".weight_scale"),
    ("ct-mxfp4", ".weight_scale"), ("fp8-channel", ".weight_scale"), ("fp8-small-blocks", ".weight_scale_inv"),
    ("bnb-nf4", ".weight.absmax"), ("bnb-nf4", ".weight.quant_map"), ("bnb-nf4-nested", ".weight.nested_absmax"),
    ("bnb-nf4-nested", ".weight.nested_quant_map"), ("bnb-int8", ".SCB"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "suffix"), MISSING)
def test_a_missing_part_is_named(copy: Any, method: str, suffix: str) -> None:
    folder = copy(method)
    change(folder, {Q + suffix: None})
    said = message(folder)
    assert Q in said and (Q + suffix in said or "_scale" in said)


@pytest.mark.parametrize(
    ("method", "main"),
    [
        ("gptq-4", ".qweight"),
        ("ct-int4-group", ".weight_packed"),
        ("bnb-nf4", ".weight"),
        ("fp8-channel", ".weight"),
    ],
)
def test_missing_codes_are_named(copy: Any, method: str, main: str) -> None:
    folder = copy(method)
    change(folder, {Q + main: None})
    assert f"lacks tensor {Q}{main}" in message(folder)


@pytest.mark.parametrize(
    ("method", "suffix", "tensor", "words"),
    [
        ("gptq-4", ".scales", torch.ones(3, 64).half(), "shape [3, 64], but the sizes"),
        ("gptq-4", ".qweight", torch.zeros(8, 64), "stored as F32, not as one of I32"),
        ("gptq-4", ".g_idx", torch.zeros(64).int(), "does not put 32 input features into each group"),
        ("gptq-4", ".g_idx", torch.full((64,), -5).int(), "does not put 32 input features into each group"),
        ("awq-gemm", ".scales", torch.ones(64, 2).half(), "shape [64, 2]"),
        ("ct-int4-group", ".weight_shape", torch.tensor([64, 65]), "is [64, 65]"),
        ("ct-int4-group", ".weight_packed", torch.zeros(64, 9).int(), "shape [64, 9]"),
        ("fp8-small-blocks", ".weight_scale_inv", torch.ones(2, 2), "shape [2, 2]"),
        ("bnb-nf4", ".weight", torch.zeros(7, 1).byte(), "has 7 bytes"),
        ("bnb-nf4", ".weight.absmax", torch.ones(5), "has 5 scales, not 64"),
        ("bnb-nf4", ".weight.quant_map", torch.ones(16), "not the table of nf4"),
        ("bnb-nf4", ".weight.quant_state.bitsandbytes__nf4", torch.zeros(9).byte(), "no JSON object"),
        ("bnb-nf4", ".weight.quant_state.bitsandbytes__nf4", torch.zeros(9999).byte(), "longer than 4096"),
        ("bnb-nf4-nested", ".weight.nested_absmax", torch.ones(3), "has 3 scales"),
        ("bnb-int8", ".weight_format", torch.ones((), dtype=torch.uint8), "interleaved"),
    ],
)  # fmt: skip
def test_a_wrong_part_is_named(copy: Any, method: str, suffix: str, tensor: torch.Tensor, words: str) -> None:
    folder = copy(method)
    change(folder, {Q + suffix: tensor})
    said = message(folder)
    assert Q + suffix in said and words in said


@pytest.mark.parametrize(
    ("method", "fields", "words"),
    [
        ("gptq-4", {"group_size": 16}, "has shape [2, 8]"),
        ("gptq-4", {"bits": 5}, "bits 5 .* is not supported"),
        ("gptq-4", {"bits": None}, "bits None"),
        ("gptq-4", {"bits": 8}, "shape"),
        ("gptq-4", {"group_size": 10**30}, "group_size"),
        ("gptq-4", {"group_size": "32"}, "group_size"),
        ("gptq-4", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ("gptq-4", {"is_marlin_format": True}, "Marlin"),
        ("gptq-4", {"pack_dtype": "int64"}, "pack_dtype 'int64'"),
        ("gptq-4", {"dynamic": {"+:(": {"bits": 8}}}, "not well-formed"),
        ("awq-gemm", {"bits": 3}, "bits 3"),
        ("awq-gemm", {"version": "gemv_fast"}, "version 'gemv_fast'"),
        ("ct-int4-group", {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized'"),
        ("ct-int4-group", {"config_groups": {}}, "config_groups"),
        ("ct-int4-group", {"config_groups": {"a": None}}, "must be an object"),
        (
            "ct-int4-group",
            {"config_groups": {"a": {"targets": ["Linear"], "weights": {"type": "x" * 999}}}},
            "^[^x]*x{40} weights of 8 bits",
        ),
        ("ct-int4-group", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ("ct-int4-group", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        ("ct-int4-group", {"quantization_status": "initialized"}, "not compressed"),
        ("ct-int4-group", {"ignore": [f"re:{n}a{{200}}" for n in range(99)]}, "too many"),
        ("fp8-small-blocks", {"weight_block_size": [128]}, "weight_block_size"),
        ("fp8-small-blocks", {"weight_block_size": [0, 128]}, "rows in weight_block_size"),
        ("modelopt-fp8", {"quant_algo": "NVFP4"}, "quant_algo 'NVFP4'"),
        ("modelopt-fp8", {"exclude_modules": ["*" * 501]}, r"pattern '\*+.* is longer than 500"),
        ("modelopt-fp8", {"exclude_modules": ["x"] * 20_001}, "a list of at most 20000 texts"),
        ("bnb-nf4", {"bnb_4bit_quant_type": "int4"}, "neither nf4 nor fp4"),
        ("bnb-nf4", {"load_in_4bit": False}, "neither load_in_4bit nor load_in_8bit"),
        ("gptq-4", {"quant_method": "aqlm"}, "quantised with 'aqlm'.*--quantization int8"),
        ("gptq-4", {"quant_method": "x" * 999}, "quantised with 'x{70}"),
        ("gptq-4", {"quant_method": 7}, "quant_method .* must be text"),
        ("gptq-4", {"quant_method": None}, "an unnamed method"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(copy: Any, method: str, fields: dict[str, Any], words: str) -> None:
    folder = copy(method)
    describe(folder, quantization_config={**CASES[method].config, **fields})
    said = message(folder)
    assert re.search(words, said) or words in said


def test_a_config_that_is_no_object(copy: Any) -> None:
    folder = copy("gptq-4")
    describe(folder, quantization_config="int4")
    assert "quantization_config in config.json must be an object" in message(folder)


def test_sizes_that_do_not_fill_words() -> None:
    method = read_settings(CASES["gptq-3"].config)
    layout = None if method is None else method.layout(Q)
    assert layout is not None
    with pytest.raises(ValueError, match="do not fill words"):
        layout.stored(80, 64)


def read_settings(config: Any) -> Method | None:
    named = quantization_of({"quantization_config": config}, None)
    return None if named is None else read_method(*named)


HOSTILE = [
    None,
    True,
    -1,
    0,
    3,
    10**400,
    1e308,
    float("nan"),
    "",
    "x" * 5000,
    "re:(a*)*b",
    [],
    ["re:((("],
    [1],
    {},
    {"a": {}},
]


def mutate_settings(settings: dict[str, Any], draw: random.Random) -> Any:
    """A config with one to three fields replaced by something else, at any depth."""
    config = json.loads(json.dumps(settings))
    for _ in range(draw.randint(1, 3)):
        table = config
        while True:
            key = draw.choice([*table, "dynamic", "ignore", "modules_to_not_convert"])
            if isinstance(table.get(key), dict) and table[key] and draw.random() < 0.7:
                table = table[key]
                continue
            table[key] = deepcopy(draw.choice(HOSTILE))
            break
    return config


@pytest.mark.parametrize("seed", range(20))
def test_mutated_settings(seed: int) -> None:
    """Every field replaced by something else, alone and with others: a method, or one sentence."""
    draw = random.Random(seed)
    for case in CASES.values():
        for _ in range(20):
            config = mutate_settings(case.config, draw)
            try:
                method = read_settings(config)
                layout = None if method is None else method.layout(Q)
                if layout is not None:
                    layout.stored(64, 96)
            except HeadraceError as error:
                assert len(str(error)) < 1000 and "\n" not in str(error)
            except ValueError as error:
                assert "do not" in str(error) or "not whole blocks" in str(error)


def mutate(raw: bytes, draw: random.Random) -> bytes:
    """A file with a few bytes of its header changed, cut out or doubled, mostly where numbers are."""
    length = int.from_bytes(raw[:8], "little")
    header = bytearray(raw[8 : 8 + length])
    digits = [index for index, byte in enumerate(header) if 48 <= byte <= 57]
    for _ in range(draw.randint(1, 3)):
        at = draw.choice(digits) if draw.random() < 0.7 else draw.randrange(len(header))
        at = min(at, len(header) - 1)
        kind = draw.randrange(3)
        if kind == 0:
            header[at] = draw.choice(b'0123456789"{}[],:-IFU')
        elif kind == 1:
            del header[at : at + draw.randint(1, 3)]
        else:
            header[at:at] = header[at : at + draw.randint(1, 12)]
    size = length if draw.random() < 0.2 else len(header)
    return size.to_bytes(8, "little") + bytes(header) + raw[8 + length :]


@pytest.mark.parametrize(
    "count", [60, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3000)])]
)
def test_mutated_files(written: Any, tmp_path: Path, count: int) -> None:
    """A load that is right, or a typed error, with no more memory than a few times the file."""
    draw = random.Random(count)
    methods = [
        "gptq-4-act-order",
        "awq-gemm",
        "ct-int4-group-asym",
        "fp8-small-blocks",
        "bnb-nf4-nested",
        "bnb-int8",
        "ct-mxfp4",
    ]
    refused, broken = 0, tmp_path / "model"
    broken.mkdir()
    for number in range(count):
        folder = written(methods[number % len(methods)])
        raw, config = (
            (folder / "model.safetensors").read_bytes(),
            json.loads((folder / "config.json").read_text()),
        )
        if number % 3:
            raw = mutate(raw, draw)
        if number % 3 != 1:
            config["quantization_config"] = mutate_settings(config["quantization_config"], draw)
        (broken / "config.json").write_text(json.dumps(config))
        (broken / "model.safetensors").write_bytes(raw)
        room = 12 * len(raw) + (
            2 << 20
        )  # codes of a bit less than a byte each become floats, one matrix at a time
        tracemalloc.start()
        try:
            read(broken)
            load(broken)
        except ModelError as error:
            refused += 1
            assert len(str(error)) < 1500 and "\n" not in str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < room
    assert count // 2 < refused < count


def test_every_method_is_packed_by_a_test() -> None:
    tested = {case.config["quant_method"] for case in CASES.values()}
    aliases = {"fbgemm_fp8", "modelopt_fp8", "mxfp4", "auto-round"}
    assert tested | aliases == METHODS.keys()

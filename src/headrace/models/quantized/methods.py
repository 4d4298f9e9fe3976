"""Finds the method that a checkpoint was quantised with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.awq import read_awq
from headrace.models.quantized.bitsandbytes import read_bitsandbytes
from headrace.models.quantized.compressed import read_compressed
from headrace.models.quantized.fp8 import read_fp8, read_modelopt
from headrace.models.quantized.gptq import read_gptq
from headrace.models.quantized.layout import Layout, Method
from headrace.models.quantized.mxfp4 import read_mxfp4
from headrace.models.source import read_json

IN_CONFIG = ("quantization_config", "compression_config")
"""Fields of config.json that describe a method."""


def read_auto_round(config: ConfigReader) -> Method:
    """AutoRound stores its codes in the layouts of others, which `packing_format` names: "auto_round:auto_gptq".

    `extra_config` has other settings for modules by name; 16 bits are floats.
    """
    packing = config.text("packing_format", config.text("backend", "auto_round:auto_gptq"))
    base = packing.rpartition(":")[2]
    read = _AUTO_ROUND.get(base)
    if read is None:
        raise UnsupportedModel(
            f"packing_format {packing!r:.80} in {config.where} is not supported, only {', '.join(_AUTO_ROUND)}"
        )
    usual, others = read(config), _auto_round_others(config, read)
    return Method("auto-round", lambda module: others[module] if module in others else usual.layout(module))


def _auto_round_others(
    config: ConfigReader, read: Callable[[ConfigReader], Method]
) -> Mapping[str, Layout | None]:
    extra = config.table("extra_config")
    found: dict[str, Layout | None] = {}
    for module in () if extra is None else extra.fields:
        assert extra is not None
        settings = extra.table(module)
        if settings is not None:
            merged = ConfigReader({**config.fields, **settings.fields, "extra_config": None}, settings.where)
            plain = merged.integer("bits", 1, 32) >= 16
            found[module] = None if plain else read(merged).layout(module)
    return found


_AUTO_ROUND: Mapping[str, Callable[[ConfigReader], Method]] = {
    "auto_gptq": read_gptq,
    "gptq": read_gptq,
    "auto_awq": read_awq,
    "awq": read_awq,
}

METHODS: dict[str, Callable[[ConfigReader], Method]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "auto-round": read_auto_round,
    "compressed-tensors": read_compressed,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fp8,
    "modelopt": read_modelopt,
    "modelopt_fp8": read_modelopt,
    "mxfp4": read_mxfp4,
    "bitsandbytes": read_bitsandbytes,
}
"""By `quant_method`; `add_method` adds another."""

FILES: Mapping[str, str] = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files beside a config.json that names no method, and the method that writes them."""


def add_method(name: str, read: Callable[[ConfigReader], Method]) -> None:
    """Read checkpoints of another method; this process alone learns of it.

    name: the `quant_method` of its configs. read: its method with the settings of one config; it raises
    UnsupportedModel for those that it does not know. Raises ValueError for a name that is taken.
    """
    if name in METHODS:
        raise ValueError(f"there is a method {name} already")
    METHODS[name] = read


def quantization_of(config: Mapping[str, Any], folder: Path | None) -> tuple[str, ConfigReader] | None:
    """The name and settings of a checkpoint's method, from config.json or a file beside it; None: there is none.

    Raises CheckpointError where they are not objects.
    """
    reader = ConfigReader(config)
    for field in IN_CONFIG:
        settings = reader.table(field)
        if settings is not None:
            return _name(settings), settings
    for file, method in FILES.items() if folder is not None else ():
        assert folder is not None
        content = read_json(folder / file)
        if content is not None:
            return method, ConfigReader(content, file)
    return None


def read_method(name: str, settings: ConfigReader) -> Method:
    """The method of that name with its settings.

    Raises UnsupportedModel for methods, bits and layouts that are not implemented, CheckpointError for absurd values.
    """
    read = METHODS.get(name)
    if read is None:
        raise UnsupportedModel(
            f"the checkpoint is quantised with {name!r:.80}, which is not supported, only {', '.join(METHODS)}: "
            "give the original checkpoint; --quantization int8 or int4 rounds it while it is loaded"
        )
    return read(settings)


def _name(settings: ConfigReader) -> str:
    if settings.has("quant_method"):
        return settings.text("quant_method", "").lower()
    if any(settings.has(f"load_in_{bits}bit") for bits in (4, 8)):
        return "bitsandbytes"
    return "compressed-tensors" if settings.has("config_groups") else "an unnamed method"

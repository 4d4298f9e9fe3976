"""A GGUF file's metadata as the config that the model's family reads, and as its generation config.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `architectures` has what differs between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.gguf.files import GGUFModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_VOCAB,
)
from headrace.models.gguf.architectures import ARCHITECTURES
from headrace.models.gguf.facts import EXPERT_KEYS, Architecture, Facts, Fields, Reader
from headrace.models.gguf.names import (
    GGUF_NAMES,
    IN_FLOAT32,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    layer_part,
)
from headrace.models.rope_config import MAX_FACTOR, MAX_POSITION, UNTURNED

# Keys, after the architecture's name, that change what a model computes and that no family here has: refused unless
# they hold the value that changes nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_gating_func": (1,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.causal": (True,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "tensor_data_layout": ("", "Meta AI original pth"),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}

_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Keys of recommended sampling parameters, and the fields of a generation_config.json."""

_ENDS = ("eos", "eot", "eom")
"""Tokens that end a text, a turn and a message."""

_DTYPES = {"F16": "float16", "BF16": "bfloat16"}


def architecture(model: GGUFModel) -> tuple[str, Architecture]:
    """(name, what it is). Raises UnsupportedModel for one that does not run, naming those that do."""
    name = ConfigReader(model.metadata, model.name).text("general.architecture", "")
    if not name:
        raise CheckpointError(f"{model.name} lacks the key general.architecture")
    kind = ConfigReader(model.metadata, model.name).text("general.type", "model")
    if kind == "adapter":
        raise UnsupportedModel(
            f"{model.name} is an adapter (LoRA), which needs its base model: merge the two, for example with "
            "llama.cpp's llama-export-lora"
        )
    if name not in ARCHITECTURES:
        what = "architecture" if kind == "model" else f"{kind:.40} with architecture"
        raise UnsupportedModel(
            f"{model.name} holds a model of {what} {name!r:.80}, which is not supported; "
            f"known are {', '.join(ARCHITECTURES)}"
        )
    return name, ARCHITECTURES[name]


def read_config(model: GGUFModel, floats: Callable[[str], list[float]]) -> tuple[Fields, Fields]:
    """(the fields of a config.json, those of a generation_config.json); `floats`: a small tensor's numbers by name.

    Raises UnsupportedModel for what is not implemented and CheckpointError for missing or absurd values.
    """
    name, arch = architecture(model)
    reader = Reader(model.metadata, name, model.name, arch.by_layer)
    for key, neutral in _NEUTRAL.items():
        if key not in arch.reads:
            reader.only(key, neutral, neutral[0])
    hidden = reader.integer("embedding_length", 1, MAX_HIDDEN)
    heads = reader.integer("attention.head_count", 1, MAX_HEADS)
    if arch.latent:  # of the one key that has rope
        head_dim = reader.integer("rope.dimension_count", 2, MAX_HEAD_DIM)
    else:
        head_dim = _head_dim(reader, hidden, heads, partial=arch.partial)
    context = reader.integer("context_length", 1, MAX_POSITION)
    blocks = reader.integer("block_count", 1, MAX_LAYERS)
    more = reader.integer("nextn_predict_layers", 0, blocks - 1, 0)  # they predict further tokens
    config: Fields = {
        "architectures": [arch.family],
        "hidden_size": hidden,
        "num_hidden_layers": blocks - more,
        "num_nextn_predict_layers": more,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(reader, heads, blocks, hybrid=arch.hybrid),
        "head_dim": head_dim,
        "intermediate_size": _intermediate_size(reader, arch),
        "vocab_size": _vocab_size(model),
        "max_position_embeddings": context,
        arch.eps: reader.number(
            "attention.layer_norm_rms_epsilon" if arch.eps.startswith("rms") else "attention.layer_norm_epsilon",
            1e-30, 1.0,
        ),
        "tie_word_embeddings": f"{GGUF_NAMES.head}.weight" not in model,
        "torch_dtype": matrix_dtype(model),
        **_rope(model, reader, head_dim, floats),
    }  # fmt: skip
    if arch.partial:
        rotated = reader.integer("rope.dimension_count", 2, head_dim, head_dim)
        config["partial_rotary_factor"] = rotated / head_dim
    _check_layers(model, blocks)
    config |= arch.fields(Facts(model, reader, config, floats))
    begins = _tokens(model, ("bos",), config["vocab_size"])
    if begins:
        config["bos_token_id"] = begins[0]
    ends = _tokens(model, _ENDS, config["vocab_size"])
    return config, {**({"eos_token_id": ends} if ends else {}), **_sampling(model)}


def matrix_dtype(model: GGUFModel, excluded: Collection[str] = ()) -> str:
    """The type that holds every matrix exactly, except those in `excluded` and routers and convolutions, which are
    stored and computed in float32: 16 bits where all have them."""
    names = (name for name in model.names() if name not in excluded and layer_part(name) not in IN_FLOAT32)
    infos = map(model.tensor, names)
    stored = {info.type.name for info in infos if info is not None and len(info.shape) > 1}
    return _DTYPES.get(stored.pop(), "float32") if len(stored) == 1 else "float32"


def _head_dim(reader: Reader, hidden: int, heads: int, *, partial: bool) -> int:
    if not reader.has("attention.key_length") and hidden % heads:
        raise CheckpointError(
            f"embedding_length {hidden} in {reader.where} must be a multiple of head_count {heads}"
        )
    head_dim = reader.integer("attention.key_length", 1, MAX_HEAD_DIM, max(1, hidden // heads))
    for key in ("attention.value_length", *(() if partial else ("rope.dimension_count",))):
        other = reader.integer(key, 0, MAX_HEAD_DIM, head_dim)
        if other != head_dim and not (other == 0 and key.startswith("rope")):
            raise UnsupportedModel(
                f"{key} {other} in {reader.where} differs from key_length {head_dim}, which is not supported"
            )
    return head_dim


def _kv_heads(reader: Reader, heads: int, blocks: int, *, hybrid: bool) -> int:
    """Of the layers that attend."""
    if not hybrid:
        return reader.integer("attention.head_count_kv", 1, MAX_HEADS, heads)
    found = set(reader.by_layer("attention.head_count_kv", blocks, 0, MAX_HEADS, heads)) - {0}
    if len(found) > 1:
        raise UnsupportedModel(
            f"attention.head_count_kv in {reader.where} differs between layers that attend"
        )
    return found.pop() if found else heads


def _intermediate_size(reader: Reader, arch: Architecture) -> int:
    """Files of models without a dense layer may state that of experts alone."""
    alone = arch.reads >= EXPERT_KEYS and not reader.has("feed_forward_length")
    return reader.integer(
        "expert_feed_forward_length" if alone else "feed_forward_length", 1, MAX_INTERMEDIATE
    )


def _vocab_size(model: GGUFModel) -> int:
    """Of the embeddings: metadata counts only the tokens that have a text."""
    name = f"{GGUF_NAMES.embed}.weight"
    info = model.tensor(name)
    if info is None or len(info.shape) != 2:
        raise CheckpointError(f"{model.name} lacks the matrix {name}")
    if info.shape[0] > MAX_VOCAB:
        raise CheckpointError(f"{name} in {model.name} has {info.shape[0]} rows; {MAX_VOCAB} are allowed")
    return info.shape[0]


def _check_layers(model: GGUFModel, layers: int) -> None:
    """Before anything is as large as the number of layers that metadata states."""
    tensors = sum(1 for _ in model.names())
    if layers > tensors:
        raise CheckpointError(f"{model.name} states {layers} layers, but holds {tensors} tensors")


def _rope(model: GGUFModel, reader: Reader, head_dim: int, floats: Callable[[str], list[float]]) -> Fields:
    """rope_theta and rope_scaling."""
    found: Fields = {"rope_theta": reader.number("rope.freq_base", 1.5, 1e15, 10_000.0)}
    kind = reader.text("rope.scaling.type", "linear")
    divided = all(name in model for name in (LONG_FACTORS, SHORT_FACTORS))
    reader.only(
        "rope.scaling.type", ("none", "linear", "yarn", *(("longrope",) if divided else ())), "linear"
    )
    factor = reader.number("rope.scaling.factor", 0.0, MAX_FACTOR, 0.0)
    factor = factor or reader.number("rope.scale_linear", 0.0, MAX_FACTOR, 0.0)  # the key's name until 2023
    scaled = kind not in ("none", "longrope") and factor not in (0.0, 1.0)
    if scaled and factor < 1.0:
        raise CheckpointError(f"{model.name} has the rope scaling factor {factor:g}; 1 is the least")
    if ROPE_FACTORS in model:
        if scaled:
            raise UnsupportedModel(
                f"{model.name} has both {ROPE_FACTORS} and a rope scaling factor, which is not supported"
            )
        info = model.tensor(ROPE_FACTORS)
        if info is None or info.shape != (head_dim // 2,) or info.type.quantized:
            raise CheckpointError(
                f"{ROPE_FACTORS} in {model.name} must hold {head_dim // 2} floats, one for each frequency"
            )
        factors = floats(ROPE_FACTORS)
        if not all(1 / MAX_FACTOR <= one <= UNTURNED for one in factors):
            raise CheckpointError(
                f"{ROPE_FACTORS} in {model.name} must hold numbers between {1 / MAX_FACTOR:g} and {UNTURNED:g}"
            )
        found["rope_scaling"] = {"rope_type": "factors", "factors": factors}
    elif scaled:
        found["rope_scaling"] = {"rope_type": kind, "factor": factor, **_yarn(reader, kind)}
    return found


def _yarn(reader: Reader, kind: str) -> Fields:
    if kind != "yarn":
        return {}
    found: Fields = {}
    if reader.has("rope.scaling.original_context_length"):
        found["original_max_position_embeddings"] = reader.integer(
            "rope.scaling.original_context_length", 1, MAX_POSITION
        )
    for key, field in (
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if reader.has(f"rope.scaling.{key}"):
            found[field] = reader.number(f"rope.scaling.{key}", 0.0, 1e6)
    return found


def _tokens(model: GGUFModel, kinds: Iterable[str], vocab_size: int) -> list[int]:
    """The ids of special tokens, each once. Ids that have no embedding, which some files give, count as absent."""
    reader = ConfigReader(model.metadata, model.name)
    absent = 2**32 - 1
    ids = [reader.integer(f"tokenizer.ggml.{kind}_token_id", -1, absent, absent) for kind in kinds]
    return list(dict.fromkeys(number for number in ids if 0 <= number < vocab_size))


def _sampling(model: GGUFModel) -> Fields:
    """Recommended sampling parameters as fields of a generation_config.json."""
    reader = ConfigReader(model.metadata, model.name)
    found: Fields = {}
    for key, field in _SAMPLING.items():
        if not reader.has(key):
            continue
        if field == "top_k":
            found[field] = reader.integer(key, -1, 1 << 30)
        else:
            # 0.6 as it was written: float32 holds 0.60000002
            found[field] = float(f"{reader.number(key, 0.0, 1e6):.7g}")
    return found

"""Reads a folder of draft heads: Medusa's (Cai et al. 2024) or an EAGLE layer (Li et al. 2024). No torch here.

A folder has a config.json, whose object "headrace_heads" is described in docs/speculation.md, and a model.safetensors.
Folders of the original Medusa project ("medusa_num_heads" in config.json, tensors "0.0.linear.weight") can be read too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError, ConfigError, ModelNotFound
from headrace.models.config_reader import ConfigReader
from headrace.models.floats import to_float32
from headrace.models.safetensors_reader import WEIGHT_DTYPES, Checkpoint
from headrace.models.source import BUNDLED_FOLDER, read_json
from headrace.plan.drafts import DraftHeads
from headrace.speculative.base_model import BaseModel

BUNDLED_HEADS = ("tale-medusa", "tale-eagle")
"""Heads inside the package, for the model `tale`."""

FORMAT = 1
SECTION = "headrace_heads"
SAMPLE_TENSOR = "base.embedding_sample"
TOP = (1, 2, 3, 5)
"""The k of the top-k accuracies of a folder."""

MAX_HEADS = 16
MAX_BLOCKS = 8
MAX_TREE = 1024
MAX_RANKS = 256
"""Choices of one head: each costs a draw at every step."""
_MAX_SIZE = 1 << 20
_MAX_WIDTH = 1 << 17
_SIMILAR = 0.9
"""Embedding rows of one model have at least this cosine, also where one of the two is quantised to 2 bits."""

Array = NDArray[np.float32]
Accuracy = tuple[tuple[float, ...], ...]
"""For each head, or depth, the share of held-out tokens among its TOP likeliest."""


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Head i reads the hidden state after the final norm that gives token t + 1, and predicts token t + 2 + i.

    blocks: of each head its residual blocks (weight [H, H], bias [H]): h + silu(weight @ h + bias).
    heads: of each head its own [V, H], or None: the model's head, with its bias, scale and soft cap.
    tree: paths of ranks, parents first, in the order in which they were added: its first n are the best tree of n
    nodes. Path (0, 2) is the likeliest token under head 0, then the third likeliest under head 1. shares: how often
    each path was right on held-out text; empty where that is not known.
    """

    blocks: tuple[tuple[tuple[Array, Array], ...], ...]
    heads: tuple[Array | None, ...]
    accuracy: Accuracy = ()
    tree: tuple[tuple[int, ...], ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EagleLayer:
    """The sizes of EAGLE's one layer, which is a Llama's: fields are called as in its config.json."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all tensors."""
        h, inner = self.hidden_size, self.intermediate_size
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        layer = {
            "input_layernorm": (h,), "post_attention_layernorm": (h,),
            "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "mlp.gate_proj": (inner, h), "mlp.up_proj": (inner, h), "mlp.down_proj": (h, inner),
        }  # fmt: skip
        named = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
        return {"model.fc.weight": (h, 2 * h), **named, "model.norm.weight": (h,)}


@dataclass(frozen=True, slots=True)
class EagleHeads:
    """A decoder layer that predicts hidden states. Embedding and head are the model's.

    Entry p reads fc @ [state p - 1; embedding of token p] (state: after the final norm; zeros where it is not known) at
    position p and gives, after `model.norm.weight`, a prediction of state p, which the model's head turns into token
    p + 1. For later tokens the prediction takes the place of the state.

    tensors: float32, by the names and with the shapes of `EagleLayer.shapes`.
    """

    layer: EagleLayer
    tensors: Mapping[str, Array]
    accuracy: Accuracy = field(default=())


def heads_folder(name: str) -> Path:
    """The folder of heads with a bundled name or a path. Raises ModelNotFound where there is none."""
    if name in BUNDLED_HEADS:
        return BUNDLED_FOLDER / name
    path = Path(os.path.expanduser(name))
    if name and path.is_dir():
        return path
    raise ModelNotFound(
        f"there are no draft heads {name!r:.200}: give a bundled name ({', '.join(BUNDLED_HEADS)}) or a folder"
    )


def is_heads(name: str) -> bool:
    """Whether a bundled name or a path is that of heads, and not of a model."""
    if name in BUNDLED_HEADS:
        return True
    path = Path(os.path.expanduser(name))
    if not name or not path.is_dir():
        return False
    config = read_json(path / "config.json")
    return config is not None and (SECTION in config or "medusa_num_heads" in config)


def heads_bytes(folder: Path) -> int:
    """Of all tensors as they are held: in float32."""
    files = Checkpoint(folder)
    shapes = (entry.shape for name in files.names() if (entry := files.entry(name)) is not None)
    return sum(4 * math.prod(shape) for shape in shapes)


def eagle_layer(folder: Path, hidden_size: int) -> EagleLayer | None:
    """The sizes of an EAGLE layer for a model of that hidden size, from config.json alone; None for other heads.

    Raises CheckpointError for sizes that are missing or absurd.
    """
    config = read_json(folder / "config.json") or {}
    section = config.get(SECTION)
    if not isinstance(section, Mapping) or section.get("method") != "eagle":
        return None
    return _eagle_layer(ConfigReader(section, f"{SECTION} of config.json"), hidden_size)


def check_sizes(folder: Path, base: BaseModel) -> None:
    """Raise ConfigError where a folder's config says that its heads are for a model of other sizes."""
    section = (read_json(folder / "config.json") or {}).get(SECTION)
    if not isinstance(section, Mapping):
        return
    for name in _SIZES:
        if isinstance(need := section.get(name), int):
            _check_size(folder, str(section.get("model", "another model")), name, need, base)


def describe_heads(folder: Path) -> DraftHeads:
    """What a plan needs to know of a folder's heads, from its config and the headers of its files. `load_heads` checks
    what they are."""
    config = read_json(folder / "config.json") or {}
    section, size = config.get(SECTION), heads_bytes(folder)
    if not isinstance(section, Mapping):  # of the original project, whose heads have matrices of their own
        return DraftHeads(folder.name, size, count=_count(config.get("medusa_num_heads")))
    tree, count = section.get("tree"), _count(section.get("num_heads"))
    names = frozenset(Checkpoint(folder).names())
    shared = sum(f"heads.{head}.head.weight" not in names for head in range(count))
    nodes = min(len(tree), MAX_TREE) if isinstance(tree, list) else 0
    return DraftHeads(folder.name, size, nodes, count, shared)


def _count(found: object) -> int:
    return min(found, MAX_HEADS) if isinstance(found, int) and found > 0 else 0


def load_heads(folder: Path, base: BaseModel) -> MedusaHeads | EagleHeads:
    """Read the heads of a folder for a model.

    Raises ConfigError for heads of another model, and CheckpointError for a folder that is no such folder, lacks a
    tensor, or has one of another shape or type.
    """
    config = read_json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder} holds no config.json: it is not a folder of draft heads")
    section = config.get(SECTION)
    if section is None and "medusa_num_heads" in config:
        return _public_medusa(_Tensors(folder), ConfigReader(config), base)
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f'{folder}/config.json has no object "{SECTION}": it is not a folder of draft heads'
        )
    reader = ConfigReader(section, f"{SECTION} of config.json")
    if (version := reader.integer("format", 1, 1 << 30)) != FORMAT:
        raise CheckpointError(
            f"{folder} has format {version} of draft heads; this version reads format {FORMAT}"
        )
    method = reader.text("method", "")
    if method not in _METHODS:
        raise CheckpointError(
            f"{folder} holds heads of the method {method!r:.60}; there are {', '.join(_METHODS)}"
        )
    tensors = _Tensors(folder)
    _check_base(folder, reader, tensors, base)
    return _METHODS[method](tensors, reader, base)


class _Tensors:
    """The tensors of a folder as float32."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = Checkpoint(folder)

    def has(self, name: str) -> bool:
        return self._files.entry(name) is not None

    def first_shape(self, name: str) -> tuple[int, ...]:
        """Raises CheckpointError where the tensor is missing."""
        entry = self._files.entry(name)
        if entry is None:
            raise CheckpointError(f"{self.folder} lacks tensor {name}")
        return entry.shape

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        """Raises CheckpointError where the tensor is missing, or has another shape or type, or is not finite."""
        if (found := self.first_shape(name)) != shape:
            raise CheckpointError(
                f"tensor {name} of {self.folder} has shape {list(found)}, but {list(shape)} is needed"
            )
        entry = self._files.entry(name)
        assert entry is not None
        if entry.dtype not in WEIGHT_DTYPES:
            raise CheckpointError(
                f"tensor {name} of {self.folder} is stored as {entry.dtype}, not as a float"
            )
        values = np.ascontiguousarray(to_float32(self._files.array(name)))
        if not np.isfinite(values).all():
            raise CheckpointError(f"tensor {name} of {self.folder} holds numbers that are not finite")
        return values


_SIZES = ("vocab_size", "hidden_size")


def _check_size(folder: Path, trained_for: str, name: str, need: int, base: BaseModel) -> None:
    if need != getattr(base, name):
        raise ConfigError(
            f"the draft heads in {folder} are for {trained_for!r:.100}, which has {name} {need}; "
            f"{base.name} has {getattr(base, name)}"
        )


def _check_base(folder: Path, reader: ConfigReader, tensors: _Tensors, base: BaseModel) -> None:
    """Raise ConfigError unless the heads are those of the model."""
    trained_for = reader.text("model", "another model")
    for name in _SIZES:
        _check_size(folder, trained_for, name, reader.integer(name, 1, 1 << 30), base)
    if base.sample is None or not tensors.has(SAMPLE_TENSOR):
        return
    rows = tensors.get(SAMPLE_TENSOR, base.sample.shape)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(base.sample, axis=1)
    known = lengths > 0
    cosines = (rows * base.sample).sum(axis=1)[known] / lengths[known]
    if known.any() and cosines.mean() < _SIMILAR:
        raise ConfigError(
            f"the draft heads in {folder} are for {trained_for!r:.100}, whose embeddings are not those of {base.name}"
        )


def _medusa(tensors: _Tensors, reader: ConfigReader, base: BaseModel) -> MedusaHeads:
    count = reader.integer("num_heads", 1, MAX_HEADS)
    depth = reader.integer("num_blocks", 1, MAX_BLOCKS)
    h, v = base.hidden_size, base.vocab_size
    blocks = tuple(
        tuple(
            (
                tensors.get(f"heads.{i}.blocks.{j}.weight", (h, h)),
                tensors.get(f"heads.{i}.blocks.{j}.bias", (h,)),
            )
            for j in range(depth)
        )
        for i in range(count)
    )
    names = [f"heads.{i}.head.weight" for i in range(count)]
    heads = tuple(tensors.get(name, (v, h)) if tensors.has(name) else None for name in names)
    tree = _tree(reader.fields.get("tree", []), count, v)
    shares = _shares(reader.fields.get("tree_shares", []), len(tree))
    return MedusaHeads(blocks, heads, _accuracy(reader), tree, shares)


def _public_medusa(tensors: _Tensors, reader: ConfigReader, base: BaseModel) -> MedusaHeads:
    """The layout of the original project: a list of heads, each of residual blocks and a head of its own."""
    count = reader.integer("medusa_num_heads", 1, MAX_HEADS)
    depth = reader.integer("medusa_num_layers", 1, MAX_BLOCKS, 1)
    prefix = "medusa_head." if tensors.has("medusa_head.0.0.linear.weight") else ""
    h, v = base.hidden_size, base.vocab_size
    found = tensors.first_shape(f"{prefix}0.{depth}.weight")
    if found != (v, h):
        raise ConfigError(
            f"the draft heads in {tensors.folder} are for a model with vocab_size and hidden_size {list(found)}; "
            f"{base.name} has {[v, h]}"
        )
    blocks, heads = [], []
    for i in range(count):
        one = [
            (
                tensors.get(f"{prefix}{i}.{j}.linear.weight", (h, h)),
                tensors.get(f"{prefix}{i}.{j}.linear.bias", (h,)),
            )
            for j in range(depth)
        ]
        blocks.append(tuple(one))
        heads.append(tensors.get(f"{prefix}{i}.{depth}.weight", (v, h)))
    return MedusaHeads(tuple(blocks), tuple(heads))


def _eagle(tensors: _Tensors, reader: ConfigReader, base: BaseModel) -> EagleHeads:
    layer = _eagle_layer(reader, base.hidden_size)
    arrays = {name: tensors.get(name, shape) for name, shape in layer.shapes().items()}
    return EagleHeads(layer, arrays, _accuracy(reader))


def _eagle_layer(reader: ConfigReader, hidden_size: int) -> EagleLayer:
    fields = reader.fields.get("layer")
    if not isinstance(fields, Mapping):
        raise CheckpointError(f'{SECTION} of config.json has no object "layer"')
    own = ConfigReader(fields, f"layer of {SECTION}")
    layer = EagleLayer(
        hidden_size=hidden_size,
        num_attention_heads=own.integer("num_attention_heads", 1, 4096),
        num_key_value_heads=own.integer("num_key_value_heads", 1, 4096),
        head_dim=own.integer("head_dim", 2, 1024),
        intermediate_size=own.integer("intermediate_size", 1, _MAX_SIZE),
        rms_norm_eps=own.number("rms_norm_eps", 0.0, 1.0),
        rope_theta=own.number("rope_theta", 1.0, 1e12),
    )
    if layer.head_dim % 2 or layer.num_attention_heads % layer.num_key_value_heads:
        raise CheckpointError(
            f"layer of {SECTION}: head_dim must be even, and num_attention_heads a multiple of num_key_value_heads"
        )
    if layer.num_attention_heads * layer.head_dim > _MAX_WIDTH:
        raise CheckpointError(f"layer of {SECTION}: its heads have more than {_MAX_WIDTH} features together")
    return layer


_METHODS: dict[str, Callable[[_Tensors, ConfigReader, BaseModel], MedusaHeads | EagleHeads]] = {
    "medusa": _medusa,
    "eagle": _eagle,
}


def _tree(found: object, heads: int, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Paths of ranks, each after its parent."""
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > MAX_TREE:
        raise CheckpointError(f"tree of {SECTION} must be a list of at most {MAX_TREE} paths")
    paths: dict[tuple[int, ...], None] = {(): None}
    ranks = min(vocab_size, MAX_RANKS)
    for path in found:
        whole = isinstance(path, list) and all(type(rank) is int and 0 <= rank < ranks for rank in path)
        if not whole or not 1 <= len(path) <= heads:
            raise CheckpointError(
                f"tree of {SECTION}: {path!r:.60} is not a path of 1 to {heads} ranks from 0 to {ranks - 1}"
            )
        if tuple(path[:-1]) not in paths or tuple(path) in paths:
            raise CheckpointError(f"tree of {SECTION}: {path!r:.60} comes twice, or before its parent")
        paths[tuple(path)] = None
    return tuple(paths)[1:]


def _shares(found: object, count: int) -> tuple[float, ...]:
    if (
        not isinstance(found, list)
        or len(found) not in (0, count)
        or not all(_is_share(one) for one in found)
    ):
        raise CheckpointError(f"tree_shares of {SECTION} must be a number between 0 and 1 for each path")
    return tuple(map(float, found))


def _accuracy(reader: ConfigReader) -> Accuracy:
    found: Any = reader.fields.get("accuracy", [])
    good = isinstance(found, list) and len(found) <= MAX_HEADS
    if not good or not all(
        isinstance(row, list) and len(row) == len(TOP) and all(_is_share(one) for one in row) for row in found
    ):
        raise CheckpointError(
            f"accuracy of {SECTION} must be a list of {len(TOP)} numbers between 0 and 1 for each head"
        )
    return tuple(tuple(map(float, row)) for row in found)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0

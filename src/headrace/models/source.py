"""Resolves a model's name to its files or to a shape. No torch here, and no code from a checkpoint."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import CheckpointError, ModelNotFound, UnsupportedModel
from headrace.gguf.files import models_in
from headrace.gguf.reader import begins_as_gguf
from headrace.models.families.registry import contradicts_ties
from headrace.models.hub.fetch import locate
from headrace.models.hub.reference import parse_reference
from headrace.models.packed.header import HEADER_FILE
from headrace.models.shapes import SHAPES

if TYPE_CHECKING:
    from headrace.models.stored import StoredWeights
    from headrace.models.weight_files import SelfDescribedFiles

BUNDLED = ("tale", "tale-draft")
"""Models inside the package."""

# Not importlib.resources: for an editable install it gives an object that is not a path in the file system.
BUNDLED_FOLDER = Path(__file__).resolve().parents[1] / "bundled"

SHAPE_PREFIX = "shape:"
MAX_JSON_BYTES = 16_000_000

_NO_WEIGHTS = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin"}
"""Pickled files that a training run leaves in a model's folder."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", HEADER_FILE)
"""Files that say that a folder's weights are not in a GGUF file."""

_GGUF = ".gguf"

SourceKind = Literal["bundled", "folder", "hub", "shape"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The origin of a model.

    path: its folder, or its GGUF file, or None for a shape, which has random weights. files: those with its weights
    where its config is in them too, as in GGUF; else they are opened when they are needed. opened: its weights, once
    `models.stored.open_source` has found them.
    """

    kind: SourceKind
    name: str
    path: Path | None
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    files: SelfDescribedFiles | None = field(default=None, repr=False, compare=False)
    opened: StoredWeights | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Options of a hub download: branch, tag or commit, and the folder of the cache."""

    revision: str | None = None
    download_dir: str | None = None


_DEFAULT_HUB = HubOptions()


def resolve_model(name: str, hub: HubOptions = _DEFAULT_HUB) -> ModelSource:
    """Find a model by bundled name, folder, GGUF file, `shape:NAME` or hub reference, in this order.

    A reference is "org/name", then ":Q4_K_M", "@revision" or both, see `models.hub.reference`. Raises ModelNotFound
    where there is none, UnsupportedModel for a file format that is not implemented, and CheckpointError for a folder
    without a readable config.json or GGUF file.
    """
    if name in BUNDLED:
        return _from_folder("bundled", name, BUNDLED_FOLDER / name)
    if name.startswith(SHAPE_PREFIX):
        return _from_shape(name)
    # os.path answers where the methods of Path raise: an unknown user, a name too long.
    path = Path(os.path.expanduser(name))
    if name and os.path.isdir(path):  # noqa: PTH112
        return _from_folder("folder", name, path)
    is_gguf = name.lower().endswith(_GGUF)
    if os.path.isfile(path):  # noqa: PTH113
        if is_gguf or begins_as_gguf(path):
            return _from_gguf("folder", name, path)
        raise UnsupportedModel(
            f"{name} is a file; give a GGUF file, or the folder that holds config.json and model.safetensors"
        )
    reference = parse_reference(name)
    if is_gguf and (reference is None or reference.tag is None):
        raise ModelNotFound(f"there is no file {name!r:.200}")
    if reference is not None:
        located = locate(reference, revision=hub.revision, download_dir=hub.download_dir)
        return _from_folder("hub", name, located) if located.is_dir() else _from_gguf("hub", name, located)
    raise ModelNotFound(
        f"there is no model {name!r:.200}: give a bundled name ({', '.join(BUNDLED)}), a folder, a GGUF file, "
        "shape:NAME or a hub id"
    )


def name_of(folder: Path) -> str:
    """What `resolve_model`, after any option, takes for this folder and for nothing else."""
    text = str(folder)
    return f"./{text}" if text in BUNDLED or text.startswith((SHAPE_PREFIX, "~", "-")) else text


def tokenizer_folder(name: str, hub: HubOptions = _DEFAULT_HUB) -> Path:
    """The folder or GGUF file of another model's tokenizer, by bundled name, path or hub id; weights are not fetched.

    Raises ModelNotFound where there is none.
    """
    if name in BUNDLED:
        return BUNDLED_FOLDER / name
    path = Path(os.path.expanduser(name))
    if name and os.path.isdir(path):  # noqa: PTH112
        return path
    if os.path.isfile(path) and (name.lower().endswith(_GGUF) or begins_as_gguf(path)):  # noqa: PTH113
        return path
    if (reference := parse_reference(name)) and reference.tag is None:
        return locate(reference, revision=hub.revision, download_dir=hub.download_dir, weights=False)
    raise ModelNotFound(
        f"there is no tokenizer {name!r:.200}: give a bundled name, a folder, a GGUF file or a hub id"
    )


def is_at_hand(name: str) -> bool:
    """`resolve_model` will find it, or not, without a download."""
    return (
        name in BUNDLED or os.path.exists(os.path.expanduser(name)) or parse_reference(name) is None  # noqa: PTH110
    )


def _from_shape(name: str) -> ModelSource:
    shape = name.removeprefix(SHAPE_PREFIX)
    if shape not in SHAPES:
        begun = [known for known in SHAPES if shape and known.startswith(shape)]
        near = [
            *begun,
            *(one for one in difflib.get_close_matches(shape, SHAPES, 8, 0.3) if one not in begun),
        ]
        near = near[:8] or list(SHAPES)[:8]
        raise ModelNotFound(f"there is no shape {shape!r:.200}; some that there are: {', '.join(near)}")
    return ModelSource("shape", name, None, SHAPES[shape])


def _from_folder(kind: SourceKind, name: str, path: Path) -> ModelSource:
    if not path.is_dir():
        raise ModelNotFound(f"the folder of model {name} is missing: {path}")
    if gguf := _gguf_in(path):
        return _from_gguf(kind, name, gguf)
    config = read_json(path / "config.json")
    if config is None:
        raise CheckpointError(f"{path} holds no config.json{why_incomplete(path) or _MODEL_FOLDER}")
    return ModelSource(
        kind, name, path, _settled(path, config), read_json(path / "generation_config.json") or {}
    )


def _settled(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config without a contradiction that the weights' files decide."""
    if not contradicts_ties(config):
        return config
    # Reads files with numpy, which the server's process does not need.
    from headrace.models.family_checkpoint import settle_ties

    return settle_ties(folder, config)


def _gguf_in(folder: Path) -> Path | None:
    """The one GGUF model of a folder without other weights."""
    if any((folder / name).exists() for name in _WEIGHTS):
        return None
    try:
        names = models_in([path.name for path in folder.iterdir()])
    except OSError:
        return None
    if len(names) > 1:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ModelNotFound(f"{folder} holds {len(names)} GGUF models; give the path of one: {shown:.600}")
    return folder / names[0] if names else None


def _from_gguf(kind: SourceKind, name: str, path: Path) -> ModelSource:
    # Reads weights with numpy, which the server's process does not need.
    from headrace.models.gguf.checkpoint import GGUFCheckpoint

    opened = GGUFCheckpoint(path)
    return ModelSource(kind, name, path, opened.config, opened.generation_config, opened)


_MODEL_FOLDER = ": give the folder that holds a model's config.json and safetensors files, or a GGUF file"


def why_incomplete(folder: Path) -> str:
    """The end of a sentence on what a folder lacks: what the folder holds instead, and what to do; "" if unknown."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ""
    if "adapter_config.json" in names:
        base = (read_json(folder / "adapter_config.json") or {}).get("base_model_name_or_path")
        of = f" for {base!r:.200}" if isinstance(base, str) and base else ""
        return (
            f": it is an adapter (LoRA){of}, which needs its base model: merge the two, for example with "
            "merge_and_unload() of the package peft, and give the folder of the merged model"
        )
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth")) and name not in _NO_WEIGHTS]
    if pickled:
        return (
            f": its weights are pickled ({pickled[0]:.200}), and unpickling can run any code; if you trust them, "
            f"convert them once with the package transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    return ""


def read_generation_config(folder: str) -> dict[str, Any]:
    """The generation_config.json of a folder. Raises ModelNotFound where there is none."""
    config = read_json(Path(os.path.expanduser(folder)) / "generation_config.json")
    if config is None:
        raise ModelNotFound(
            f'generation_config {folder!r:.200} is neither "auto", "vllm" nor a folder with a generation_config.json'
        )
    return config


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is absent. Raises CheckpointError for anything else, or a huge file."""
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} holds no valid JSON: {error!s:.200}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content

"""Which files of a repository a run needs, chosen by their names. Standard library only.

A repository holds safetensors, or GGUF files in several quantisations, or both. GGUF files carry config and
tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headrace.errors import ModelNotFound, UnsupportedModel
from headrace.gguf.files import PartName, names_model, part_name
from headrace.gguf.types import REFUSED, TYPES

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

TOKENIZER_FILES = (
    "*.json", "tokenizer.model", "merges.txt", "vocab.txt", "*.jinja", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""Files beside the weights: configs, tokenizer, chat templates. Never code."""

SHARDS = "model*-of-*.safetensors"

PREFERRED = (
    "Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K_XL", "MXFP4", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_K_L",
    "Q5_K_XL", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_0", "Q8_K_XL", "Q3_K_L", "Q3_K_XL", "Q3_K_M", "Q3_K_S",
    "Q2_K", "Q2_K_L", "Q2_K_XL", "BF16", "F16", "F32",
)  # fmt: skip
"""Quantisations that run here, in the order in which one is taken where none is named: about 4 bits, then more, then
fewer, then floats."""

# The last part of a file's name: an optional prefix of a publisher, then the type.
_LABEL = re.compile(
    r"(?:^|[-._/])((?:UD-|i1-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|F16|F32|FP16|FP32))$",
    re.ASCII | re.IGNORECASE,
)
_SPELLINGS = {"FP16": "F16", "FP32": "F32"}
_MAX_SHOWN = 24
_REFUSED = {name.split("_")[0] for name in REFUSED.values()} - {name.split("_")[0] for name in TYPES}
"""What labels of types that do not run begin with: IQ1, IQ2, IQ3, TQ1, TQ2, NVFP4 and others."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One model in GGUF: its files in order, more than one if it is split.

    label: its quantisation, as "Q4_K_M", or the stem of its name where that names none. missing: the first part that
    is not there.
    """

    label: str
    stem: str
    files: tuple[str, ...]
    missing: str | None = None


def is_safe(name: str) -> bool:
    """Whether the name of a file in a repository is a path inside of it."""
    parts = name.split("/")
    return bool(name) and not any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)


def gguf_models(names: Iterable[str]) -> list[GgufModel]:
    """The models in the GGUF files among `names`, in order of their names."""
    found: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        if not names_model(name.rsplit("/", 1)[-1]):
            continue
        part = part_name(name) or PartName(name[: -len(".gguf")], 1, 1, ".gguf")
        found.setdefault((part.name, part.count), {})[part.number] = name
    models = []
    for (stem, parts), files in found.items():
        absent = next((part for part in range(1, parts + 1) if part not in files), None)
        missing = None if absent is None else f"{stem}-{absent:05}-of-{parts:05}.gguf"
        models.append(GgufModel(_label(stem), stem, tuple(files[part] for part in sorted(files)), missing))
    return models


def weight_shards(names: Sequence[str]) -> list[str]:
    """The safetensors files that a run reads: one, or the shards of an index, at the top of the repository."""
    if SINGLE in names:
        return [SINGLE]
    if INDEX in names:
        return [name for name in names if "/" not in name and fnmatchcase(name, SHARDS)]
    return []


def side_files(names: Sequence[str]) -> list[str]:
    """Configs, tokenizer and chat templates: at the top, except the folder of additional templates."""
    return [
        name
        for name in names
        if any(fnmatchcase(name, rule) and name.count("/") == rule.count("/") for rule in TOKENIZER_FILES)
    ]


def needed_files(repository: str, names: Sequence[str], tag: str | None) -> tuple[str, ...]:
    """The files that a run of this quantisation needs; without a `tag` safetensors win over GGUF.

    Raises ModelNotFound, with the quantisations that there are, where `tag` is none of them or more than one, and
    UnsupportedModel for one that this version does not read.
    """
    names = [name for name in names if is_safe(name)]
    models = gguf_models(names)
    if tag is None and (weights := weight_shards(names)):
        return (*side_files(names), *weights)
    if tag is None and not models:
        return tuple(side_files(names))  # reading the folder reports what is missing
    model = _tagged(repository, models, tag) if tag is not None else _default(models)
    if _runs_not(model):
        others = list(dict.fromkeys(one.label for one in models if not _runs_not(one)))
        raise UnsupportedModel(
            f"{model.label} of hub model {repository} is made of types that this version does not read: it reads "
            f"{_listed(others) if others else 'no other file of this model'}"
        )
    if model.missing is not None:
        raise ModelNotFound(f"hub model {repository} lacks {model.missing:.200}, a part of {model.label}")
    return model.files


def _label(stem: str) -> str:
    if match := _LABEL.search(stem):
        label = match[1].upper()
        return _SPELLINGS.get(label, label)
    return stem.rsplit("/", 1)[-1]


def _default(models: Sequence[GgufModel]) -> GgufModel:
    """The model of the first type in PREFERRED; else the first that is whole."""

    def rank(model: GgufModel) -> tuple[bool, int]:
        label = _bare(model.label)
        known = label in PREFERRED
        return model.missing is not None or _runs_not(model), PREFERRED.index(label) if known else len(
            PREFERRED
        )

    return min(models, key=rank)


def _tagged(repository: str, models: Sequence[GgufModel], tag: str) -> GgufModel:
    """By label, then by the end of the name, then by a file's name; upper and lower case are the same."""
    wanted = _SPELLINGS.get(tag.upper(), tag).casefold()
    rules = (
        lambda model: model.label.casefold() == wanted,
        lambda model: re.search(rf"(?:^|[-._/]){re.escape(wanted)}$", model.stem.casefold()) is not None,
        lambda model: (
            wanted in {part.casefold() for name in model.files for part in (name, name.rsplit("/", 1)[-1])}
        ),
    )
    for rule in rules:
        found = [model for model in models if rule(model)]
        if len(found) > 1:
            files = ", ".join(f"{repository}:{model.files[0]}" for model in found[:_MAX_SHOWN])
            raise ModelNotFound(f"{tag} is more than one model of {repository}; name the file: {files}")
        if found:
            return found[0]
    if not models:
        raise ModelNotFound(f"hub model {repository} has no GGUF files, so it has no {tag}: leave :{tag} out")
    labels = list(dict.fromkeys(model.label for model in models))
    raise ModelNotFound(f"hub model {repository} has no {tag}; it has {_listed(labels)}")


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels[:_MAX_SHOWN]) + (", …" if len(labels) > _MAX_SHOWN else "")


def _runs_not(model: GgufModel) -> bool:
    """Whether its name says that it is made of types that do not run: "IQ3_M" has tensors of IQ3_S."""
    return _bare(model.label).split("_")[0] in _REFUSED


def _bare(label: str) -> str:
    return label.removeprefix("UD-").removeprefix("I1-")

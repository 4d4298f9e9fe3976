"""How large a folder becomes, before any weight is quantised."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.models.packed.folder import config_texts, tokenizer_files
from headrace.quantize.formats.base import Form
from headrace.quantize.formats.files import tensors_size
from headrace.quantize.job import Job


def folder_size(job: Job) -> int:
    """Bytes of all files that `run.quantize` writes: tensors, headers, index, configs and tokenizer. For options
    without rotations and codes of the head."""
    assert not job.ends.replaced
    rest, shards = job.shards()
    files = job.checkpoint.file_of
    entries = {name: files[name].entries[name] for name in job.copied}
    forms = {rest: [Form(name, entry.dtype, tuple(entry.shape)) for name, entry in entries.items()]}
    for number, shard in shards.items():
        layer = job.segments[number].layer
        changed = [form for one in job.changed_floats(layer) for form in job.plain.forms(*one)]
        coded = [form for weight in job.targets[number] for form in job.forms_of(weight)]
        forms[shard] = [*{form.name: form for form in changed}.values(), *coded]
    place = {form.name: shard for shard, own in forms.items() for form in own}
    tensors = sum(form.size for own in forms.values() for form in own)
    texts = [index_text(place, tensors), *config_texts(job.quantised_source()).values()]
    assert job.source.path is not None
    copied = [job.source.path / name for name in tokenizer_files(job.source.path)]
    return (
        sum(map(tensors_size, forms.values()))
        + sum(len(text.encode()) for text in texts)
        + sum(path.stat().st_size for path in copied)
    )


def index_text(place: Mapping[str, str], size: int) -> str:
    """What `model.safetensors.index.json` says. place: the file of each tensor. size: bytes of all tensors."""
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(place.items()))}
    return json.dumps(index, indent=2) + "\n"

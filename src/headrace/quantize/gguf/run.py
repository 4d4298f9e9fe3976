"""Quantises a model, layer by layer, into a GGUF file.

As in `quantize.run`, but each tensor of a matrix has a type of its own, and the embedding and the head are quantised
too: these have no calibration inputs. Finished layers lie in files of their own until the whole file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.gguf import writer
from headrace.gguf.types import TYPES, BlockType
from headrace.models.families import weight_names
from headrace.models.floats import to_dtype, to_float32
from headrace.models.gguf.blocks import dequantize
from headrace.models.gguf.names import ROPE_FACTORS
from headrace.models.loader import read_some
from headrace.models.safetensors_reader import SafetensorsFile
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.models.weight_files import row_runs, rows_of_run
from headrace.models.weights import Weights
from headrace.program.lower import lower
from headrace.program.records import WeightRef
from headrace.quantize.bits.sensitivity import Part
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.calibration.walk import Progress, Steps, Walk, segments
from headrace.quantize.formats.base import Tensor
from headrace.quantize.formats.files import Unfinished, open_unfinished, resume_key, write_tensors
from headrace.quantize.gguf.grids import GRIDS, Blocks
from headrace.quantize.gguf.layouts import check_header, layout_of, metadata_of, rope_divisors
from headrace.quantize.gguf.mixes import find_mix, fitting
from headrace.quantize.gguf.names import Source, sources_of
from headrace.quantize.gguf.rounding import gptq_blocks, nearest
from headrace.quantize.gguf.vocabulary import vocabulary_metadata
from headrace.quantize.matrices import (
    check_finite,
    floats_of,
    is_rescaled,
    layer_matrices,
    mean_error,
    stacked,
)
from headrace.quantize.options import Report, check_texts, check_tokens
from headrace.quantize.rounding.gptq import DAMPING, relative_error
from headrace.quantize.rounding.shrinkage import row_factors

PREFIX = "gguf:"
"""What `--format` begins with."""
METHODS = ("rtn", "gptq")
_HEADER = "header.gguf.part"
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SMALLEST_BLOCK = "Q8_0"
"""Takes the place of types with larger blocks."""


@dataclass(frozen=True, slots=True)
class GGUFOptions:
    """mix: a name of `mixes.MIXES`. method: rtn takes the nearest codes, with scales searched for the least error of
    the products where there are calibration texts; gptq is `rounding.gptq_blocks`. types: names of types by tensor, in
    place of the mix's."""

    mix: str = "Q4_K_M"
    method: str = "gptq"
    damping: float = DAMPING
    types: tuple[tuple[str, str], ...] = ()


def quantize_gguf(
    source: ModelSource,
    spec: ModelSpec,
    options: GGUFOptions,
    texts: Sequence[Sequence[int]],
    folder: Path,
    progress: Progress | None = None,
    num_threads: int | None = None,
) -> Report:
    """Write the model of `source` as the one file of `folder`, which must not be there and gives it its name. See
    `run.quantize`.

    Raises UnsupportedModel for families, tokenizers and settings that GGUF files are not written for.
    """
    with open_unfinished(folder) as place:
        report = quantize_gguf_into(place, source, spec, options, texts, progress, num_threads)
        place.commit()
    return report


def quantize_gguf_into(
    place: Unfinished,
    source: ModelSource,
    spec: ModelSpec,
    options: GGUFOptions,
    texts: Sequence[Sequence[int]],
    progress: Progress | None = None,
    num_threads: int | None = None,
) -> Report:
    """As `quantize_gguf`, into `place.files`; see `run.quantize_into`."""
    find_mix(options.mix)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if options.method == "gptq":
        check_texts(options.method, len(texts))
    check_tokens(texts, spec)
    job = open_job(source, spec, options)
    job.check(place)
    place.start(job.key(texts), job.size)
    known = place.state.get("report")
    if known is not None:
        return Report.from_json(known)
    return job.run(texts, place, f"{place.folder.name}-{options.mix.upper()}.gguf", progress)


def open_job(source: ModelSource, spec: ModelSpec, options: GGUFOptions) -> Job:
    """Raises as `quantize_gguf`."""
    return Job(source, spec, options, floats_of(source, spec))


class Job:
    """A model and the tensors that its file will hold."""

    def __init__(
        self, source: ModelSource, spec: ModelSpec, options: GGUFOptions, stored: StoredWeights
    ) -> None:
        self._source, self._spec, self._options, self.stored = source, spec, options, stored
        layout = layout_of(source.config, source.name)
        names = weight_names(spec)
        self.program = lower(spec, names, narrow=False)
        self._segments = segments(self.program)
        self.sources = sources_of(self.program, spec, names, layout.name)
        self._types = self._choose()
        assert source.path is not None
        divisors = rope_divisors(spec)
        self._divisors = None if divisors is None else np.array(divisors, dtype=np.float32)
        self._metadata = {
            **metadata_of(layout, source.config, spec, source.name),
            "general.file_type": find_mix(options.mix).number,
            **vocabulary_metadata(source.path, spec.vocab_size),
        }
        self._planned = [writer.Planned(one.name, self._types[one.name], one.shape) for one in self.sources]
        if self._divisors is not None:
            self._planned.insert(0, writer.Planned(ROPE_FACTORS, TYPES["F32"], self._divisors.shape))
        self._of_weight: dict[str, list[Source]] = {}
        for one in self.sources:
            if not one.bias:
                self._of_weight.setdefault(one.weight.name, []).append(one)
        if TYPES[find_mix(options.mix).usual].quantized and not any(
            fitting(_SMALLEST_BLOCK, one.weight.columns).quantized for one in self.parts()
        ):
            raise ConfigError(
                f"no matrix in the layers of {source.name} can be stored in {PREFIX}{options.mix}: their rows are not "
                f"whole blocks of {TYPES[_SMALLEST_BLOCK].weights} weights; {PREFIX}F16 and {PREFIX}BF16 have no blocks"
            )

    @property
    def size(self) -> int:
        """Bytes that will be written, about: finished layers are there twice while the file is made."""
        return 2 * writer.total_size(self._metadata, self._planned)

    def parts(self) -> list[Part]:
        """The tensors of matrices in layers that may be quantised."""
        whole = [weight for segment in self._segments for weight in layer_matrices(segment)]
        return [
            Part(one.name, weight, first, last)
            for weight in whole
            for first, last, one in self._parts(weight)
            if one.matrix
        ]

    def tensors(self) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """(by the names of weights in layers, the tensors of each with the names of their types; the same of other
        matrices: the embedding and the head)."""
        found: dict[str, dict[str, str]] = {}
        for one in self.parts():
            found.setdefault(one.weight.name, {})[one.name] = self._types[one.name].name
        others = [
            one.name for one in self.sources if one.matrix and not one.bias and one.weight.name not in found
        ]
        return found, {name: self._types[name].name for name in others}

    def size_without(self, names: Collection[str]) -> int:
        """Bytes of the file besides the data of these tensors."""
        others = sum(one.size for one in self._planned if one.name in names)
        return writer.total_size(self._metadata, self._planned) - others

    def key(self, texts: Sequence[Sequence[int]]) -> str:
        return resume_key(self._source, self._options, texts)

    def check(self, place: Unfinished) -> None:
        """Raises UnsupportedModel where no keys of the format hold the model."""
        first = b"" if self._divisors is None else self._divisors.tobytes()
        header = place.path / _HEADER
        try:
            writer.write_without_weights(header, self._metadata, self._planned, first)
            check_header(header, self._spec, self._source.name)
        finally:
            header.unlink(missing_ok=True)

    def run(
        self, texts: Sequence[Sequence[int]], place: Unfinished, name: str, progress: Progress | None
    ) -> Report:
        state = place.state
        walk = Walk(self.program, texts) if texts else None
        targets = [
            [weight for weight in layer_matrices(one) if self._coded(weight)] for one in self._segments
        ]
        work = [number for number, one in enumerate(targets) if one]
        of_layers = walk.batches * (len(targets) + len(work) - 1) if walk else len(work)
        steps = Steps(progress, of_layers + self._end_runs(targets))
        errors: dict[str, float] = {}
        shards: list[Path] = []
        for number, (segment, chosen) in enumerate(zip(self._segments, targets, strict=True)):
            weights = read_some(self.stored, segment.weights if walk else chosen, dtype=torch.float32)
            if chosen:
                path = place.layers / f"{number:05}.safetensors"
                shards.append(path)
                done = state.setdefault("layers", {}).get(str(number))
                if done is None:
                    hessians = Hessians({weight.name for weight in chosen})
                    if walk is not None:
                        walk.observe(weights, hessians.watch, steps.advance)
                    done = self._write_layer(path, chosen, weights, hessians if walk else None)
                    state["layers"][str(number)] = done
                    place.save()
                elif walk is not None:
                    steps.skip(walk.batches)
                errors |= done
                if walk is None:
                    steps.advance()
                else:
                    self._read_back(path, chosen, weights)
            if walk is not None and number + 1 < len(self._segments):
                walk.advance(weights, steps.advance)
        size = self._write_file(place.files / name, shards, steps)
        within = {one.name for one in self.parts()}
        matrices = [one for one in self._planned if one.name in within]
        coded = [one for one in matrices if one.type.quantized]
        floats = [one for one in matrices if not one.type.quantized]
        count = sum(int(np.prod(one.shape)) for one in coded)
        bits = 8 * sum(one.size for one in coded) / max(1, count)
        report = Report(
            errors, count, bits, kept=(), size=size,
            floats=sum(int(np.prod(one.shape)) for one in floats), float_bytes=sum(one.size for one in floats),
            inputs=max((one.shape[-1] for one in coded), default=0),
        )  # fmt: skip
        state["report"] = asdict(report)
        place.save()
        return report

    def _choose(self) -> dict[str, BlockType]:
        mix, given = find_mix(self._options.mix), dict(self._options.types)
        layers, tied = len(self._spec.layers), self._spec.tie_embeddings
        found = {}
        for one in self.sources:
            if not one.matrix or one.bias:
                found[one.name] = TYPES["F32"]
                continue
            shown = "output.weight" if tied and one.name == "token_embd.weight" else one.name
            found[one.name] = fitting(given.get(one.name) or mix.type_of(shown, layers), one.shape[-1])
        return found

    def _coded(self, weight: WeightRef) -> bool:
        return any(self._types[one.name].quantized for one in self._of_weight[weight.name])

    def _write_layer(
        self, path: Path, targets: Sequence[WeightRef], weights: Weights, hessians: Hessians | None
    ) -> dict[str, float]:
        """Quantise the matrices of a layer; gives their errors."""
        errors: dict[str, float] = {}
        tensors: list[Tensor] = []
        for weight in targets:
            check_finite(weight.name, stacked(weights, weight))
            squares: list[float] = []
            raw: dict[str, list[NDArray[np.uint8]]] = {}
            given = None if hessians is None else hessians.of(weight.name)
            for matrix in stacked(weights, weight):
                hessian = None if given is None else next(given)
                rounded = matrix.clone()
                for first, last, one in self._parts(weight):
                    if self._types[one.name].quantized:
                        type = self._types[one.name]
                        found = self._round(matrix[first:last], hessian, type, is_rescaled(weight)).pack()
                        raw.setdefault(one.name, []).append(found)
                        rounded[first:last] = torch.from_numpy(dequantize(found, type))
                squares.append(relative_error(matrix, rounded, hessian) ** 2)
            errors[weight.name] = mean_error(weight.name, squares)
            tensors += [Tensor(name, "U8", np.stack(parts)) for name, parts in raw.items()]
        write_tensors(path, tensors)
        return errors

    def _round(
        self, matrix: torch.Tensor, hessian: torch.Tensor | None, type: BlockType, scaled: bool
    ) -> Blocks:
        """scaled: rows get factors against what rounding shrinks."""
        grid = GRIDS[type.name]
        power = hessian
        if self._options.method == "gptq" and hessian is not None:
            found = gptq_blocks(matrix, hessian, grid, self._options.damping)
        else:
            power = None if hessian is None else hessian.diagonal()
            found = nearest(matrix, grid, power)
        return found.rescaled(row_factors(matrix, found.dequantize(), power)) if scaled else found

    def _read_back(self, path: Path, targets: Sequence[WeightRef], weights: Weights) -> None:
        """Put what the file of a layer holds in the place of its weights."""
        file = SafetensorsFile(path)
        for weight in targets:
            for number, matrix in enumerate(stacked(weights, weight)):
                for first, last, one in self._parts(weight):
                    if one.name in file.entries:
                        blocks = file.raw(one.name)[number]
                        matrix[first:last] = torch.from_numpy(dequantize(blocks, self._types[one.name]))

    def _parts(self, weight: WeightRef) -> Iterator[tuple[int, int, Source]]:
        """(first row, last row, tensor) of each part of a matrix."""
        first = 0
        for one in self._of_weight[weight.name]:
            yield first, first + one.shape[-2], one
            first += one.shape[-2]

    def _end_runs(self, targets: Sequence[Sequence[WeightRef]]) -> int:
        """Runs of rows of the embedding and the head, which are rounded while the file is written."""
        done = {weight.name for one in targets for weight in one}
        return sum(
            len(one.tensors) * -(-one.shape[-2] // rows_of_run(one.shape[-1]))
            for one in self.sources
            if self._types[one.name].quantized and one.weight.name not in done
        )

    def _write_file(self, path: Path, shards: Sequence[Path], steps: Steps) -> int:
        found = {name: file for file in map(SafetensorsFile, shards) for name in file.entries}
        fresh = path.with_name(path.name + ".part")
        with fresh.open("wb") as file:
            writer.write_header(file, self._metadata, self._planned)
            planned_of = {one.name: one for one in self._planned}
            if self._divisors is not None:
                writer.write_data(file, self._planned[0], [self._divisors.tobytes()])
            for one in self.sources:
                planned = planned_of[one.name]
                if one.name in found:
                    blocks = found[one.name].raw(one.name)
                    writer.write_data(file, planned, (one.ordered(each).tobytes() for each in blocks))
                else:
                    shown = steps.advance if planned.type.quantized else lambda: None
                    writer.write_data(file, planned, self._converted(one, planned.type, shown))
            writer.finish(file)
        fresh.replace(path)
        return path.stat().st_size

    def _converted(self, one: Source, type: BlockType, shown: Callable[[], None]) -> Iterator[bytes]:
        """The bytes of a tensor that no layer's file has; `shown` is called after each run of rows."""
        for tensor in one.tensors:
            if one.heads is not None or len(one.shape) == 1:
                values = to_float32(self.stored.checkpoint.array(tensor)).reshape(
                    one.shape[-2:] if one.matrix else -1
                )
                yield _bytes(one, one.ordered(values + np.float32(one.offset)), type)
                continue
            for _, rows in row_runs(self.stored.checkpoint, tensor):
                yield _bytes(one, to_float32(rows), type)
                shown()


def _bytes(one: Source, values: NDArray[Any], type: BlockType) -> bytes:
    if type.quantized:
        rows = torch.from_numpy(np.ascontiguousarray(values))
        check_finite(one.weight.name, rows)
        return nearest(rows, GRIDS[type.name]).pack().tobytes()
    return to_dtype(values, _FLOATS[type.name]).tobytes()


def is_gguf(format: str) -> bool:
    return format.lower().startswith(PREFIX)


def mix_of(format: str) -> str:
    """The name of the mix in a `--format`. Raises ConfigError where there is no such mix."""
    name = format[len(PREFIX) :]
    find_mix(name)
    return name.upper()

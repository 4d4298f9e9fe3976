"""Quantises a model, layer by layer, into a new folder.

Of each layer the inputs of its matrices are observed with its own weights as they were, and those of the layers before
it as they have become. Its matrices are rounded and written; what the reader makes of the file then takes the place of
the weights, and gives the next layer's inputs. So a layer that an earlier, killed run has written is used as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.models.config_reader import ConfigReader
from headrace.models.loader import read_some
from headrace.models.packed.folder import copy_tokenizer, write_configs
from headrace.models.quantized.layout import Matrix, Method
from headrace.models.quantized.matrices import LaidOut
from headrace.models.quantized.methods import read_method
from headrace.models.safetensors_reader import INDEX_FILE, SafetensorsFile
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.calibration.walk import Progress, Segment, Steps, Walk
from headrace.quantize.folder_size import index_text
from headrace.quantize.formats.base import Tensor
from headrace.quantize.formats.files import Unfinished, open_unfinished, write_tensors
from headrace.quantize.job import Job
from headrace.quantize.matrices import check_finite, floats_of, is_rescaled, mean_error, stacked
from headrace.quantize.methods.table import Inputs
from headrace.quantize.options import QuantizeOptions, Report, check_texts, check_tokens
from headrace.quantize.rounding.gptq import relative_error
from headrace.quantize.transforms.ends import HEAD


def quantize(
    source: ModelSource,
    spec: ModelSpec,
    options: QuantizeOptions,
    texts: Sequence[Sequence[int]],
    folder: Path,
    progress: Progress | None = None,
    num_threads: int | None = None,
) -> Report:
    """Write the model of `source` into `folder`, which must not be there, with the matrices of its layers as codes.

    texts: token ids to calibrate on; without any, rtn measures nothing and other methods are refused. The embedding,
    the head and routers are copied, as are norms and biases that take up no factors. num_threads: of torch, in the
    whole process.

    Raises ConfigError for options that do not fit the model, UnsupportedModel for
    one that is not stored as floats in safetensors files, CheckpointError where these cannot be used, and ModelError
    where the folder cannot be written or the model gives infinite numbers.
    """
    with open_unfinished(folder) as place:
        report = quantize_into(place, source, spec, options, texts, progress, num_threads)
        place.commit()
    return report


def quantize_into(
    place: Unfinished,
    source: ModelSource,
    spec: ModelSpec,
    options: QuantizeOptions,
    texts: Sequence[Sequence[int]],
    progress: Progress | None = None,
    num_threads: int | None = None,
) -> Report:
    """As `quantize`, into `place.files`. What is whole there already, of the same model, options and texts, is left as
    it is."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    job = open_job(source, spec, options)
    if options.calibrated:
        check_texts(options.method, len(texts))
    check_tokens(texts, spec)
    place.start(job.key(texts), job.size)
    known = place.state.get("report")
    return _Run(job, texts, place, progress).run() if known is None else Report.from_json(known)


def open_job(source: ModelSource, spec: ModelSpec, options: QuantizeOptions) -> Job:
    """Raises as `quantize`, but for texts that are missing."""
    options.check()
    job = Job(source, spec, options, floats_of(source, spec))
    if not job.targets:
        raise ConfigError(
            f"no matrix of {source.name} can be stored in {options.format} with {options.bits} bits and "
            f"{_sharing(options)}: their sizes do not fit; choose another --group-size or --format"
        )
    return job


def _sharing(options: QuantizeOptions) -> str:
    """Which weights have a common scale, in words."""
    if options.strategy == "block":
        return "blocks of 128 x 128"
    return "whole rows" if options.group is None else f"groups of {options.group}"


class _Run:
    def __init__(
        self, job: Job, texts: Sequence[Sequence[int]], place: Unfinished, progress: Progress | None
    ) -> None:
        self._job, self._place, self._folder = job, place, place.files
        self._config = job.quantization_config()
        self._method = read_method(self._config["quant_method"], ConfigReader(self._config))
        self._walk = Walk(job.program, texts) if texts else None
        self._head = job.options.head
        self._rest, self._shards = job.shards()
        parts = len(job.targets) + len(self._shards) - 1 + self._head
        self._steps = Steps(progress, self._walk.batches * parts if self._walk else len(self._shards))

    def run(self) -> Report:
        job, walk = self._job, self._walk
        errors: dict[str, float] = {}
        for number, (segment, targets) in enumerate(zip(job.segments, job.targets, strict=True)):
            needed = segment.weights if walk or job.rotations is not None else targets
            weights = read_some(job.stored, needed, dtype=torch.float32)
            self._rotate(segment, weights)
            if number in self._shards:
                errors |= self._layer(number, segment, targets, weights)
            if walk is not None and (number + 1 < len(job.segments) or self._head):
                walk.advance(weights, self._steps.advance)
        if self._head:
            done = self._layers.get(HEAD)
            if done is None:
                done = self._write_head()
                self._finished(HEAD, done)
            self._steps.skip(walk.batches if walk else 1)
            errors |= done
        report = self._finish(errors)
        self._place.state["report"] = asdict(report)
        self._place.save()
        return report

    @property
    def _layers(self) -> dict[str, dict[str, float]]:
        """The errors of finished layers."""
        found: dict[str, dict[str, float]] = self._place.state.setdefault("layers", {})
        return found

    def _finished(self, layer: str, errors: dict[str, float]) -> None:
        self._layers[layer] = errors
        self._place.save()

    def _layer(
        self, number: int, segment: Segment, targets: Sequence[WeightRef], weights: Weights
    ) -> dict[str, float]:
        """Write the layer if it is not there, and put what is there in the place of its weights."""
        path = self._folder / self._shards[number]
        done = self._layers.get(str(number))
        if done is None:
            hessians = None
            if self._walk is not None:
                hessians = Hessians({weight.name for weight in targets})
                self._walk.observe(weights, hessians.watch, self._steps.advance)
            done = self._write_layer(path, segment, targets, weights, hessians)
            self._finished(str(number), done)
        elif self._walk is not None:
            self._steps.skip(self._walk.batches)
        if self._walk is None:
            self._steps.advance()
        else:
            self._read_back(path, segment, targets, weights)
        return done

    def _write_head(self) -> dict[str, float]:
        """Quantise the head; gives its error."""
        weights, head = self._job.ends.weights(), self._job.ends.head
        hessians = None
        if self._walk is not None:
            hessians = Hessians({head.name})
            hessians.record(head.name, [self._walk.states(weights)])
        tensors, errors = self._encode([head], weights, hessians)
        write_tensors(self._folder / self._shards[len(self._job.segments)], tensors)
        return errors

    def _rotate(self, segment: Segment, weights: Weights) -> None:
        if segment.layer is None:
            self._job.ends.rotate_tables(weights)
        elif self._job.rotations is not None:
            self._job.rotations.apply(weights, segment.layer)

    def _write_layer(
        self,
        path: Path,
        segment: Segment,
        targets: Sequence[WeightRef],
        weights: Weights,
        hessians: Hessians | None,
    ) -> dict[str, float]:
        """Quantise the matrices of a layer; gives their errors."""
        if hessians is not None:
            self._scale(segment.layer, targets, weights, hessians)
        plain = {
            tensor.form.name: tensor  # two weights of the program may be one tensor
            for weight, becomes_codes in self._job.changed_floats(segment.layer)
            for tensor in self._job.plain.tensors(weights, weight, becomes_codes)
        }
        coded, errors = self._encode(targets, weights, hessians)
        write_tensors(path, [*plain.values(), *coded])
        return errors

    def _encode(
        self, targets: Sequence[WeightRef], weights: Weights, hessians: Hessians | None
    ) -> tuple[list[Tensor], dict[str, float]]:
        """The tensors of matrices as codes, and the errors of these."""
        job = self._job
        tensors: list[Tensor] = []
        errors: dict[str, float] = {}
        for weight in targets:
            matrices = stacked(weights, weight)
            check_finite(weight.name, matrices)
            squares = []
            given = None if hessians is None else hessians.of(weight.name)
            peak = None if hessians is None else float(hessians.peaks(weight.name).max())
            for one, matrix in zip(weight.each(), matrices, strict=True):
                hessian = None if given is None else next(given)
                parts = tuple(rows for _, rows in one.parts)
                inputs = Inputs(hessian, peak, parts, is_rescaled(weight))
                codes = job.method.round(matrix, inputs, job.scheme(weight), job.settings)
                squares.append(relative_error(matrix, codes.dequantize(), hessian) ** 2)
                first = 0
                for name, rows in one.parts:
                    tensors += job.format.tensors(job.modules[name], codes.rows(first, first + rows))
                    first += rows
            errors[weight.name] = mean_error(weight.name, squares)
        return tensors, errors

    def _scale(
        self, layer: int | None, targets: Sequence[WeightRef], weights: Weights, hessians: Hessians
    ) -> None:
        """Have the features that the layer's matrices read divided by the method's factors."""
        job = self._job
        for fold in job.folds:
            if fold.layer == layer and job.method.factors is not None:
                factors = job.method.factors(fold, weights, hessians, targets, job.scheme, job.settings)
                columns = fold.apply(weights, factors, job.plain.rounded)
                for reader in fold.readers:
                    if reader in targets:
                        hessians.divide(reader.name, columns)

    def _read_back(
        self, path: Path, segment: Segment, targets: Sequence[WeightRef], weights: Weights
    ) -> None:
        """Put what the file of a layer holds in the place of its weights."""
        file = SafetensorsFile(path)
        for weight, becomes_codes in self._job.changed_floats(segment.layer):
            self._job.plain.read_back(file, weights, weight, becomes_codes)
        for weight in targets:
            for one, matrix in zip(weight.each(), stacked(weights, weight), strict=True):
                first = 0
                for name, rows in one.parts:
                    read = _read_matrix(file, self._method, self._job.modules[name], rows, weight.columns)
                    matrix[first : first + rows] = torch.from_numpy(read)
                    first += rows

    def _finish(self, errors: Mapping[str, float]) -> Report:
        """Copy what is left, and say what is where."""
        job, folder = self._job, self._folder
        files = job.checkpoint.file_of
        copies = [Tensor(name, files[name].entries[name].dtype, files[name].raw(name)) for name in job.copied]
        write_tensors(folder / self._rest, [*copies, *job.ends.tensors()])
        place: dict[str, str] = {}
        size = 0
        for shard in (self._rest, *self._shards.values()):
            for name, entry in SafetensorsFile(folder / shard).entries.items():
                place[name] = shard
                size += entry.end - entry.begin
        (folder / INDEX_FILE).write_text(index_text(place, size), encoding="utf-8")
        assert job.source.path is not None
        write_configs(folder, job.quantised_source())
        copy_tokenizer(folder, job.source.path)
        weights = sum((weight.experts or 1) * weight.rows * weight.columns for weight in job.coded)
        bits = 8 * sum(map(job.bytes_of, job.coded)) / weights
        floats = [weight for one in job.matrices for weight in one if weight not in job.coded]
        return Report(
            dict(errors), weights, bits, job.kept, size, job.unscaled(),
            sum((weight.experts or 1) * weight.rows * weight.columns for weight in floats),
            sum(map(job.float_bytes, floats)),
            max((weight.columns for weight in job.coded), default=0),
        )  # fmt: skip


def _read_matrix(
    file: SafetensorsFile, method: Method, module: str, rows: int, columns: int
) -> NDArray[np.float32]:
    layout = method.layout(module)
    assert layout is not None
    names = {part.suffix: module + part.suffix for part in layout.stored(rows, columns)}
    entries = {suffix: file.entries[name] for suffix, name in names.items() if name in file.entries}
    return LaidOut(
        layout, Matrix(module, rows, columns, entries, lambda suffix: file.raw(names[suffix]))
    ).floats()

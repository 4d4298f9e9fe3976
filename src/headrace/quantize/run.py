"""Quantises a model, layer by layer, into a new folder.

Of each layer the inputs of its matrices are observed with its own weights as they were, and those of the layers before
it as they have become. Its matrices are rounded and written; what the reader makes of the file then takes the place of
the weights, and gives the next layer's inputs. So a layer that an earlier, killed run has written is used as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import __version__
from headrace.errors import ConfigError, ModelError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families import weight_names
from headrace.models.identity import weights_identity
from headrace.models.loader import read_some
from headrace.models.packed.folder import copy_tokenizer, write_configs
from headrace.models.packed.header import is_packed
from headrace.models.quantized.layout import Matrix, Method
from headrace.models.quantized.matrices import LaidOut
from headrace.models.quantized.methods import quantization_of, read_method
from headrace.models.safetensors_reader import Checkpoint, SafetensorsFile
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights, open_weights
from headrace.models.weights import Weights
from headrace.program.lower import lower
from headrace.program.records import Op, WeightRef
from headrace.quantize.ends import Ends, untied
from headrace.quantize.files import read_state, unfinished_folder, write_state, write_tensors
from headrace.quantize.folds import Fold, folds
from headrace.quantize.formats import Format, Tensor, check_format
from headrace.quantize.fp8 import FloatScheme, Strategy
from headrace.quantize.gptq import DAMPING, Order, relative_error
from headrace.quantize.hessians import Hessians
from headrace.quantize.methods import METHODS, Inputs, Settings
from headrace.quantize.plain import PlainTensors
from headrace.quantize.rotations import Rotations
from headrace.quantize.scheme import BITS, Scheme
from headrace.quantize.smoothquant import STRENGTH
from headrace.quantize.walk import Segment, Walk, segments

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps in all; a step is one batch of texts through one layer."""
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """method: one of METHODS. group: input features with a common scale, or None for all. order, damping: of gptq, as
    in `gptq.gptq`. strategy, static: of fp8, as in `fp8.FloatScheme`. smoothing: of smoothquant.
    rotate: the model first, as `rotations` says, by matrices of `seed`. head: it becomes codes as well. keep: names of
    weights that stay as they are."""

    method: str = "gptq"
    bits: int = 4
    group: int | None = 128
    symmetric: bool = True
    clip: bool = False
    order: Order | None = None
    damping: float = DAMPING
    format: str = "compressed-tensors"
    strategy: Strategy = "channel"
    static: bool = False
    smoothing: float = STRENGTH
    rotate: bool = False
    seed: int = 0
    keep: tuple[str, ...] = ()
    head: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether texts are needed."""
        return METHODS[self.method].calibrated or self.static

    def check(self) -> None:
        """Raises ConfigError for what no format holds, or the method does not have."""
        if self.bits not in BITS:
            raise ConfigError(f"bits must be one of {', '.join(map(str, BITS))}, got {self.bits}")
        if self.group is not None and not 16 <= self.group <= 256:
            raise ConfigError(f"the group size must be 16 to 256, or the whole row, got {self.group}")
        if self.order is not None and not METHODS[self.method].ordered:
            raise ConfigError(f"{self.method} has no order of columns: that is for gptq")
        self._check_eight_bits()
        check_format(METHODS[self.method].formats, self.format, self.bits, self.order)

    def _check_eight_bits(self) -> None:
        method = METHODS[self.method]
        if method.only_eight and (self.bits != 8 or self.group is not None or not self.symmetric):
            raise ConfigError(f"{self.method} has symmetric codes of 8 bits, and no groups of input features")
        if not method.floats and (self.strategy != "channel" or self.static):
            raise ConfigError(
                f"{self.method} has no scales of tensors and blocks, and none of inputs: that is for fp8"
            )
        if self.format == "fp8" and self.strategy != "block":
            raise ConfigError("--format fp8 holds a scale for each 128 x 128: use --group-size 128x128")
        if self.static and self.strategy == "block":
            raise ConfigError("weights in blocks go with dynamic scales of the inputs")
        if not 0.0 <= self.smoothing <= 1.0:
            raise ConfigError(f"the strength of smoothing must be 0 to 1, got {self.smoothing}")


@dataclass(frozen=True, slots=True)
class Report:
    """errors: of each weight, by name, |change of its products| / |its products| over the calibration inputs (of
    experts the root of the mean square); without calibration, of the weights themselves.

    weights: how many are codes now. bits: a weight of these, scales and zeros included. kept: names of matrices in
    layers that stayed as they were, because the format cannot hold them or a reader would not find them; not those that
    were asked to stay. unscaled:
    those that are codes, but not of scaled weights although the method scales, because nothing before them can take up
    the factors. size: bytes of all files of weights.
    """

    errors: Mapping[str, float]
    weights: int
    bits: float
    kept: tuple[str, ...]
    size: int
    unscaled: tuple[str, ...] = ()


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
    options.check()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    stored = floats_of(source, spec)
    if options.calibrated and not texts:
        raise ConfigError(f"{options.method} needs calibration texts")
    job = _Job(source, spec, options, stored)
    if not job.targets:
        raise ConfigError(
            f"no matrix of {source.name} can be stored in {options.format} with {options.bits} bits and groups of "
            f"{options.group or 'whole rows'}: their sizes do not fit"
        )
    with unfinished_folder(folder, job.size, job.key(texts)) as fresh:
        return job.run(texts, fresh, progress)


def floats_of(source: ModelSource, spec: ModelSpec) -> StoredWeights:
    if source.path is None:
        raise UnsupportedModel(f"{source.name} has random weights: there is nothing to quantise")
    if source.files is not None:
        raise UnsupportedModel(
            f"{source.name} is a GGUF file: give the safetensors folder that it was made from"
        )
    if is_packed(source.path):
        raise UnsupportedModel(f"{source.name} is a packed folder: give the model that it was packed from")
    named = quantization_of(source.config, source.path)
    if named is not None:
        raise UnsupportedModel(
            f"{source.name} is quantised already, with {named[0]}: give the original model"
        )
    return open_weights(source, spec)


class _Job:
    def __init__(
        self, source: ModelSource, spec: ModelSpec, options: QuantizeOptions, stored: StoredWeights
    ) -> None:
        self._source, self._options, self._stored = source, options, stored
        self._method = METHODS[options.method]
        self._settings = Settings(options.order, options.damping, options.smoothing)
        checkpoint = stored.checkpoint
        assert isinstance(checkpoint, Checkpoint)
        self._checkpoint = checkpoint
        self._format: Format = self._method.formats[options.format]
        narrow = checkpoint.matrix_dtype() == "bfloat16" and options.format == "compressed-tensors"
        self._scheme = _scheme(options, self._format.least_zero, narrow)
        self._program = lower(spec, weight_names(spec), narrow=False)
        self._segments = segments(self._program)
        layers = [layer_matrices(one) for one in self._segments]
        fits = {weight for one in layers for weight in one if self._fits(weight)}
        self._kept = tuple(
            weight.name
            for one in layers
            for weight in one
            if weight not in fits and weight.name not in options.keep
        )
        self.targets = [tuple(weight for weight in one if weight in fits) for one in layers]
        self.targets = self.targets if fits else []
        self._modules = {
            name: self._module(name) for weight in fits for one in weight.each() for name, _ in one.parts
        }  # of each quantised tensor of the program
        self._fitting = fits
        self._coded = [*fits]
        self._plain = PlainTensors(checkpoint)
        self._folds = (
            [fold for fold in folds(self._program) if self._can_take(fold)] if self._method.factors else []
        )
        self._rotations = Rotations(self._program, source.name, options.seed) if options.rotate else None
        tied = (options.rotate or options.head) and spec.tie_embeddings
        self._untied = untied(source.config, source.name) if tied else None
        self._ends = Ends(stored, spec, self._program, self._rotations, options.head)
        self._changed = {one.layer: self._changed_in(one.layer) for one in self._segments}
        changed = [weight for one in self._changed.values() for weight in one]
        if stuck := [one for one in changed if not self._plain.can_hold(one, one in fits)]:
            raise UnsupportedModel(
                f"{source.name} cannot be rotated: {stuck[0].name} shares its tensor in the files with other weights, "
                "and does not become codes; leave out --rotate, or choose another --group-size"
            )
        self._rewritten = [name for weight in changed for name in self._plain.names(weight, weight in fits)]
        replaced = {*map(checkpoint.stored_name, self._modules), *self._rewritten, *self._ends.replaced}
        head = self._ends.head
        if options.head:
            self._coded.append(head)
            self._modules |= {name: name.removesuffix(".weight") for name, _ in head.parts}
        if options.head and not self._format.fits(head.rows, head.columns, self._scheme):
            raise ConfigError(
                f"{options.format} cannot hold the {head.rows} x {head.columns} weights of the head of {source.name} "
                "so: leave out --head, or choose another --group-size"
            )
        self._copied = [name for name in checkpoint.file_of if name not in replaced]

    @property
    def size(self) -> int:
        """Bytes that will be written, about."""
        copied = sum(self._entry_size(name) for name in self._copied)
        return copied + sum(weight.elements for weight in self._coded) * (self._options.bits + 2) // 8

    def key(self, texts: Sequence[Sequence[int]]) -> str:
        """Tells whether an unfinished folder is of the same model, options and texts."""
        facts = [
            __version__, asdict(self._options), weights_identity(self._source, 0).hex(), dict(self._source.config),
            [list(one) for one in texts],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def run(self, texts: Sequence[Sequence[int]], folder: Path, progress: Progress | None) -> Report:
        state = read_state(folder)
        config = self._config()
        method = read_method(config["quant_method"], ConfigReader(config))
        walk = Walk(self._program, texts) if texts else None
        numbers = [
            number
            for number, (segment, targets) in enumerate(zip(self._segments, self.targets, strict=True))
            if targets or self._changed[segment.layer]
        ]
        shards = {
            number: f"model-{at:05}-of-{len(numbers) + 1 + self._options.head:05}.safetensors"
            for at, number in enumerate(numbers, 2)
        }
        parts = len(self.targets) + len(numbers) - 1
        if self._options.head:
            shards[len(self._segments)] = f"model-{len(numbers) + 2:05}-of-{len(numbers) + 2:05}.safetensors"
            parts += 2
        steps = Steps(progress, (walk.batches if walk else 1) * parts)
        errors: dict[str, float] = {}
        for number, (segment, targets) in enumerate(zip(self._segments, self.targets, strict=True)):
            needed = segment.weights if walk or self._rotations is not None else targets
            weights = read_some(self._stored, needed, dtype=torch.float32)
            self._rotate(segment, weights)
            if number in shards:
                path = folder / shards[number]
                done = state.setdefault("layers", {}).get(str(number))
                if done is None:
                    hessians = Hessians({weight.name for weight in targets})
                    if walk is not None:
                        walk.observe(weights, hessians.watch, steps.advance)
                    done = self._write_layer(path, segment, targets, weights, hessians if walk else None)
                    state["layers"][str(number)] = done
                    write_state(folder, state)
                else:
                    steps.skip(walk.batches if walk else 0)
                errors |= done
                if walk is not None:
                    self._read_back(path, segment, targets, weights, method)
            if walk is not None and (number + 1 < len(self._segments) or self._options.head):
                walk.advance(weights, steps.advance)
        if self._options.head:
            path = folder / shards[len(self._segments)]
            if "head" not in state["layers"]:
                state["layers"]["head"] = self._write_head(path, walk)
                write_state(folder, state)
            steps.skip(walk.batches if walk else 0)
            errors |= state["layers"]["head"]
        return self._finish(folder, shards, config, errors)

    def _write_head(self, path: Path, walk: Walk | None) -> dict[str, float]:
        """Quantise the head; gives its error."""
        weights, head = self._ends.weights(), self._ends.head
        hessians = Hessians({head.name})
        if walk is not None:
            hessians.record(head.name, [walk.states(weights)])
        tensors, errors = self._encode([head], weights, hessians if walk else None)
        write_tensors(path, tensors)
        return {"head": errors[head.name]}

    def _rotate(self, segment: Segment, weights: Weights) -> None:
        if segment.layer is None:
            self._ends.rotate_tables(weights)
        elif self._rotations is not None:
            self._rotations.apply(weights, segment.layer)

    def _changed_in(self, layer: int | None) -> list[WeightRef]:
        """The weights of a layer that change before any becomes codes."""
        if layer is None:
            return []
        folded = [weight for fold in self._folds if fold.layer == layer for weight in fold.weights]
        turned = [] if self._rotations is None else self._rotations.weights(layer)
        return list(dict.fromkeys((*turned, *folded)))

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
        tensors = [
            tensor
            for weight in self._changed[segment.layer]
            for tensor in self._plain.tensors(weights, weight, weight in targets)
        ]
        coded, errors = self._encode(targets, weights, hessians)
        write_tensors(path, tensors + coded)
        return errors

    def _encode(
        self, targets: Sequence[WeightRef], weights: Weights, hessians: Hessians | None
    ) -> tuple[list[Tensor], dict[str, float]]:
        """The tensors of matrices as codes, and the errors of these."""
        tensors: list[Tensor] = []
        errors: dict[str, float] = {}
        for weight in targets:
            stacked = weights.matrices[weight.name].weight
            assert isinstance(stacked, torch.Tensor)
            matrices = stacked if weight.experts is not None else stacked[None]
            check_finite(weight.name, stacked)
            squares = []
            given = None if hessians is None else hessians.of(weight.name)
            peak = None if hessians is None else float(hessians.peaks(weight.name).max())
            for one, matrix in zip(weight.each(), matrices, strict=True):
                hessian = torch.eye(weight.columns) if given is None else next(given)
                inputs = Inputs(hessian, peak, tuple(rows for _, rows in one.parts))
                codes = self._method.round(matrix, inputs, self._scheme, self._settings)
                squares.append(relative_error(matrix, codes.dequantize(), hessian) ** 2)
                first = 0
                for name, rows in one.parts:
                    tensors += self._format.tensors(self._modules[name], codes.rows(first, first + rows))
                    first += rows
            errors[weight.name] = (sum(squares) / len(squares)) ** 0.5
        return tensors, errors

    def _scale(
        self, layer: int | None, targets: Sequence[WeightRef], weights: Weights, hessians: Hessians
    ) -> None:
        """Have the features that the layer's matrices read divided by the method's factors."""
        for fold in self._folds:
            if fold.layer == layer and self._method.factors is not None:
                factors = self._method.factors(fold, weights, hessians, targets, self._scheme, self._settings)
                columns = fold.apply(weights, factors, self._plain.rounded)
                for reader in fold.readers:
                    if reader in targets:
                        hessians.divide(reader.name, columns)

    def _read_back(
        self, path: Path, segment: Segment, targets: Sequence[WeightRef], weights: Weights, method: Method
    ) -> None:
        """Put what the file of a layer holds in the place of its weights."""
        file = SafetensorsFile(path)
        for weight in self._changed[segment.layer]:
            self._plain.read_back(file, weights, weight, weight in targets)
        for weight in targets:
            stacked = weights.matrices[weight.name].weight
            assert isinstance(stacked, torch.Tensor)
            matrices = stacked if weight.experts is not None else stacked[None]
            for one, matrix in zip(weight.each(), matrices, strict=True):
                first = 0
                for name, rows in one.parts:
                    read = _read_matrix(file, method, self._modules[name], rows, weight.columns)
                    matrix[first : first + rows] = torch.from_numpy(read)
                    first += rows

    def _finish(
        self, folder: Path, shards: Mapping[int, str], config: dict[str, Any], errors: Mapping[str, float]
    ) -> Report:
        """Copy what is left, and say what is where."""
        files = self._checkpoint.file_of
        rest = f"model-00001-of-{len(shards) + 1:05}.safetensors"
        copies = [
            Tensor(name, files[name].entries[name].dtype, files[name].raw(name)) for name in self._copied
        ]
        write_tensors(folder / rest, [*copies, *self._ends.tensors()])
        place: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for shard in (rest, *shards.values()):
            for name, entry in SafetensorsFile(folder / shard).entries.items():
                place[name] = shard
                sizes[shard] = sizes.get(shard, 0) + entry.end - entry.begin
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(place.items()))}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        assert self._source.path is not None
        model = dict(self._source.config) if self._untied is None else self._untied
        write_configs(folder, replace(self._source, config={**model, "quantization_config": config}))
        copy_tokenizer(folder, self._source.path)
        weights = sum((weight.experts or 1) * weight.rows * weight.columns for weight in self._coded)
        plain = sum(map(self._entry_size, self._rewritten))
        coded = sum(size for shard, size in sizes.items() if shard != rest) - plain
        scaled = {reader for fold in self._folds for reader in fold.readers}
        unscaled = [
            weight.name
            for targets in self.targets
            for weight in targets
            if self._method.factors is not None and weight not in scaled
        ]
        return Report(
            dict(errors), weights, 8 * coded / weights, self._kept, sum(sizes.values()), tuple(unscaled)
        )

    def _config(self) -> dict[str, Any]:
        coded = sorted(self._modules.values())
        floats = (*self._copied, *self._rewritten)
        entries = {name: self._checkpoint.file_of[name].entries[name] for name in floats}
        plain = [
            name.removesuffix(".weight")
            for name, entry in entries.items()
            if name.endswith(".weight") and len(entry.shape) == 2 and "embed" not in name
        ]
        if not self._options.head and not any(name.endswith("lm_head") for name in plain):
            plain.append("lm_head")  # a tied one is a module too
        return self._format.config(self._scheme, self._options.order, coded, sorted(plain))

    def _fits(self, weight: WeightRef) -> bool:
        return weight.name not in self._options.keep and all(
            self._format.fits(rows, weight.columns, self._scheme)
            and self._checkpoint.name_for_codes(name) is not None
            for one in weight.each()
            for name, rows in one.parts
        )

    def _can_take(self, fold: Fold) -> bool:
        """Whether a reader becomes codes, and all that changes can be written."""
        return any(reader in self._fitting for reader in fold.readers) and all(
            self._plain.can_hold(weight, weight in self._fitting) for weight in fold.weights
        )

    def _module(self, name: str) -> str:
        found = self._checkpoint.name_for_codes(name)
        assert found is not None
        return found.removesuffix(".weight")

    def _entry_size(self, name: str) -> int:
        entry = self._checkpoint.file_of[name].entries[name]
        return entry.end - entry.begin


def _scheme(options: QuantizeOptions, least_zero: int, narrow: bool) -> Scheme | FloatScheme:
    """narrow: scales are stored as bfloat16."""
    wide: Literal["bf16", "f32"] = "bf16" if narrow else "f32"
    if METHODS[options.method].floats:
        return FloatScheme(options.strategy, options.clip, options.static, wide)
    if METHODS[options.method].only_eight:
        return Scheme(8, None, clip=options.clip, scale=wide, positive=True)
    return Scheme(
        options.bits, options.group, options.symmetric, options.clip, "bf16" if narrow else "f16", least_zero
    )


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


def check_finite(name: str, matrices: torch.Tensor) -> None:
    """Raises ModelError for weights that no codes stand for."""
    if not bool(torch.isfinite(matrices).all()):
        raise ModelError(f"the weights of {name} are infinite or not numbers: they cannot be quantised")


def layer_matrices(segment: Segment) -> list[WeightRef]:
    """The matrices of a layer that may be quantised, each once."""
    return list(
        dict.fromkeys(weight for op in segment.ops for weight in op.weights if _may_be_codes(op, weight))
    )


def _may_be_codes(op: Op[Any], weight: WeightRef) -> bool:
    """Not those of the ends of a model, routers, which are exact, and matrices of heads, which share tensors."""
    multiplies = op.kind in ("linear", "experts") and weight.kind == "matrix"
    return multiplies and weight.layer is not None and not weight.exact and weight.in_heads is None


class Steps:
    def __init__(self, shown: Progress | None, total: int) -> None:
        self._shown, self._total, self._done = shown, total, 0

    def advance(self) -> None:
        self.skip(1)

    def skip(self, steps: int) -> None:
        self._done += steps
        if self._shown is not None:
            self._shown(self._done, self._total)

"""What becomes of every tensor of a model that is quantised into a folder: codes, changed floats, or a copy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

from headrace.errors import ConfigError, UnsupportedModel
from headrace.models.families import weight_names
from headrace.models.safetensors_reader import ITEM_BYTES, Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.program.lower import lower
from headrace.program.records import WeightRef
from headrace.quantize.calibration.walk import segments
from headrace.quantize.formats.base import Form, Format
from headrace.quantize.formats.files import resume_key
from headrace.quantize.matrices import layer_matrices
from headrace.quantize.methods.table import METHODS, Settings
from headrace.quantize.options import QuantizeOptions, Width
from headrace.quantize.rounding.fp8 import FloatScheme
from headrace.quantize.rounding.scheme import Scheme
from headrace.quantize.transforms.ends import Ends, untied
from headrace.quantize.transforms.folds import Fold, folds
from headrace.quantize.transforms.plain import PlainTensors
from headrace.quantize.transforms.rotations import Rotations


class Job:
    """targets: the matrices of each segment that become codes. kept: names of those that stay because the format cannot
    hold them. changed: by layer, the weights that change before any becomes codes. modules: of each tensor of the
    program that becomes codes, the module in the files. copied: tensors of the files that stay as they are."""

    def __init__(
        self, source: ModelSource, spec: ModelSpec, options: QuantizeOptions, stored: StoredWeights
    ) -> None:
        """Raises UnsupportedModel and ConfigError for options that do not fit the model."""
        self.source, self.options, self.stored = source, options, stored
        self.method = METHODS[options.method]
        self.settings = Settings(options.order, options.damping, options.smoothing)
        checkpoint = stored.checkpoint
        assert isinstance(checkpoint, Checkpoint)
        self.checkpoint = checkpoint
        self.format: Format = self.method.formats[options.format]
        self._narrow = checkpoint.matrix_dtype() == "bfloat16" and options.format == "compressed-tensors"
        self._widths = dict(options.widths)
        self.program = lower(spec, weight_names(spec), narrow=False)
        self.segments = segments(self.program)
        self.matrices = [layer_matrices(one) for one in self.segments]
        fits = {weight for one in self.matrices for weight in one if self._becomes_codes(weight)}
        self.kept = tuple(
            weight.name
            for one in self.matrices
            for weight in one
            if weight not in fits and weight.name not in options.keep
        )
        self.targets = [tuple(weight for weight in one if weight in fits) for one in self.matrices]
        self.targets = self.targets if fits else []
        self.coded = [weight for one in self.targets for weight in one]
        self.modules = {name: self._module(name) for weight in self.coded for name in _stored_names(weight)}
        self._fitting = fits
        self.plain = PlainTensors(checkpoint)
        self.folds = (
            [fold for fold in folds(self.program) if self._can_take(fold)] if self.method.factors else []
        )
        self.rotations = Rotations(self.program, source.name, options.seed) if options.rotate else None
        tied = (options.rotate or options.head) and spec.tie_embeddings
        self.config = dict(source.config) if not tied else untied(source.config, source.name)
        self.ends = Ends(stored, spec, self.program, self.rotations, options.head)
        self.changed = {one.layer: self._changed_in(one.layer) for one in self.segments}
        changed = [weight for one in self.changed.values() for weight in one]
        if stuck := [one for one in changed if not self.plain.can_hold(one, one in fits)]:
            raise UnsupportedModel(
                f"{source.name} cannot be rotated: {stuck[0].name} shares its tensor in the files with other weights, "
                "and does not become codes; leave out --rotate, or choose another --group-size"
            )
        rewritten = [name for weight in changed for name in self.plain.names(weight, weight in fits)]
        self.rewritten = list(dict.fromkeys(rewritten))
        replaced = {*map(checkpoint.stored_name, self.modules), *self.rewritten, *self.ends.replaced}
        if options.head:
            self._add_head()
        self.copied = [name for name in checkpoint.file_of if name not in replaced]

    @property
    def size(self) -> int:
        """Bytes of the tensors that will be written; not those of changed floats."""
        return self.stored_bytes(self.copied) + sum(map(self.bytes_of, self.coded))

    def changed_floats(self, layer: int | None) -> list[tuple[WeightRef, bool]]:
        """The weights of a layer that change before any becomes codes, and whether each becomes codes then."""
        return [(weight, weight in self._fitting) for weight in self.changed[layer]]

    def key(self, texts: Sequence[Sequence[int]]) -> str:
        """Tells whether an unfinished folder is of the same model, options and texts."""
        return resume_key(self.source, self.options, texts)

    def scheme(self, weight: WeightRef) -> Scheme | FloatScheme:
        return self.scheme_of(self._widths.get(weight.name))

    def scheme_of(self, width: Width | None) -> Scheme | FloatScheme:
        """None: of the options."""
        options = self.options
        wide: Literal["bf16", "f32"] = "bf16" if self._narrow else "f32"
        if self.method.floats:
            return FloatScheme(options.strategy, options.clip, options.static, options.dynamic, wide)
        if self.method.only_eight:
            return Scheme(8, None, clip=options.clip, scale=wide, positive=True)
        bits, group = (options.bits, options.group) if width is None else (width.bits, width.group)
        scale: Literal["bf16", "f16"] = "bf16" if self._narrow else "f16"
        return Scheme(bits, group, options.symmetric, options.clip, scale, self.format.least_zero)

    def can_hold(self, weight: WeightRef, scheme: Scheme | FloatScheme) -> bool:
        """Whether the format holds such codes of a matrix, and readers find them."""
        return all(
            self.format.fits(rows, weight.columns, scheme)
            and (weight.part == "head" or self.checkpoint.name_for_codes(name) is not None)
            for one in weight.each()
            for name, rows in one.parts
        )

    def bytes_of(self, weight: WeightRef, scheme: Scheme | FloatScheme | None = None) -> int:
        """Of a matrix as codes; scheme: None for its own."""
        return sum(one.size for one in self.forms_of(weight, scheme))

    def forms_of(self, weight: WeightRef, scheme: Scheme | FloatScheme | None = None) -> list[Form]:
        """Of the tensors of a matrix as codes; scheme: None for its own."""
        chosen = scheme or self.scheme(weight)
        return [
            form
            for one in weight.each()
            for name, rows in one.parts
            for form in self.format.forms(self.modules.get(name, name), rows, weight.columns, chosen)
        ]

    def shards(self) -> tuple[str, dict[int, str]]:
        """The files of weights: of what is copied, and by segment of what is written; the head's has the number after
        the last segment."""
        numbers = [
            number
            for number, (segment, targets) in enumerate(zip(self.segments, self.targets, strict=True))
            if targets or self.changed[segment.layer]
        ]
        numbers += [len(self.segments)] * self.options.head
        count = len(numbers) + 1
        names = {number: _shard(at, count) for at, number in enumerate(numbers, 2)}
        return _shard(1, count), names

    def float_bytes(self, weight: WeightRef) -> int:
        """Of a matrix as it is in the files."""
        total = 0
        for one in weight.each():
            for name, rows in one.parts:
                entry = self.checkpoint.entry(name) or self.checkpoint.entry(self.ends.observed.parts[0][0])
                assert entry is not None
                total += rows * weight.columns * ITEM_BYTES[entry.dtype]
        return total

    def stored_bytes(self, names: Collection[str]) -> int:
        """Of tensors as they are in the files."""
        entries = [self.checkpoint.file_of[name].entries[name] for name in names]
        return sum(entry.end - entry.begin for entry in entries)

    def quantization_config(self) -> dict[str, Any]:
        by_scheme: dict[Scheme | FloatScheme, list[str]] = {}
        for weight in self.coded:
            names = by_scheme.setdefault(self.scheme(weight), [])
            names += [self.modules[name] for name in _stored_names(weight)]
        plain = []
        for name in (*self.copied, *self.rewritten):
            entry = self.checkpoint.file_of[name].entries[name]
            if name.endswith(".weight") and len(entry.shape) == 2 and "embed" not in name:
                plain.append(name.removesuffix(".weight"))
        if not self.options.head and not any(name.endswith("lm_head") for name in plain):
            plain.append("lm_head")  # a tied one is a module too
        coded = {scheme: sorted(names) for scheme, names in by_scheme.items()}
        return self.format.config(coded, self.options.order, sorted(plain))

    def quantised_source(self) -> ModelSource:
        """The model with the config of what is made of it."""
        config = {**self.config, "quantization_config": self.quantization_config()}
        return replace(self.source, config=config)

    def unscaled(self) -> tuple[str, ...]:
        """Names of matrices that no factors reach, although the method has some."""
        scaled = {reader for fold in self.folds for reader in fold.readers}
        return tuple(
            weight.name
            for targets in self.targets
            for weight in targets
            if self.method.factors is not None and weight not in scaled
        )

    def _becomes_codes(self, weight: WeightRef) -> bool:
        return weight.name not in self.options.keep and self.can_hold(weight, self.scheme(weight))

    def _add_head(self) -> None:
        head = self.ends.head
        if not self.format.fits(head.rows, head.columns, self.scheme(head)):
            raise ConfigError(
                f"{self.options.format} cannot hold the {head.rows} x {head.columns} weights of the head of "
                f"{self.source.name} so: leave out --head, or choose another --group-size"
            )
        self.coded.append(head)
        self.modules |= {name: name.removesuffix(".weight") for name, _ in head.parts}

    def _changed_in(self, layer: int | None) -> list[WeightRef]:
        if layer is None:
            return []
        folded = [weight for fold in self.folds if fold.layer == layer for weight in fold.weights]
        turned = [] if self.rotations is None else self.rotations.weights(layer)
        return list(dict.fromkeys((*turned, *folded)))

    def _can_take(self, fold: Fold) -> bool:
        """Whether a reader becomes codes, and all that changes can be written."""
        return any(reader in self._fitting for reader in fold.readers) and all(
            self.plain.can_hold(weight, weight in self._fitting) for weight in fold.weights
        )

    def _module(self, name: str) -> str:
        found = self.checkpoint.name_for_codes(name)
        assert found is not None
        return found.removesuffix(".weight")


def _shard(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def _stored_names(weight: WeightRef) -> list[str]:
    return [name for one in weight.each() for name, _ in one.parts]

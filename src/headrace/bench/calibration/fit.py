"""From times of single ops to the curves of a profile.

product = call + elements * e(working set, rows) + outputs * o(rows)
attention = call + heads * (h + r * rows * width) + keys * KV heads * (2 * width * e(working set, rows) + s(rows))
others = a curve over their elements
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.bench.calibration.cases import Case, Cases, decode_step, mixer, prompt_step
from headrace.bench.native.op_tapes import ROWS as ROW_TYPES
from headrace.plan.units import MIB
from headrace.quant.format import PANEL, WeightFormat
from headrace.sim.profile import AttentionCost, Curve, Levels, ProductCost

LONG, WIDE = (512, 2048), (2048, 256)
"""Shapes of matrices [rows, columns]: as many elements an output as in large models, and few."""
NARROW, BROAD = (64, 1024), (1024, 64)
"""As LONG and WIDE for many rows: a call stays short."""
LEAST_OF_ROW = 0.9
"""With many rows an element takes at least this share, a row, of what it takes with MANY_ROWS[0]: less is noise."""
RAGGED = (1024, 832)
"""Of its columns, six and a half groups of 128."""
RAGGED_ROWS = (1, 4, 8, 32)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MANY_ROWS = (64, 128, 256, 512)
COLD_ROWS = (1, 2, 4, 8, 16, 32)
"""From memory. With more rows arithmetic takes longer than reading, wherever the matrix is."""
OUTPUT_ROWS = (1, 4, 16, 256, 512)
SMALL = 2 * MIB
DIMS = (32, 128)
KV_HEADS = 2
CONTEXTS, STARTS = (64, 320), (0, 320)
"""Of sequences that decode, and tokens before those of a prompt."""
SEQUENCES = 4
DECODE_GROUPS = (1, 2, 3, 4, 6, 8)
COLD_GROUPS = (1, 4, 8)
TILE = 48
"""Rows of a tile of attention; see kQueryRows in csrc/isa/attention_span.h."""
PROMPTS = ((16, 1), (64, 1), (128, 1), (128, 4))
"""Tokens, and query heads of each KV head."""
ROW_ELEMENTS = (1, 8, 64, 512)
"""Rows of ops without a matrix."""
COLUMNS = 512
ROPE_DIMS = (32, 64, 128)

KV_NAMES = {"f32": "float32", "bf16": "bfloat16", "int8": "int8"}


@dataclass(slots=True, eq=False)
class ProductFit:
    """The cases of one format, by rows. `levels`: by bytes of the working set, rising, the first one SMALL."""

    weights: WeightFormat
    long: dict[int, dict[int, Case]]
    wide: dict[int, dict[int, Case]]
    many: dict[int, Case]
    ragged: dict[int, Case]

    @classmethod
    def prepare(cls, cases: Cases, weights: WeightFormat, levels: Sequence[int], quick: bool) -> ProductFit:
        rows = [count for count in ROWS if not quick or count & (count - 1) == 0]
        codes = weights.activations == "int8"
        return cls(
            weights,
            {
                size: {
                    count: cases.linear(weights, LONG, count, size)
                    for count in (rows if size == SMALL else COLD_ROWS)
                }
                for size in (SMALL, *levels)
            },
            {
                size: {
                    count: cases.linear(weights, BROAD, count, 0)
                    if count in MANY_ROWS
                    else cases.linear(weights, WIDE, count, size)
                    for count in OUTPUT_ROWS
                    if size == SMALL or count not in MANY_ROWS
                }
                for size in (SMALL, levels[-1])
            },
            {count: cases.linear(weights, NARROW, count, 0) for count in MANY_ROWS},
            {
                count: cases.linear(weights, RAGGED, count, levels[-1])
                for count in (RAGGED_ROWS if codes else ())
            },
        )

    def cases(self) -> Iterator[Case]:
        for level in (*self.long.values(), *self.wide.values(), self.many, self.ragged):
            yield from level.values()

    def fit(self, call_s: float) -> ProductCost:
        outputs = self._outputs(call_s)

        def element(case: Case, rows: int, shape: tuple[int, int], size: int) -> float:
            return max(0.0, case.seconds - call_s - shape[0] * outputs(size, rows)) / (shape[0] * shape[1])

        many = {rows: element(case, rows, NARROW, SMALL) for rows, case in self.many.items()}
        first = min(many)
        many = {rows: max(many[rows], LEAST_OF_ROW * many[first] * rows / first) for rows in many}
        curves = []
        for size, level in self.long.items():
            points = {rows: element(case, rows, LONG, size) for rows, case in level.items()}
            last = points[max(points)]
            curves.append(_curve({**points, **{rows: max(last, seconds) for rows, seconds in many.items()}}))
        cost = ProductCost(
            Levels(tuple(map(float, self.long)), tuple(curves)),
            outputs,
            product=ROW_TYPES[self.weights.activations],
            bits=self.weights.bits_per_weight,
        )
        if not self.ragged:
            return cost
        cold = max(self.long)
        excess = {
            rows: case.seconds - call_s - cost(cold, rows, RAGGED[0] * RAGGED[1], RAGGED[0], RAGGED[1])
            for rows, case in self.ragged.items()
        }
        ragged = _curve({rows: max(0.0, seconds) / RAGGED[0] for rows, seconds in excess.items()})
        return replace(cost, ragged=ragged, span=self.weights.span)

    def _outputs(self, call_s: float) -> Levels:
        """From two shapes: what is left of the one with few columns where elements cost as much as in the other."""
        curves = []
        for size, level in self.wide.items():
            each = {}
            for rows, case in level.items():
                if rows in self.many:
                    other, shape, wide = self.many[rows], NARROW, BROAD
                else:
                    other, shape, wide = self.long[size][rows], LONG, WIDE
                share = wide[0] * wide[1] / (shape[0] * shape[1])
                left = case.seconds - call_s - share * (other.seconds - call_s)
                each[rows] = max(0.0, left / (wide[0] - share * shape[0]))
            curves.append(_curve(each))
        return Levels(tuple(map(float, self.wide)), tuple(curves))


def _curve(points: Mapping[int, float]) -> Curve:
    return Curve(tuple(map(float, points)), tuple(points.values()))


@dataclass(slots=True, eq=False)
class AttentionFit:
    """The cases of one KV type: near and far contexts of each number of rows and width of a head; and by the bytes of
    larger working sets, of each number of rows."""

    kv_type: str
    near: dict[tuple[int, int], Case] = field(default_factory=dict)
    far: dict[tuple[int, int], Case] = field(default_factory=dict)
    cold: dict[int, dict[int, Case]] = field(default_factory=dict)

    @classmethod
    def prepare(cls, cases: Cases, kv_type: str, levels: Sequence[int]) -> AttentionFit:
        """levels: bytes of working sets, rising, above SMALL."""
        found = cls(kv_type)
        for dim in DIMS:
            for group in DECODE_GROUPS:
                for to, context in zip((found.near, found.far), CONTEXTS, strict=True):
                    step = decode_step(SEQUENCES, context)
                    to[group, dim] = cases.attention(mixer(KV_HEADS, group, dim), kv_type, step, 0)
            for tokens, group in PROMPTS:
                for to, start in zip((found.near, found.far), STARTS, strict=True):
                    step = prompt_step(tokens, start)
                    to[tokens * group, dim] = cases.attention(mixer(KV_HEADS, group, dim), kv_type, step, 0)
        step = decode_step(SEQUENCES, CONTEXTS[-1])
        for size in levels:
            found.cold[size] = {
                group: cases.attention(mixer(KV_HEADS, group, DIMS[-1]), kv_type, step, size)
                for group in COLD_GROUPS
            }
        return found

    def cases(self) -> Iterator[Case]:
        yield from (*self.near.values(), *self.far.values())
        for level in self.cold.values():
            yield from level.values()

    def fit(self, call_s: float) -> AttentionCost:
        rows = sorted({count for count, _ in self.near})
        elements, scores = [], []
        for count in rows:
            decoding = count in DECODE_GROUPS
            near, far = CONTEXTS if decoding else STARTS
            keys = (SEQUENCES if decoding else 1) * KV_HEADS * (far - near)
            low, high = (
                (self.far[count, dim].seconds - self.near[count, dim].seconds) / keys for dim in DIMS
            )
            each = max(0.0, high - low) / (2 * (DIMS[1] - DIMS[0]))
            elements.append(each)
            scores.append(max(0.0, high - 2 * DIMS[1] * each))
        visit, score = (
            Curve(tuple(map(float, rows)), tuple(elements)),
            Curve(tuple(map(float, rows)), tuple(scores)),
        )
        empty = AttentionCost(Levels((1.0,), (visit,)), tile=TILE, panel=PANEL)
        terms, left = [], []
        for (count, dim), case in self.near.items():
            sequences, context = (SEQUENCES, float(CONTEXTS[0])) if count in DECODE_GROUPS else (1, 0.0)
            if not context:
                tokens = next(tokens for tokens, group in PROMPTS if tokens * group == count)
                context = STARTS[0] + (tokens + 1) / 2 + empty.padding(count, tokens)
            heads = sequences * KV_HEADS
            rest = case.seconds - call_s - heads * context * (2 * dim * visit(count) + score(count))
            weight = 1.0 / case.seconds
            terms.append((heads * weight, heads * count * dim * weight))
            left.append(rest * weight)
        head_s, row_s = _nonnegative(np.array(terms), np.array(left))
        curves = [visit]
        for cases in self.cold.values():
            cold = {}
            for count, case in cases.items():
                heads = SEQUENCES * KV_HEADS
                rest = case.seconds - call_s - heads * (head_s + row_s * count * DIMS[-1])
                each = rest / (heads * CONTEXTS[-1]) - score(count)
                cold[count] = max(visit(count), each / (2 * DIMS[-1]))
            points = {**{count: max(visit(count), min(cold.values())) for count in rows}, **cold}
            points = dict(sorted(points.items()))
            curves.append(Curve(tuple(map(float, points)), tuple(points.values())))
        sizes = (SMALL, *self.cold)
        return AttentionCost(
            Levels(tuple(map(float, sizes)), tuple(curves)), score, head_s, row_s, TILE, PANEL
        )


def _nonnegative(terms: np.ndarray, left: np.ndarray) -> tuple[float, float]:
    """Least squares of two factors, none of them negative."""
    both, *_ = np.linalg.lstsq(terms, left, rcond=None)
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    alone = [max(0.0, float(column @ left / (column @ column))) for column in terms.T]
    errors = [float(((terms[:, at] * value - left) ** 2).sum()) for at, value in enumerate(alone)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


@dataclass(slots=True, eq=False)
class RowwiseFit:
    """The cases of an op without a matrix, by elements."""

    cases_by_elements: dict[int, Case]

    def cases(self) -> Iterator[Case]:
        yield from self.cases_by_elements.values()

    def fit(self) -> Curve:
        points = {size: case.seconds for size, case in self.cases_by_elements.items()}
        return Curve(tuple(map(float, points)), tuple(points.values()))


def rowwise(cases: Cases, formats: Sequence[WeightFormat]) -> dict[str, RowwiseFit]:
    """Ops without a matrix by their name in a profile."""
    found: dict[str, RowwiseFit] = {}
    names = {"f32": "f32", "bf16": "bf16", "int8": "i8"}
    for weights in {one.activations: one for one in formats}.values():
        written = names[weights.activations]
        for kind, norm in (("norm", True), ("encode", False)):
            found[f"{kind}:{written}"] = RowwiseFit(
                {rows * COLUMNS: cases.encode(COLUMNS, weights, rows, norm=norm) for rows in ROW_ELEMENTS}
            )
    usual = formats[0]
    for dim in ROPE_DIMS:
        heads, columns = mixer(2 * KV_HEADS, 2, dim), 2 * KV_HEADS * 4 * dim
        found[f"rope:{dim}"] = RowwiseFit(
            {rows * columns: cases.rope(heads, "bf16", rows) for rows in ROW_ELEMENTS}
        )
    found["rope"] = found[f"rope:{ROPE_DIMS[-1]}"]
    found["rotations"] = RowwiseFit(
        {rows * 64: cases.rotations(mixer(KV_HEADS, 2, 64), rows) for rows in ROW_ELEMENTS}
    )
    found["embed"] = RowwiseFit({rows * COLUMNS: cases.embed(COLUMNS, usual, rows) for rows in ROW_ELEMENTS})
    return found

"""Both executors do what the program says: every op once, in order, with the operations that it counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs
from tests.instruction_sets import BEST

_native = needs.native()

from headrace.program.lower import lower  # noqa: E402
from headrace.program.records import Op  # noqa: E402
from headrace.program.work import operations_per_row  # noqa: E402
from headrace.runner import torch_decoder  # noqa: E402
from tests.native.steps import PagedRun, groups_of  # noqa: E402
from tests.native.tiny_models import SPECS, format_of, native_model, random_weights, torch_model  # noqa: E402

ROWS, WANTED = 9, (2, 8)
SECOND_CALLS = {"soft_cap"}  # of the op `logits`


@pytest.mark.parametrize("format", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("name", SPECS)
def test_the_tape_makes_each_call_once_in_order(name: str, format: str) -> None:
    spec = SPECS[name]
    model = native_model(spec, random_weights(spec), 16, BEST, format=format)
    expected = [op for op in model.program.ops if op.kind != "encode" or _encodes(op, format)]
    expected = _without_repeats(expected, format)
    model.tape.profile(True)
    PagedRun(model, groups_of(spec, 16)).step({0: range(1, ROWS + 1)}, rows=WANTED)
    calls = [call for call in model.tape.costs() if call[0] not in SECOND_CALLS]
    assert [(call[0], call[1]) for call in calls] == [
        (op.name, -1 if op.layer is None else op.layer) for op in expected
    ]
    rows = {"tokens": ROWS, "selected": len(WANTED), "logits": len(WANTED)}
    for op, (*_, operations) in zip(expected, calls, strict=True):
        if op.kind in ("linear", "logits", "experts", "heads_linear"):
            assert operations == operations_per_row(op) * rows[op.rows], op.name


def _without_repeats(ops: list[Op[Any]], format: str) -> list[Op[Any]]:
    """Without norms whose result is there already, encoded alike for another matrix."""
    found: list[Op[Any]] = []
    latest: dict[tuple[str, int], Op[Any]] = {}  # by encoding and width
    for op in ops:
        if op.kind == "norm" and op.reader is not None:
            encoding = format_of(op.reader, format), op.outputs[0].columns
            before = latest.get(encoding)
            if before is not None and (before.inputs, before.weights) == (op.inputs, op.weights):
                continue
            latest[encoding] = op
        found.append(op)
    return found


def _encodes(op: Op[Any], format: str) -> bool:
    """Whether the input of this op is not yet of the type that the next matrix reads."""
    assert op.reader is not None
    read = format_of(op.reader, format)
    return read in ("int8", "int4") or (read == "bf16" and op.inputs[0].form == "float")


@pytest.mark.parametrize("name", SPECS)
def test_torch_runs_each_op_once_in_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Op[Any]] = []

    def recorded(kind: str) -> Any:
        function = torch_decoder.KINDS[kind]

        def run(step: Any, op: Op[Any], *inputs: Any) -> Any:
            ran.append(op)
            assert len(inputs) == len(op.inputs) and all(value is not None for value in inputs)
            outputs = function(step, op, *inputs)
            assert len(outputs) == len(op.outputs)
            return outputs

        return run

    monkeypatch.setattr(torch_decoder, "KINDS", {kind: recorded(kind) for kind in torch_decoder.KINDS})
    spec = SPECS[name]
    model = torch_model(spec, random_weights(spec), 16)
    PagedRun(model, groups_of(spec, 16)).step({0: range(1, ROWS + 1)}, rows=WANTED)
    assert tuple(ran) == lower(spec, narrow=False).ops

"""`headrace calibrate`: fits give back the costs that times were made of, and a real run stores a profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import needs

needs.native()

from headrace.bench.calibration import calibrate as subject  # noqa: E402
from headrace.bench.calibration import fit as fits  # noqa: E402
from headrace.bench.calibration import server  # noqa: E402
from headrace.bench.calibration.cases import CALLS, CLOCK_TICKS, Case, Cases, OtherPrograms, undisturbed  # noqa: E402
from headrace.bench.calibration.engine import outside_s  # noqa: E402
from headrace.bench.calibration.fit import AttentionFit, ProductFit  # noqa: E402
from headrace.bench.model.step_times import StepTime, undisturbed_step  # noqa: E402
from headrace.bench.native.op_tapes import OpTapes  # noqa: E402
from headrace.bench.native.roofline import kernel_names, native_module  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.errors import ConfigError  # noqa: E402
from headrace.quant.format import BF16, PANEL, parse_format  # noqa: E402
from headrace.sim.profile import AttentionCost, Curve, Levels, ProductCost  # noqa: E402
from headrace.sim.profile_store import read_profile, this_profile  # noqa: E402

CALL_S = 3e-7
INT8 = parse_format("int8")


def timed(seconds: float) -> Case:
    case: Any = Case(None, None, "made", 1)  # type: ignore[arg-type]
    case.samples.append(seconds)
    return case  # type: ignore[no-any-return]


def curve(rows: Any, of: Callable[[float], float]) -> Curve:
    return Curve(tuple(map(float, rows)), tuple(of(row) for row in rows))


def test_a_product_fit_gives_back_the_costs_that_its_times_were_made_of() -> None:
    rows = sorted({*fits.ROWS, *fits.MANY_ROWS})
    small, cold = curve(rows, lambda row: 1e-11 + 4e-12 * row), curve(rows, lambda row: 3e-11 + 4e-12 * row)
    outputs = Levels(
        (float(fits.SMALL), 6.4e7),
        (curve(fits.OUTPUT_ROWS, lambda row: 1e-9 * row), curve(fits.OUTPUT_ROWS, lambda row: 2e-9 * row)),
    )
    made = ProductCost(
        Levels((float(fits.SMALL), 6.4e7), (small, cold)),
        outputs,
        curve(fits.RAGGED_ROWS, lambda row: 3e-8 if row < 8 else 0.0),
        INT8.span,
    )

    def case(size: int, shape: tuple[int, int], count: int) -> Case:
        return timed(CALL_S + made(size, count, shape[0] * shape[1], *shape))

    sizes = (fits.SMALL, 64_000_000)
    fit = ProductFit(
        INT8,
        {size: {count: case(size, fits.LONG, count) for count in fits.ROWS} for size in sizes},
        {
            size: {
                count: case(size, fits.BROAD if count in fits.MANY_ROWS else fits.WIDE, count)
                for count in fits.OUTPUT_ROWS
                if size == fits.SMALL or count not in fits.MANY_ROWS
            }
            for size in sizes
        },
        {count: case(fits.SMALL, fits.NARROW, count) for count in fits.MANY_ROWS},
        {count: case(sizes[-1], fits.RAGGED, count) for count in fits.RAGGED_ROWS},
    )
    found = fit.fit(CALL_S)
    for size in sizes:
        for count in fits.ROWS:
            for shape in ((300, 1000), (4096, 576), (fits.RAGGED)):
                expected = made(size, count, shape[0] * shape[1], *shape)
                assert found(size, count, shape[0] * shape[1], *shape) == pytest.approx(expected, rel=1e-6)
    fit.wide[fits.SMALL][512].samples[:] = [1.0]  # a call that other programs held up
    held_up = fit.fit(CALL_S)(fits.SMALL, 512, 1e6, 0, 128)
    assert held_up > 0.85 * made(fits.SMALL, 512, 1e6, 0, 128)
    assert found(fits.SMALL, 512, 1e6, 0, 128) == pytest.approx(made(fits.SMALL, 512, 1e6, 0, 128), rel=1e-6)


def test_an_attention_fit_gives_back_the_costs_that_its_times_were_made_of() -> None:
    counts = sorted({*fits.DECODE_GROUPS, *(tokens * group for tokens, group in fits.PROMPTS)})
    made = AttentionCost(
        Levels((float(fits.SMALL),), (curve(counts, lambda row: 2e-11 + 9e-12 * row),)),
        curve(counts, lambda row: 3e-10 * row),
        2e-7,
        5e-10,
        fits.TILE,
        PANEL,
    )
    whole = replace(made, panel=1)  # contexts of whole panels

    def seconds(rows: int, dim: int, sequences: int, keys: float, tokens: int = 1) -> float:
        heads, cost = fits.KV_HEADS, whole if tokens == 1 else made
        return CALL_S + cost(fits.SMALL, rows, sequences, keys, heads, dim, 2 * heads * dim, tokens)

    fit = AttentionFit("bf16")
    for dim in fits.DIMS:
        for to, context, start in zip((fit.near, fit.far), fits.CONTEXTS, fits.STARTS, strict=True):
            for group in fits.DECODE_GROUPS:
                keys = fits.SEQUENCES * context
                to[group, dim] = timed(seconds(group, dim, fits.SEQUENCES, keys))
            for tokens, group in fits.PROMPTS:
                keys = start + (tokens + 1) / 2
                to[tokens * group, dim] = timed(seconds(tokens * group, dim, 1, keys, tokens))
    found = fit.fit(CALL_S)
    assert found.head_s == pytest.approx(made.head_s, rel=1e-3)
    assert found.row_s == pytest.approx(made.row_s, rel=1e-3)
    for rows in (1, 5, 16, 100, 700):
        arguments = (float(fits.SMALL), rows, 3, 1500, 5, 64, 640)
        assert found(*arguments) == pytest.approx(made(*arguments), rel=1e-3)


def test_a_case_samples_every_call_of_its_op() -> None:
    native = native_module()
    assert native is not None
    cases = Cases(OpTapes(native, kernel_names()[0], 1))
    case = cases.linear(BF16, (64, 64), 3, 3 * 64 * 64 * 2)
    case.sample()
    assert case.calls == 3 and len(case.samples) == CALLS and min(case.samples) > 0
    rope = cases.rope(subject.mixer(2, 2, 32), "bf16", 2)
    rope.sample()
    assert rope.calls > CALLS and len(rope.samples) == rope.calls


def test_what_disturbs_some_calls_of_a_step_leaves_its_time_alone() -> None:
    """Each of ten repetitions is disturbed in another one of its ten calls."""
    steps = []
    for hit in range(10):
        calls = tuple(5.0 if at == hit else 1.0 for at in range(10))
        steps.append(StepTime((), sum(calls) + 2.0, 9.0, calls))
    assert undisturbed_step(steps, 2) == 12.0
    assert undisturbed_step(steps, 1) == 9.0  # processor time
    assert undisturbed([3.0]) == 3.0
    assert outside_s(steps, 2) == 2.0
    assert outside_s([replace(step, cpu_s=10.5) for step in steps], 1) == 0.5


def test_what_other_programs_take_of_the_cores(tmp_path: Path) -> None:
    """Of 1000 s of all cores, 600 s are busy, and this process used next to nothing of them."""
    stat, tick = tmp_path / "stat", CLOCK_TICKS
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1\n")
    others = OtherPrograms(stat)
    stat.write_text(f"cpu  {500 * tick} 0 {100 * tick} {300 * tick} {100 * tick} 0 0 0 0 0\n")
    assert others.share() == pytest.approx(0.6, abs=0.01)
    assert OtherPrograms(tmp_path / "none").share() == 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A small cache, and no more than one round of everything."""
    monkeypatch.setattr(subject, "cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(subject, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(subject, "LEAST_ROUNDS", 1)
    monkeypatch.setattr(subject, "QUICK_ENGINE_SECONDS", 0.0)
    monkeypatch.setattr(subject, "SAMPLING_S", 0.0)
    monkeypatch.setattr(subject, "can_serve", lambda: False)
    monkeypatch.setattr(fits, "SMALL", 1 << 18)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_run_stores_a_profile_and_tells_its_error(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--num-threads", "1", "--formats", "int8", "--kv-types", "bf16"]
    output = small / "out.json"
    assert main(["calibrate", *words, "--json", "--output", str(output)]) == 0
    shown = json.loads(capsys.readouterr().out)
    stored = this_profile(threads=1)
    assert stored is not None and stored == read_profile(output)
    assert (
        stored.source == "measured"
        and set(stored.products) == {"int8"}
        and set(stored.attention) == {"bfloat16"}
    )
    assert stored.call_s > 0 and stored.step.step_s + stored.step.sequence_s > 0
    kinds = {one["kind"] for one in shown["checks"]}
    assert kinds == {"products", "attention", "steps"} == set(stored.error)
    assert all(one["measured_s"] > 0 and one["predicted_s"] > 0 for one in shown["checks"])


@pytest.mark.long
def test_the_server_costs_time_for_requests_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SHORT", 5)
    monkeypatch.setattr(server, "LONG", 1)
    assert server.can_serve()
    cost = server.server_cost("tale", 1, kernel_names()[0], 0.0)
    assert cost.first_token_s > 0 and cost.request_s > cost.token_s > 0
    far = server.server_cost("tale", 1, kernel_names()[0], 1e3)
    assert far.first_token_s == 0
    with pytest.raises(ConfigError, match="did not start"):
        server.server_cost("/no/such/model", 1, kernel_names()[0], 0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kernels", "none"], "no kernels 'none' here"),
        (["--formats", "int3"], "quantization 'int3'"),
        (["--num-threads", "0"], "--num-threads must be between 1"),
        (["--output", "/no/such/folder/x"], "there is no folder"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *words]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("headrace: error: ") and said in shown and shown.count("\n") == 1


def test_a_cache_that_takes_no_profile_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(subject, "calibrate", lambda *_, **__: pytest.fail("the work began"))
    assert main(["calibrate"]) == 1
    assert "cannot be stored" in capsys.readouterr().err

"""Which processes run, and in which order."""

from __future__ import annotations

from benchmarks.peers.peers import BY_NAME, ENGINES, FORMATS, variables
from benchmarks.peers.plan import plan, without
from benchmarks.peers.work_items import COLUMNS


def test_engines_of_one_format_run_after_each_other_in_turned_order() -> None:
    engines = [BY_NAME[name] for name in ("headrace", "vllm", "openvino", "llamacpp")]
    planned = list(plan(engines, models=["m"], columns=["prefill"], rounds=2))
    order = [(one.round, one.format, one.engine) for one in planned]
    assert order == [
        (1, "bf16", "headrace"), (1, "bf16", "vllm"),
        (1, "int8", "headrace"), (1, "int8", "openvino"), (1, "int8", "llamacpp"),
        (1, "int4", "headrace"), (1, "int4", "openvino"), (1, "int4", "llamacpp"),
        (2, "bf16", "vllm"), (2, "bf16", "headrace"),
        (2, "int8", "llamacpp"), (2, "int8", "openvino"), (2, "int8", "headrace"),
        (2, "int4", "llamacpp"), (2, "int4", "openvino"), (2, "int4", "headrace"),
    ]  # fmt: skip


def test_start_up_and_memory_have_a_process_of_their_own() -> None:
    def groups(fresh: bool) -> list[tuple[str, ...]]:
        planned = plan([BY_NAME["vllm"]], models=["m"], columns=list(COLUMNS), rounds=1, fresh=fresh)
        return [one.columns for one in planned]

    speed = ("prefill", "decode1", "decode8", "decode32", "mixed")
    assert groups(False) == [("startup", "memory"), speed]
    assert groups(True) == [("startup", "memory"), *((name,) for name in speed)]


def test_every_process_of_a_plan_is_another() -> None:
    planned = list(plan(ENGINES, models=["a", "b"], columns=list(COLUMNS), rounds=3))
    assert len({one.key for one in planned}) == len(planned)
    assert {(one.engine, one.format) for one in planned} == {
        (peer.name, format_) for peer in ENGINES for format_ in peer.formats
    }


def test_columns_can_be_left_out_for_one_engine() -> None:
    skipped = {"llamacpp": ["mixed"]}
    assert without(("prefill", "mixed"), "llamacpp", skipped) == (("prefill",), ("mixed",))
    assert without(("prefill", "mixed"), "vllm", skipped) == (("prefill", "mixed"), ())


def test_the_table_of_engines_fits_together() -> None:
    assert len({peer.name for peer in ENGINES}) == len(ENGINES)
    for peer in ENGINES:
        assert set(peer.formats) <= set(FORMATS)
        assert not any("{" in text for text in variables(peer, threads=2, kv_gib=1).values())
    assert variables(BY_NAME["vllm"], 2, 3)["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert variables(BY_NAME["vllm"], 1, 3)["VLLM_CPU_OMP_THREADS_BIND"] == "0"

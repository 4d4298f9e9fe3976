"""Which processes run, and in which order."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.files import missing_files, model_file
from benchmarks.peers.peers import BY_NAME, ENGINES, FORMATS, ONLY, fits, variables
from benchmarks.peers.plan import Group, Planned, Rounds, groups, turns
from benchmarks.peers.work_items import COLUMNS
from benchmarks.peers.workplace import Workplace

BF16 = Group("m", "bf16", ("headrace", "vllm"))


def in_order(group: Group, columns: list[str], rounds: Rounds) -> list[tuple[int, str, str]]:
    return [(one.round, one.column, one.engine) for one in turns(group, columns, rounds, {})]


def test_every_engine_is_in_the_groups_of_its_formats() -> None:
    engines = [BY_NAME[name] for name in ("headrace", "vllm", "openvino", "llamacpp")]
    assert list(groups(engines, ["m"])) == [
        Group("m", "bf16", ("headrace", "vllm", "openvino", "llamacpp")),
        Group("m", "int8", ("headrace", "openvino", "llamacpp")),
        Group("m", "int4", ("headrace", "openvino", "llamacpp")),
    ]
    assert list(groups([BY_NAME["vllm"]], ["m"], ["int4"])) == []


def test_engines_take_turns_within_a_round_in_reversed_order_in_every_second_one() -> None:
    assert in_order(BF16, ["decode8", "startup"], Rounds(2, 2)) == [
        (1, "startup", "headrace"), (1, "startup", "vllm"),
        (1, "decode8", "headrace"), (1, "decode8", "vllm"),
        (2, "startup", "vllm"), (2, "startup", "headrace"),
        (2, "decode8", "vllm"), (2, "decode8", "headrace"),
    ]  # fmt: skip


def test_bf16_at_one_sequence_has_five_rounds_that_are_never_spared() -> None:
    rounds = Rounds()
    planned = list(turns(BF16, ["decode1", "decode8"], rounds, {}))
    count = {
        column: max(one.round for one in planned if one.column == column) for column in ("decode1", "decode8")
    }
    assert count == {"decode1": 5, "decode8": 3}
    assert not any(rounds.is_spared(round_, "bf16", "decode1") for round_ in range(1, 6))
    assert [rounds.is_spared(round_, "bf16", "decode8") for round_ in (1, 2, 3)] == [False, True, True]
    assert rounds.of("int8", "decode1") == 3


def test_start_up_and_memory_come_first_and_memory_has_one_round() -> None:
    first = [column for round_, column, engine in in_order(BF16, list(COLUMNS), Rounds()) if round_ == 1]
    assert first[::2] == ["startup", "memory", "prefill", "decode1", "decode8", "decode32", "mixed"]
    assert Rounds().of("bf16", "memory") == 1


def test_measurements_of_a_plan_are_distinct() -> None:
    planned = [
        one
        for group in groups(ENGINES, ["l1b", "l135m"])
        for one in turns(group, list(COLUMNS), Rounds(), {})
    ]
    assert len(set(planned)) == len(planned)
    assert {(one.engine, one.format) for one in planned} == {
        (peer.name, format_) for peer in ENGINES for format_ in peer.formats
    }


def test_a_format_of_some_models_is_planned_for_these_alone() -> None:
    planned = {(group.model, group.format) for group in groups(ENGINES, ["l1b", "l135m"])}
    assert {model for model, format_ in planned if format_ in ONLY} == {"l1b"}
    assert {format_ for model, format_ in planned if model == "l135m"} == set(FORMATS) - set(ONLY)


def test_every_engine_of_a_gguf_format_reads_the_same_file() -> None:
    for format_ in ONLY:
        files = {
            model_file(peer, "l1b", format_, Workplace(Path())) for peer in ENGINES if format_ in peer.formats
        }
        assert len(files) == 1, files


def test_a_quantized_file_is_made_after_the_file_it_is_made_of(tmp_path: Path) -> None:
    names = [file.name for _, _, file in missing_files(ENGINES, "l1b", Workplace(tmp_path))]
    assert names.index("l1b-BF16.gguf") < names.index("l1b-Q4_K_M.gguf")
    assert len(names) == len(set(names))


def test_columns_can_be_left_out_for_one_engine() -> None:
    planned = list(turns(BF16, ["decode1", "mixed"], Rounds(1, 1), {"vllm": ["mixed"]}))
    assert planned == [
        Planned(1, "m", "bf16", "headrace", "decode1"),
        Planned(1, "m", "bf16", "vllm", "decode1"),
        Planned(1, "m", "bf16", "headrace", "mixed"),
    ]


def test_every_engine_runs_a_format_or_has_a_reason() -> None:
    for peer in ENGINES:
        assert set(peer.formats) | set(peer.missing) == set(FORMATS), peer.name
        assert not set(peer.formats) & set(peer.missing), peer.name


def test_plug_ins_are_for_cpus_of_their_vendor() -> None:
    def names(vendor: str) -> set[str]:
        return {peer.name for peer in ENGINES if fits(peer, vendor) and peer.name.startswith("vllm")}

    assert names("AuthenticAMD") == {"vllm", "vllm-zentorch"}
    assert names("GenuineIntel") == {"vllm", "vllm-ipex"}
    assert names("") == {"vllm"}


def test_the_table_of_engines_fits_together() -> None:
    assert len({peer.name for peer in ENGINES}) == len(ENGINES)
    for peer in ENGINES:
        assert set(peer.formats) <= set(FORMATS)
        assert not any("{" in text for text in variables(peer, threads=2, kv_gib=1).values())
    assert variables(BY_NAME["vllm"], 2, 3)["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert variables(BY_NAME["vllm"], 1, 3)["VLLM_CPU_OMP_THREADS_BIND"] == "0"

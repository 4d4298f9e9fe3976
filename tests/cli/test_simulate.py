"""`headrace simulate`: what it prints and writes, and what it refuses before the work."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest

from headrace.bench.report import Report
from headrace.cli import main
from headrace.cli.engine_flags import add_engine_flags, engine_options
from headrace.cli.planning.simulate import ROUTERS
from headrace.config import EngineConfig
from headrace.plan.hardware_table import find_hardware
from headrace.sim.simulate import router
from headrace.sim.simulate.deploy import deploy

MODEL = ["simulate", "shape:smollm2-135m", "--hardware", "l4"]


def simulate(*flags: str) -> int:
    return main([*MODEL, *flags])


def test_tables_as_bench_serve_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--rate", "20", "40", "--num-prompts", "30", "--goodput", "ttft:1", "tpot:0.2") == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +rate +sent +answered +429 +failed +req/s +goodput/s +output tok/s$", out, re.M)
    assert re.search(r"^ +20\.0 +30 +30 +0 +0 +", out, re.M) and re.search(r"^ +40\.0 +30 +30 ", out, re.M)
    assert re.search(r"TTFT p50 +TTFT p90 +TTFT p99 +TPOT p50 .* ITL p99 +E2E p50", out)
    assert "on l4" in out and "data sheet" in out and "x real time" in out


def test_json_is_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--num-prompts",
        "20",
        "--rate",
        "inf",
        "--replicas",
        "2",
        "--router",
        "least-loaded",
        "--json",
        "-",
    ]
    assert simulate(*flags) == 0
    data = json.loads(capsys.readouterr().out)
    report = Report.from_json(data)
    assert report.kind == "simulate" and report.config["replicas"] == 2 and report.config["hardware"] == "l4"
    assert report.rows[0].labels == {"rate": "inf"} and report.rows[0].values["answered"] == 20.0
    assert simulate(*flags) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == data["rows"]  # the same seed


def test_options_of_the_engine_hold(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--num-kv-blocks", "70", "--max-model-len", "1024", "--rate", "inf", "--num-prompts", "40"]
    assert simulate(*few, "--max-num-seqs", "16") == 0
    assert "preemption" in capsys.readouterr().out
    drafts = ["--speculative", "ngram", "--acceptance-rate", "1", "--num-prompts", "5", "--json", "-"]
    assert simulate(*drafts) == 0
    fast = json.loads(capsys.readouterr().out)["rows"][0]["values"]["tpot_p50_s"]
    assert simulate(*drafts[4:]) == 0
    assert fast < 0.5 * json.loads(capsys.readouterr().out)["rows"][0]["values"]["tpot_p50_s"]


def test_formats_of_weights_on_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {}
    for name in ("int8", "none"):
        flags = [] if name == "none" else ["--quantization", name]
        model = ["simulate", "shape:llama-3.1-8b", "--hardware", "l4", "--num-prompts", "2", "--json", "-"]
        assert main([*model, *flags, "--max-model-len", "4096"]) == 0
        report = json.loads(capsys.readouterr().out)
        figures[name] = report["config"]["kv_cache_memory"], report["rows"][0]["values"]["tpot_p50_s"]
    more, faster = figures["int8"][0] - figures["none"][0], figures["none"][1] / figures["int8"][1]
    assert 5e9 < more < 9e9 and 1.5 < faster < 2.1  # 8 G parameters, half the bytes


def test_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}
    path.write_text("".join(json.dumps(row | {"timestamp": 50 * at}) + "\n" for at in range(4)))
    assert simulate("--trace", str(path), "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"][0]["labels"] == {"rate": "trace"}
    assert report["rows"][0]["values"]["prompt_tokens"] == 2800.0
    assert any("prompt tokens from the prefix cache" in note for note in report["notes"])


def test_a_timeline_is_what_the_page_reads(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert simulate("--num-prompts", "8", "--rate", "4", "--replicas", "2", "--timeline", str(path)) == 0
    head, *ticks = map(json.loads, path.read_text().splitlines())
    assert head == {"headrace_timeline": 1, "model": "shape:smollm2-135m", "interval_s": 0.2}
    assert {tick["replica"] for tick in ticks} == {0, 1}
    assert sum(len(tick["ended"]) for tick in ticks) == 8
    mine = [tick["now"] for tick in ticks if tick["replica"] == 0]
    assert mine == sorted(mine) and mine[1] - mine[0] == pytest.approx(0.2)
    assert any(lane["phase"] == "decode" for tick in ticks for lane in tick["lanes"])
    assert {"running", "waiting", "maps", "ttft", "itl", "tokens_per_s", "state"} <= ticks[0].keys()


@pytest.mark.parametrize("target", ["rate", "replicas"])
def test_search(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--search",
        target,
        "--ttft",
        "0.05",
        "--percentile",
        "90",
        "--num-prompts",
        "30",
        "--rate",
        "3000",
    ]
    assert simulate(*flags, "--input-len", "400", "--output-len", "4", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    found = row["labels"][target]
    assert row["values"]["ttft_p90_s"] <= 0.05
    assert found < 3000 if target == "rate" else 1 < found < 60
    assert "breaks the promise: TTFT p90 is" in report["notes"][0]


CHEAP = ["--search", "cheapest", "--ttft", "0.5", "--num-prompts", "20", "--rate", "50"]
PRICED = [*CHEAP, "--price-per-hour", "1"]


def test_the_cheapest_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = "--hardware l4,t4 --price-per-hour l4=0.8,t4=0.35 --formats stored,int8,int4-a16"
    flags = [*prices.split(), "--tpot", "0.1", "--percentile", "90"]
    assert simulate(*CHEAP, *flags, "--json", str(tmp_path / "found.json")) == 0
    out = capsys.readouterr().out
    report = Report.from_json(json.loads((tmp_path / "found.json").read_text()))
    costs = [row.values["cost_per_hour"] for row in report.rows]
    assert len(costs) == 3 and costs == sorted(costs) and costs[0] == pytest.approx(0.35)
    for row in report.rows:
        assert row.values["ttft_p90_s"] <= 0.5 and row.values["requests_per_day"] == 50 * 86_400
        assert row.values["cost_per_million_output"] > 0 and "runs models on CPUs" in str(row.labels["start"])
    assert report.config["prices"] == {"l4": 0.8, "t4": 0.35}
    assert "promised: a TTFT of 0.5 s and a TPOT of 0.1 s each for 90 % of the requests" in out
    assert re.search(r"^  1\. \S+ on t4: 1 machine$", out, re.M)
    assert re.search(r"times +TTFT p50 \S+ \S+, p90 \S+ \S+; TPOT p50 ", out)
    assert re.search(r"cost +0\.35 an hour; \S+ a million output tokens and \S+ a million input tokens", out)
    assert re.search(r"load +4,320,000 requests a day, of which 1?\d\d\.\d+% keep the promise", out)


def test_the_command_of_the_cheapest_setting_starts_it(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--hardware", "2xepyc-9654", "--formats", "int8", "--no-enable-prefix-caching"]
    assert simulate(*PRICED, *flags, "--max-num-seqs", "8", "--json", "-") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["labels"]["replicas"] == 2 * row["labels"]["machines"] and row["labels"]["format"] == "int8"
    command, note = row["labels"]["start"].split("; ")
    assert "one on each of 2 sockets, behind a load balancer" in note
    program, name, model, *words = shlex.split(command)
    assert [program, name, model] == ["headrace", "serve", "shape:smollm2-135m"]
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    options = engine_options(parser.parse_args(words))
    assert options["quantization"] == "int8" and options["max_num_seqs"] == 8
    assert options["enable_prefix_caching"] is False and options["step_time_budget"] == "off"
    epyc = find_hardware("epyc-9654")
    asked = EngineConfig(model, quantization="int8", max_num_seqs=8, enable_prefix_caching=False)
    again = deploy(EngineConfig.from_kwargs(model=model, **options), epyc)
    assert again.scheduler == deploy(asked, epyc).scheduler and again.groups == deploy(asked, epyc).groups


def test_a_trace_on_the_cheapest_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 20, "output_length": 3}
    path.write_text("".join(json.dumps(row | {"timestamp": 100 * at}) + "\n" for at in range(11)))
    flags = [*PRICED, "--trace", str(path), "--json", "-"]
    assert simulate(*flags) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"][0]["values"]["requests_per_day"] == pytest.approx(10 * 86_400)
    path.write_text(json.dumps(row | {"input_length": 50_000}))
    assert simulate(*flags) == 1
    assert re.search(
        r"no setting serves this load; .*1 of 1 requests were refused or failed", capsys.readouterr().err
    )


def test_a_search_keeps_the_speed_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 20, "output_length": 3}
    path.write_text("".join(json.dumps(row | {"timestamp": 1000 * at}) + "\n" for at in range(4)))
    flags = ["--trace", str(path), "--trace-speed", "10", "--search", "replicas", "--ttft", "5"]
    assert simulate(*flags, "--json", "-") == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert 0.3 < found["values"]["wall_s"] < 0.4


def test_the_simulator_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--model",
        "shape:smollm2-135m",
        "--hardware",
        "l4",
        "--num-prompts",
        "20",
        "--request-rate",
        "5",
    ]
    assert main(["bench", "simulator", *flags, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["values"]["answered"] == 20 and row["values"]["simulated_s"] > 1
    assert row["values"]["peak_rss_bytes"] > 2**24 and row["values"]["steps_per_s"] > 0


@pytest.mark.long
def test_a_promise_about_tpot_alone_ends_where_the_queue_grows(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--search",
        "rate",
        "--tpot",
        "10",
        "--max-num-seqs",
        "1",
        "--input-len",
        "10",
        "--output-len",
        "100",
    ]
    assert simulate(*flags, "--dataset-name", "random", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    capacity = 1 / row["values"]["e2e_p50_s"]  # at most: the median request waited as well
    assert row["labels"]["rate"] > 0.8 * capacity
    came = row["values"]["sent"] / 60  # a second; a sixth more than are served wait 10 s
    assert came * row["values"]["tpot_p50_s"] * 100 < 1.2
    assert "requests come faster than they are served" in report["notes"][0]


def test_all_requests_at_once_need_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--rate", "inf", "--search", "replicas", "--ttft", "1") == 1
    assert "takes --num-prompts" in capsys.readouterr().err


def test_a_model_that_fits_nowhere_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["simulate", "shape:llama-3.1-70b", "--hardware", "l4", "--price-per-hour", "1"]
    assert main([*model, *CHEAP]) == 1
    assert re.search(
        r"nothing can be deployed; int4-a16 on l4: .*; the smallest machine in the table that holds it is \S+, in ",
        capsys.readouterr().err,
    )


def test_routers_are_those_that_there_are() -> None:
    assert tuple(router.ROUTERS) == ROUTERS


def test_a_load_too_large_to_search_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--search", "replicas", "--rate", "1e6", "--ttft", "1") == 1
    assert "this load has 60,000,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--hardware", "h1000"], "did you mean"),
        (["--rate", "0"], "--request-rate must be between 1e-06"),
        (["--replicas", "0"], "--replicas must be between 1"),
        (["--acceptance-rate", "1.5"], "--acceptance-rate"),
        (["--search", "rate"], "give --ttft or --tpot"),
        (["--ttft", "1"], "are promises for --search"),
        (["--search", "rate", "--ttft", "1e-6"], "no rate keeps this promise"),
        (["--search", "rate", "--ttft", "1", "--trace", "x"], "--trace has its own"),
        (["--trace", "/no/such/file"], "cannot be read"),
        (["--timeline", "/no/such/folder/x"], "the timeline cannot be written"),
        (["--rate", "1", "2", "--timeline", "x"], "give one --rate"),
        (["--rate", "inf", "--duration", "5"], "takes --num-prompts"),
        (["--speculative", "smaller"], "there is no model 'smaller'"),
        (["--speculative", "tale-medusa"], "are for"),
        (["--speculative", "shape:llama-68m"], "both need the same vocabulary"),
        (["--speculative", "ngram", "--speculative-tree-nodes", "8"], "trees of drafts are not simulated"),
        (["--hardware", "2xl4"], "cannot share the 3 KV heads"),
        (["--hardware", "l4,t4"], "with --search cheapest alone"),
        (["--formats", "int8"], "goes with --search cheapest"),
        (["--price-per-hour", "1"], "goes with --search cheapest"),
        ([*PRICED, "--hardware", "all"], "name up to 8 instead of all"),
        ([*PRICED, "--hardware", "l4,h1000"], "did you mean"),
        (CHEAP, "there is no price for l4"),
        ([*CHEAP, "--hardware", "l4,t4", "--price-per-hour", "l4=1"], "there is no price for t4"),
        ([*CHEAP, "--price-per-hour", "0"], "takes a number above 0"),
        ([*PRICED, "--replicas", "2"], "leave --replicas out"),
        ([*PRICED, "--formats", "int9"], "int9"),
        ([*PRICED, "--formats", "int8", "--quantization", "int8"], "give one of them"),
        ([*PRICED, "--ttft", "1e-6"], "of requests that are alone, 99 % have a TTFT of"),
        ([*PRICED, "--num-prompts", "1000000"], "simulates up to 100,000 requests"),
        (
            [*PRICED, "--kv-cache-dtype", "int8"],
            "nothing can be deployed; int4-a16 on l4: kv_cache_dtype int8",
        ),
        ([*PRICED, "--speculative", "smaller"], "there is no model 'smaller'"),
        ([*PRICED, "--users", "0"], "--users must be between 1"),
    ],
)
def test_what_is_refused(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--num-prompts", "3", *flags) == 1
    assert complaint in capsys.readouterr().err

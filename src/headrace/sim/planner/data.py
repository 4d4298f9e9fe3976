"""A plan as plain values: for `--json`, and for the calculator of the web page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.plan.hardware import Hardware
from headrace.sim.planner.command import start_command
from headrace.sim.planner.money import bill
from headrace.sim.planner.overview import Overview, Shown, describe
from headrace.sim.planner.search import Setting


def plan_data(overview: Overview) -> dict[str, Any]:
    """Sizes in bytes, times in seconds, money in the unit of the price. Units stand in names."""
    shown, question = overview.shown, overview.question
    return {
        "model": _model(shown),
        "hardware": _hardware(shown.hardware),
        "load": {
            "prompt_tokens": question.traffic.prompt,
            "output_tokens": question.traffic.output,
            "prefix_hit": question.traffic.prefix_hit,
            "users": question.promise.users,
            "ttft_s": question.promise.ttft_s,
            "tpot_s": question.promise.tpot_s,
            "requests_per_day": question.promise.requests_per_day,
            "kv_eviction": None if question.eviction is None else asdict(question.eviction),
        },
        "formats": [asdict(row) for row in shown.formats],
        "speed": _speed(overview),
        "contexts": [asdict(row) for row in shown.contexts],
        "attention": [asdict(row) for row in shown.attention],
        "settings": [_setting(setting, overview) for setting in overview.found.settings],
        "nearest": None if overview.found.nearest is None else _setting(overview.found.nearest, overview),
        "problem": overview.problem,
        "tried": overview.found.tried,
    }


def _model(shown: Shown) -> dict[str, Any]:
    model = shown.model
    return {
        "name": model.name,
        "family": model.spec.family,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "unsized_codes": model.unsized or None,
        "context": model.spec.max_position,
    }


def _hardware(one: Hardware) -> dict[str, Any]:
    return {
        "name": one.label,
        "title": one.title,
        "devices": one.count,
        "memory_bytes": one.memory,
        "bandwidth_bytes_per_s": one.bandwidth,
        "peak_operations_per_s": dict(one.peak),
        "link_bytes_per_s": one.link,
        "watts": one.total_watts,
        "source": one.source,
    }


def _speed(overview: Overview) -> dict[str, Any] | None:
    shown, traffic = overview.shown, overview.question.traffic
    if shown.speed is None:
        return None
    stored = shown.speed.footprint.stored
    copies = shown.hardware.count // shown.placement.devices
    price = overview.prices.get(shown.hardware.label)
    return {
        "format": stored.label,
        "kv": stored.kv,
        "tensor_parallel": shown.placement.tp,
        "pipeline_parallel": shown.placement.pp,
        "copies": copies,
        "measured": shown.speed.profile.source == "measured",
        "compute_bound_from_batch": shown.bend,
        "compute_bound_from_batch_with_kv": shown.bend_at_context,
        "batches": [
            {**asdict(point), "cost": asdict(bill(point, traffic, copies, price, shown.hardware.total_watts))}
            for point in shown.points
        ],
    }


def _setting(setting: Setting, overview: Overview) -> dict[str, Any]:
    footprint, context = setting.footprint, overview.question.traffic.context
    command, note = start_command(setting, context)
    return {
        "description": describe(setting),
        "model": setting.stored.model.name,
        "hardware": setting.hardware.label,
        "format": setting.stored.label,
        "quantization": None if setting.stored.format == "stored" else setting.stored.format,
        "kv": setting.stored.kv,
        "tensor_parallel": footprint.placement.tp,
        "pipeline_parallel": footprint.placement.pp,
        "copies_per_machine": setting.copies,
        "machines": setting.machines,
        "batch": setting.point.batch,
        "context": context,
        "device_bytes": {
            "weights": footprint.weights,
            "kv": footprint.kv(setting.point.batch, context),
            "activations": footprint.activations(setting.point.batch)
            + footprint.evicting(setting.point.batch, context),
        },
        "ttft_s": setting.point.ttft_s,
        "tpot_s": setting.point.tpot_s,
        "output_tokens_per_s": setting.tokens_per_s,
        "price_per_hour": setting.price,
        "cost_per_million_output": setting.bill.output,
        "cost_per_million_input": setting.bill.input,
        "tokens_per_unit": setting.tokens_per_unit,
        "joules_per_output_token": setting.bill.joules,
        "machine_hours_per_day": setting.machine_hours,
        "daily_cost": setting.daily_cost,
        "busy_cost": setting.busy_cost,
        "command": command,
        "note": note,
    }

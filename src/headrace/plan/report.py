"""The plan as text with aligned columns, for `headrace inspect`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from headrace.core.eviction import Eviction
from headrace.core.types import KVGroupSpec
from headrace.models.families import weight_names
from headrace.models.spec import ModelSpec
from headrace.plan.draft_methods import draft_methods
from headrace.plan.ledger import Ledger, LedgerLine
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import format_bytes, format_count
from headrace.program.lower import lower

OP_COLUMNS = ("op", "format", "chosen", "refused before it")
_BYTE_SETTINGS = frozenset({"kv_cache_memory"})


def report(
    spec: ModelSpec,
    resolved: ResolvedConfig,
    ledger: Ledger,
    ops: Iterable[Sequence[str]] = (),
    tokenizer: Sequence[Sequence[str]] = (),
) -> str:
    """Model, tokenizer, memory, ops, drafting and settings, a section each. `ops` are rows under `OP_COLUMNS`, if there
    are any; `tokenizer` are rows of a name and a value."""
    sections = [
        ("Model", table(_model_rows(spec, ledger))),
        *([("Tokenizer", table(tokenizer))] if tokenizer else []),
        ("Memory", table(_memory_rows(ledger), right=frozenset({1}))),
    ]
    if resolved.eviction is not None:
        rules = _eviction_rows(resolved.eviction, resolved.max_model_len)
        sections.append(("KV eviction: answers are not exact", table(rules)))
    elif resolved.kv_eviction != "off":
        least = f"no sequence is longer than max_model_len {format_count(resolved.max_model_len)}"
        sections.append(("KV eviction", f"  nothing is evicted: {least}; lower --kv-eviction-budget"))
    rows = [tuple(row) for row in ops]
    if rows:
        sections.append(("Ops", table([OP_COLUMNS, *rows])))
    if resolved.speculative is not None:
        sections.append(("Drafting", table(_drafting_rows(resolved))))
    sections.append(("Settings", table(_setting_rows(resolved))))
    return "\n\n".join(f"{title}\n{body}" for title, body in sections) + "\n"


def summary(resolved: ResolvedConfig, ledger: Ledger) -> str:
    """The ledger in one sentence, and one more where weights are larger than memory."""
    tokens = max(group.num_blocks * group.block_size for group in resolved.kv_groups if not group.is_state)
    return (
        f"{format_bytes(ledger.weight_bytes)} of weights, {format_bytes(ledger.kv_pool_bytes)} of KV cache for "
        f"{format_count(tokens)} tokens, {format_bytes(ledger.activation_bytes)} of activations; up to "
        f"{resolved.max_num_seqs} sequences of up to {format_count(resolved.max_model_len)} tokens at once"
        + (f"; {dict(resolved.reasons)['weights_from']}" if resolved.weights_from == "disk" else "")
    )


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Rows of cells as indented lines, columns aligned, those in `right` to the right. Rows may be short."""
    columns = max((len(row) for row in rows), default=0)
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(columns)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _eviction_rows(sizes: Eviction, length: int) -> list[tuple[str, str]]:
    """What is evicted, when, and which requests it leaves alone."""
    chosen = sizes.budget - sizes.sinks - sizes.recent
    return [
        ("what stays", f"{format_count(sizes.budget)} tokens of each KV head: the first {sizes.sinks}, the last "
         f"{sizes.recent}, and {format_count(chosen)} by attention"),
        ("who chooses", f"the queries of the last {sizes.window} tokens (SnapKV)"),
        ("when", f"at the end of a prompt of more than {format_count(sizes.budget)} tokens, then every "
         f"{format_count(sizes.interval)} tokens"),
        ("exact", f"requests with at most {format_count(sizes.budget)} tokens of prompt and "
         f"{format_count(sizes.most_within(length))} in all; scores and embeddings of prompts"),
        ("quality here", "headrace bench eviction"),
    ]  # fmt: skip


def _drafting_rows(resolved: ResolvedConfig) -> list[tuple[str, str]]:
    """What drafts, how much, and where the measured rates are."""
    first, *later = draft_methods(resolved.speculative)
    most = resolved.num_speculative_tokens
    adaptive = resolved.adaptive_speculation
    others = "".join(f", then {name}" for name in later)
    rows = [("drafters", first + others)]
    if later and adaptive:
        rows.append(("", "a later one also where it is expected to bring more tokens a second"))
    rows.append(("tokens", f"{'up to' if adaptive else 'always'} {most} one after the other"))
    if resolved.speculative_tree_nodes:
        trees = f"up to {resolved.speculative_tree_nodes} tokens, {resolved.tree_branches} branches in a step"
        rows.append(("trees", trees))
    if adaptive:
        rows.append(("rests", "while it takes more time than it saves; then it is tried again"))
    model = shlex.quote(resolved.model)
    return [
        *rows,
        ("measured rates", "/metrics of a running server, accepted at position p of a draft:"),
        ("", 'headrace:spec_decode_num_accepted_tokens_per_pos_total{position="p"}'),
        ("", "divided by headrace:spec_decode_num_drafts_total"),
        ("speed-up here", f"headrace bench speculative -m {model} --methods {resolved.speculative}"),
    ]


def _model_rows(spec: ModelSpec, ledger: Ledger) -> list[tuple[str, str]]:
    program = lower(spec, weight_names(spec))
    attends = (op.attributes for op in program.of_kind("attention"))
    heads = sorted({(m.num_heads, m.num_kv_heads, m.head_dim) for m in attends})
    inner = sorted({buffer.columns for buffer in program.buffers if buffer.name == "wide"})
    shapes = [f"{len(shape.layers)} {shape.name}" for shape in program.kv]
    sharing = program.num_layers - sum(len(shape.layers) for shape in program.kv)
    if sharing:
        shapes.append(f"{sharing} with the KV of others")
    routed = {buffer.columns for buffer in program.buffers if buffer.name == "wide_routed"}
    mixtures = sorted(
        {(route.attributes.num_experts, route.attributes.router.top_k) for route in program.of_kind("route")}
    )
    wide = " / ".join(format_count(size) for size in sorted(routed))
    experts = "; ".join(f"{count}, {each} a token, {wide} wide" for count, each in mixtures)
    return [
        ("family", spec.family),
        ("parameters", format_count(ledger.parameters)),
        ("layers", f"{program.num_layers} ({', '.join(shapes)})"),
        ("hidden size", format_count(spec.hidden_size)),
        ("attention", "; ".join(f"{q} heads, {kv} KV heads, {dim} wide" for q, kv, dim in heads)),
        *([("feed-forward", " / ".join(format_count(size) for size in inner))] if inner else []),
        *([("experts", experts)] if experts else []),
        ("vocabulary", format_count(spec.vocab_size) + (", tied head" if spec.tie_embeddings else "")),
        ("context", f"{format_count(spec.max_position)} tokens"),
        ("checkpoint", spec.checkpoint_dtype),
    ]


def _memory_rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []

    def section(name: str, size: int, lines: Iterable[LedgerLine], how: str = "") -> None:
        rows.append((name, format_bytes(size), how))
        rows.extend((f"  {line.name}", format_bytes(line.bytes), line.how) for line in lines)

    section("weights", ledger.weight_bytes, ledger.weights)
    section("KV cache", ledger.kv_pool_bytes, ledger.kv_pools)
    section("activations", ledger.activation_bytes, ledger.activations)
    rows.append(("total", format_bytes(ledger.total), "weights + KV cache + activations"))
    section("KV of one token", ledger.kv_token_bytes, ledger.kv_per_token)
    for one in (ledger.kv_per_sequence, ledger.kv_after_eviction):
        if one is not None:
            rows.append((f"KV of {one.name}", format_bytes(one.bytes), one.how))
    return rows


def _setting_rows(resolved: ResolvedConfig) -> list[tuple[str, str, str]]:
    return [(name, _value(name, value), reason) for name, value, reason in resolved.explain()]


def _value(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _BYTE_SETTINGS and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, tuple):
        return ", ".join(_group(entry) if isinstance(entry, KVGroupSpec) else str(entry) for entry in value)
    return str(value)


def _group(group: KVGroupSpec) -> str:
    return f"{group.name}: {format_count(group.num_blocks)}"

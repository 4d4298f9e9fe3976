"""Assembles an engine from a config: model, executor, scheduler, tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.core.engine import Engine
from headrace.core.executor import Executor
from headrace.core.step_budget import StepBudget
from headrace.errors import ConfigError, TokenizerError
from headrace.gguf.files import GGUFModel
from headrace.gguf.vocabulary import VOCABULARY_FILE, write_vocabulary
from headrace.models.families import weight_names
from headrace.models.generation_config import chosen_defaults
from headrace.models.identity import weights_identity
from headrace.models.packed.data import check_data
from headrace.models.packed.folder import copy_tokenizer, new_folder, write_configs
from headrace.models.packed.header import PackedHeader, is_packed, read_header
from headrace.models.packed.match import check_layout, check_program
from headrace.models.rope import with_context
from headrace.models.source import HubOptions, ModelSource, resolve_model, tokenizer_folder
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights, open_source, stored_spec
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.ops.cpu_features import packed_layout
from headrace.ops.table import DENSE, Selection
from headrace.plan.draft_methods import HISTORY, NGRAM, draft_methods
from headrace.plan.hardware import Machine, this_machine
from headrace.plan.kernels import op_facts
from headrace.plan.kv import streaming_spec
from headrace.plan.kv_identity import kv_identity
from headrace.plan.ledger import Ledger, ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.scheduling import scheduler_config
from headrace.program.lower import lower
from headrace.runner.backend import Backend, open_backend, save_weights
from headrace.runner.block_tables import BlockTables, all_tables
from headrace.runner.drafting import Drafter
from headrace.runner.executor import ModelExecutor
from headrace.runner.loading import Stored
from headrace.runner.model import StepModel, StepSampler
from headrace.runner.sampling.token_masks import GrammarRunner
from headrace.speculative.acceptance_samplers import samplers
from headrace.speculative.base_model import base_model
from headrace.speculative.control import Speculation
from headrace.speculative.drafters import find_drafters
from headrace.speculative.eagle import EagleMethod
from headrace.speculative.heads import MedusaHeads, load_heads
from headrace.speculative.history import HistoryMethod
from headrace.speculative.medusa import MedusaMethod
from headrace.speculative.method import Method
from headrace.speculative.model import ModelMethod
from headrace.speculative.ngram import NGramMethod
from headrace.text.grammar_store import GrammarStore
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_source import check_same_tokens, open_tokenizer

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """The resolved model and options, before any weight is read."""

    source: ModelSource
    spec: ModelSpec  # with streaming options put in
    resolved: ResolvedConfig
    ledger: Ledger
    ops: Selection
    draft: ModelSource | Path | None = None  # the model that drafts, or the folder of heads
    layers: StoredWeights | None = None  # the files that hold the layers that draft


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A loaded model with everything that runs it. `tokenizer` is None for `shape:` models."""

    engine: Engine
    executor: Executor
    resolved: ResolvedConfig
    spec: ModelSpec
    source: ModelSource
    tokenizer: Tokenizer | None
    grammars: GrammarStore
    tokenizer_folder: Path | None
    sampling_defaults: Mapping[str, Any]  # fields of SamplingParams, for calls that leave them out


def survey(config: EngineConfig, *, mapped: bool = False, machine: Machine | None = None) -> Survey:
    """Find the model and resolve every option; reads no weights.

    mapped: weights may be larger than memory, as those of a packed folder may. machine: to plan for; None is this one.
    Raises ModelError if the model cannot be used, DoesNotFit if it is too large and ConfigError if an option is wrong.
    """
    source = resolve_model(config.model, HubOptions(config.revision, config.download_dir))
    if config.hf_overrides:
        source = replace(source, config={**source.config, **config.hf_overrides})
    header = read_header(source.path) if source.path is not None and is_packed(source.path) else None
    if header is not None:
        config = _as_packed(config, header)
    source = open_source(source)
    stored = with_context(stored_spec(source), config.max_model_len)
    machine = machine or this_machine()
    found = find_drafters(
        config.speculative,
        source,
        stored,
        max_model_len=config.max_model_len,
        download_dir=config.download_dir,
    )
    config = replace(config, speculative=found.option)
    resolved = resolve(
        config,
        stored,
        machine,
        mapped=mapped or header is not None,
        packed_kv=None if header is None else header.facts.kv_dtype,
        draft=found.spec,
        heads=found.heads,
        layers=found.layers,
    )
    if header is not None:
        resolved = _explained(resolved, header)
    if found.why is not None:
        resolved = replace(
            resolved, reasons=tuple(sorted((dict(resolved.reasons) | {"speculative": found.why}).items()))
        )
    spec = streaming_spec(stored, resolved.attention_sinks, resolved.sliding_window)
    if header is not None:
        _check_packed(header, spec, resolved)
    weights = resolved.weight_formats
    ops = DEFAULT_TABLE.select(
        device=resolved.device,
        dtype=resolved.dtype,
        formats=(DENSE,) if weights is None else tuple(one.name for one in weights.all),
        facts=op_facts(spec, machine),
        force=resolved.ops_force,
    )
    return Survey(source, spec, resolved, ledger(spec, resolved), ops, found.source, found.files)


def _as_packed(config: EngineConfig, header: PackedHeader) -> EngineConfig:
    """The config with the types of a packed folder. Raises ConfigError where an option asks for others."""
    facts = header.facts
    if config.quantization not in (None, facts.quantization):
        raise ConfigError(
            f"{config.model} is packed with {header.formats}: leave "
            f"--quantization out, or pack the model again with --quantization {config.quantization}"
        )
    if config.dtype not in ("auto", facts.dtype):
        raise ConfigError(
            f"{config.model} is packed for {facts.dtype}: leave --dtype out, or pack the model again with "
            f"--dtype {config.dtype}"
        )
    return replace(config, quantization=facts.quantization, dtype=facts.dtype)


def _explained(resolved: ResolvedConfig, header: PackedHeader) -> ResolvedConfig:
    """With the packed folder as the reason for its types. Raises ConfigError where no native kernels can run it."""
    reasons = dict(resolved.reasons)
    if resolved.kernels is None:
        raise ConfigError(f"{header.folder} is packed for the native CPU kernels, but {reasons['kernels']}")
    packed = dict.fromkeys(
        ("dtype", "quantization", "weight_formats"), "what the packed folder was made with"
    )
    return replace(resolved, reasons=tuple(sorted((reasons | packed).items())))


def _check_packed(header: PackedHeader, spec: ModelSpec, resolved: ResolvedConfig) -> None:
    """Raise CheckpointError where loading the folder would: a plan of it would be of no use."""
    layout = packed_layout(resolved.kernels or "")
    if layout is not None:
        check_layout(header, str(resolved.kernels), layout)
    check_program(header, lower(spec, weight_names(spec)))
    check_data(header)


def pack(
    config: EngineConfig, folder: Path, progress: Progress | None = None, *, name: str | None = None
) -> Survey:
    """Write a model into a new folder, its weights as the kernels here read them; `folder` appears when it is
    complete.

    It is then a model like any other, see `models.packed`. Memory is needed for one weight at a time. `progress`
    is called with (tensors read, total). name: what the header calls the model; None: its own. Raises ModelError and
    ConfigError as `survey` does, and where the folder cannot be written.
    """
    # The option about keys and values is not packed: it can be given when the folder is opened.
    plan = survey(replace(config, kv_cache_dtype="auto"), mapped=True)
    if plan.source.path is not None and is_packed(plan.source.path):
        raise ConfigError(f"{config.model} is packed already")
    tokenizer = find_tokenizer(config, plan.source)
    if tokenizer is None:
        raise ConfigError(f"{config.model} has no tokenizer: name one with --tokenizer, such as tale")
    opened = open_tokenizer(tokenizer) if tokenizer.is_file() else None
    with new_folder(folder, plan.ledger.weight_bytes) as fresh:
        if opened is None:
            write_configs(fresh, plan.source)
            copy_tokenizer(fresh, tokenizer)
        else:
            write_configs(fresh, plan.source, opened.eos_ids | {*plan.spec.eos_ids})
            _save_tokenizer(opened, tokenizer, fresh)
        source = plan.source if name is None else replace(plan.source, name=name)
        save_weights(source, plan.spec, plan.resolved, fresh, progress)
    return plan


def _save_tokenizer(tokenizer: Tokenizer, source: Path, folder: Path) -> None:
    """The tokenizer of a GGUF file as tokenizer.json, or as the file's own keys where that cannot hold it."""
    try:
        tokenizer.save(folder)
    except TokenizerError:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink(missing_ok=True)
        write_vocabulary(GGUFModel(source).metadata, folder / VOCABULARY_FILE)


def find_tokenizer(config: EngineConfig, source: ModelSource) -> Path | None:
    """The folder or the GGUF file with the model's tokenizer, which `open_tokenizer` opens.

    None for a `shape:` model unless the option `tokenizer` names one.
    """
    if config.tokenizer is None:
        return source.path
    return tokenizer_folder(config.tokenizer, HubOptions(download_dir=config.download_dir))


def assemble(
    config: EngineConfig,
    progress: Progress | None = None,
    step_budget: Callable[[ModelSpec, ResolvedConfig], StepBudget | None] = lambda spec, resolved: None,
    sampler: Callable[[StepSampler[Any]], StepSampler[Any]] = lambda sampler: sampler,
) -> EngineParts:
    """Load a model and build its engine. `progress` is called with (tensors read, total); `step_budget` makes what
    bounds the time of its steps, as `sim.step_budget` does; `sampler` may put another sampler in front of the
    model's."""
    plan = survey(config)
    resolved, spec, source = plan.resolved, plan.spec, plan.source
    defaults = chosen_defaults(source, config.generation_config, config.override_generation_config)
    folder = find_tokenizer(config, source)
    tokenizer = None if folder is None else open_tokenizer(folder)
    eos_ids = frozenset(spec.eos_ids) | (frozenset() if tokenizer is None else tokenizer.eos_ids)
    grammars = GrammarStore(tokenizer, spec.vocab_size, eos_ids)
    if tokenizer is not None and isinstance(plan.draft, ModelSource) and plan.draft.path is not None:
        check_same_tokens(tokenizer, plan.draft.path, plan.draft.name)
    executor = _load_executor(plan, grammars, progress, sampler)
    engine = Engine(
        scheduler_config(resolved, spec.vocab_size, eos_ids),
        resolved.kv_groups,
        prefix_caching=resolved.enable_prefix_caching,
        cache_scope=kv_identity(weights_identity(source, resolved.seed), spec, resolved),
        step_budget=step_budget(spec, resolved),
    )
    return EngineParts(engine, executor, resolved, spec, source, tokenizer, grammars, folder, defaults)


def _load_executor(
    plan: Survey,
    grammars: GrammarStore,
    progress: Progress | None,
    wrap: Callable[[StepSampler[Any]], StepSampler[Any]],
) -> ModelExecutor[Any]:
    """Load the model, and what drafts for it."""
    resolved, spec = plan.resolved, plan.spec
    backend = open_backend(resolved, plan.ops)
    own = len(resolved.kv_groups) - resolved.num_draft_groups
    stored = Stored(
        resolved.weights_dtype,
        resolved.weight_formats,
        resolved.kv_groups[:own],
        prefetch=resolved.weights_from != "disk",
    )
    model = backend.load(plan.source, spec, stored, progress)
    sampler, draft_sampler = samplers(resolved.acceptance, backend.sampler(spec.vocab_size))
    tables = all_tables(resolved.kv_groups, resolved.most_segments)
    return ModelExecutor(
        model,
        wrap(sampler),
        tables,
        max_seqs=resolved.max_num_seqs,
        grammars=GrammarRunner(grammars),
        drafter=_load_drafter(plan, backend, model, draft_sampler, tables[own:]),
        draft_groups=resolved.num_draft_groups,
        most_rows=resolved.max_num_batched_tokens,
        branches=resolved.tree_branches,
    )


def _load_drafter(
    plan: Survey,
    backend: Backend,
    model: StepModel[Any],
    sampler: StepSampler[Any],
    tables: Sequence[BlockTables | None],
) -> Drafter | None:
    resolved, draft = plan.resolved, plan.resolved.draft_model
    methods: list[Method] = []
    for method in draft_methods(resolved.speculative):
        if method == NGRAM:
            methods.append(NGramMethod())
            continue
        if method == HISTORY:
            methods.append(HistoryMethod())
            continue
        if isinstance(plan.draft, Path):
            heads = load_heads(plan.draft, base_model(plan.source, plan.spec))
            if isinstance(heads, MedusaHeads):
                methods.append(MedusaMethod(heads, model, sampler, method))
                continue
        if plan.layers is not None:
            methods.append(_load_layers(plan, plan.layers, backend, model, sampler, tables))
            continue
        assert draft is not None and isinstance(plan.draft, ModelSource)
        groups = resolved.kv_groups[-resolved.num_draft_groups :]
        stored = Stored(draft.weights_dtype, draft.weight_formats, groups)
        methods.append(
            ModelMethod(
                backend.load(plan.draft, draft.spec, stored),
                sampler,
                tables,
                vocab_size=plan.spec.vocab_size,
                name=draft.name,
                max_tokens=resolved.max_num_batched_tokens,
            )
        )
    if not methods:
        return None
    return Speculation(
        methods,
        most=resolved.num_speculative_tokens,
        adaptive=resolved.adaptive_speculation,
        nodes=resolved.speculative_tree_nodes,
        branches=resolved.tree_branches,
    )


def _load_layers(
    plan: Survey,
    weights: StoredWeights,
    backend: Backend,
    model: StepModel[Any],
    sampler: StepSampler[Any],
    tables: Sequence[BlockTables | None],
) -> Method:
    """Draft layers, from files that hold them."""
    resolved, draft = plan.resolved, plan.resolved.draft_model
    assert draft is not None and draft.layers is not None
    groups = resolved.kv_groups[-resolved.num_draft_groups :]
    return EagleMethod(
        backend.load_layers(weights, draft.layers, Stored(draft.weights_dtype, draft.weight_formats, groups)),
        model,
        sampler,
        tables,
        name=draft.name,
        hidden_size=plan.spec.hidden_size,
        max_tokens=resolved.max_num_batched_tokens,
        max_seqs=resolved.max_num_seqs,
        branches=resolved.tree_branches,
    )

// Causal attention of a ragged batch over the paged KV cache, with an online softmax over fixed spans of keys
// (Milakov and Gimelshein 2018; Dao et al. 2022).
#pragma once

#include "attention_plan.h"

namespace headrace::HEADRACE_ISA {

inline std::size_t attention_scratch(const AttentionArgs& shape, int max_tokens, int max_seqs, int threads) {
    (void)max_tokens;
    return ScratchSizes::of(shape, max_seqs, threads).total(threads);
}

inline Workspace workspace_of(const Plan& plan, const ScratchSizes& sizes, int thread) {
    char* memory = plan.workspaces + sizes.workspace() * static_cast<std::size_t>(thread);
    auto* scores = reinterpret_cast<float*>(memory);
    auto* partial = reinterpret_cast<float*>(memory += sizes.scores);
    auto* result = reinterpret_cast<float*>(memory += sizes.partial);
    return {scores, partial, result, reinterpret_cast<bf16_t*>(memory + sizes.partial)};
}

template <typename Step>
struct Attention {
    const AttentionArgs& args;
    SpanShape shape;
    Plan& plan;

    void attend(const Tile& tile, int index, const Workspace& work, const Partial& out) const {
        Span span;
        open_span(args, shape, tile, index, work.expanded, span);
        if (span.panels == 0) {  // only dropped blocks: nobody sees them
            for (int r = 0; r < tile.rows; ++r) out.peak[r] = kHidden;
            return;
        }
        attend_span<Step>(args, tile, span, work, out);
    }

    void whole_item(std::int64_t index, const Workspace& work) const {
        int low = 0, high = args.step->seqs;  // the sequence with before[low] <= index < before[low + 1]
        while (high - low > 1) {
            const int middle = low + (high - low) / 2;
            (plan.whole_before[middle] <= index ? low : high) = middle;
        }
        const int tiles = tiles_of(args, low), within = static_cast<int>(index - plan.whole_before[low]);
        // Later tiles see more keys: first come, so that the last ones to be taken are short.
        const Tile tile = tile_at(args, low, within / tiles, tiles - 1 - within % tiles);
        const int dim = args.kv.head_dim;
        const Partial result = Partial::at(work.result, tile.rows), partial = Partial::at(work.partial, tile.rows);
        clear_partial(result, tile.rows, dim);
        const SpanList spans = SpanList::of(args, shape, tile);
        for (int i = 0; i < spans.count(); ++i) {
            attend(tile, spans[i], work, partial);
            fold(result, partial, tile.rows, dim);
        }
        finish(args, tile, result);
    }

    void split_unit(int unit, const Workspace& work) const {
        int which = 0;
        for (; unit >= plan.split[which].units; ++which) unit -= plan.split[which].units;
        SplitItem& item = plan.split[which];
        const Tile tile = tile_at(args, item.seq, item.head, item.tile);
        const SpanList spans = SpanList::of(args, shape, tile);
        const int left = item.spans - plan.first_span, wave = left < plan.wave ? left : plan.wave;
        float* partials = plan.pool + plan.partial_floats * static_cast<std::size_t>(which) * plan.wave;
        const auto partial = [&](int i) { return Partial::at(partials + plan.partial_floats * static_cast<std::size_t>(i), tile.rows); };
        for (int i = unit * plan.step; i < wave && i < (unit + 1) * plan.step; ++i) {
            attend(tile, spans[plan.first_span + i], work, partial(i));
        }
        if (__atomic_sub_fetch(&item.open, 1, __ATOMIC_ACQ_REL) > 0) return;
        const int dim = args.kv.head_dim;  // the last one to finish folds the wave
        const Partial result = Partial::at(plan.results + plan.partial_floats * static_cast<std::size_t>(which), tile.rows);
        if (plan.first_span == 0) clear_partial(result, tile.rows, dim);
        for (int i = 0; i < wave; ++i) fold(result, partial(i), tile.rows, dim);
        if (left <= plan.wave) finish(args, tile, result);
    }

    void run(Team& team) const {
        const ScratchSizes sizes = ScratchSizes::of(args, args.step->seqs, team.size());
        int most_spans = 1;
        for (int i = 0; i < plan.splits; ++i) {
            if (plan.split[i].spans > most_spans) most_spans = plan.split[i].spans;
        }
        for (int first = 0; first < most_spans; first += plan.wave) {
            start_wave(plan, first);
            const int count = plan.units + (first == 0 ? plan.whole_items : 0);
            auto body = [&](int thread, int) {
                const Workspace work = workspace_of(plan, sizes, thread);
                for (;;) {
                    const int next = __atomic_fetch_add(&plan.next, 1, __ATOMIC_RELAXED);
                    if (next >= count) return;
                    if (next < plan.units) {
                        split_unit(next, work);
                    } else {
                        whole_item(next - plan.units, work);
                    }
                }
            };
            if (count == 1) {
                body(0, 1);
            } else {
                team.run(body);
            }
            if (plan.splits == 0) return;
        }
    }
};

inline void attention(const AttentionArgs& args, Team& team) {
    if (args.step->tokens == 0) return;
    const SpanShape shape = SpanShape::of(args.kv);
    Plan& plan = make_plan(args, shape, team.size());
    if (args.kv.type == DType::f32) {
        Attention<FloatStep>{args, shape, plan}.run(team);
    } else {
        Attention<PairStep>{args, shape, plan}.run(team);
    }
}

}  // namespace headrace::HEADRACE_ISA

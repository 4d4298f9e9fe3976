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
    void* values = memory += sizes.partial;
    auto* queries = reinterpret_cast<std::int8_t*>(memory += sizes.values);
    auto* sink_queries = reinterpret_cast<std::int8_t*>(memory += sizes.queries);
    return {scores, partial, result, values, queries, sink_queries, reinterpret_cast<float*>(memory + sizes.queries), nullptr};
}

// A piece of work for one thread: some spans of an item.
struct Job {
    Tile tile;
    SpanList spans;
    int from, to;    // of `spans`
    int split;       // the split item, or -1: a whole item
};

template <typename Step>
struct Attention {
    const AttentionArgs& args;
    SpanShape shape;
    Plan& plan;

    Job job_at(int index) const {
        return index < plan.units ? unit_at(index) : whole_at(static_cast<std::int64_t>(index) - plan.units);
    }

    Job whole_at(std::int64_t index) const {
        int low = 0, high = args.step->seqs;  // the sequence with before[low] <= index < before[low + 1]
        while (high - low > 1) {
            const int middle = low + (high - low) / 2;
            (plan.whole_before[middle] <= index ? low : high) = middle;
        }
        const int tiles = tiles_of(args, low), within = static_cast<int>(index - plan.whole_before[low]);
        // Later tiles see more keys: they are taken first, so that the last jobs are short.
        const Tile tile = tile_at(args, low, within / tiles, tiles - 1 - within % tiles);
        const SpanList spans = SpanList::of(args, shape, tile);
        return {tile, spans, 0, spans.count(), -1};
    }

    Job unit_at(int unit) const {
        int which = 0;
        for (; unit >= plan.split[which].units; ++which) unit -= plan.split[which].units;
        const SplitItem& item = plan.split[which];
        const Tile tile = tile_at(args, item.seq, item.head, item.tile);
        const int from = plan.first_span + unit * plan.step, to = from + plan.step, end = wave_end(item);
        return {tile, SpanList::of(args, shape, tile), from, to < end ? to : end, which};
    }

    int wave_end(const SplitItem& item) const {
        return item.spans - plan.first_span < plan.wave ? item.spans : plan.first_span + plan.wave;
    }

    // Attends to span `index`. Prefetches the job's next span, or the first one of the job that follow() gives.
    template <typename F>
    void attend(const Job& job, int index, F& follow, const Workspace& work, const Partial& out) const {
        if (index + 1 < job.to) {
            work.ahead->prefetch(args, shape, job.tile, job.spans[index + 1]);
        } else if (const Job* next = follow()) {
            work.ahead->prefetch(args, shape, next->tile, next->spans[next->from]);
        } else {
            work.ahead->regions = 0;
        }
        Span span;
        open_span(args, shape, job.tile, job.spans[index], static_cast<char*>(work.values), span);
        if (span.panels == 0) {  // only dropped blocks: no row sees them
            for (int r = 0; r < job.tile.rows; ++r) out.peak[r] = kHidden;
        } else {
            attend_span<Step>(args, job.tile, span, work, out);
        }
    }

    template <typename F>
    void do_whole(const Job& job, F& follow, const Workspace& work) const {
        const int rows = job.tile.rows, dim = args.kv.value_dim;
        const Partial result = Partial::at(work.result, rows), partial = Partial::at(work.partial, rows);
        clear_partial(result, rows, dim);
        round_queries<Step>(args, job.tile, work);
        for (int i = job.from; i < job.to; ++i) {
            attend(job, i, follow, work, partial);
            fold(result, partial, rows, dim);
        }
        finish(args, job.tile, result);
    }

    template <typename F>
    void do_unit(const Job& job, F& follow, const Workspace& work) const {
        const int rows = job.tile.rows, dim = args.kv.value_dim;
        const auto which = static_cast<std::size_t>(job.split);
        SplitItem& item = plan.split[which];
        const auto partial = [&](int i) {
            return Partial::at(plan.pool + plan.partial_floats * (which * plan.wave + (i - plan.first_span)), rows);
        };
        round_queries<Step>(args, job.tile, work);
        for (int i = job.from; i < job.to; ++i) attend(job, i, follow, work, partial(i));
        if (__atomic_sub_fetch(&item.open, 1, __ATOMIC_ACQ_REL) > 0) return;
        const Partial result = Partial::at(plan.results + plan.partial_floats * which, rows);
        if (plan.first_span == 0) clear_partial(result, rows, dim);  // the last one to finish folds the wave
        const int end = wave_end(item);
        for (int i = plan.first_span; i < end; ++i) fold(result, partial(i), rows, dim);
        if (end == item.spans) finish(args, job.tile, result);
    }

    // Takes a job at the last span of the one before, so that it can prefetch, and not earlier, so that other threads can
    // take it.
    void work_on(int count, int thread, const Workspace& work) const {
        if (thread >= count) return;
        Job jobs[2] = {job_at(thread), {}};
        for (int turn = 0, index = thread; index < count; turn ^= 1) {
            const Job& job = jobs[turn];
            Job& next = jobs[turn ^ 1];
            auto follow = [&]() -> const Job* {  // every job has spans, so it is called once
                index = __atomic_fetch_add(&plan.next, 1, __ATOMIC_RELAXED);
                if (index >= count) return nullptr;
                next = job_at(index);
                return &next;
            };
            if (job.split < 0) {
                do_whole(job, follow, work);
            } else {
                do_unit(job, follow, work);
            }
        }
    }

    void run(Team& team) const {
        const ScratchSizes sizes = ScratchSizes::of(args, args.step->seqs, team.size());
        int most_spans = 1;
        for (int i = 0; i < plan.splits; ++i) {
            if (plan.split[i].spans > most_spans) most_spans = plan.split[i].spans;
        }
        for (int first = 0; first < most_spans; first += plan.wave) {
            start_wave(plan, first, team.size());
            const int count = plan.units + (first == 0 ? plan.whole_items : 0);
            auto body = [&](int thread, int) {
#if HEADRACE_TILES
                const TileScope scope;
#endif
                Ahead ahead;
                Workspace work = workspace_of(plan, sizes, thread);
                work.ahead = &ahead;
                work_on(count, thread, work);
            };
            if (count == 1) {
                body(0, 1);
            } else {
                team.run(body);
            }
        }
    }
};

inline void attention(const AttentionArgs& args, Team& team) {
    if (args.step->tokens == 0) return;
    const SpanShape shape = SpanShape::of(args.kv);
    Plan& plan = make_plan(args, shape, team.size());
    if (args.kv.type == DType::f32) {
        Attention<FloatStep>{args, shape, plan}.run(team);
    } else if (args.kv.whole()) {
        Attention<ByteStep>{args, shape, plan}.run(team);
    } else {
        Attention<PairStep>{args, shape, plan}.run(team);
    }
}

}  // namespace headrace::HEADRACE_ISA

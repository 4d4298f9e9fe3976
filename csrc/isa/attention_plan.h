// How attention's work is divided among threads. An item is a tile of query rows of one sequence and KV head. Items far above a
// thread's fair share (one long sequence) are split: their spans are units of their own, whose partial results are
// kept and folded in rising order, as the thread that does a whole item folds them. So no bit depends on the plan.
#pragma once

#include "attention_tile.h"

namespace headrace::HEADRACE_ISA {

constexpr int kSplitsPerThread = 8;               // at most so many split items a thread
constexpr std::size_t kPoolFloats = 1 << 18;      // for partial results, a thread

struct SplitItem {
    int seq;
    int head;
    int tile;        // of the sequence
    int spans;
    int units;       // of this wave
    int open;        // units of this wave that are not done; changed atomically
};

// Lives at the start of the scratch memory. Waves: where partial results of all spans do not fit the pool, split items
// advance by `wave` spans at a time, and the threads meet in between.
struct Plan {
    int splits;
    int wave;        // spans of a split item in one wave
    int step;        // spans of a unit
    int first_span;  // of the current wave
    int units;       // of the current wave, all split items together
    int whole_items; // items done in one piece, in the first wave only
    int next;        // the next job (units, then items) to take; changed atomically
    std::size_t partial_floats;
    SplitItem* split;
    std::int64_t* whole_before;  // [seqs + 1]: whole items of the sequences before one
    float* results;  // a split item each
    float* pool;     // [splits][wave] partial results
    char* workspaces;
};

inline std::size_t lined(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Sizes of the parts of the scratch memory, in bytes.
struct ScratchSizes {
    std::size_t plan, splits, before, results, pool, scores, partial, values, queries, low;

    static ScratchSizes of(const AttentionArgs& args, int seqs, int threads) {
        ScratchSizes s;
        s.partial = lined(Partial::floats(kQueryRows, args.kv.value_dim) * sizeof(float));
        s.plan = lined(sizeof(Plan));
        s.splits = lined(sizeof(SplitItem) * kSplitsPerThread * threads);
        s.before = lined(sizeof(std::int64_t) * (static_cast<std::size_t>(seqs) + 1));
        s.results = s.partial * kSplitsPerThread * threads;
        const std::size_t needed = kPoolFloats * sizeof(float) * threads;
        s.pool = needed > s.results ? needed : s.results;
        s.scores = sizeof(float) * kQueryRows * kScoreStride;
        const int columns = is_coded(args.kv.type) || args.kv.latent() ? kSpanColumns : kMaskedColumns;
        s.values = lined((args.kv.type == DType::f32 ? sizeof(float) : sizeof(bf16_t)) * columns * args.kv.head_dim);
        s.queries = s.low = 0;
        if (args.kv.whole()) {
            const bool tiles = ByteStep::kTileRows < kNoTiles;
            s.values = tiles ? s.values : 0;
            s.queries = lined(kQueryRows * static_cast<std::size_t>(ByteStep::pitch(args.kv.head_dim)));
            s.low = tiles ? sizeof(float) * kQueryRows * args.kv.head_dim : 0;
        }
        if (args.kv.type == DType::i4) s.values += sizeof(float) * kSpanColumns;  // scales of values
        return s;
    }
    std::size_t workspace() const { return scores + 2 * partial + values + 2 * queries + low; }
    std::size_t total(int threads) const {
        return plan + splits + before + results + pool + workspace() * static_cast<std::size_t>(threads);
    }
};

inline int group_of(const AttentionArgs& args) { return args.num_heads / args.kv.num_kv_heads; }

inline int tiles_of(const AttentionArgs& args, int seq) {
    const std::int32_t* cu = args.step->cu_q;
    return ((cu[seq + 1] - cu[seq]) * group_of(args) + kQueryRows - 1) / kQueryRows;
}

inline Tile tile_at(const AttentionArgs& args, int seq, int head, int index) {
    const int group = group_of(args), first_token = args.step->cu_q[seq];
    const int all = (args.step->cu_q[seq + 1] - first_token) * group, first = index * kQueryRows;
    const int rows = all - first < kQueryRows ? all - first : kQueryRows;
    return {seq, head, first, rows, first_token, args.step->positions[first_token + first / group],
            args.step->positions[first_token + (first + rows - 1) / group]};
}

// Time of an item in arbitrary units: a span's keys and values have to be read, however few rows there are.
inline double cost_of(const AttentionArgs& args, const SpanShape& shape, const Tile& tile) {
    return SpanList::of(args, shape, tile).count() * (16.0 + tile.rows);
}

inline Plan& make_plan(const AttentionArgs& args, const SpanShape& shape, int threads) {
    const int seqs = args.step->seqs, heads = args.kv.num_kv_heads;
    const ScratchSizes sizes = ScratchSizes::of(args, seqs, threads);
    char* memory = static_cast<char*>(args.scratch);
    Plan& plan = *reinterpret_cast<Plan*>(memory);
    plan.split = reinterpret_cast<SplitItem*>(memory += sizes.plan);
    plan.whole_before = reinterpret_cast<std::int64_t*>(memory += sizes.splits);
    plan.results = reinterpret_cast<float*>(memory += sizes.before);
    plan.pool = reinterpret_cast<float*>(memory += sizes.results);
    plan.workspaces = memory + sizes.pool;

    double total = 0;  // a sequence's tiles cost about the mean of its first and its last one
    for (int s = 0; s < seqs; ++s) {
        const int tiles = tiles_of(args, s);
        if (tiles == 0) continue;
        const double ends = cost_of(args, shape, tile_at(args, s, 0, 0)) + cost_of(args, shape, tile_at(args, s, 0, tiles - 1));
        total += ends / 2 * tiles * heads;
    }
    const double limit = threads > 1 ? total / (4.0 * threads) : total * 2;
    plan.splits = 0;
    plan.whole_before[0] = 0;
    int largest_rows = 0, most_spans = 0;
    for (int s = 0; s < seqs; ++s) {
        const int tiles = tiles_of(args, s);
        std::int64_t whole = static_cast<std::int64_t>(tiles) * heads;
        if (tiles > 0 && whole <= kSplitsPerThread * threads - plan.splits) {
            const Tile last = tile_at(args, s, 0, tiles - 1);
            if (cost_of(args, shape, last) > limit) {
                whole = 0;
                for (int i = 0; i < tiles * heads; ++i) {
                    const Tile tile = tile_at(args, s, i / tiles, i % tiles);
                    const int spans = SpanList::of(args, shape, tile).count();
                    plan.split[plan.splits++] = {s, tile.head, i % tiles, spans, 0, 0};
                    if (tile.rows > largest_rows) largest_rows = tile.rows;
                    if (spans > most_spans) most_spans = spans;
                }
            }
        }
        plan.whole_before[s + 1] = plan.whole_before[s] + whole;
    }
    plan.whole_items = static_cast<int>(plan.whole_before[seqs]);
    plan.first_span = 0;
    plan.wave = plan.step = 1;
    if (plan.splits > 0) {
        plan.partial_floats = lined(Partial::floats(largest_rows, args.kv.value_dim) * sizeof(float)) / sizeof(float);
        const std::size_t room = sizes.pool / sizeof(float) / plan.partial_floats / plan.splits;
        plan.wave = room < static_cast<std::size_t>(most_spans) ? static_cast<int>(room) : most_spans;
        plan.step = plan.wave * plan.splits / (16 * threads);
        if (plan.step < 1) plan.step = 1;
    }
    return plan;
}

// Every thread's first job is the one of its own number.
inline void start_wave(Plan& plan, int first_span, int threads) {
    plan.first_span = first_span;
    plan.next = threads;
    plan.units = 0;
    for (int i = 0; i < plan.splits; ++i) {
        SplitItem& item = plan.split[i];
        int spans = item.spans - first_span;
        if (spans > plan.wave) spans = plan.wave;
        item.units = spans > 0 ? (spans + plan.step - 1) / plan.step : 0;
        item.open = item.units;
        plan.units += item.units;
    }
}

}  // namespace headrace::HEADRACE_ISA

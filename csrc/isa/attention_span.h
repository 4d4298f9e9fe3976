// Spans: the fixed ranges of positions that attention computes one after the other, and the parts of a span that a tile
// of query rows reads.
//
// A span is a fixed number of whole cache blocks, or a fixed part of one large block, so about 256 positions, counted
// from position 0. It never depends on the query, on the window or on the batch: see "Batch invariance" in docs/kernels.md.
#pragma once

#include "../kernels.h"
#include "turn.h"

namespace headrace::HEADRACE_ISA {

constexpr int kSpanColumns = 256;                 // keys of a span, padding included
constexpr int kSpanPanels = kSpanColumns / kPanel;
constexpr int kRecentSpan = -1;                   // in place of a number: the blocks that the queries of a tile lie in (i4)
constexpr int kMaskedColumns = 32;                // of values that are copied at once without those that a row hides
#if HEADRACE_TILES
constexpr int kQueryRows = 64;                    // query rows that share a pass over the keys: two by 32
#else
constexpr int kQueryRows = 48;                    // eight by six
#endif

struct SpanShape {
    int columns;     // of a segment (one block's part of a span), a multiple of 16
    int chunks;      // segments that a block is cut into; 1 unless a block is larger than a span
    int blocks;      // blocks of a span; 1 where chunks > 1
    int block_size;
    int block_stride;

    static SpanShape of(const KVCache& kv) {
        const int chunks = (kv.block_stride + kSpanColumns - 1) / kSpanColumns;
        if (chunks > 1) return {kSpanColumns, chunks, 1, kv.block_size, kv.block_stride};
        return {kv.block_stride, 1, kSpanColumns / kv.block_stride, kv.block_size, kv.block_stride};
    }

    // Where in their blocks the positions of a span begin.
    int offset(int span) const { return span % chunks * kSpanColumns; }

    // Columns of a segment that begins at `offset` of its block, and how many of them hold positions.
    int width(int offset) const { return block_stride - offset < columns ? block_stride - offset : columns; }
    int held(int offset) const { return block_size - offset < width(offset) ? block_size - offset : width(offset); }

    // The span that holds a position.
    int at(std::int64_t position) const {
        const std::int64_t block = position / block_size;
        if (chunks == 1) return static_cast<int>(block / blocks);
        return static_cast<int>(block * chunks + position % block_size / kSpanColumns);
    }
};

// Consecutive query rows of one sequence and KV head: row r is head r % G of token r / G.
struct Tile {
    int seq;
    int head;                  // KV head
    int first_row;             // of the sequence's rows
    int rows;
    int first_token;           // of the step: token of the sequence's row 0
    std::int64_t lowest;       // position of the first row, and of the last
    std::int64_t highest;
};

// The first position that a row at `position` sees, but for sinks; below zero where it sees all of them.
inline std::int64_t first_seen(const AttentionArgs& args, std::int64_t position) {
    if (args.window == 0) return 0;
    return args.chunked ? position - position % args.window : position - args.window + 1;
}

// Keys before this position are read as the cache holds them: all of them, or (i4) those before the query's own block.
inline std::int64_t stored_end(const KVCache& kv, std::int64_t position) {
    return kv.type == DType::i4 ? position - position % kv.block_size : position + 1;
}

// The spans in which a tile sees a key: 0 .. sinks - 1, then first .. first + rest - 1, then the recent one, if any. Spans
// between them are hidden.
struct SpanList {
    int sinks;
    int first;
    int rest;
    int recent;

    int count() const { return sinks + rest + recent; }
    int operator[](int i) const { return i < sinks ? i : i < sinks + rest ? first + i - sinks : kRecentSpan; }

    static SpanList of(const AttentionArgs& args, const SpanShape& shape, const Tile& tile) {
        const std::int64_t end = stored_end(args.kv, tile.highest);
        const int last = end > 0 ? shape.at(end - 1) : -1;
        const std::int64_t low = first_seen(args, tile.lowest);
        const int first = low > 0 ? shape.at(low) : 0;
        int sinks = args.sinks > 0 ? shape.at(args.sinks - 1) + 1 : 0;
        if (sinks > first) sinks = first;
        if (sinks > last + 1) sinks = last + 1;
        return {sinks, first, last < first ? 0 : last - first + 1, args.kv.type == DType::i4};
    }
};

// Sixteen keys of a span. `start` counts from the tile's lowest position, so that it fits an int.
struct Panel {
    int start;                   // position of lane 0
    int valid;                   // lanes that hold a position
    int sinks;                   // lanes that are sinks
    bool open;                   // every row sees every lane
    const float* key_scales;     // i8 and e4m3, else null
    const float* value_scales;   // of codes, else null
};

// What a tile reads of a span: segments (block parts) in rising position, without those that all rows hide.
struct Span {
    int segments;
    int columns;                 // of each segment; the last panels may be hidden
    int panels;                  // of all segments, hidden last ones left out
    std::int64_t lowest;         // of the tile's positions
    bool recent;                 // i4: of each row its own block only
    std::size_t row_stride;      // bytes between steps of two features (f32: one, whole numbers: four) of keys
    const void* values[kSpanPanels];      // a segment each
    const char* keys[kSpanPanels];        // a panel each
    Panel panel[kSpanPanels];
};

inline int clamped(std::int64_t x, int low, int high) {
    return static_cast<int>(x < low ? low : x > high ? high : x);
}

// Turns the values of a span into bf16, and makes it read them from `expanded` (kSpanColumns * head_dim values).
inline void expand_values(DType type, Span& span, int dim, bf16_t* expanded) {
    for (int s = 0; s < span.segments; ++s) {
        const char* codes = static_cast<const char*>(span.values[s]);
        if (type == DType::i4) {
            const auto* rows = reinterpret_cast<const std::uint8_t*>(codes);
            for (int c = 0; c < span.columns; c += 2, rows += dim) {
                expand_nibble_rows(rows, rows + dim / 2, dim, expanded + static_cast<std::size_t>(c) * dim);
            }
        } else {
            expand_codes(type, codes, span.columns / 2, 2 * dim, 2 * dim, expanded);
        }
        span.values[s] = expanded;
        expanded += static_cast<std::size_t>(span.columns) * dim;
    }
}

// Calls visit(start, at) for every block of span `index` that a row of the tile may see: its first position, and its
// place in the cache, counted in blocks of one head.
template <typename F>
inline void over_blocks(const AttentionArgs& args, const SpanShape& shape, const Tile& tile, int index, F&& visit) {
    const KVCache& kv = args.kv;
    const GroupTables& tables = args.step->groups[args.group];
    const std::int32_t* table = tables.block_tables + static_cast<std::size_t>(tile.seq) * tables.table_width;
    const int dropped = tables.dropped[tile.seq], offset = shape.offset(index);
    const std::int64_t first = shape.chunks > 1 ? index / shape.chunks : static_cast<std::int64_t>(index) * shape.blocks;
    const std::int64_t low = first_seen(args, tile.lowest), end = stored_end(kv, tile.highest);
    for (std::int64_t block = first; block < first + shape.blocks; ++block) {
        const std::int64_t start = block * kv.block_size + offset;
        if (start >= end) return;
        if (start + shape.held(offset) <= low && start >= args.sinks) continue;
        const std::int64_t entry = block < tables.sink_blocks ? block : block - dropped;
        if (block >= tables.sink_blocks && entry < tables.sink_blocks) continue;  // dropped: left of every window
        visit(start, static_cast<std::size_t>(table[entry]) * kv.num_kv_heads + tile.head);
    }
}

// The same of the recent cache's blocks, from that of the tile's first row on.
inline void open_recent(const AttentionArgs& args, const Tile& tile, Span& span) {
    const KVCache kv = args.kv.recent();
    const GroupTables& tables = args.step->groups[kv.recent_group];
    const std::int32_t* table = tables.block_tables + static_cast<std::size_t>(tile.seq) * tables.table_width;
    const std::size_t block_bytes = bytes_of(kv.type, static_cast<std::size_t>(kv.block_stride) * kv.head_dim);
    span.segments = span.panels = 0;
    span.lowest = tile.lowest;
    span.recent = true;
    span.columns = kv.block_stride;
    span.row_stride = 4 * static_cast<std::size_t>(kv.block_stride);
    for (std::int64_t block = tile.lowest / kv.block_size; block * kv.block_size <= tile.highest; ++block) {
        const std::int64_t start = block * kv.block_size;
        const std::size_t at = static_cast<std::size_t>(table[block - tables.dropped[tile.seq]]) * kv.num_kv_heads + tile.head;
        const char* keys = static_cast<const char*>(kv.keys) + at * block_bytes;
        span.values[span.segments++] = static_cast<const char*>(kv.values) + at * block_bytes;
        for (int p = 0; p < span.columns && start + p <= tile.highest; p += kPanel) {
            span.keys[span.panels] = keys + 4 * p;
            span.panel[span.panels++] = {
                .start = static_cast<int>(start + p - tile.lowest),
                .valid = kPanel,
                .sinks = clamped(args.sinks - start - p, 0, kPanel),
                .open = false,
                .key_scales = nullptr,
                .value_scales = nullptr,
            };
        }
    }
}

// Finds what a tile reads of span `index`. Codes of keys that are not multiplied as they are, and keys of latent caches, are
// expanded into `expanded` (kSpanColumns * head_dim elements, after them kSpanColumns scales of i4 values); values are
// still codes.
inline void open_span(const AttentionArgs& args, const SpanShape& shape, const Tile& tile, int index,
                      char* expanded, Span& span) {
    if (index == kRecentSpan) return open_recent(args, tile, span);
    const KVCache& kv = args.kv;
    const bool coded = is_coded(kv.type), latent = kv.latent(), nibbles = kv.type == DType::i4;
    const bool in_place = !latent && (!coded || kv.whole());  // keys
    const int offset = shape.offset(index), dim = kv.head_dim;
    const std::size_t element = dtype_bytes(kv.type);  // blocks of i4 are no longer than a span, so their offset is 0
    const std::size_t key_offset = static_cast<std::size_t>(offset) * kv.key_features() * element;
    const std::size_t value_offset = static_cast<std::size_t>(offset) * dim * element;
    const std::size_t block_bytes = bytes_of(kv.type, static_cast<std::size_t>(kv.block_stride) * dim);
    auto* scales = reinterpret_cast<float*>(expanded + sizeof(bf16_t) * kSpanColumns * static_cast<std::size_t>(dim));
    const std::int64_t end = stored_end(kv, tile.highest), all_see = stored_end(kv, tile.lowest);
    span.recent = false;
    span.segments = 0;
    span.panels = 0;
    span.lowest = tile.lowest;
    span.columns = shape.width(offset);
    span.row_stride = 4 * static_cast<std::size_t>(in_place ? kv.block_stride : span.columns);
    const std::size_t expanded_bytes = static_cast<std::size_t>(span.columns) * dim * (coded ? sizeof(bf16_t) : element);
    over_blocks(args, shape, tile, index, [&](std::int64_t start, std::size_t at) {
        const char* keys = latent ? expanded : static_cast<const char*>(kv.keys) + at * block_bytes + key_offset;
        const char* values = static_cast<const char*>(kv.values) + at * block_bytes + value_offset;
        if (!in_place && !latent) {
            auto* to = reinterpret_cast<bf16_t*>(expanded);
            if (nibbles) {
                expand_nibble_keys(reinterpret_cast<const std::uint8_t*>(keys),
                                   static_cast<const bf16_t*>(kv.key_scales) + at * dim * 2, dim, kv.block_stride, to);
            } else {
                expand_codes(kv.type, keys, dim / 2, 2 * span.columns, 2 * kv.block_stride, to);
            }
            keys = expanded;
        }
        if (!in_place) expanded += expanded_bytes;
        span.values[span.segments++] = values;
        const int held = shape.held(offset);
        for (int p = 0; p < span.columns && start + p < end; p += kPanel) {
            if (latent) turn_rows(kv.type, values + static_cast<std::size_t>(p) * dim * element, dim, const_cast<char*>(keys) + 4 * p, span.row_stride);
            const std::size_t scale = at * kv.block_stride + offset + p;
            const float* value_scales = nibbles ? scales + kPanel * span.panels : coded ? kv.value_floats() + scale : nullptr;
            if (nibbles) load_bf16(static_cast<const bf16_t*>(kv.value_scales) + scale).store(scales + kPanel * span.panels);
            span.keys[span.panels] = keys + 4 * p;
            span.panel[span.panels++] = {
                .start = clamped(start + p - tile.lowest, -(1 << 30), 1 << 30),
                .valid = clamped(held - p, 0, kPanel),
                .sinks = clamped(args.sinks - start - p, 0, kPanel),
                .open = held - p >= kPanel && start + p + kPanel <= all_see && start + p >= first_seen(args, tile.highest),
                .key_scales = coded && !nibbles ? kv.key_floats() + scale : nullptr,
                .value_scales = value_scales,
            };
        }
    });
}

// Prefetches the next span into the cache in small parts while another one is computed: blocks are anywhere in memory,
// which hardware cannot predict. Tiles of one or two query rows read as fast as they can anyway.
struct Ahead {
    static constexpr int kFewestRows = 3;
    struct Region {
        const char* at;
        std::size_t bytes;
    };
    int regions = 0;
    int region = 0;
    std::size_t lines = 0;       // of all regions
    std::size_t done = 0;        // bytes of the current one
    Region of[4 * kSpanPanels];

    void prefetch(const AttentionArgs& args, const SpanShape& shape, const Tile& tile, int index) {
        regions = region = 0;
        lines = done = 0;
        if (tile.rows < kFewestRows || shape.chunks > 1 || index == kRecentSpan) return;
        const KVCache& kv = args.kv;
        const std::size_t bytes = bytes_of(kv.type, static_cast<std::size_t>(kv.block_stride) * kv.head_dim);
        const bool nibbles = kv.type == DType::i4;
        const std::size_t scales = nibbles ? sizeof(bf16_t) * kv.block_stride : sizeof(float) * kv.block_stride;
        const std::size_t key_scales = nibbles ? 2 * sizeof(bf16_t) * kv.head_dim : scales;
        over_blocks(args, shape, tile, index, [&](std::int64_t, std::size_t block) {
            if (!kv.latent()) add(kv.keys, block, bytes);
            if (!kv.latent() && is_coded(kv.type)) add(kv.key_scales, block, key_scales);
            add(kv.values, block, bytes);
            if (is_coded(kv.type)) add(kv.value_scales, block, scales);
        });
    }

    void add(const void* array, std::size_t block, std::size_t bytes) {
        of[regions++] = {static_cast<const char*>(array) + block * bytes, bytes};
        lines += (bytes + 63) / 64;
    }

    // Lines to prefetch at each of `calls` calls, besides `single` ones.
    int share(int calls, int single) const {
        const int rest = static_cast<int>(lines) - single;
        return (rest > 0 ? rest : 0) / calls + 1;
    }

    HEADRACE_METHOD void fetch(int count) {
        for (; region < regions && count > 0; --count) {
            HEADRACE_PREFETCH_L2(of[region].at + done);
            done += 64;
            if (done >= of[region].bytes) {
                ++region;
                done = 0;
            }
        }
    }
};

// What kernels call while they compute. Prefetches that come many at once wait for each other, and so do loads after them.
struct Fetch {
    Ahead* ahead;
    int share;
    HEADRACE_METHOD void operator()() const { ahead->fetch(share); }
    HEADRACE_METHOD void line() const { ahead->fetch(1); }
};

}  // namespace headrace::HEADRACE_ISA

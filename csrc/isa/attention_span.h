// Spans: the fixed ranges of positions that attention visits one after the other, and what of a span a tile of query
// rows has to touch.
//
// A span is a fixed number of whole cache blocks, or a fixed part of one large block, so about 256 positions, counted
// from position 0. It never depends on the query, on the window or on the batch: see "Batch invariance" in docs/kernels.md.
#pragma once

#include "../kernels.h"

namespace headrace::HEADRACE_ISA {

constexpr int kSpanColumns = 256;                 // keys of a span, padding included
constexpr int kSpanPanels = kSpanColumns / kPanel;
constexpr int kQueryRows = 48;                     // query rows that share a pass over the keys

struct SpanShape {
    int columns;     // of a segment (one block's part of a span), a multiple of 16
    int chunks;      // segments that a block is cut into; 1 unless a block is larger than a span
    int blocks;      // blocks of a span; 1 where chunks > 1
    int block_size;

    static SpanShape of(const KVCache& kv) {
        const int chunks = (kv.block_stride + kSpanColumns - 1) / kSpanColumns;
        if (chunks > 1) return {kSpanColumns, chunks, 1, kv.block_size};
        return {kv.block_stride, 1, kSpanColumns / kv.block_stride, kv.block_size};
    }

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

// The spans in which a tile sees a key: 0 .. sinks - 1, then first .. first + rest - 1. Spans between them are hidden.
struct SpanList {
    int sinks;
    int first;
    int rest;

    int count() const { return sinks + rest; }
    int operator[](int i) const { return i < sinks ? i : first + i - sinks; }

    static SpanList of(const AttentionArgs& args, const SpanShape& shape, const Tile& tile) {
        const int last = shape.at(tile.highest);
        const std::int64_t low = args.window > 0 ? tile.lowest - args.window + 1 : 0;
        const int first = low > 0 ? shape.at(low) : 0;
        int sinks = args.sinks > 0 ? shape.at(args.sinks - 1) + 1 : 0;
        if (sinks > first) sinks = first;
        return {sinks, first, last - first + 1};
    }
};

// Sixteen keys of a span. `start` counts from the tile's lowest position, so that it fits an int.
struct Panel {
    int start;                   // position of lane 0
    int valid;                   // lanes that hold a position
    int sinks;                   // lanes that are sinks
    const float* key_scales;     // i8, else null
    const float* value_scales;
};

// What a tile reads of a span: segments (block parts) in rising position, without those that all rows hide.
struct Span {
    int segments;
    int columns;                 // of each segment; the last panels may be hidden
    int panels;                  // of all segments, hidden last ones left out
    bool open;                   // every row sees every lane
    std::size_t row_stride;      // bytes between steps of two features (f32: one) of keys
    const void* values[kSpanPanels];      // a segment each
    const char* keys[kSpanPanels];        // a panel each
    Panel panel[kSpanPanels];
};

inline int clamped(std::int64_t x, int low, int high) {
    return static_cast<int>(x < low ? low : x > high ? high : x);
}

// Turns a segment's codes into bf16: `count` runs of `width` codes, `stride` codes apart.
inline void expand_codes(const std::int8_t* codes, int count, int width, std::size_t stride, bf16_t* out) {
    for (int i = 0; i < count; ++i, codes += stride, out += width) {
        for (int c = 0; c < width; c += 16) store_bf16(out + c, load_i8(codes + c));
    }
}

// Finds the blocks of span `index` for a tile. i8 caches are expanded into `expanded` (2 * 256 * head_dim values).
inline void open_span(const AttentionArgs& args, const SpanShape& shape, const Tile& tile, int index,
                      bf16_t* expanded, Span& span) {
    const KVCache& kv = args.kv;
    const GroupTables& tables = args.step->groups[args.group];
    const std::int32_t* table = tables.block_tables + static_cast<std::size_t>(tile.seq) * tables.table_width;
    const int dropped = tables.dropped[tile.seq];
    const int chunk = index % shape.chunks, offset = chunk * kSpanColumns;
    const std::int64_t first_block = shape.chunks > 1 ? index / shape.chunks : static_cast<std::int64_t>(index) * shape.blocks;
    const std::int64_t low = args.window > 0 ? tile.lowest - args.window + 1 : 0;
    const std::size_t size = static_cast<std::size_t>(kv.block_stride) * kv.head_dim;  // of a head's block
    const std::size_t element = dtype_bytes(kv.type);
    const int depth = kv.type == DType::f32 ? 1 : 2;  // positions, features side by side

    span.segments = 0;
    span.panels = 0;
    span.columns = offset + shape.columns > kv.block_stride ? kv.block_stride - offset : shape.columns;
    span.row_stride = 4 * static_cast<std::size_t>(kv.block_stride);
    if (kv.type == DType::i8) span.row_stride = 4 * static_cast<std::size_t>(span.columns);
    std::int64_t seen_from = INT64_MAX, seen_to = 0;
    bool full = true;
    for (int b = 0; b < shape.blocks; ++b) {
        const std::int64_t block = first_block + b, start = block * kv.block_size + offset;
        if (start > tile.highest) break;
        const int valid = kv.block_size - offset < span.columns ? kv.block_size - offset : span.columns;
        const bool out_of_window = start + valid - 1 < low;
        if (out_of_window && start >= args.sinks) continue;
        const std::int64_t entry = block < tables.sink_blocks ? block : block - dropped;
        if (block >= tables.sink_blocks && entry < tables.sink_blocks) continue;  // dropped: left of every window
        const std::size_t at = static_cast<std::size_t>(table[entry]) * kv.num_kv_heads + tile.head;
        const char* keys = static_cast<const char*>(kv.keys) + (at * size + static_cast<std::size_t>(offset) * depth) * element;
        const char* values = static_cast<const char*>(kv.values) +
                             (at * size + static_cast<std::size_t>(offset) * kv.head_dim) * element;
        if (kv.type == DType::i8) {
            const int width = 2 * span.columns;
            bf16_t* key_out = expanded;
            bf16_t* value_out = expanded + static_cast<std::size_t>(span.columns) * kv.head_dim;
            expand_codes(reinterpret_cast<const std::int8_t*>(keys), kv.head_dim / 2, width,
                         2 * static_cast<std::size_t>(kv.block_stride), key_out);
            expand_codes(reinterpret_cast<const std::int8_t*>(values), span.columns / 2, 2 * kv.head_dim,
                         2 * static_cast<std::size_t>(kv.head_dim), value_out);
            expanded = value_out + static_cast<std::size_t>(span.columns) * kv.head_dim;
            keys = reinterpret_cast<const char*>(key_out);
            values = reinterpret_cast<const char*>(value_out);
        }
        span.values[span.segments++] = values;
        for (int p = 0; p < span.columns; p += kPanel) {
            if (start + p > tile.highest && p >= kPanel) break;  // behind every row; a segment's first panel stays
            const std::size_t scale = at * kv.block_stride + offset + p;
            span.keys[span.panels] = keys + 4 * p;
            span.panel[span.panels++] = {
                .start = clamped(start + p - tile.lowest, -(1 << 30), 1 << 30),
                .valid = clamped(valid - p, 0, kPanel),
                .sinks = clamped(args.sinks - start - p, 0, kPanel),
                .key_scales = kv.type == DType::i8 ? kv.key_scales + scale : nullptr,
                .value_scales = kv.type == DType::i8 ? kv.value_scales + scale : nullptr,
            };
            full = full && valid - p >= kPanel;
            if (start + p < seen_from) seen_from = start + p;
            seen_to = start + p + kPanel - 1;
        }
    }
    const bool in_window = args.window == 0 || seen_from > tile.highest - args.window;
    span.open = full && in_window && seen_to <= tile.lowest;
}

}  // namespace headrace::HEADRACE_ISA

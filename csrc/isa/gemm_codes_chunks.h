// Products of int8 activations with codes that a set decodes into memory: where registers are few, a chunk of a panel is
// decoded once, in the first cache, and the rows go over it. That part is compiled once for all formats.
#pragma once

#include "code_formats.h"
#include "code_side.h"

namespace headrace::HEADRACE_ISA {

constexpr int kChunkRows = 96;  // rows that go over a decoded chunk

// What a chunk of a panel becomes, and what tiles leave there for the next chunk of the same span.
struct Chunk {
    int begin, end;
    const std::uint8_t* codes;  // 64 bytes for each 4 features
    Side side;
    alignas(64) std::uint8_t memory[kChunkFeatures * kPanel];
    alignas(64) std::int32_t sums[kChunkRows][kPanel];  // of a span that is longer than the chunk
};

// R rows, from `row` of the block on, by the chunk. The lines from `ask` on are prefetched meanwhile, `ask_step` bytes
// further with each 4 features.
template <bool kSmall, int R>
static void chunk_tile(const CodeTile& tile, int row, Chunk& chunk, const std::uint8_t* ask, std::size_t ask_step) {
    const Matrix& w = *tile.weight;
    const bool carried = chunk.begin % w.span != 0, accumulate = chunk.begin >= w.span;
    const bool complete = chunk.end % w.span == 0 || chunk.end == w.cols_padded;
    F32x16 acc[R];
    float* out = tile.out + row * tile.out_stride;
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        acc[r] = accumulate ? F32x16::load(out + r * tile.out_stride) : F32x16::zero();
    }
    const int span = chunk.begin / w.span;
    const std::size_t first = static_cast<std::size_t>(tile.row + row) * tile.in->groups + span;
    const std::size_t stride = tile.in->groups * sizeof(float);
    RowPointers activations = RowPointers::of(tile.activations<char>(row, chunk.begin), tile.in->stride);
    RowPointers totals = RowPointers::of(tile.in->sums + first, stride), scales = RowPointers::of(tile.in->scales + first, stride);
    std::size_t at = 0;
    for (int k = chunk.begin, part = 0; k < chunk.end; k += w.span, ++part) {
        I32x16 sums[R];
        const I32x16 start = I32x16::load(chunk.side.starts[part]);
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            sums[r] = carried ? I32x16::load(chunk.sums[row + r])
                              : I32x16::broadcast(*static_cast<const std::int32_t*>(totals.at(r))) * start;
        }
        for (int left = least(w.span, chunk.end - k); left > 0; left -= 4, at += 64) {
            const Codes codes = Codes::load(chunk.codes + at);
            HEADRACE_PREFETCH(ask);
            ask += ask_step;
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                sums[r] = dot_codes<kSmall>(sums[r], codes, static_cast<const std::int8_t*>(activations.at(r)));
            }
            activations.move(4);
        }
        if (!complete) {
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r].store(chunk.sums[row + r]);
            return;
        }
        const F32x16 weight_scales = F32x16::load(chunk.side.scales[part]);
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            const F32x16 scale = F32x16::broadcast(*static_cast<const float*>(scales.at(r)));
            acc[r] = add_scaled(acc[r], sums[r], weight_scales, scale);
        }
        totals.move(sizeof(std::int32_t));
        scales.move(sizeof(float));
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) acc[r].store(out + r * tile.out_stride);
}

template <bool kSmall, int R>
HEADRACE_INLINE void chunk_tile_of(const CodeTile& tile, int rows, int row, Chunk& chunk, const std::uint8_t* ask,
                                   std::size_t ask_step) {
    if constexpr (R > 1) {
        if (rows < R) return chunk_tile_of<kSmall, R - 1>(tile, rows, row, chunk, ask, ask_step);
    }
    chunk_tile<kSmall, R>(tile, row, chunk, ask, ask_step);
}

// `rows` (up to kChunkRows) rows by one panel; `next`: the panel that follows, or null.
template <bool kSmall>
static void chunk_panel(const CodeTile& tile, int rows, const std::uint8_t* next) {
    const Matrix& w = *tile.weight;
    const Decode decode = decoder_of(w.format);
    const int passes = ceil_div(rows, kCodeRows);
    const std::size_t feature_bytes = w.panel_bytes / w.cols_padded;  // twice the bits of a code
    Chunk chunk;
    for (int begin = 0; begin < w.cols_padded; begin = chunk.end) {
        chunk.begin = begin;
        chunk.end = chunk_end(begin, w.span, w.cols_padded);
        load_scales(w, tile.panel, begin, chunk.end, w.span, chunk.side.scales);
        load_starts(w, tile.panel, begin, chunk.end, w.span, offset_of(kSmall), chunk.side.starts);
        chunk.codes = decode == nullptr ? codes_of<BytesFormat>(w, tile.panel, begin) : chunk.memory;
        if (decode != nullptr) decode(w, tile.panel, begin, chunk.end, chunk.memory);
        // Decoding waits for memory, so that the passes prefetch what is decoded next, each its part.
        const bool last = chunk.end == w.cols_padded;
        const std::uint8_t* ask = !last ? tile.codes(0) + feature_bytes * chunk.end : next != nullptr ? next : tile.codes(0);
        const std::size_t step = last && next == nullptr ? 0 : ceil_div(static_cast<int>(4 * feature_bytes), passes);
        for (int left = passes, row = 0; left > 0; --left) {
            const int some = ceil_div(rows - row, left);
            chunk_tile_of<kSmall, kCodeRows>(tile, some, row, chunk, ask, step);
            row += some;
            ask += (chunk.end - begin) / 4 * step;
        }
    }
}

}  // namespace headrace::HEADRACE_ISA

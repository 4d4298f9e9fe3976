// Products with weights of codes on tiles. The sums of a span (whole numbers) or of a group (f32 of bf16 pairs) are tiles;
// at its end they are stored, scaled and added to the products, exactly as gemm_codes.h and gemm_codes_bf16.h say.
#pragma once

#include "gemm.h"
#include "gemm_codes.h"
#include "gemm_codes_bf16.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeBlockRows = 96;  // rows whose sums are kept for a pair of panels

// A chunk of one or two panels as tiles, one after the other.
struct TileChunk {
    int begin, end;
    const char* tiles;         // of the first panel
    std::size_t panel_stride;  // bytes to those of the second
    Side side[2];
    alignas(64) std::uint8_t memory[2][kChunkFeatures * 2 * kPanel];
};

// The rows (a multiple of 32, or less than that) and panels (1 or 2) of one product, and the sums of its current span or
// group: [rows][32] of 4 bytes.
struct CodeBlock {
    const Rows* in;
    const Matrix* weight;
    int row, rows, panel, panels;
    float* out;
    std::size_t out_stride;
    unsigned char* sums;
};
constexpr std::size_t kSumsStride = 128;

template <int kRowTiles, int kPanels, bool kPairs>
HEADRACE_INLINE void run_code_steps(const char* a, std::size_t a_stride, const char* b, std::size_t panel_stride, int steps,
                                    int bytes, bool first, unsigned char* sums) {
    if (first) {
        start_sums<kRowTiles, kPanels, false>(sums, kSumsStride);
    } else {
        start_sums<kRowTiles, kPanels, true>(sums, kSumsStride);
    }
    for (int step = 0; step < steps; ++step, a += bytes, b += bytes * 16) {
        step_tiles<kRowTiles, kPanels, !kPairs>(a, a_stride, b, 64, panel_stride);
    }
    end_sums<kRowTiles, kPanels>(sums, kSumsStride);
}

// Features [k, stop) of the chunk, of one span or group. `bytes`: of activations in a row of a tile.
template <bool kPairs>
HEADRACE_INLINE void run_code_rows(const CodeBlock& block, const TileChunk& chunk, int k, int stop, int bytes, bool first) {
    constexpr int kFeatureBytes = kPairs ? 2 : 1;
    const std::size_t stride = block.in->stride;
    const int steps = (stop - k) * kFeatureBytes / bytes;
    const char* a = static_cast<const char*>(block.in->data) + block.row * stride + static_cast<std::size_t>(k) * kFeatureBytes;
    const char* b = chunk.tiles + static_cast<std::size_t>(k - chunk.begin) * kFeatureBytes * kPanel;
    const int rows = block.rows;  // a multiple of 32, or less than that
    shape_tiles(least(16, rows), rows % 32 == 0 ? 16 : largest(0, rows - 16), bytes);
    const auto run = rows > 16 ? (block.panels == 2 ? run_code_steps<2, 2, kPairs> : run_code_steps<2, 1, kPairs>)
                               : (block.panels == 2 ? run_code_steps<1, 2, kPairs> : run_code_steps<1, 1, kPairs>);
    for (int row = 0; row < rows; row += 32) {
        run(a + row * stride, stride, b, chunk.panel_stride, steps, bytes, first, block.sums + row * kSumsStride);
    }
}

// products = fma(sums, scales, products) for part `part` of the chunk, which is span or group `index` of the row; sums of
// whole numbers start without their zeros here.
template <bool kPairs>
static void add_part(const CodeBlock& block, const TileChunk& chunk, int part, int index) {
    for (int p = 0; p < block.panels; ++p) {
        const Side& side = chunk.side[p];
        const F32x16 scale = F32x16::load(side.scales[part]);
        for (int r = 0; r < block.rows; ++r) {
            float* out = block.out + r * block.out_stride + kPanel * p;
            const unsigned char* sums = block.sums + r * kSumsStride + 64 * p;
            const F32x16 before = index == 0 ? F32x16::zero() : F32x16::load(out);
            if constexpr (kPairs) {
                fma(F32x16::load(reinterpret_cast<const float*>(sums)), scale, before).store(out);
            } else {
                const std::size_t at = static_cast<std::size_t>(block.row + r) * block.in->groups + index;
                const I32x16 total = I32x16::broadcast(block.in->sums[at]);
                const F32x16 row_scale = F32x16::broadcast(block.in->scales[at]);
                const I32x16 start = total * I32x16::load(side.starts[part]);
                const I32x16 whole = I32x16::load(reinterpret_cast<const std::int32_t*>(sums)) + start;
                add_scaled(before, whole, scale, row_scale).store(out);
            }
        }
    }
}

template <bool kPairs>
static void multiply_code_block(const CodeBlock& block) {
    const Matrix& w = *block.weight;
    const Decode decode = kPairs ? pair_decoder_of(w.format) : decoder_of(w.format);
    const int size = kPairs ? w.group : w.span;
    const int most = kPairs ? 32 : 64;  // features of a row of a tile, or fewer where a part is no multiple of them
    const int features = size % most == 0 ? most : size % (most / 2) == 0 ? most / 2 : 16;
    const int bytes = features * (kPairs ? 2 : 1);
    TileChunk chunk;
    for (chunk.begin = 0; chunk.begin < w.cols_padded; chunk.begin = chunk.end) {
        const int begin = chunk.begin, end = chunk.end = chunk_end(begin, size, w.cols_padded);
        for (int p = 0; p < block.panels; ++p) {
            load_scales(w, block.panel + p, begin, end, size, chunk.side[p].scales);
            if (!kPairs) load_starts(w, block.panel + p, begin, end, size, 0, chunk.side[p].starts);
            if (decode != nullptr) decode(w, block.panel + p, begin, end, chunk.memory[p]);
        }
        chunk.tiles = reinterpret_cast<const char*>(chunk.memory);
        chunk.panel_stride = sizeof chunk.memory[0];
        if (decode == nullptr) {  // panels are tiles as they lie
            const std::uint8_t* codes = codes_of<BytesFormat>(w, block.panel, begin);
            chunk.tiles = reinterpret_cast<const char*>(codes);
            chunk.panel_stride = w.panel_bytes;
            for (int p = 0; p < block.panels; ++p) {  // hardware does not prefetch far enough between products
                const std::uint8_t* at = codes + p * w.panel_bytes + kCodesAhead;
                for (int i = 0; i < (end - begin) * kPanel; i += 64) HEADRACE_PREFETCH(at + i);
            }
        }
        for (int k = begin, part = 0; k < end; ++part) {
            const int index = k / size, part_end = least((index + 1) * size, w.cols_padded), stop = least(part_end, end);
            run_code_rows<kPairs>(block, chunk, k, stop, bytes, k == index * size);
            if (stop == part_end) add_part<kPairs>(block, chunk, part, index);
            k = stop;
        }
    }
}

// With the same bits as gemm_codes.h for int8 activations: their sums are whole numbers, and scales are applied in the same
// order. So few such rows are left to it; they read memory as fast without tiles.
static void gemm_codes_amx(const Rows& in, int row, int rows, const Matrix& weight, int panel, int panels, float* out,
                           std::size_t out_stride, int next_panel) {
    if (in.type == DType::i8 && rows <= kCodeRows) {
        gemm_whole_codes(in, row, rows, weight, panel, panels, out, out_stride, next_panel);
        return;
    }
    const TileScope scope;
    alignas(64) unsigned char sums[kCodeBlockRows * kSumsStride];
    const auto run = in.type == DType::bf16 ? multiply_code_block<true> : multiply_code_block<false>;
    for (int p = 0; p < panels; p += 2) {
        for (int r = 0; r < rows;) {
            const int left = rows - r, some = left < 32 ? left : least(kCodeBlockRows, left / 32 * 32);
            run({&in, &weight, row + r, some, panel + p, least(2, panels - p), out + r * out_stride + kPanel * p, out_stride,
                 sums});
            if (in.type == DType::i8 && has_minima(weight)) {
                alignas(64) float lows[kCodeBlockRows * kLowsStride];
                multiply_minima(in, row + r, some, weight, panel + p, least(2, panels - p), lows);
                add_lows(lows, some, least(2, panels - p), out + r * out_stride + kPanel * p, out_stride);
            }
            r += some;
        }
    }
}

}  // namespace headrace::HEADRACE_ISA

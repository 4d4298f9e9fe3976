// Products with int8 and int4 weights on tiles. A group's sums (whole numbers, or f32 of bf16 pairs) are tiles; at its
// end they are stored, scaled and added to the products, exactly as gemm_codes.h says.
#pragma once

#include "gemm.h"
#include "gemm_codes.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeBlockRows = 96;  // rows whose sums are kept for a pair of panels

// Turns a chunk of a panel into tiles, unless they are tiles already (int8 with int8 activations).
constexpr int kChunkTiles = 8;  // tiles that a chunk of one panel becomes
struct CodeChunk {
    alignas(64) unsigned char tiles[2][kChunkTiles][1024];
};

template <bool kNibbles, bool kPairs>
HEADRACE_INLINE void expand_codes(const std::uint8_t* codes, int features, const std::uint8_t* zeros, unsigned char* to) {
    if constexpr (kPairs) {
        using Decoder = typename CodePairs<kNibbles>::Type;
        constexpr int kStep = kNibbles ? 8 : 4;
        const Decoder decoder = Decoder::of(zeros);
        for (int k = 0; k < features; k += kStep, codes += 64, to += kStep * 32) {
            Pairs pairs[kStep / 2];
            decoder(Codes::load(codes), pairs);
            for (int j = 0; j < kStep / 2; ++j) pairs[j].store(to + 64 * j);
        }
    } else {
        for (int k = 0; k < features; k += 8, codes += 64, to += 128) {
            const Codes both = Codes::load(codes);
            low_nibbles(both).store(to);
            high_nibbles(both).store(to + 64);
        }
    }
}

// The rows (a multiple of 32, or less than that) and panels (1 or 2) of one product, and the sums of its current group: [rows][32] of 4 bytes.
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

template <bool kPairs>
HEADRACE_INLINE void run_code_rows(const CodeBlock& block, const char* b, std::size_t panel_stride, int k, int features,
                                   int bytes, bool first) {
    constexpr int kFeatureBytes = kPairs ? 2 : 1;
    const std::size_t stride = block.in->stride;
    const int steps = features * kFeatureBytes / bytes;
    const char* a = static_cast<const char*>(block.in->data) + block.row * stride + static_cast<std::size_t>(k) * kFeatureBytes;
    const int rows = block.rows;  // a multiple of 32, or less than that
    shape_tiles(least(16, rows), rows % 32 == 0 ? 16 : largest(0, rows - 16), bytes);
    const auto run = rows > 16 ? (block.panels == 2 ? run_code_steps<2, 2, kPairs> : run_code_steps<2, 1, kPairs>)
                               : (block.panels == 2 ? run_code_steps<1, 2, kPairs> : run_code_steps<1, 1, kPairs>);
    for (int row = 0; row < rows; row += 32) {
        run(a + row * stride, stride, b, panel_stride, steps, bytes, first, block.sums + row * kSumsStride);
    }
}

// products = fma(sums, scales, products), a group's sums having been taken without their zeros (whole numbers).
template <bool kNibbles, bool kPairs>
static void add_group(const CodeBlock& block, int group) {
    const Matrix& w = *block.weight;
    for (int p = 0; p < block.panels; ++p) {
        const std::size_t place = (static_cast<std::size_t>(block.panel + p) * w.groups + group) * kPanel;
        const F32x16 scale = load_f16(w.scales + place);
        const I32x16 zero = w.zeros == nullptr ? I32x16::broadcast(kNibbles ? 8 : 128) : load_bytes(w.zeros + place);
        for (int r = 0; r < block.rows; ++r) {
            float* out = block.out + r * block.out_stride + kPanel * p;
            const unsigned char* sums = block.sums + r * kSumsStride + 64 * p;
            const F32x16 before = group == 0 ? F32x16::zero() : F32x16::load(out);
            if constexpr (kPairs) {
                fma(F32x16::load(reinterpret_cast<const float*>(sums)), scale, before).store(out);
            } else {
                const std::size_t at = static_cast<std::size_t>(block.row + r) * block.in->groups + group;
                const I32x16 whole = I32x16::load(reinterpret_cast<const std::int32_t*>(sums)) -
                                     zero * I32x16::broadcast(block.in->sums[at]);
                fma(to_float(whole), scale * F32x16::broadcast(block.in->scales[at]), before).store(out);
            }
        }
    }
}

template <bool kNibbles, bool kPairs>
static void multiply_code_block(const CodeBlock& block) {
    const Matrix& w = *block.weight;
    constexpr bool kAsStored = !kNibbles && !kPairs;
    constexpr int kTileFeatures = kPairs ? 32 : 64;
    const int bytes = !kPairs && w.group % 64 != 0 ? 32 : 64;  // groups of 32 codes are half a tile
    const auto codes = [&](int p, int k) {
        return static_cast<const std::uint8_t*>(w.data) + (block.panel + p) * w.panel_bytes +
               static_cast<std::size_t>(k) * (kNibbles ? 8 : 16);
    };
    // Prefetches the lines kCodesAhead bytes after a chunk; hardware does not prefetch far enough between products.
    const auto ask = [&](int k, int features) {
        const int bytes_here = features * (kNibbles ? 8 : 16);
        for (int p = 0; p < block.panels; ++p) {
            const std::uint8_t* at = codes(p, k) + kCodesAhead;
            for (int i = 0; i < bytes_here; i += 64) HEADRACE_PREFETCH(at + i);
        }
    };
    CodeChunk chunk;
    for (int g = 0; g < w.groups; ++g) {
        const int begin = g * w.group, end = least(begin + w.group, w.cols_padded);
        constexpr int most = kChunkTiles * kTileFeatures;
        for (int k = begin; k < end; k += most) {
            const int features = least(most, end - k);
            ask(k, features);
            if constexpr (kAsStored) {
                run_code_rows<kPairs>(block, reinterpret_cast<const char*>(codes(0, k)), w.panel_bytes, k, features, bytes,
                                      k == begin);
            } else {
                for (int p = 0; p < block.panels; ++p) {
                    const std::size_t place = (static_cast<std::size_t>(block.panel + p) * w.groups + g) * kPanel;
                    const std::uint8_t* zeros = w.zeros == nullptr ? nullptr : w.zeros + place;
                    expand_codes<kNibbles, kPairs>(codes(p, k), features, zeros, chunk.tiles[p][0]);
                }
                run_code_rows<kPairs>(block, reinterpret_cast<const char*>(chunk.tiles), sizeof chunk.tiles[0], k, features,
                                      bytes, k == begin);
            }
        }
        add_group<kNibbles, kPairs>(block, g);
    }
}

// As gemm_codes of gemm_codes.h, with the same bits for int8 activations: their sums are whole numbers, and scales are
// applied in the same order. So few such rows are left to it; they read memory as fast without tiles.
constexpr int kFewCodeRows = 8;
static void gemm_codes_amx(const Rows& in, int row, int rows, const Matrix& weight, int panel, int panels, float* out,
                           std::size_t out_stride, int next_panel) {
    if (in.type == DType::i8 && rows <= kFewCodeRows) {
        gemm_codes(in, row, rows, weight, panel, panels, out, out_stride, next_panel);
        return;
    }
    const TileScope scope;
    alignas(64) unsigned char sums[kCodeBlockRows * kSumsStride];
    const bool nibbles = weight.format == WeightFormat::int4, pairs = in.type == DType::bf16;
    const auto run = nibbles ? (pairs ? multiply_code_block<true, true> : multiply_code_block<true, false>)
                             : (pairs ? multiply_code_block<false, true> : multiply_code_block<false, false>);
    for (int p = 0; p < panels; p += 2) {
        for (int r = 0; r < rows;) {
            const int left = rows - r, some = left < 32 ? left : least(kCodeBlockRows, left / 32 * 32);
            run({&in, &weight, row + r, some, panel + p, least(2, panels - p), out + r * out_stride + kPanel * p, out_stride,
                 sums});
            r += some;
        }
    }
}

}  // namespace headrace::HEADRACE_ISA

// Attention over int8 keys and values as products of whole numbers. A query row is rounded to 8 bits with a scale of its
// own, and so are, to 15 bits, its probabilities within a span, which carry the scales of the values. Sums of whole numbers
// are exact, so no bit depends on the order of additions: vectors and tiles give the same ones, on every instruction set.
#pragma once

#include "attention_scores.h"
#include "attention_span.h"

namespace headrace::HEADRACE_ISA {

constexpr float kLargestShort = 32767.0F;  // sums of 256 products with codes up to 127 fit 32 bits

// A row of queries is its codes, then its scale and what its sums start from: keys are stored plus 128.
struct ByteStep {
    using Element = std::int8_t;
    using Right = Codes;
    using Sum = I32x16;
    static constexpr int kStep = 4;
    static constexpr bool kWhole = true;
#if HEADRACE_TILES
    static constexpr int kTileRows = 9;
#else
    static constexpr int kTileRows = kNoTiles;
#endif
    struct Rest {
        float scale;
        std::int32_t start;
    };
    HEADRACE_INLINE Rest rest(const std::int8_t* row, int dim) {
        Rest r;
        std::memcpy(&r, row + dim, sizeof r);
        return r;
    }

    HEADRACE_INLINE int pitch(int dim) { return dim + kPanel; }
    HEADRACE_INLINE Codes right(const void* p) { return Codes::load(p); }
    HEADRACE_INLINE I32x16 add(I32x16 sum, const std::int8_t* four, Codes keys) { return dot_bytes(sum, keys, four); }
    HEADRACE_INLINE I32x16 start(const std::int8_t* row, int dim) { return I32x16::broadcast(rest(row, dim).start); }
    HEADRACE_INLINE F32x16 finish(I32x16 sum, const std::int8_t* row, int dim) {  // the sum is below 2^24: exact
        return to_float(sum) * F32x16::broadcast(rest(row, dim).scale);
    }

    static void encode(const bf16_t* from, int rows, int dim, std::int8_t* to) {
        alignas(64) float row[kMaxHeadDim];
        for (int r = 0; r < rows; ++r, from += dim, to += pitch(dim)) {
            for (int i = 0; i < dim; i += 16) load_bf16(from + i).store(row + i);
            Rest rest{quantize_head(row, dim, to), 0};
            for (int i = 0; i < dim; ++i) rest.start += to[i];
            rest.start *= kByteOffset - 128;
            std::memcpy(to + dim, &rest, sizeof rest);
        }
    }
};

// Rounds a row of weights (floats, in place) to whole numbers of 15 bits, the largest one being `top`; from 16 * panels to
// `columns` they become 0. Gives the size of a step; NaN where a weight is not finite, `sum` being that of all of them.
inline float round_weights(float* weights, int panels, int columns, float top, float sum) {
    const float inverse = top > 0.0F ? kLargestShort / top : 0.0F;
    const F32x16 factor = F32x16::broadcast(inverse < 3e38F ? inverse : 3e38F);
    auto* out = reinterpret_cast<std::int16_t*>(weights);
    for (int p = 0; p < panels; ++p) store_i16(out + 16 * p, round(F32x16::load(weights + 16 * p) * factor));
    for (int c = 16 * panels; c < columns; c += 16) store_i16(out + c, I32x16::zero());
    return top / kLargestShort + (sum - sum);
}

// mix[r][16 p + lane] = steps[r] * the sum over positions of weights[r] * codes, for Rows rows and Count panels of values.
template <int Rows, int Count, typename F>
inline void mix_block(const float* weights, std::size_t weight_stride, const Panels& values, int first, const float* steps,
                      float* mix, std::size_t mix_stride, F& meanwhile) {
    I32x16 sums[Rows][Count];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) sums[r][p] = I32x16::zero();
    }
    const auto* at = reinterpret_cast<const bf16_t*>(weights);
    for (int s = 0; s < values.num_segments; ++s) {
        const char* line = static_cast<const char*>(values.segments[s]) + first * values.panel_stride;
        for (int k = 0; k < values.k_per_segment; k += 2, at += 2, line += values.row_stride) {
            meanwhile.line();
            Pairs codes[Count];
#pragma GCC unroll 8
            for (int p = 0; p < Count; ++p) codes[p] = widen_bytes(line + p * values.panel_stride);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const Pairs both = Pairs::broadcast(offset(at, r * weight_stride));
#pragma GCC unroll 8
                for (int p = 0; p < Count; ++p) sums[r][p] = dot_shorts(sums[r][p], codes[p], both);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const F32x16 step = F32x16::broadcast(steps[r]);
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) (to_float(sums[r][p]) * step).store(mix + r * mix_stride + 16 * p);
    }
}

template <int Count, typename F>
inline void mix_rows(const float* weights, std::size_t weight_stride, int rows, const Panels& values, int first,
                     const float* steps, float* mix, std::size_t mix_stride, F& meanwhile) {
    for (int r = 0; r < rows;) {
        const int take = ceil_div(rows - r, ceil_div(rows - r, kScoreRows));  // even blocks, as in score_rows
        const float* from = offset(weights, r * weight_stride);
        float* to = mix + r * mix_stride;
        switch (take) {
            case 1: mix_block<1, Count>(from, weight_stride, values, first, steps + r, to, mix_stride, meanwhile); break;
#if defined(__AVX512F__)
            case 2: mix_block<2, Count>(from, weight_stride, values, first, steps + r, to, mix_stride, meanwhile); break;
            case 3: mix_block<3, Count>(from, weight_stride, values, first, steps + r, to, mix_stride, meanwhile); break;
            case 4: mix_block<4, Count>(from, weight_stride, values, first, steps + r, to, mix_stride, meanwhile); break;
            case 5: mix_block<5, Count>(from, weight_stride, values, first, steps + r, to, mix_stride, meanwhile); break;
#endif
            default: mix_block<kScoreRows, Count>(from, weight_stride, values, first, steps + r, to, mix_stride, meanwhile); break;
        }
        r += take;
    }
}

// Rows of 15-bit weights (stride in bytes) times codes of values, `panels` panels of 16 features; `values` has the strides
// of codes. Calls meanwhile.line() for each two positions.
template <typename F>
inline void mix_values(const float* weights, std::size_t weight_stride, int rows, const Panels& values, int panels,
                       const float* steps, float* mix, std::size_t mix_stride, F& meanwhile) {
    int p = 0;
#if defined(__AVX512F__)
    for (; rows == kEightRows && p + 2 <= panels; p += 2) {
        mix_block<kEightRows, 2>(weights, weight_stride, values, p, steps, mix + 16 * p, mix_stride, meanwhile);
    }
#endif
    for (; p + kScorePanels <= panels; p += kScorePanels) {
        mix_rows<kScorePanels>(weights, weight_stride, rows, values, p, steps, mix + 16 * p, mix_stride, meanwhile);
    }
    for (; p < panels; ++p) {
        mix_rows<1>(weights, weight_stride, rows, values, p, steps, mix + 16 * p, mix_stride, meanwhile);
    }
}

// How often a span calls meanwhile.line(): in score_tile, soften_row and mix_values.
inline int lines_meanwhile(int rows, int dim, int panels) {
    const int softmax = rows * panels;
    if (rows >= ByteStep::kTileRows) return softmax;
    const auto blocks = [rows](int count) { return ceil_div(rows, kScoreRows) * (count / kScorePanels + count % kScorePanels); };
    return blocks(panels) * dim / ByteStep::kStep + softmax + blocks(dim / kPanel) * panels * kPanel / 2;
}

#if HEADRACE_TILES
// The same on bf16 tiles, with values expanded to bf16: a weight is 256 * high + low, both of which bf16 holds, and sums of
// their products with codes are below 2^22, so they are exact in float32. A row of `columns` weights becomes two of bf16,
// kLowDigits apart. `low`: room for a product.
constexpr int kLowDigits = kSpanColumns;

inline void split_weights(float* weights, int columns) {
    alignas(64) bf16_t digits[2][kLowDigits];
    const auto* from = reinterpret_cast<const std::int16_t*>(weights);
    for (int c = 0; c < columns; c += 16) {
        const F32x16 weight = load_i16(from + c), high = to_float(round(weight * F32x16::broadcast(1.0F / 256)));
        store_bf16(digits[0] + c, high);
        store_bf16(digits[1] + c, weight - high * F32x16::broadcast(256));
    }
    std::memcpy(weights, digits, sizeof digits);
}

inline void mix_values_on_tiles(float* weights, std::size_t weight_stride, int rows, int columns, const Panels& values,
                                int panels, const float* steps, float* low, float* mix, std::size_t mix_stride) {
    for (int r = 0; r < rows; ++r) split_weights(offset(weights, r * weight_stride), columns);
    const auto* digits = reinterpret_cast<const bf16_t*>(weights);
    const auto stride = static_cast<std::size_t>(panels) * kPanel;
    gemm_bf16(digits, weight_stride, rows, values, panels, mix, mix_stride, false);
    gemm_bf16(digits + kLowDigits, weight_stride, rows, values, panels, low, stride, false);
    for (int r = 0; r < rows; ++r) {
        const F32x16 step = F32x16::broadcast(steps[r]);
        for (std::size_t i = 0; i < stride; i += 16) {
            float* to = mix + r * mix_stride + i;
            const I32x16 sum = round(F32x16::load(to)) * I32x16::broadcast(256) + round(F32x16::load(low + r * stride + i));
            (to_float(sum) * step).store(to);
        }
    }
}
#endif

}  // namespace headrace::HEADRACE_ISA

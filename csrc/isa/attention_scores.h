// Products of a tile of query rows with panels of 16 keys. A span's panels lie in several cache blocks, so each comes
// with a pointer of its own; a register tile takes panels of different blocks together.
#pragma once

#include "gemm.h"

namespace headrace::HEADRACE_ISA {

#if defined(__AVX512F__)
constexpr int kScoreRows = 6, kScorePanels = 4;  // 24 sums, 4 keys and a query in 32 registers
#else
constexpr int kScoreRows = 2, kScorePanels = 2;
#endif

// The two types that attention computes in.
struct FloatStep : F32Product {
    static constexpr bool kTiles = false;
    static void store(float* to, F32x16 v) { v.store(to); }
    static void multiply(const float* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                         std::size_t c_stride, bool accumulate) {
        gemm_f32(a, a_stride, rows, b, panels, c, c_stride, accumulate);
    }
};

struct PairStep : Bf16Product {
#if HEADRACE_TILES
    static constexpr bool kTiles = true;
#else
    static constexpr bool kTiles = false;
#endif
    static void store(bf16_t* to, F32x16 v) { store_bf16(to, v); }
    static void multiply(const bf16_t* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                         std::size_t c_stride, bool accumulate) {
        gemm_bf16(a, a_stride, rows, b, panels, c, c_stride, accumulate);
    }
};

// scores[r][16 p + lane] = sum over features in order of q[r] * keys of panel p, for Rows rows and Count panels.
template <typename Step, int Rows, int Count>
inline void score_block(const typename Step::Element* q, int dim, const char* const* panels, std::size_t row_stride,
                        float* scores, int stride) {
    F32x16 sums[Rows][Count];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) sums[r][p] = F32x16::zero();
    }
    std::size_t at = 0;
    for (int k = 0; k < dim; k += Step::kStep, at += row_stride) {
        typename Step::Right keys[Count];
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) keys[p] = Step::right(panels[p] + at);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
            for (int p = 0; p < Count; ++p) sums[r][p] = Step::add(sums[r][p], q + static_cast<long>(r) * dim + k, keys[p]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) sums[r][p].store(scores + static_cast<long>(r) * stride + 16 * p);
    }
}

template <typename Step, int Count, typename F>
inline void score_rows(const typename Step::Element* q, int rows, int dim, const char* const* panels,
                       std::size_t row_stride, float* scores, int stride, F& meanwhile) {
    for (int r = 0; r < rows;) {
        const int blocks = (rows - r + kScoreRows - 1) / kScoreRows;  // even blocks: 8 rows are 4 + 4, not 6 + 2
        const int take = (rows - r + blocks - 1) / blocks;
        const auto* from = q + static_cast<long>(r) * dim;
        float* to = scores + static_cast<long>(r) * stride;
        switch (take) {
            case 1: score_block<Step, 1, Count>(from, dim, panels, row_stride, to, stride); break;
#if defined(__AVX512F__)
            case 2: score_block<Step, 2, Count>(from, dim, panels, row_stride, to, stride); break;
            case 3: score_block<Step, 3, Count>(from, dim, panels, row_stride, to, stride); break;
            case 4: score_block<Step, 4, Count>(from, dim, panels, row_stride, to, stride); break;
            case 5: score_block<Step, 5, Count>(from, dim, panels, row_stride, to, stride); break;
#endif
            default: score_block<Step, kScoreRows, Count>(from, dim, panels, row_stride, to, stride); break;
        }
        r += take;
        meanwhile();
    }
}

#if HEADRACE_TILES
// As score_block, on tiles: up to 32 rows (two rows of tiles) by one or two panels, wherever these lie.
template <int kRowTiles, int kPanels>
inline void score_block_on_tiles(const bf16_t* q, int dim, const char* const* panels, std::size_t row_stride, float* scores,
                                 int stride, int step) {
    const std::size_t apart = kPanels == 2 ? static_cast<std::size_t>(panels[1] - panels[0]) : 0;
    start_sums<kRowTiles, kPanels, false>(scores, 0);
    for (int k = 0; k < dim; k += step) {
        step_tiles<kRowTiles, kPanels, false>(reinterpret_cast<const char*>(q + k), 2 * static_cast<std::size_t>(dim),
                                              panels[0] + k / 2 * row_stride, row_stride, apart);
    }
    end_sums<kRowTiles, kPanels>(scores, sizeof(float) * static_cast<std::size_t>(stride));
}

template <typename F>
inline void score_on_tiles(const bf16_t* q, int rows, int dim, const char* const* panels, int count, std::size_t row_stride,
                           float* scores, int stride, F& meanwhile) {
    const int step = dim % 32 == 0 ? 32 : 16;
    for (int row = 0; row < rows; row += 32) {
        const int some = least(32, rows - row);
        shape_tiles(least(16, some), largest(0, some - 16), 2 * step);
        for (int p = 0; p < count; p += 2) {
            const bool two = count - p >= 2;
            const auto block = some > 16 ? (two ? score_block_on_tiles<2, 2> : score_block_on_tiles<2, 1>)
                                         : (two ? score_block_on_tiles<1, 2> : score_block_on_tiles<1, 1>);
            block(q + static_cast<long>(row) * dim, dim, panels + p, row_stride,
                  scores + static_cast<long>(row) * stride + 16 * p, stride, step);
            meanwhile();
        }
    }
}
#endif

template <typename Step>
inline int score_pauses(int rows, int panels) {
    if constexpr (Step::kTiles) return ceil_div(rows, 32) * ceil_div(panels, 2);
    return ceil_div(rows, kScoreRows) * (panels / kScorePanels + panels % kScorePanels);
}

// scores[r][16 p + lane] for `count` panels, in columns 0..16 * count - 1 of each row of `scores`. `meanwhile` is called
// between register tiles, score_pauses() times.
template <typename Step, typename F>
inline void score_tile(const typename Step::Element* q, int rows, int dim, const char* const* panels, int count,
                       std::size_t row_stride, float* scores, int stride, F&& meanwhile) {
#if HEADRACE_TILES
    if constexpr (Step::kTiles) {
        score_on_tiles(q, rows, dim, panels, count, row_stride, scores, stride, meanwhile);
        return;
    }
#endif
    int p = 0;
    for (; p + kScorePanels <= count; p += kScorePanels) {
        score_rows<Step, kScorePanels>(q, rows, dim, panels + p, row_stride, scores + 16 * p, stride, meanwhile);
    }
    for (; p < count; ++p) score_rows<Step, 1>(q, rows, dim, panels + p, row_stride, scores + 16 * p, stride, meanwhile);
}

}  // namespace headrace::HEADRACE_ISA

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

constexpr int kEightRows = 8;  // of eight heads that share keys: whole numbers take them at once, by two panels
constexpr int kNoTiles = 1 << 30;

// What attention computes in: how a query row meets keys. kTileRows: so many rows and more take tiles. A row of queries is
// pitch() elements; a sum starts from start() of its row, and finish() makes a score of it.
struct FloatStep : F32Product {
    using Sum = F32x16;
    static constexpr int kTileRows = kNoTiles;
    static constexpr bool kWhole = false;
    HEADRACE_INLINE int pitch(int dim) { return dim; }
    HEADRACE_INLINE F32x16 start(const float*, int) { return F32x16::zero(); }
    HEADRACE_INLINE F32x16 finish(F32x16 sum, const float*, int) { return sum; }
    static void store(float* to, F32x16 v) { v.store(to); }
    static void multiply(const float* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                         std::size_t c_stride, bool accumulate) {
        gemm_f32(a, a_stride, rows, b, panels, c, c_stride, accumulate);
    }
};

struct PairStep : Bf16Product {
    using Sum = F32x16;
#if HEADRACE_TILES
    static constexpr int kTileRows = 1;
#else
    static constexpr int kTileRows = kNoTiles;
#endif
    static constexpr bool kWhole = false;
    HEADRACE_INLINE int pitch(int dim) { return dim; }
    HEADRACE_INLINE F32x16 start(const bf16_t*, int) { return F32x16::zero(); }
    HEADRACE_INLINE F32x16 finish(F32x16 sum, const bf16_t*, int) { return sum; }
    static void store(bf16_t* to, F32x16 v) { store_bf16(to, v); }
    static void multiply(const bf16_t* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                         std::size_t c_stride, bool accumulate) {
        gemm_bf16(a, a_stride, rows, b, panels, c, c_stride, accumulate);
    }
};

// scores[r][16 p + lane] = sum over features in order of q[r] * keys of panel p, for Rows rows and Count panels.
template <typename Step, int Rows, int Count, typename F>
inline void score_block(const typename Step::Element* q, int dim, const char* const* panels, std::size_t row_stride,
                        float* scores, int stride, F& meanwhile) {
    const long pitch = Step::pitch(dim);
    typename Step::Sum sums[Rows][Count];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) sums[r][p] = Step::start(q + r * pitch, dim);
    }
    std::size_t at = 0;
    for (int k = 0; k < dim; k += Step::kStep, at += row_stride) {
        if constexpr (Step::kWhole) meanwhile.line();
        typename Step::Right keys[Count];
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) keys[p] = Step::right(panels[p] + at);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
            for (int p = 0; p < Count; ++p) sums[r][p] = Step::add(sums[r][p], q + r * pitch + k, keys[p]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < Count; ++p) {
            Step::finish(sums[r][p], q + r * pitch, dim).store(scores + static_cast<long>(r) * stride + 16 * p);
        }
    }
}

template <typename Step, int Count, typename F>
inline void score_rows(const typename Step::Element* q, int rows, int dim, const char* const* panels,
                       std::size_t row_stride, float* scores, int stride, F& meanwhile) {
    for (int r = 0; r < rows;) {
        const int blocks = (rows - r + kScoreRows - 1) / kScoreRows;  // even blocks: 8 rows are 4 + 4, not 6 + 2
        const int take = (rows - r + blocks - 1) / blocks;
        const auto* from = q + static_cast<long>(r) * Step::pitch(dim);
        float* to = scores + static_cast<long>(r) * stride;
        switch (take) {
            case 1: score_block<Step, 1, Count>(from, dim, panels, row_stride, to, stride, meanwhile); break;
#if defined(__AVX512F__)
            case 2: score_block<Step, 2, Count>(from, dim, panels, row_stride, to, stride, meanwhile); break;
            case 3: score_block<Step, 3, Count>(from, dim, panels, row_stride, to, stride, meanwhile); break;
            case 4: score_block<Step, 4, Count>(from, dim, panels, row_stride, to, stride, meanwhile); break;
            case 5: score_block<Step, 5, Count>(from, dim, panels, row_stride, to, stride, meanwhile); break;
#endif
            default: score_block<Step, kScoreRows, Count>(from, dim, panels, row_stride, to, stride, meanwhile); break;
        }
        r += take;
        meanwhile();
    }
}

#if HEADRACE_TILES
// As score_block, on tiles: up to 32 rows (two rows of tiles) by one or two panels, wherever these lie. Sizes in bytes.
// Sums of whole numbers are left as they are, without their starts.
template <typename Step, int kRowTiles, int kPanels>
inline void score_block_on_tiles(const char* q, std::size_t pitch, int row_bytes, const char* const* panels,
                                 std::size_t row_stride, float* scores, int stride, int step) {
    const std::size_t apart = kPanels == 2 ? static_cast<std::size_t>(panels[1] - panels[0]) : 0;
    start_sums<kRowTiles, kPanels, false>(scores, 0);
    for (int k = 0; k < row_bytes; k += step) {
        step_tiles<kRowTiles, kPanels, Step::kWhole>(q + k, pitch, panels[0] + k / 4 * row_stride, row_stride, apart);
    }
    end_sums<kRowTiles, kPanels>(scores, sizeof(float) * static_cast<std::size_t>(stride));
}

template <typename Step, typename F>
inline void score_on_tiles(const typename Step::Element* q, int rows, int dim, const char* const* panels, int count,
                           std::size_t row_stride, float* scores, int stride, F& meanwhile) {
    constexpr int kElement = sizeof(typename Step::Element);
    const int bytes = dim * kElement, step = bytes % 64 == 0 ? 64 : bytes % 32 == 0 ? 32 : 16;
    const long pitch = Step::pitch(dim);
    for (int row = 0; row < rows; row += 32) {
        const int some = least(32, rows - row);
        shape_tiles(least(16, some), largest(0, some - 16), step);
        for (int p = 0; p < count; p += 2) {
            const bool two = count - p >= 2;
            const auto block = some > 16 ? (two ? score_block_on_tiles<Step, 2, 2> : score_block_on_tiles<Step, 2, 1>)
                                         : (two ? score_block_on_tiles<Step, 1, 2> : score_block_on_tiles<Step, 1, 1>);
            float* to = scores + static_cast<long>(row) * stride + 16 * p;
            block(reinterpret_cast<const char*>(q + row * pitch), static_cast<std::size_t>(pitch) * kElement, bytes, panels + p,
                  row_stride, to, stride, step);
            if constexpr (Step::kWhole) {
                for (int r = 0; r < some; ++r, to += stride) {
                    const auto* of_row = q + (row + r) * pitch;
                    for (int i = 0; i < (two ? 2 : 1); ++i) {
                        const I32x16 sum = I32x16::load(reinterpret_cast<const std::int32_t*>(to) + 16 * i);
                        Step::finish(sum + Step::start(of_row, dim), of_row, dim).store(to + 16 * i);
                    }
                }
            }
            meanwhile();
        }
    }
}
#endif

template <typename Step>
inline int score_pauses(int rows, int panels) {
    if (rows >= Step::kTileRows) return ceil_div(rows, 32) * ceil_div(panels, 2);
    return ceil_div(rows, kScoreRows) * (panels / kScorePanels + panels % kScorePanels);
}

// `meanwhile` where there is nothing to do.
struct Nothing {
    void operator()() const {}
    void line() const {}
};

// scores[r][16 p + lane] for `count` panels, in columns 0..16 * count - 1 of each row of `scores`. `meanwhile` is called
// between register tiles, score_pauses() times; its line() for each step of features of whole numbers, if they take no tiles.
template <typename Step, typename F>
inline void score_tile(const typename Step::Element* q, int rows, int dim, const char* const* panels, int count,
                       std::size_t row_stride, float* scores, int stride, F&& meanwhile) {
#if HEADRACE_TILES
    if constexpr (Step::kTileRows < kNoTiles) {
        if (rows >= Step::kTileRows) {
            score_on_tiles<Step>(q, rows, dim, panels, count, row_stride, scores, stride, meanwhile);
            return;
        }
    }
#endif
    int p = 0;
#if defined(__AVX512F__)
    if constexpr (Step::kWhole) {
        for (; rows == kEightRows && p + 2 <= count; p += 2) {
            score_block<Step, kEightRows, 2>(q, dim, panels + p, row_stride, scores + 16 * p, stride, meanwhile);
            meanwhile();
        }
    }
#endif
    for (; p + kScorePanels <= count; p += kScorePanels) {
        score_rows<Step, kScorePanels>(q, rows, dim, panels + p, row_stride, scores + 16 * p, stride, meanwhile);
    }
    for (; p < count; ++p) score_rows<Step, 1>(q, rows, dim, panels + p, row_stride, scores + 16 * p, stride, meanwhile);
}

}  // namespace headrace::HEADRACE_ISA

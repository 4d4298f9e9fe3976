// Products of bf16 rows with panels on tiles: a panel's sixteen pairs of input features are a tile as they are stored.
// Two by two tiles of sums; each output adds its input features in steps of 32 (16 where a segment is no multiple of
// 32), in rising order, for one row as for many.
#pragma once

#include "tiles.h"

namespace headrace::HEADRACE_ISA {

template <int kRowTiles, int kPanels, bool kLoad>
HEADRACE_INLINE void start_sums(const void* c, std::size_t stride) {
    const char* below = static_cast<const char*>(c) + 16 * stride;
    const auto at = [&](const void* base, int panel) { return static_cast<const char*>(base) + 64 * panel; };
    if constexpr (!kLoad) {
        zero_tile<0>();
        if constexpr (kPanels == 2) zero_tile<1>();
        if constexpr (kRowTiles == 2) zero_tile<2>();
        if constexpr (kRowTiles == 2 && kPanels == 2) zero_tile<3>();
    } else {
        load_tile<0>(at(c, 0), stride);
        if constexpr (kPanels == 2) load_tile<1>(at(c, 1), stride);
        if constexpr (kRowTiles == 2) load_tile<2>(at(below, 0), stride);
        if constexpr (kRowTiles == 2 && kPanels == 2) load_tile<3>(at(below, 1), stride);
    }
}

template <int kRowTiles, int kPanels>
HEADRACE_INLINE void end_sums(void* c, std::size_t stride) {
    char* top = static_cast<char*>(c);
    char* below = top + 16 * stride;
    store_tile<0>(top, stride);
    if constexpr (kPanels == 2) store_tile<1>(top + 64, stride);
    if constexpr (kRowTiles == 2) store_tile<2>(below, stride);
    if constexpr (kRowTiles == 2 && kPanels == 2) store_tile<3>(below + 64, stride);
}

// One step along the input features: a tile of activations for each row of tiles, a tile of weights for each panel.
template <int kRowTiles, int kPanels, bool kWhole>
HEADRACE_INLINE void step_tiles(const char* a, std::size_t a_stride, const char* b, std::size_t b_stride,
                                std::size_t panel_stride) {
    load_tile<4>(a, a_stride);
    load_tile<6>(b, b_stride);
    if constexpr (kWhole) dot_tiles_i8<0, 4, 6>(); else dot_tiles_bf16<0, 4, 6>();
    if constexpr (kPanels == 2) {
        load_tile<7>(b + panel_stride, b_stride);
        if constexpr (kWhole) dot_tiles_i8<1, 4, 7>(); else dot_tiles_bf16<1, 4, 7>();
    }
    if constexpr (kRowTiles == 2) {
        load_tile<5>(a + 16 * a_stride, a_stride);
        if constexpr (kWhole) dot_tiles_i8<2, 5, 6>(); else dot_tiles_bf16<2, 5, 6>();
        if constexpr (kPanels == 2) {
            if constexpr (kWhole) dot_tiles_i8<3, 5, 7>(); else dot_tiles_bf16<3, 5, 7>();
        }
    }
}

// Prefetches `lines` lines of `ahead` with every step.
template <int kRowTiles, int kPanels>
static void tile_block(const bf16_t* a, std::size_t a_stride, const Panels& b, int first, float* c, std::size_t c_stride,
                       bool accumulate, int step, const void* ahead, int lines) {
    const std::size_t stride = c_stride * sizeof(float);
    if (accumulate) {
        start_sums<kRowTiles, kPanels, true>(c, stride);
    } else {
        start_sums<kRowTiles, kPanels, false>(c, stride);
    }
    const char* left = reinterpret_cast<const char*>(a);
    for (int s = 0; s < b.num_segments; ++s) {
        const char* right = static_cast<const char*>(b.segments[s]) + first * b.panel_stride;
        for (int k = 0; k < b.k_per_segment; k += step) {
            for (int line = 0; line < lines; ++line) {
                HEADRACE_PREFETCH(ahead);
                ahead = offset(ahead, 64);
            }
            step_tiles<kRowTiles, kPanels, false>(left, a_stride, right, b.row_stride, b.panel_stride);
            left += step * sizeof(bf16_t);
            right += step / 2 * b.row_stride;
        }
    }
    end_sums<kRowTiles, kPanels>(c, stride);
}

// Pairs of panels outside, so that they stay in the first cache while the rows pass.
static void tile_rows(const bf16_t* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                      std::size_t c_stride, bool accumulate) {
    const int step = b.k_per_segment % 32 == 0 ? 32 : 16;
    shape_tiles(least(16, rows), rows % 32 == 0 ? 16 : largest(0, rows - 16), 2 * step);
    for (int p = 0; p < panels; p += 2) {
        const int some = least(2, panels - p);
        const auto block = rows > 16 ? (some == 2 ? tile_block<2, 2> : tile_block<2, 1>)
                                     : (some == 2 ? tile_block<1, 2> : tile_block<1, 1>);
        // As many panels ahead as are used here, all of them while the first rows pass.
        const int lines = b.ahead == nullptr ? 0 : some * step / 2;
        for (int row = 0; row < rows; row += 32) {
            block(offset(a, row * a_stride), a_stride, b, p, c + row * c_stride + p * kPanel, c_stride, accumulate, step,
                  offset(b.ahead, p * b.panel_stride), row == 0 ? lines : 0);
        }
    }
}

// As gemm_bf16 of gemm.h; k_per_segment is a multiple of 16.
static void gemm_bf16(const bf16_t* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                      std::size_t c_stride, bool accumulate) {
    const TileScope scope;
    const int whole = rows / 32 * 32;  // whole tiles first, so that tiles are configured twice at most
    if (whole > 0) tile_rows(a, a_stride, whole, b, panels, c, c_stride, accumulate);
    if (rows == whole) return;
    tile_rows(offset(a, whole * a_stride), a_stride, rows - whole, b, panels, c + whole * c_stride, c_stride, accumulate);
}

}  // namespace headrace::HEADRACE_ISA

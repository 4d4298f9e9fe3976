// Products of rows with panels: the register tiles. One accumulator a (row, output feature) runs through the input
// features in order, so a row's result does not depend on the rows beside it or on how the driver cuts the work.
#pragma once

#include <cstddef>

#include "../tensors.h"

namespace headrace::HEADRACE_ISA {

// The right-hand side of a product: panels of 16 output features, in segments along the input features. A weight
// matrix is one segment; the blocks of a KV cache are segments for the product with the values.
struct Panels {
    const void* const* segments;  // panel 0 of each
    int num_segments;
    std::size_t row_stride;       // bytes from one k (f32) or pair of k (bf16) to the next
    std::size_t panel_stride;     // bytes from panel to panel
    int k_per_segment;            // bf16: even
};

#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTilePanels = 4;  // 24 of 32 registers hold sums
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kTilePanels = 1;  // 12 of 16 (two a panel)
#else
constexpr int kTileRows = 4, kTilePanels = 1;
#endif

struct F32Product {
    using Element = float;
    using Right = F32x16;
    static constexpr int kStep = 1;  // input features a panel row
    HEADRACE_INLINE Right right(const void* p) { return F32x16::load(static_cast<const float*>(p)); }
    HEADRACE_INLINE F32x16 add(F32x16 sum, const float* a, Right b) { return fma(F32x16::broadcast(*a), b, sum); }
};

struct Bf16Product {
    using Element = bf16_t;
    using Right = Pairs;
    static constexpr int kStep = 2;
    HEADRACE_INLINE Right right(const void* p) { return Pairs::load(p); }
    HEADRACE_INLINE F32x16 add(F32x16 sum, const bf16_t* a, Right b) { return dot(sum, Pairs::broadcast(a), b); }
};

template <typename T>
HEADRACE_INLINE T* offset(T* p, std::size_t bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) + bytes);
}

// kRows rows times kPanels panels, from panel `first` on.
template <typename Product, int kRows, int kPanels>
static void tile(const typename Product::Element* a, std::size_t a_stride, const Panels& b, int first, float* c,
                 std::size_t c_stride, bool accumulate) {
    F32x16 sums[kRows][kPanels];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
            sums[r][p] = accumulate ? F32x16::load(c + r * c_stride + 16 * p) : F32x16::zero();
        }
    }
    for (int s = 0; s < b.num_segments; ++s) {
        const void* panel = offset(b.segments[s], first * b.panel_stride);
        for (int k = 0; k < b.k_per_segment; k += Product::kStep) {
            typename Product::Right right[kPanels];
#pragma GCC unroll 8
            for (int p = 0; p < kPanels; ++p) right[p] = Product::right(offset(panel, p * b.panel_stride));
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
                for (int p = 0; p < kPanels; ++p) {
                    sums[r][p] = Product::add(sums[r][p], offset(a, r * a_stride), right[p]);
                }
            }
            panel = offset(panel, b.row_stride);
            a += Product::kStep;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) sums[r][p].store(c + r * c_stride + 16 * p);
    }
}

template <typename Product, int kPanels, int kRows = kTileRows>
HEADRACE_INLINE void tile_of(int rows, const typename Product::Element* a, std::size_t a_stride, const Panels& b,
                             int first, float* c, std::size_t c_stride, bool accumulate) {
    if (rows == kRows) {
        tile<Product, kRows, kPanels>(a, a_stride, b, first, c, c_stride, accumulate);
    } else if constexpr (kRows > 1) {
        tile_of<Product, kPanels, kRows - 1>(rows, a, a_stride, b, first, c, c_stride, accumulate);
    }
}

template <typename Product>
static void gemm(const typename Product::Element* a, std::size_t a_stride, int rows, const Panels& b, int panels,
                 float* c, std::size_t c_stride, bool accumulate) {
    for (int first = 0; first < panels;) {
        const int wide = panels - first >= kTilePanels ? kTilePanels : 1;
        for (int r = 0, some; r < rows; r += some) {
            some = ceil_div(rows - r, ceil_div(rows - r, kTileRows));  // even tiles: 8 rows are 4 + 4, not 6 + 2
            float* out = c + r * c_stride + 16 * first;
            if (wide == kTilePanels) {
                tile_of<Product, kTilePanels>(some, offset(a, r * a_stride), a_stride, b, first, out, c_stride, accumulate);
            } else {
                tile_of<Product, 1>(some, offset(a, r * a_stride), a_stride, b, first, out, c_stride, accumulate);
            }
        }
        first += wide;
    }
}

// c[r][16 p + lane] (+)= the sum over segments, and over k in order, of a[r][k] * b[k][16 p + lane]. a_stride in bytes,
// c_stride in floats. k of `a` runs through the segments one after the other. Any rows >= 1 and panels >= 1.
HEADRACE_INLINE void gemm_f32(const float* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                              std::size_t c_stride, bool accumulate) {
    gemm<F32Product>(a, a_stride, rows, b, panels, c, c_stride, accumulate);
}
#if !HEADRACE_TILES
HEADRACE_INLINE void gemm_bf16(const bf16_t* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                               std::size_t c_stride, bool accumulate) {
    gemm<Bf16Product>(a, a_stride, rows, b, panels, c, c_stride, accumulate);
}

// Around many small products: see tiles.h.
struct TileScope {
    ~TileScope() {}
};
#endif

}  // namespace headrace::HEADRACE_ISA

#if HEADRACE_TILES
#include "gemm_amx.h"
#endif

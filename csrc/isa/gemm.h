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
    std::size_t row_stride;       // bytes from one k (f32) or two k (bf16, f16) to the next
    std::size_t panel_stride;     // bytes from panel to panel
    int k_per_segment;            // bf16, f16: even
    const void* ahead = nullptr;  // as many bytes of as many panels that are needed next: prefetched meanwhile
};

// A product says what a panel row (64 bytes) holds: kParts factors, which are multiplied one after the other.
struct F32Product {
    using Element = float;
    using Right = F32x16;
    static constexpr int kStep = 1, kParts = 1;  // input features a panel row
    HEADRACE_INLINE Right right(const void* p) { return F32x16::load(static_cast<const float*>(p)); }
    template <int kPart>
    HEADRACE_INLINE F32x16 factor(Right b) {
        return b;
    }
    HEADRACE_INLINE F32x16 add(F32x16 sum, const float* a, F32x16 b) { return fma(F32x16::broadcast(*a), b, sum); }
};

struct Bf16Product {
    using Element = bf16_t;
    using Right = Pairs;
    static constexpr int kStep = 2, kParts = 1;
    HEADRACE_INLINE Right right(const void* p) { return Pairs::load(p); }
    template <int kPart>
    HEADRACE_INLINE Pairs factor(Right b) {
        return b;
    }
    HEADRACE_INLINE F32x16 add(F32x16 sum, const bf16_t* a, Right b) { return dot(sum, Pairs::broadcast(a), b); }
};

// 16-bit floats meet f32: widened, which is exact, and added in the order of F32Product, so that a matrix gives the same
// bits whether it is stored in 16 bits or in 32.
struct WideBf16Product : F32Product {
    using Right = Pairs;
    static constexpr int kStep = 2, kParts = 2;
    HEADRACE_INLINE Right right(const void* p) { return Pairs::load(p); }
    template <int kPart>
    HEADRACE_INLINE F32x16 factor(Right b) {
        return kPart == 0 ? first_of_pairs(b) : second_of_pairs(b);
    }
};

struct WideF16Product : F32Product {
    using Right = const f16_t*;  // read part by part: both at once do not fit into AVX2's registers
    static constexpr int kStep = 2, kParts = 2;
    HEADRACE_INLINE Right right(const void* p) { return static_cast<const f16_t*>(p); }
    template <int kPart>
    HEADRACE_INLINE F32x16 factor(Right b) {
        return load_f16(b + kPanel * kPart);
    }
};

template <typename T>
HEADRACE_INLINE T* offset(T* p, std::size_t bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) + bytes);
}

// sums[r][p] += row r times the panel rows `right`, part by part.
template <typename Product, int kPart, int kRows, int kPanels>
HEADRACE_INLINE void add_parts(F32x16 (&sums)[kRows][kPanels], const typename Product::Element* a, std::size_t a_stride,
                               const typename Product::Right (&right)[kPanels]) {
    decltype(Product::template factor<kPart>(right[0])) factors[kPanels];
#pragma GCC unroll 32
    for (int p = 0; p < kPanels; ++p) factors[p] = Product::template factor<kPart>(right[p]);
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
        for (int p = 0; p < kPanels; ++p) {
            sums[r][p] = Product::add(sums[r][p], offset(a, r * a_stride) + kPart, factors[p]);
        }
    }
    if constexpr (kPart + 1 < Product::kParts) add_parts<Product, kPart + 1>(sums, a, a_stride, right);
}

// What a tile prefetches while it works, since products of few rows wait for memory and hardware does not prefetch far
// enough: nothing, one panel of the next ones, or (a positive number) its own panels that many lines ahead, and towards
// their end the next ones.
constexpr int kAskNothing = 0, kAskNext = -1;

// kRows rows times kPanels panels, from panel `first` on. `next`: the address of the next panels.
template <typename Product, int kRows, int kPanels, int kAsk>
static void tile(const typename Product::Element* a, std::size_t a_stride, const Panels& b, int first, float* c,
                 std::size_t c_stride, bool accumulate, const void* next) {
    F32x16 sums[kRows][kPanels];
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
        for (int p = 0; p < kPanels; ++p) {
            sums[r][p] = accumulate ? F32x16::load(c + r * c_stride + 16 * p) : F32x16::zero();
        }
    }
    const auto run = [&](const void* panel, int lines, const void* early) __attribute__((always_inline)) {
        for (int line = 0; line < lines; ++line) {
            typename Product::Right right[kPanels];
#pragma GCC unroll 32
            for (int p = 0; p < kPanels; ++p) right[p] = Product::right(offset(panel, p * b.panel_stride));
            if constexpr (kAsk != kAskNothing) {
#pragma GCC unroll 32
                for (int p = 0; p < (kAsk == kAskNext ? 1 : kPanels); ++p) {
                    HEADRACE_PREFETCH(offset(early, p * b.panel_stride));
                }
                early = offset(early, 64);
            }
            add_parts<Product, 0>(sums, a, a_stride, right);
            panel = offset(panel, b.row_stride);
            a += Product::kStep;
        }
    };
    for (int s = 0; s < b.num_segments; ++s) {
        const void* panel = offset(b.segments[s], first * b.panel_stride);
        int lines = b.k_per_segment / Product::kStep;
        if (kAsk > 0 && lines > kAsk) {
            run(panel, lines - kAsk, offset(panel, kAsk * 64));
            panel = offset(panel, (lines - kAsk) * b.row_stride);
            lines = kAsk;
        }
        run(panel, lines, next);
    }
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
        for (int p = 0; p < kPanels; ++p) sums[r][p].store(c + r * c_stride + 16 * p);
    }
}

template <typename Product>
using TileFunction = void (*)(const typename Product::Element*, std::size_t, const Panels&, int, float*, std::size_t, bool,
                      const void*);

template <typename Product, int kPanels, int kAsk, int kLeast, int kRows>
HEADRACE_INLINE TileFunction<Product> tile_of(int rows) {  // for kLeast to kRows rows
    if constexpr (kRows > kLeast) {
        if (rows < kRows) return tile_of<Product, kPanels, kAsk, kLeast, kRows - 1>(rows);
    }
    return tile<Product, kRows, kPanels, kAsk>;
}

template <typename Element>
struct GemmArgs {
    const Element* a;
    std::size_t a_stride;
    int rows;
    const Panels& b;
    int panels;
    float* c;
    std::size_t c_stride;
    bool accumulate;
};

// Panels that are taken together where `left` are left: kPanels, else two, else one. A tile of one panel has too few sums
// to keep the multipliers busy.
template <int kPanels>
HEADRACE_INLINE int panels_at_once(int left) {
    return left >= kPanels ? kPanels : left >= 2 ? 2 : 1;
}

// Few rows, kLeast to kRows: all at once, kPanels panels at a time.
template <typename Product, int kLeast, int kRows, int kPanels, int kAsk>
static void stream(const GemmArgs<typename Product::Element>& g) {
    constexpr int kAskTwo = kAsk > 0 ? kAsk * kPanels / 2 : kAsk;  // fewer adjacent panels are prefetched earlier
    const bool ask = g.b.ahead != nullptr;
    for (int first = 0, wide; first < g.panels; first += wide) {
        wide = panels_at_once<kPanels>(g.panels - first);
        const void* next = first + wide < g.panels ? offset(g.b.segments[0], (first + wide) * g.b.panel_stride) : g.b.ahead;
        const auto run = wide == 1         ? tile_of<Product, 1, kAskNothing, kLeast, kRows>(g.rows)
                         : wide == kPanels ? (ask ? tile_of<Product, kPanels, kAsk, kLeast, kRows>(g.rows)
                                                  : tile_of<Product, kPanels, kAskNothing, kLeast, kRows>(g.rows))
                                           : (ask ? tile_of<Product, 2, kAskTwo, kLeast, kRows>(g.rows)
                                                  : tile_of<Product, 2, kAskNothing, kLeast, kRows>(g.rows));
        run(g.a, g.a_stride, g.b, first, g.c + kPanel * first, g.c_stride, g.accumulate, next);
    }
}

// More rows, shared out evenly (8 rows are 4 + 4, not 6 + 2) over passes of kLeast to kRows, over kPanels panels that
// stay in the second cache meanwhile. Every pass prefetches a panel of the next ones.
template <typename Product, int kLeast, int kRows, int kPanels>
static void sweep(const GemmArgs<typename Product::Element>& g) {
    int asked = g.b.ahead == nullptr ? g.panels : 0;
    for (int first = 0, wide; first < g.panels; first += wide) {
        wide = kPanels == 1 ? 1 : panels_at_once<kPanels>(g.panels - first);
        for (int r = 0, some; r < g.rows; r += some) {
            some = ceil_div(g.rows - r, ceil_div(g.rows - r, kRows));
            const bool ask = asked < g.panels;
            const auto run = wide == 1         ? (ask ? tile_of<Product, 1, kAskNext, kLeast, kRows>(some)
                                                      : tile_of<Product, 1, kAskNothing, kLeast, kRows>(some))
                             : wide == kPanels ? (ask ? tile_of<Product, kPanels, kAskNext, kLeast, kRows>(some)
                                                      : tile_of<Product, kPanels, kAskNothing, kLeast, kRows>(some))
                                               : (ask ? tile_of<Product, least(2, kPanels), kAskNext, kLeast, kRows>(some)
                                                      : tile_of<Product, least(2, kPanels), kAskNothing, kLeast, kRows>(some));
            run(offset(g.a, r * g.a_stride), g.a_stride, g.b, first, g.c + r * g.c_stride + kPanel * first, g.c_stride,
                g.accumulate, offset(g.b.ahead, asked * g.b.panel_stride));
            asked += ask;
        }
    }
}

// The shapes are measured (one core, 2048 by 5632): rows at once fill the registers, and the fewer adjacent panels
// are read, the earlier each must be prefetched.
template <typename Product>
static void gemm(const GemmArgs<typename Product::Element>& g) {
#if defined(__AVX512F__)
    if (g.rows == 1) return stream<Product, 1, 1, 4, kOnIntel ? 32 : kAskNothing>(g);  // AMD's CPUs are slower for it
    if (g.rows <= 6) return stream<Product, 2, 6, 4, 32>(g);
    if (g.rows <= 12) return stream<Product, 7, 12, 2, 96>(g);
    if (g.rows <= 24 || g.panels <= 2) return sweep<Product, 6, 12, 2>(g);  // many threads: blocks of two panels
    sweep<Product, 5, 6, 4>(g);  // 24 of 32 registers hold sums
#elif defined(__AVX2__)
    sweep<Product, 1, 6, 1>(g);  // 12 of 16, two a panel
#else
    sweep<Product, 1, 4, 1>(g);
#endif
}

// c[r][16 p + lane] (+)= the sum over segments, and over k in order, of a[r][k] * b[k][16 p + lane]. a_stride in bytes,
// c_stride in floats. k of `a` runs through the segments one after the other. Any rows >= 1 and panels >= 1.
HEADRACE_INLINE void gemm_f32(const float* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                              std::size_t c_stride, bool accumulate) {
    gemm<F32Product>({a, a_stride, rows, b, panels, c, c_stride, accumulate});
}
#if !HEADRACE_TILES
HEADRACE_INLINE void gemm_bf16(const bf16_t* a, std::size_t a_stride, int rows, const Panels& b, int panels, float* c,
                               std::size_t c_stride, bool accumulate) {
    gemm<Bf16Product>({a, a_stride, rows, b, panels, c, c_stride, accumulate});
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

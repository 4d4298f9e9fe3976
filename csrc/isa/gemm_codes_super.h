// Products of few rows of int8 activations with codes of super-blocks, on AVX-512 and AVX2. Scales and minima are read
// where they lie, a super-block at a time, instead of being made ready in memory. No bit differs from the tiles of
// gemm_codes_direct.h: numbers are made and added in the same order.
#pragma once

#include "gemm_codes_direct.h"

namespace headrace::HEADRACE_ISA {

constexpr bool kReadsSupers = kCodePanels > 1 || kBySixteen;
constexpr std::size_t kSidesAhead = 1280;  // bytes of scales and minima that are prefetched before they are needed

// R rows by one panel, and some super-blocks.
struct SuperTile {
    const std::uint8_t* codes;
    const char* activations;  // of row 0, as those below
    std::size_t activations_stride;
    const std::int32_t* row_starts;  // of the section, from the first super-block on
    const float *row_scales, *row_sums;
    std::size_t rows_stride;    // numbers
    const std::uint8_t* sides;  // scales and minima of the super-blocks
    int supers;
    float* out;
    std::size_t out_stride;  // floats
    float* lows;             // products of minima, kLowsStride from row to row
    bool accumulate;
    PanelAhead ahead;  // in super-blocks; lines kCodesFar bytes further too, into the second cache
};

// Vector kVector of the 32 features from `at` on.
template <int kVector, class Format>
HEADRACE_INLINE Codes vector_of(const Format& format, const std::uint8_t* at) {
    return format.template vector<kVector % Format::kVectors>(at + 64 * Format::kLines * (kVector / Format::kVectors));
}

// products[r] += a group that begins with vector kFirst of `at`; `rows` move past it. `span`: its place in the section;
// `scale`: of its columns.
template <class Format, int kFirst, int R>
HEADRACE_INLINE void add_group(const Format& format, const SuperTile& tile, const std::uint8_t* at, RowPointers& rows,
                               int span, F32x16 scale, F32x16 (&products)[R]) {
    I32x16 sums[R][1];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        const std::int32_t* start = tile.row_starts + r * tile.rows_stride + span;  // codes with minima have no zero
        sums[r][0] = Format::kSuperSigned ? I32x16::broadcast(*start) : I32x16::zero();
    }
    for_indices<0, Format::kShortSpan / 16>([&]<int sixteen>() __attribute__((always_inline)) {
        Codes codes[4];
        for_indices<0, 4>([&]<int v>() __attribute__((always_inline)) {
            codes[v] = vector_of<kFirst + 4 * sixteen + v>(format, at);
        });
        add_sixteen_features<Format::kRun>(sums, rows, [&](int v) __attribute__((always_inline)) { return codes[v]; });
        rows.move(16);
    });
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        const F32x16 row_scale = F32x16::broadcast(tile.row_scales[r * tile.rows_stride + span]);
        products[r] = add_scaled(products[r], sums[r][0], scale, row_scale);
    }
}

template <class Format, int R>
HEADRACE_ALONE void super_tile(const Matrix& weight, const SuperTile& tile) {
    constexpr int kGroup = Format::kShortSpan, kGroups = kSuper / kGroup;
    constexpr bool kSigned = Format::kSuperSigned;
    constexpr std::size_t kStep = 64 * Format::kLines * (32 / Format::kFeatures);  // bytes of 32 features
    constexpr std::size_t kSide = kPanel * (kSigned ? 2 + kGroups : 4 + 2 * kGroups);
    const Format format = Format::of(weight);
    F32x16 products[R], lows[R];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        products[r] = tile.accumulate ? F32x16::load(tile.out + r * tile.out_stride) : F32x16::zero();
        lows[r] = !kSigned && tile.accumulate ? F32x16::load(tile.lows + r * kLowsStride) : F32x16::zero();
    }
    RowPointers activations = RowPointers::of(tile.activations, tile.activations_stride);
    const std::uint8_t *at = tile.codes, *ask = tile.ahead.ask, *side = tile.sides;
    for (int super = 0, span = 0; super < tile.supers; ++super, side += kSide) {
        if (super == tile.ahead.turn_part) ask = tile.ahead.turn;
        HEADRACE_UNROLL for (std::size_t line = 0; line < kSide; line += 64) HEADRACE_PREFETCH(side + kSidesAhead + line);
        const auto* halves = reinterpret_cast<const f16_t*>(side);
        const F32x16 d = load_f16(halves), lower = kSigned ? d : F32x16::zero() - load_f16(halves + kPanel);
        const std::uint8_t* scales = side + kPanel * (kSigned ? 2 : 4);
        for (int k = 0; k < kSuper; k += 32, at += kStep) {
            HEADRACE_UNROLL for (std::size_t line = 0; line < kStep; line += 64, ask += 64) {
                HEADRACE_PREFETCH(ask);
                HEADRACE_PREFETCH_L2(ask + kCodesFar);
            }
            for_indices<0, 32 / kGroup>([&]<int group>() __attribute__((always_inline)) {
                const F32x16 whole =
                    kSigned ? load_i8(reinterpret_cast<const std::int8_t*>(scales)) : to_float(load_bytes(scales));
                add_group<Format, group * kGroup / 4>(format, tile, at, activations, span, d * whole, products);
                if constexpr (!kSigned) {
                    const F32x16 minimum = lower * to_float(load_bytes(scales + kPanel * kGroups));
                    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                        lows[r] = fma(F32x16::broadcast(tile.row_sums[r * tile.rows_stride + span]), minimum, lows[r]);
                    }
                }
                ++span;
                scales += kPanel;
            });
        }
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        products[r].store(tile.out + r * tile.out_stride);
        if constexpr (!kSigned) lows[r].store(tile.lows + r * kLowsStride);
    }
}

template <class Format, int R>
HEADRACE_INLINE void super_tile_of(const Matrix& weight, const SuperTile& tile, int rows) {  // for 1 to R rows
    if constexpr (R > 1) {
        if (rows < R) return super_tile_of<Format, R - 1>(weight, tile, rows);
    }
    super_tile<Format, R>(weight, tile);
}

// Up to kDirectRows rows by one panel, the features of a section; `next`: the panel that follows, or null. `lows` gets the
// products of minima. Prefetches go over to the next panel at the end of a super-block; those of scales read on in memory.
template <class Format>
static void super_panel(const CodeTile& tile, int rows, const std::uint8_t* next, const Section& section, float* lows) {
    const Matrix& w = *tile.weight;
    const int begin = section.begin;
    const std::uint8_t* codes = codes_of<Format>(w, tile.panel, begin);
    const auto ahead = PanelAhead::of<Format>(w, codes, next, begin, section.end, kSuper);
    const SuperTile pass{.codes = codes, .activations = tile.activations<char>(0, begin), .activations_stride = tile.in->stride,
                         .row_starts = section.starts, .row_scales = section.scales, .row_sums = section.sums,
                         .rows_stride = static_cast<std::size_t>(section.stride),
                         .sides = groups_at(w, w.scales, tile.panel, begin), .supers = (section.end - begin) / kSuper,
                         .out = tile.out, .out_stride = tile.out_stride, .lows = lows, .accumulate = begin > 0, .ahead = ahead};
    super_tile_of<Format, kDirectRows>(w, pass, rows);
}

}  // namespace headrace::HEADRACE_ISA

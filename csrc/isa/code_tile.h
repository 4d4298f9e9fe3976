// Operands of products with weights of codes: a few rows of activations, a few panels.
#pragma once

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

// Up to eight rows that lie `stride` bytes apart, by two pointers that move: a pointer for each of them would not fit
// into registers, and the compiler, which would make these eight again, must not know what they point to.
struct RowPointers {
    const char *low, *high;
    std::size_t stride, three;

    HEADRACE_INLINE RowPointers of(const void* first, std::size_t stride) {
        RowPointers rows{static_cast<const char*>(first), static_cast<const char*>(first) + 4 * stride, stride, 3 * stride};
        HEADRACE_OPAQUE(rows.three);
        return rows;
    }
    HEADRACE_METHOD const void* at(int r) const {
        const char* half = r < 4 ? low : high;
        return half + (r % 4 == 3 ? three : r % 4 * stride);
    }
    HEADRACE_METHOD void move(std::size_t bytes) {
        low += bytes;
        high += bytes;
        HEADRACE_OPAQUE(low);
        HEADRACE_OPAQUE(high);
    }
};

// One tile's view: `R` rows from `row` on by `P` panels from `panel` on.
struct CodeTile {
    const Rows* in;
    const Matrix* weight;
    int row, panel;
    float* out;
    std::size_t out_stride;  // floats

    template <typename T>
    HEADRACE_METHOD const T* activations(int r, int k) const {
        return reinterpret_cast<const T*>(static_cast<const char*>(in->data) + (row + r) * in->stride) + k;
    }
    HEADRACE_METHOD const std::uint8_t* codes(int p) const {
        return static_cast<const std::uint8_t*>(weight->data) + (panel + p) * weight->panel_bytes;
    }
};

constexpr int kCodesAhead = 4096;         // bytes of a panel that are prefetched before they are needed
constexpr std::size_t kCodesFar = 12288;  // bytes after those, up to which the second cache has them

// Where the codes of a panel's feature k begin; k is a multiple of the format's unit.
template <class Format>
HEADRACE_INLINE const std::uint8_t* codes_of(const Matrix& w, int panel, int k) {
    const auto* data = static_cast<const std::uint8_t*>(w.data) + panel * w.panel_bytes;
    return data + static_cast<std::size_t>(k / Format::kFeatures) * (64 * Format::kLines);
}

// The zeros of a group of a panel's columns.
HEADRACE_INLINE I32x16 zeros_of(const Matrix& w, int panel, int group) {
    if (w.zeros == nullptr) return I32x16::broadcast(w.middle);
    return load_bytes(w.zeros + (static_cast<std::size_t>(panel) * w.groups + group) * kPanel);
}

// acc[c] += sum over j of (codes[c][j] - offset) * four[j], with the offset of offset_of().
template <int kRun>
HEADRACE_INLINE I32x16 dot_codes(I32x16 acc, Codes codes, const std::int8_t* four) {
    if constexpr (kRun > 0) return dot_small(acc, codes, four);
    return dot_bytes(acc, codes, four);
}
constexpr int offset_of(int run) { return run > 0 ? 0 : kByteOffset; }

template <int kRun>
struct ShortSums;  // of sets whose run_of() is more than 1

// The same for R rows and 16 features, whose codes(v) are called for in turn.
template <int kRun, int R, int P, typename CodesOf>
HEADRACE_INLINE void add_sixteen_features(I32x16 (&sums)[R][P], const RowPointers& rows, CodesOf codes) {
    const auto features = [&](int r, int v) { return static_cast<const std::int8_t*>(rows.at(r)) + 4 * v; };
    if constexpr (kRun <= 1) {
        HEADRACE_UNROLL for (int v = 0; v < 4; ++v) {
            const Codes four = codes(v);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r][0] = dot_codes<kRun>(sums[r][0], four, features(r, v));
        }
    } else {
        HEADRACE_UNROLL for (int first = 0; first < 4; first += kRun) {
            ShortSums<kRun> shorts[R];
            HEADRACE_UNROLL for (int v = first; v < first + kRun; ++v) {
                const Codes four = codes(v);
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                    if (v == first) {
                        shorts[r] = ShortSums<kRun>::of(four, features(r, v));
                    } else {
                        shorts[r].add(four, features(r, v));
                    }
                }
            }
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r][0] = shorts[r].added_to(sums[r][0]);
        }
    }
}

// acc = fma(float(sum), weight scale * activation scale, acc).
HEADRACE_INLINE F32x16 add_scaled(F32x16 acc, I32x16 sum, F32x16 weight_scale, F32x16 row_scale) {
    return fma(to_float(sum), weight_scale * row_scale, acc);
}

}  // namespace headrace::HEADRACE_ISA

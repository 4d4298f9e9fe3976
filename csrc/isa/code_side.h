// What stands beside the codes of a matrix: scales, zeros and minima, whatever their kind, made ready for a chunk of a
// panel at a time. Products read floats and whole numbers from here, and know of no kind.
#pragma once

#include "code_tile.h"

namespace headrace::HEADRACE_ISA {

// A chunk: some input features of a panel, so few that what they become stays in the first cache while the rows pass.
constexpr int kChunkFeatures = 256, kChunkParts = kChunkFeatures / 16;
static_assert(kChunkFeatures == kSuper);

// Parts of a chunk are the groups that a product adds up by itself: spans of i8 activations, groups of weights otherwise.
struct Side {
    alignas(64) float scales[kChunkParts][kPanel];
    alignas(64) float minima[kChunkParts][kPanel];         // if has_minima()
    alignas(64) std::int32_t starts[kChunkParts][kPanel];  // offset - zero
};

HEADRACE_INLINE bool has_minima(const Matrix& w) { return w.minima != nullptr || w.scale_type == ScaleType::k_minima; }

// Where the chunk that begins at `begin` ends: after as many parts of `size` features as fit, or, if a part is longer, at
// its end at the latest.
HEADRACE_INLINE int chunk_end(int begin, int size, int cols_padded) {
    if (size <= kChunkFeatures) return least(begin + kChunkFeatures / size * size, cols_padded);
    return least(least(begin + kChunkFeatures, (begin / size + 1) * size), cols_padded);
}

// The usual side, f16 scales of groups that are spans, is read in place by products that pass over a panel once.
HEADRACE_INLINE bool in_place(const Matrix& w, int size) {
    return w.scale_type == ScaleType::f16 && w.unit == 1 && size == w.group && w.minima == nullptr;
}
HEADRACE_INLINE F32x16 scales_of(const Matrix& w, int panel, int group) {
    return load_f16(static_cast<const f16_t*>(w.scales) + (static_cast<std::size_t>(panel) * w.groups + group) * kPanel);
}

// As chunk_end, for products that keep nothing of the chunk but its side, or (kInPlace) not even that.
template <bool kInPlace>
HEADRACE_INLINE int side_end(const Matrix& w, int begin, int size) {
    if constexpr (kInPlace) return w.cols_padded;
    if (is_super(w.scale_type)) return chunk_end(begin, size, w.cols_padded);
    return size > w.cols_padded / kChunkParts ? least(begin + size, w.cols_padded)
                                              : least(begin + kChunkParts * size, w.cols_padded);
}

// each(part, group) for the parts of [begin, end).
template <typename Each>
HEADRACE_INLINE void for_parts(const Matrix& w, int begin, int end, int size, Each each) {
    int group = begin / w.group, left = (group + 1) * w.group - begin;
    for (int k = begin, part = 0; k < end; k += size, ++part) {
        each(part, group);
        left -= size;
        if (left <= 0) {
            ++group;
            left = w.group;
        }
    }
}

// Groups of plain scales or minima.
static inline void load_groups(const Matrix& w, const void* from, int panel, int begin, int end, int size, float unit,
                               float (*to)[kPanel]) {
    const std::size_t first = static_cast<std::size_t>(panel) * w.groups * kPanel;
    const F32x16 times = F32x16::broadcast(unit);
    switch (w.scale_type) {
        case ScaleType::bf16:
            for_parts(w, begin, end, size, [&](int part, int group) {
                (load_bf16(static_cast<const bf16_t*>(from) + first + kPanel * group) * times).store(to[part]);
            });
            return;
        case ScaleType::f32:
            for_parts(w, begin, end, size, [&](int part, int group) {
                (F32x16::load(static_cast<const float*>(from) + first + kPanel * group) * times).store(to[part]);
            });
            return;
        case ScaleType::e8m0:
            for_parts(w, begin, end, size, [&](int part, int group) {
                (load_powers(static_cast<const std::uint8_t*>(from) + first + kPanel * group) * times).store(to[part]);
            });
            return;
        default:
            for_parts(w, begin, end, size, [&](int part, int group) {
                (load_f16(static_cast<const f16_t*>(from) + first + kPanel * group) * times).store(to[part]);
            });
    }
}

// The scales and minima of features [begin, end) of a panel, in parts of `size`, which divides the matrix's group or is it;
// and, where `offset` is not null, what the sum of a part's activations is multiplied by before its products are added.
HEADRACE_ALONE void load_side(const Matrix& w, int panel, int begin, int end, int size, const int* offset, Side& side) {
    if (is_super(w.scale_type)) {  // groups are shorter than a super-block, which is the chunk
        const bool minima = w.scale_type == ScaleType::k_minima;
        const int groups = kSuper / w.group, first = begin / kSuper * groups;
        const std::size_t bytes = scale_bytes(w.scale_type, w.group);
        const std::size_t block = static_cast<std::size_t>(panel) * (w.cols_padded / kSuper) + begin / kSuper;
        const auto* at = static_cast<const std::uint8_t*>(w.scales) + block * bytes;
        const F32x16 d = load_f16(reinterpret_cast<const f16_t*>(at));
        if (minima) {
            const F32x16 least_d = F32x16::zero() - load_f16(reinterpret_cast<const f16_t*>(at) + kPanel);
            const std::uint8_t *scales = at + 4 * kPanel, *lows = scales + groups * kPanel;
            for_parts(w, begin, end, size, [&](int part, int group) {
                (d * to_float(load_bytes(scales + kPanel * (group - first)))).store(side.scales[part]);
                (least_d * to_float(load_bytes(lows + kPanel * (group - first)))).store(side.minima[part]);
            });
        } else {
            const auto* scales = reinterpret_cast<const std::int8_t*>(at + 2 * kPanel);
            for_parts(w, begin, end, size, [&](int part, int group) {
                (d * load_i8(scales + kPanel * (group - first))).store(side.scales[part]);
            });
        }
    } else {
        load_groups(w, w.scales, panel, begin, end, size, w.unit, side.scales);
        if (w.minima != nullptr) load_groups(w, w.minima, panel, begin, end, size, 1.0F, side.minima);
    }
    if (offset == nullptr) return;
    const I32x16 base = I32x16::broadcast(*offset);
    if (w.zeros == nullptr) {
        const I32x16 start = base - I32x16::broadcast(w.middle);
        for (int k = begin, part = 0; k < end; k += size, ++part) start.store(side.starts[part]);
        return;
    }
    for_parts(w, begin, end, size, [&](int part, int group) { (base - zeros_of(w, panel, group)).store(side.starts[part]); });
}

}  // namespace headrace::HEADRACE_ISA

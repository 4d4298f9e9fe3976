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
    alignas(64) std::int32_t starts[kChunkParts][kPanel];  // offset - zero
};

HEADRACE_INLINE bool has_minima(const Matrix& w) { return w.minima != nullptr || w.scale_type == ScaleType::k_minima; }

// Where the chunk that begins at `begin` ends: after as many parts of `size` features as fit, or, if a part is longer, at
// its end at the latest.
HEADRACE_INLINE int chunk_end(int begin, int size, int cols_padded) {
    if (size <= kChunkFeatures) return least(begin + kChunkFeatures / size * size, cols_padded);
    return least(least(begin + kChunkFeatures, (begin / size + 1) * size), cols_padded);
}

// The usual scales, f16 of groups, are read in place.
HEADRACE_INLINE bool in_place(const Matrix& w, int size) {
    return w.scale_type == ScaleType::f16 && w.unit == 1 && size == w.group;
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

// Where the scales (or minima) of a panel begin that belong to feature k.
HEADRACE_INLINE const std::uint8_t* groups_at(const Matrix& w, const void* groups, int panel, int k) {
    const int features = is_super(w.scale_type) ? kSuper : w.group;
    const std::size_t place = static_cast<std::size_t>(panel) * ceil_div(w.cols_padded, features) + k / features;
    return static_cast<const std::uint8_t*>(groups) + place * scale_bytes(w.scale_type, w.group);
}

// each(number) for the parts of [begin, end), with read(place) for every group; `ahead` bytes further is prefetched.
template <typename Read, typename Each>
HEADRACE_INLINE void for_groups(const Matrix& w, const void* groups, int panel, int begin, int end, int size,
                                std::ptrdiff_t ahead, Read read, Each each) {
    const std::uint8_t* at = groups_at(w, groups, panel, begin);
    const std::size_t bytes = scale_bytes(w.scale_type, w.group);
    if (size == w.group) {
        const std::uint8_t* stop = at + ceil_div(end - begin, size) * bytes;
        for (; at + 2 * bytes <= stop; at += 2 * bytes) {
            HEADRACE_PREFETCH(at + ahead);
            each(read(at));
            each(read(at + bytes));
        }
        if (at < stop) each(read(at));
        return;
    }
    const int first = begin / w.group;
    for_parts(w, begin, end, size, [&](int, int group) { each(read(at + (group - first) * bytes)); });
}

// The same of super-blocks: their scales, or (kMinima) minima.
template <bool kSigned, bool kMinima, typename Each>
HEADRACE_INLINE void for_supers(const Matrix& w, int panel, int begin, int end, int size, std::ptrdiff_t ahead, Each each) {
    const int groups = kSuper / w.group, parts = w.group / size;
    const std::size_t bytes = scale_bytes(w.scale_type, w.group);
    const std::uint8_t* at = groups_at(w, w.scales, panel, begin);
    for (int k = begin; k < end; k += kSuper, at += bytes) {
        for (std::size_t line = 0; line < bytes; line += 64) HEADRACE_PREFETCH(at + ahead + line);
        const auto* halves = reinterpret_cast<const f16_t*>(at);
        const F32x16 d = kMinima ? F32x16::zero() - load_f16(halves + kPanel) : load_f16(halves);
        const std::uint8_t* one = at + kPanel * (kSigned ? 2 : kMinima ? 4 + groups : 4);
        for (const std::uint8_t* stop = one + kPanel * groups; one < stop; one += kPanel) {
            const F32x16 number = d * (kSigned ? load_i8(reinterpret_cast<const std::int8_t*>(one)) : to_float(load_bytes(one)));
            for (int i = 0; i < parts; ++i) each(number);
        }
    }
}

template <bool kMinima, typename Each>
HEADRACE_INLINE void for_numbers(const Matrix& w, int panel, int begin, int end, int size, std::ptrdiff_t ahead, Each each) {
    const void* groups = kMinima ? w.minima : w.scales;
    const F32x16 unit = F32x16::broadcast(kMinima ? 1.0F : w.unit);
    const auto plain = [&](auto read) { for_groups(w, groups, panel, begin, end, size, ahead, read, each); };
    switch (w.scale_type) {
        case ScaleType::k_minima: return for_supers<false, kMinima>(w, panel, begin, end, size, ahead, each);
        case ScaleType::k_signed:
            if constexpr (!kMinima) for_supers<true, false>(w, panel, begin, end, size, ahead, each);
            return;
        case ScaleType::bf16: return plain([=](auto* at) { return load_bf16(reinterpret_cast<const bf16_t*>(at)) * unit; });
        case ScaleType::f32: return plain([=](auto* at) { return F32x16::load(reinterpret_cast<const float*>(at)) * unit; });
        case ScaleType::e8m0: return plain([=](auto* at) { return load_powers(at) * unit; });
        case ScaleType::f16:
            if (kMinima || w.unit == 1) return plain([](auto* at) { return load_f16(reinterpret_cast<const f16_t*>(at)); });
            return plain([=](auto* at) { return load_f16(reinterpret_cast<const f16_t*>(at)) * unit; });
    }
}

// The scales of features [begin, end) of a panel, in parts of `size`, which divides the matrix's group or is it; whole
// super-blocks where there are some. What lies `ahead` bytes further is prefetched.
HEADRACE_ALONE void load_scales(const Matrix& w, int panel, int begin, int end, int size, float (*to)[kPanel],
                                std::ptrdiff_t ahead = 0) {
    for_numbers<false>(w, panel, begin, end, size, ahead, [&](F32x16 number) { number.store(*to++); });
}

// The minima of them, where there are some.
HEADRACE_ALONE void load_minima(const Matrix& w, int panel, int begin, int end, int size, float (*to)[kPanel],
                                std::ptrdiff_t ahead = 0) {
    for_numbers<true>(w, panel, begin, end, size, ahead, [&](F32x16 number) { number.store(*to++); });
}

// What the sum of a part's activations is multiplied by before its products are added: offset - zero.
HEADRACE_ALONE void load_starts(const Matrix& w, int panel, int begin, int end, int size, int offset,
                                std::int32_t (*to)[kPanel]) {
    const I32x16 base = I32x16::broadcast(offset);
    for_parts(w, begin, end, size, [&](int part, int group) { (base - zeros_of(w, panel, group)).store(to[part]); });
}

}  // namespace headrace::HEADRACE_ISA

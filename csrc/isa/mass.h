// The attention mass of keys: what the softmax of some query rows gives to each key of one KV head, summed over the rows. On the
// calling thread.
//
// Rows are added one after the other, each alone in its arithmetic: so a sum does not depend on how the rows were cut into steps.
// A row whose softmax is not finite adds nothing.
#pragma once

#include "../kernels.h"
#include "kv_codes.h"

namespace headrace::HEADRACE_ISA {

// Scores of kRows query rows with the sixteen keys of a panel. `stride`: bytes between steps of keys, one feature or two.
template <int kRows>
HEADRACE_INLINE void score_floats(const float* q, int dim, const char* keys, std::size_t stride, F32x16 (&out)[kRows]) {
    for (F32x16& sum : out) sum = F32x16::zero();
    for (int d = 0; d < dim; ++d, keys += stride) {
        const F32x16 k = F32x16::load(reinterpret_cast<const float*>(keys));
        for (int r = 0; r < kRows; ++r) out[r] = fma(F32x16::broadcast(q[static_cast<std::size_t>(r) * dim + d]), k, out[r]);
    }
}

template <int kRows>
HEADRACE_INLINE void score_pairs(const bf16_t* q, int dim, const char* keys, std::size_t stride, F32x16 (&out)[kRows]) {
    for (F32x16& sum : out) sum = F32x16::zero();
    for (int d = 0; d < dim; d += 2, keys += stride) {
        const Pairs k = Pairs::load(keys);
        for (int r = 0; r < kRows; ++r) out[r] = dot(out[r], k, Pairs::broadcast(q + static_cast<std::size_t>(r) * dim + d));
    }
}

// Scores, not yet scaled, of kRows rows with the keys at places 0 .. last, and of those that share a panel with them.
template <int kRows>
static void score_places(const MassArgs& a, int row, std::int64_t last) {
    const KVCache& kv = a.kv;
    const int dim = kv.head_dim, size = kv.block_size, room = kv.block_stride;
    const bool floats = kv.type == DType::f32, coded = is_coded(kv.type);
    const std::size_t unit = kv.key_features() * dtype_bytes(kv.type), stride = unit * room;
    const std::size_t block_bytes = bytes_of(kv.type, static_cast<std::size_t>(room) * dim);
    const std::size_t first = static_cast<std::size_t>(row) * dim;
    alignas(64) bf16_t wide[kMaxHeadDim * kPanel];
    F32x16 sums[kRows];
    for (std::int64_t start = 0; start <= last; start += size) {
        const std::size_t at = static_cast<std::size_t>(a.table[start / size]) * kv.num_kv_heads + a.head;
        const char* block = static_cast<const char*>(kv.keys) + at * block_bytes;
        for (int p = 0; p < size && start + p <= last; p += kPanel) {
            const char* keys = block + unit * p;
            if (floats) {
                score_floats<kRows>(static_cast<const float*>(a.q) + first, dim, keys, stride, sums);
            } else if (coded) {
                if (kv.whole()) {
                    expand_byte_keys(keys, dim, stride, wide);
                } else {
                    expand_codes(kv.type, keys, dim / 2, 2 * kPanel, 2 * room, wide);
                }
                const F32x16 scales = F32x16::load(kv.key_floats() + at * room + p);
                score_pairs<kRows>(static_cast<const bf16_t*>(a.q) + first, dim, reinterpret_cast<const char*>(wide),
                                   2 * kPanel * sizeof(bf16_t), sums);
                for (F32x16& sum : sums) sum = sum * scales;
            } else {
                score_pairs<kRows>(static_cast<const bf16_t*>(a.q) + first, dim, keys, stride, sums);
            }
            // Lanes past the block's last position are overwritten by the next block, or lie behind `last`.
            for (int r = 0; r < kRows; ++r) sums[r].store(a.scores + static_cast<std::size_t>(r) * a.stride + start + p);
        }
    }
}

// Adds the softmax of one row's scores for the places 0 .. last. `sink`: a logit that takes part in it, or null.
static void add_softmax(const MassArgs& a, float* scores, std::int64_t last, const float* sink) {
    const std::int64_t count = last + 1;
    const auto lanes = [count](std::int64_t at) { return first_lanes(count - at < kPanel ? static_cast<int>(count - at) : kPanel); };
    const F32x16 hidden = F32x16::broadcast(-__builtin_huge_valf()), scale = F32x16::broadcast(a.scale);
    const F32x16 cap = F32x16::broadcast(a.soft_cap), into_cap = F32x16::broadcast(a.soft_cap > 0 ? a.scale / a.soft_cap : 0);
    F32x16 peaks = hidden;
    for (std::int64_t at = 0; at < count; at += kPanel) {
        F32x16 s = F32x16::load(scores + at);
        s = a.soft_cap > 0 ? cap * tanh(s * into_cap) : s * scale;
        s = select(lanes(at), s, hidden);
        s.store(scores + at);
        peaks = max(peaks, s);
    }
    float peak = reduce_max(peaks);
    if (sink != nullptr && *sink > peak) peak = *sink;
    const F32x16 shift = F32x16::broadcast(peak);
    F32x16 sums = F32x16::zero();
    for (std::int64_t at = 0; at < count; at += kPanel) {
        const F32x16 e = exp(F32x16::load(scores + at) - shift);
        e.store(scores + at);
        sums = sums + e;
    }
    float total = reduce_add(sums);
    if (sink != nullptr) {
        alignas(64) float part[kPanel];
        exp(F32x16::broadcast(*sink - peak)).store(part);
        total += part[0];
    }
    if (!(total > 0 && total < __builtin_huge_valf())) return;
    const F32x16 factor = F32x16::broadcast(1.0F / total);
    std::int64_t at = 0;
    for (; at + kPanel <= count; at += kPanel) fma(F32x16::load(scores + at), factor, F32x16::load(a.sums + at)).store(a.sums + at);
    if (const int rest = static_cast<int>(count - at); rest > 0) {
        fma(F32x16::load(scores + at), factor, F32x16::load(a.sums + at, rest)).store(a.sums + at, rest);
    }
}

static void attention_mass(const MassArgs& a) {
    const auto last = [&a](int row) { return a.first + row / a.each; };
    const auto add = [&](int row, int slot) {
        add_softmax(a, a.scores + static_cast<std::size_t>(slot) * a.stride, last(row),
                    a.learned_sinks == nullptr ? nullptr : a.learned_sinks + row % a.each);
    };
    int row = 0;
    for (; row + kMassRows <= a.rows; row += kMassRows) {
        score_places<kMassRows>(a, row, last(row + kMassRows - 1));
        for (int r = 0; r < kMassRows; ++r) add(row + r, r);
    }
    for (; row < a.rows; ++row) {
        score_places<1>(a, row, last(row));
        add(row, 0);
    }
}

}  // namespace headrace::HEADRACE_ISA

// The sampler's passes over one row of logits, on the calling thread.
#pragma once

#include "../kernels.h"
#include "scalar.h"

namespace headrace::HEADRACE_ISA {

// Calls body(pointer to kSampleGroup logits, group) for every group; the last one is filled up with -infinity.
template <typename F>
HEADRACE_INLINE void each_group(const float* row, int cols, F&& body) {
    const int whole = cols / kSampleGroup, rest = cols % kSampleGroup;
    for (int g = 0; g < whole; ++g) body(row + static_cast<std::size_t>(g) * kSampleGroup, g);
    if (rest == 0) return;
    const float* from = row + static_cast<std::size_t>(whole) * kSampleGroup;
    float last[kSampleGroup];
    for (int i = 0; i < kSampleGroup; ++i) last[i] = i < rest ? from[i] : -__builtin_huge_valf();
    body(last, whole);
}

static bool scan_row(const float* row, int cols, float* maxima, float* tops, float* highest) {
    const F32x16 zero = F32x16::zero(), one = F32x16::broadcast(1.0F);
    F32x16 top = F32x16::broadcast(-__builtin_huge_valf()), numbers = one;
    each_group(row, cols, [&](const float* logits, int g) {
        F32x16 most = F32x16::broadcast(-__builtin_huge_valf());
        for (int j = 0; j < kSampleGroup; j += 16) {
            const F32x16 x = F32x16::load(logits + j);
            numbers = select(less_equal(x, x), numbers, zero);  // no number is less than or equal to a NaN
            most = max(x, most);
        }
        most.store(maxima + 16 * static_cast<std::size_t>(g));
        tops[g] = reduce_max(most);
        top = max(top, most);
    });
    *highest = reduce_max(top);
    return reduce_add(numbers) < 15.5F;
}

static void weigh_row(const float* row, int cols, const WeighArgs& a, double* sums) {
    const F32x16 highest = F32x16::broadcast(a.highest), inverse = F32x16::broadcast(a.inverse_temperature);
    const F32x16 floor = F32x16::broadcast(a.floor), zero = F32x16::zero();
    each_group(row, cols, [&](const float* logits, int g) {
        F32x16 sum = zero;
        for (int j = 0; j < kSampleGroup; j += 16) {
            const F32x16 z = (F32x16::load(logits + j) - highest) * inverse;
            sum = sum + select(less(z, floor), zero, exp(z));
        }
        float lanes[16];
        sum.store(lanes);
        double total = 0;
        for (const float lane : lanes) total += static_cast<double>(lane);
        sums[g] = total;
    });
}

static int collect(const float* row, int cols, float bound, std::int32_t* ids) {
    int count = 0;
    const F32x16 bounds = F32x16::broadcast(bound);
    for (int i = 0; i < cols; i += 16) {
        // Lanes past the row's end are masked off: a load fills them with zeros.
        const int n = least(16, cols - i);
        const F32x16 x = n == 16 ? F32x16::load(row + i) : F32x16::load(row + i, n);
        unsigned found = lane_bits(less_equal(bounds, x)) & ((1U << n) - 1U);
        for (int lane = i; found != 0; ++lane, found >>= 1) {
            if ((found & 1U) != 0) ids[count++] = lane;
        }
    }
    return count;
}

// Philox4x32-10 (Salmon et al. 2011) on the counters (position, block, 0), in several vectors at once to hide latencies.
static int noise(const NoiseArgs& a, std::uint32_t first, int blocks, std::uint32_t least, std::int32_t* tokens,
                 std::uint32_t* words) {
    constexpr int kVectors = kWordVectors;
    const Words8 bound = Words8::broadcast(least);
    const Words8 even = Words8::broadcast(0xD2511F53U), odd = Words8::broadcast(0xCD9E8D57U);
    const std::uint64_t fixed = std::uint64_t{0xD2511F53U} * a.position[0];  // of the first round, for all blocks
    int count = 0;
    for (int block = 0; block < blocks; block += 8 * kVectors) {
        Words8 c[4][kVectors];
        std::uint32_t key[2] = {a.key[0], a.key[1]};
        for (int v = 0; v < kVectors; ++v) {
            const Words8 p = product(Words8::count_from(first + static_cast<std::uint32_t>(block + 8 * v)), odd);
            c[0][v] = upper(p) ^ Words8::broadcast(a.position[1] ^ key[0]);
            c[1][v] = p;
            c[2][v] = Words8::broadcast(static_cast<std::uint32_t>(fixed >> 32) ^ key[1]);
            c[3][v] = Words8::broadcast(static_cast<std::uint32_t>(fixed));
        }
#pragma GCC unroll 9
        for (int round = 1; round < 10; ++round) {
            key[0] += 0x9E3779B9U;
            key[1] += 0xBB67AE85U;
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                const Words8 p = product(c[0][v], even), q = product(c[2][v], odd);
                c[0][v] = upper(q) ^ c[1][v] ^ Words8::broadcast(key[0]);
                c[1][v] = q;
                c[2][v] = upper(p) ^ c[3][v] ^ Words8::broadcast(key[1]);
                c[3][v] = p;
            }
        }
        Words8 most = c[0][0];
        for (int v = 0; v < kVectors; ++v) most = largest(largest(most, largest(c[0][v], c[1][v])), largest(c[2][v], c[3][v]));
        if (at_least(most, bound) == 0) continue;
        for (int v = 0; v < kVectors; ++v) {
            for (int which = 0; which < 4; ++which) {
                unsigned found = at_least(c[which][v], bound);
                if (found == 0) continue;
                std::uint64_t lanes[8];
                c[which][v].store(lanes);
                for (int lane = 0; found != 0; ++lane, found >>= 1) {
                    if ((found & 1U) == 0) continue;
                    const auto at = first + static_cast<std::uint32_t>(block + 8 * v + lane);
                    tokens[count] = static_cast<std::int32_t>(4 * at) + which;
                    words[count++] = static_cast<std::uint32_t>(lanes[lane]);
                }
            }
        }
    }
    return count;
}

}  // namespace headrace::HEADRACE_ISA

// What this instruction set reaches at most: loops of nothing but products, and of nothing but reads.
// The roofline that every benchmark is held against is measured with these.
#pragma once

#include "../kernels.h"
#if HEADRACE_TILES
#include "tiles.h"
#endif

namespace headrace::HEADRACE_ISA {

// Independent sums, enough to hide a product's latency without spilling registers: 32 vector registers with AVX-512;
// 16 of half the width otherwise, so that each sum takes two.
#if defined(__AVX512F__)
constexpr int kPeakSums = 14;
#else
constexpr int kPeakSums = 5;
#endif
constexpr int kPeakInputs = 16;  // vectors of right-hand side that the loop walks over: one KiB, always in L1

struct PeakInputs {
    alignas(64) unsigned char vectors[kPeakInputs][64];
    alignas(64) unsigned char one[64];
};

// The inputs are read through this pointer, so that the compiler knows nothing of their values.
inline const PeakInputs* opaque(const PeakInputs* inputs) {
    const PeakInputs* volatile hidden = inputs;
    return hidden;
}

inline float peak_f32(const PeakInputs& inputs, std::int64_t rounds) {
    const F32x16 factor = F32x16::load(reinterpret_cast<const float*>(inputs.one));
    F32x16 sums[kPeakSums];
    for (int i = 0; i < kPeakSums; ++i) sums[i] = F32x16::zero();
    for (std::int64_t round = 0; round < rounds; ++round) {
        for (int j = 0; j < kPeakInputs; ++j) {
            const F32x16 vector = F32x16::load(reinterpret_cast<const float*>(inputs.vectors[j]));
            for (int i = 0; i < kPeakSums; ++i) sums[i] = fma(vector, factor, sums[i]);
        }
    }
    for (int i = 1; i < kPeakSums; ++i) sums[0] = sums[0] + sums[i];
    return reduce_add(sums[0]);
}

inline float peak_bf16(const PeakInputs& inputs, std::int64_t rounds) {
    const Pairs factor = Pairs::load(inputs.one);
    F32x16 sums[kPeakSums];
    for (int i = 0; i < kPeakSums; ++i) sums[i] = F32x16::zero();
    for (std::int64_t round = 0; round < rounds; ++round) {
        for (int j = 0; j < kPeakInputs; ++j) {
            const Pairs vector = Pairs::load(inputs.vectors[j]);
            for (int i = 0; i < kPeakSums; ++i) sums[i] = dot(sums[i], vector, factor);
        }
    }
    for (int i = 1; i < kPeakSums; ++i) sums[0] = sums[0] + sums[i];
    return reduce_add(sums[0]);
}

// Products of bytes, by the codes that take the fewest instructions: those that a set adds up in 16 bits, if it has any.
// Sums of the same activations would share their products where adding is another instruction, so each has its own.
constexpr int kPeakRun = run_of(4), kPeakCodeSums = kPeakRun > 1 ? 4 : kPeakSums;
constexpr std::size_t kPeakStep = kPeakCodeSums <= 5 ? 4 : 0;  // bytes from one sum's activations to the next one's

template <int kRun>
HEADRACE_INLINE I32x16 peak_products(I32x16 sum, const unsigned char (*vectors)[64], const std::int8_t* four) {
    if constexpr (kRun > 1) {
        ShortSums<kRun> some = ShortSums<kRun>::of(Codes::load(vectors[0]), four);
        HEADRACE_UNROLL for (int j = 1; j < kRun; ++j) some.add(Codes::load(vectors[j]), four);
        return some.added_to(sum);
    } else {
        return dot_bytes(sum, Codes::load(vectors[0]), four);
    }
}

inline float peak_i8(const PeakInputs& inputs, std::int64_t rounds) {
    I32x16 sums[kPeakCodeSums];
    for (int i = 0; i < kPeakCodeSums; ++i) sums[i] = I32x16::zero();
    for (std::int64_t round = 0; round < rounds; ++round) {
        for (int j = 0; j < kPeakInputs; j += kPeakRun) {
            const auto* four = reinterpret_cast<const std::int8_t*>(inputs.one);
            for (int i = 0; i < kPeakCodeSums; ++i, four += kPeakStep) {
                sums[i] = peak_products<kPeakRun>(sums[i], inputs.vectors + j, four);
            }
        }
    }
    for (int i = 1; i < kPeakCodeSums; ++i) sums[0] = sums[0] + sums[i];
    return reduce_add(to_float(sums[0]));
}

#if HEADRACE_TILES

constexpr int kPeakTileSteps = 4;  // of four products each, into four tiles of sums, as the kernels do it
constexpr double kTileFloats = 16 * 16 * 32, kTileCodes = 16 * 16 * 64;  // multiplications of one product

inline void peak_tiles(bool codes, std::int64_t rounds) {
    const TileScope scope;
    shape_tiles(16, 16, 64);  // which makes every tile zero
    for (std::int64_t step = 0; step < rounds * kPeakTileSteps; ++step) {
        if (codes) {
            dot_tiles_i8<0, 4, 6>();
            dot_tiles_i8<1, 4, 7>();
            dot_tiles_i8<2, 5, 6>();
            dot_tiles_i8<3, 5, 7>();
        } else {
            dot_tiles_bf16<0, 4, 6>();
            dot_tiles_bf16<1, 4, 7>();
            dot_tiles_bf16<2, 5, 6>();
            dot_tiles_bf16<3, 5, 7>();
        }
    }
}

#endif

// See Kernels::peak.
inline double peak(DType type, std::int64_t rounds, Team& team) {
#if HEADRACE_TILES
    if (type == DType::bf16 || type == DType::i8) {
        auto tiled = [&](int, int) { peak_tiles(type == DType::i8, rounds); };
        team.run(tiled);
        const double products = 4.0 * kPeakTileSteps * static_cast<double>(rounds);
        return 2 * products * (type == DType::i8 ? kTileCodes : kTileFloats) * team.size();
    }
#endif
    const int sums = type == DType::i8 ? kPeakCodeSums : kPeakSums;
    const double products = static_cast<double>(sums) * kPeakInputs * static_cast<double>(rounds);
    const double width = type == DType::f32 ? 16 : type == DType::bf16 ? 32 : 64;
    if (type == DType::f16) return 0;
    auto body = [&](int, int) {
        PeakInputs inputs{};  // zeros: sums stay finite, and products take as long as any other
        const PeakInputs& seen = *opaque(&inputs);
        volatile float kept = type == DType::f32    ? peak_f32(seen, rounds)
                              : type == DType::bf16 ? peak_bf16(seen, rounds)
                                                    : peak_i8(seen, rounds);
        static_cast<void>(kept);
    };
    team.run(body);
    return 2 * products * width * team.size();
}

// See Kernels::read. Each thread reads one piece from end to end.
inline void read(const void* data, std::size_t bytes, Team& team) {
    constexpr std::size_t kStep = 512;
    auto body = [&](int thread, int size) {
        const std::size_t steps = bytes / kStep;
        const std::size_t first = steps * thread / size, last = steps * (thread + 1) / size;
        const unsigned char* at = static_cast<const unsigned char*>(data) + first * kStep;
        I32x16 sums[4] = {I32x16::zero(), I32x16::zero(), I32x16::zero(), I32x16::zero()};
        for (std::size_t step = first; step < last; ++step, at += kStep) {
            for (int i = 0; i < 8; ++i) {
                sums[i % 4] = sums[i % 4] + I32x16::load(reinterpret_cast<const std::int32_t*>(at + 64 * i));
            }
        }
        volatile float kept = reduce_add(to_float(sums[0] + sums[1] + sums[2] + sums[3]));
        static_cast<void>(kept);
    };
    team.run(body);
}

}  // namespace headrace::HEADRACE_ISA

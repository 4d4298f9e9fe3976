// Fills int8 and int4 panels: from rows of floats, rounding to nearest, or from existing codes.
//
// The scale of a group is rounded to f16 first, and codes are chosen against the rounded scale:
//   int8 symmetric   scale = max|w| / 127, codes 1..255 around 128
//   int4 symmetric   scale = -e / 8 with e the value of largest magnitude, sign included: e becomes code 0 (-8) exactly,
//                    and all sixteen codes are used. A Gaussian group of 128 loses 12 % less than with max|w| / 7.
//   with zeros       scale = (max - min) / (2^bits - 1), zero = round(-min / scale), the range widened to hold 0
#pragma once

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

struct F32Source {
    using Element = float;
    HEADRACE_INLINE F32x16 load(const float* p) { return F32x16::load(p); }
};
struct Bf16Source {
    using Element = bf16_t;
    HEADRACE_INLINE F32x16 load(const bf16_t* p) { return load_bf16(p); }
};
struct F16Source {
    using Element = f16_t;
    HEADRACE_INLINE F32x16 load(const f16_t* p) { return load_f16(p); }
};

// One row of a checkpoint, sixteen features at a time; past its end there are zeros, and nothing is read.
template <typename Source>
struct SourceRow {
    const typename Source::Element* data;  // null: zeros
    int cols;
    HEADRACE_METHOD F32x16 at(int k) const {
        if (data == nullptr || k >= cols) return F32x16::zero();
        if (cols - k >= 16) return Source::load(data + k);
        typename Source::Element some[16] = {};
        for (int i = 0; i < cols - k; ++i) some[i] = data[k + i];
        return Source::load(some);
    }
};

// How a group of a row becomes codes: code = clip(round(w * inverse), low, high) + zero.
struct GroupCode {
    f16_t scale;
    int zero;
    float inverse, low, high;
};

HEADRACE_INLINE GroupCode group_code(float least_value, float largest_value, bool nibbles, bool symmetric) {
    const float levels = nibbles ? 15.0F : 255.0F;
    const float low = least_value < 0 ? least_value : 0.0F, high = largest_value > 0 ? largest_value : 0.0F;
    float scale;
    if (!symmetric) {
        scale = (high - low) / levels;
    } else if (nibbles) {
        scale = (high > -low ? high : low) / -8.0F;
    } else {
        scale = (high > -low ? high : -low) / 127.0F;
    }
    GroupCode code;
    constexpr float kLargest = 65504.0F;  // of f16
    code.scale = to_f16(scale > kLargest ? kLargest : scale < -kLargest ? -kLargest : scale);
    if ((code.scale & 0x7fffU) == 0) code.scale = 0;  // no -0, so that equal weights give equal bits
    const float rounded = from_f16(code.scale);
    code.inverse = rounded == 0 ? 0.0F : 1.0F / rounded;
    if (symmetric) {
        code.zero = nibbles ? 8 : 128;
        code.low = nibbles ? -8.0F : -127.0F;
        code.high = nibbles ? 7.0F : 127.0F;
    } else {
        const float zero = -low * code.inverse;
        std::int32_t rounded_zeros[16];
        round(F32x16::broadcast(zero < levels ? zero : levels)).store(rounded_zeros);
        code.zero = rounded_zeros[0];
        code.low = static_cast<float>(-code.zero);
        code.high = levels - static_cast<float>(code.zero);
    }
    return code;
}

// Puts sixteen codes of column `column`, from input feature k on (a multiple of 16), into a panel.
template <bool kNibbles>
HEADRACE_INLINE void put_codes(std::uint8_t* panel, int column, int k, const std::uint8_t* codes) {
    if constexpr (kNibbles) {
        std::uint8_t* to = panel + static_cast<std::size_t>(k / 8) * 64 + 4 * column;
        for (int half = 0; half < 2; ++half) {
            std::uint32_t first, second;
            __builtin_memcpy(&first, codes + 8 * half, 4);
            __builtin_memcpy(&second, codes + 8 * half + 4, 4);
            first |= second << 4;
            __builtin_memcpy(to + 64 * half, &first, 4);
        }
    } else {
        std::uint8_t* to = panel + static_cast<std::size_t>(k / 4) * 64 + 4 * column;
        for (int word = 0; word < 4; ++word) __builtin_memcpy(to + 64 * word, codes + 4 * word, 4);
    }
}

template <typename Source, bool kNibbles>
static void quantise_panel(const PackArgs& args, int panel) {
    const Matrix& w = args.out;
    const auto place = [&](int g) { return (static_cast<std::size_t>(panel) * w.groups + g) * kPanel; };
    std::uint8_t* data = static_cast<std::uint8_t*>(const_cast<void*>(w.data)) + panel * w.panel_bytes;
    for (int g = 0; g < w.groups; ++g) {
        const int begin = g * w.group, end = least(begin + w.group, w.cols_padded);
        for (int column = 0; column < kPanel; ++column) {
            const void* source = args.sources[panel * kPanel + column];
            const SourceRow<Source> row{static_cast<const typename Source::Element*>(source), w.cols};
            F32x16 largest_values = F32x16::zero(), least_values = F32x16::zero();
            for (int k = begin; k < end; k += 16) {
                const F32x16 values = row.at(k);
                largest_values = max(values, largest_values);  // a NaN leaves them as they are
                least_values = max(F32x16::zero() - values, least_values);
            }
            const GroupCode code =
                group_code(-reduce_max(least_values), reduce_max(largest_values), kNibbles, args.symmetric);
            const_cast<f16_t*>(w.scales)[place(g) + column] = code.scale;
            if (w.zeros != nullptr) {
                const_cast<std::uint8_t*>(w.zeros)[place(g) + column] = static_cast<std::uint8_t>(code.zero);
            }
            const F32x16 inverse = F32x16::broadcast(code.inverse);
            const F32x16 low = F32x16::broadcast(code.low), high = F32x16::broadcast(code.high);
            const I32x16 zero = I32x16::broadcast(code.zero - 128);
            for (int k = begin; k < end; k += 16) {
                std::int8_t codes[16];
                store_i8(codes, round(min(max(row.at(k) * inverse, low), high)) + zero);
                std::uint8_t unsigned_codes[16];
                for (int i = 0; i < 16; ++i) unsigned_codes[i] = static_cast<std::uint8_t>(codes[i] ^ 0x80);
                put_codes<kNibbles>(data, column, k, unsigned_codes);
            }
        }
    }
}

static void quantise_panels(const PackArgs& args, int first, int last) {
    const bool nibbles = args.out.format == WeightFormat::int4;
    for (int panel = first; panel < last; ++panel) {
        switch (args.source_type) {
            case DType::f32:
                (nibbles ? quantise_panel<F32Source, true> : quantise_panel<F32Source, false>)(args, panel);
                break;
            case DType::bf16:
                (nibbles ? quantise_panel<Bf16Source, true> : quantise_panel<Bf16Source, false>)(args, panel);
                break;
            default: (nibbles ? quantise_panel<F16Source, true> : quantise_panel<F16Source, false>)(args, panel);
        }
    }
}

template <bool kNibbles>
static void copy_codes_of_panel(const PackCodesArgs& args, int panel) {
    const Matrix& w = args.out;
    constexpr std::uint8_t kMiddle = kNibbles ? 8 : 128;
    std::uint8_t* data = static_cast<std::uint8_t*>(const_cast<void*>(w.data)) + panel * w.panel_bytes;
    for (int column = 0; column < kPanel; ++column) {
        const int row = panel * kPanel + column;
        const bool empty = args.codes[row] == nullptr;
        for (int g = 0; g < w.groups; ++g) {
            const std::size_t place = (static_cast<std::size_t>(panel) * w.groups + g) * kPanel + column;
            // Groups that lie wholly in the padding have no scale in the source.
            const bool stored = !empty && g * w.group < w.cols;
            const_cast<f16_t*>(w.scales)[place] = stored ? args.scales[row][g] : f16_t{0};
            const std::uint8_t zero = stored && args.zeros != nullptr ? args.zeros[row][g] : kMiddle;
            if (w.zeros != nullptr) const_cast<std::uint8_t*>(w.zeros)[place] = zero;
            for (int k = g * w.group; k < least((g + 1) * w.group, w.cols_padded); k += 16) {
                std::uint8_t codes[16];
                for (int i = 0; i < 16; ++i) codes[i] = !empty && k + i < w.cols ? args.codes[row][k + i] : zero;
                put_codes<kNibbles>(data, column, k, codes);
            }
        }
    }
}

// Quantises rows of floats into int8 or int4 panels.
static void pack_quantised(const PackArgs& args, Team& team) {
    auto body = [&](int thread, int size) {
        const Share share = share_of(args.out.panels, thread, size);
        quantise_panels(args, share.begin, share.end);
    };
    team.run(body);
}

static void pack_codes(const PackCodesArgs& args, Team& team) {
    auto body = [&](int thread, int size) {
        const Share share = share_of(args.out.panels, thread, size);
        for (int panel = share.begin; panel < share.end; ++panel) {
            (args.out.format == WeightFormat::int4 ? copy_codes_of_panel<true> : copy_codes_of_panel<false>)(args, panel);
        }
    };
    team.run(body);
}

}  // namespace headrace::HEADRACE_ISA

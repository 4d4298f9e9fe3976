// Fills panels of codes: from rows of floats, rounding to nearest (int8 and int4), or from existing codes.
//
// The scale of a group is rounded to f16 first, and codes are chosen against the rounded scale:
//   int8 symmetric   scale = max|w| / 127, codes 1..255 around 128
//   int4 symmetric   scale = -e / 8 with e the value of largest magnitude, sign included: e becomes code 0 (-8) exactly,
//                    and all sixteen codes are used. A Gaussian group of 128 loses 12 % less than with max|w| / 7.
//   with zeros       scale = (max - min) / (2^bits - 1), zero = round(-min / scale), the range widened to hold 0
// A weight that is NaN or infinite makes the scale of its group NaN, so that its output feature is not a number either.
#pragma once

#include "code_formats.h"

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

HEADRACE_INLINE GroupCode group_code(float least_value, float largest_value, bool finite, bool nibbles, bool symmetric) {
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
    if (!finite) {
        constexpr f16_t kNan = 0x7e00;
        code.scale = kNan;
        code.inverse = 0.0F;
    }
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

// How codes of 32 features from k on are put in place.
using Put = void (*)(const Matrix&, int row, int k, const std::uint8_t* codes);
HEADRACE_INLINE Put put_of(WeightFormat format) {
    return with_format(format, []<class Format>() -> Put { return put_codes<Format>; });
}

template <typename Source>
static void quantise_panel(const PackArgs& args, int panel) {
    const Matrix& w = args.out;
    const bool nibbles = w.format == WeightFormat::int4;
    const Put put = put_of(w.format);
    auto* scales = static_cast<f16_t*>(const_cast<void*>(w.scales));
    const auto place = [&](int g) { return (static_cast<std::size_t>(panel) * w.groups + g) * kPanel; };
    for (int g = 0; g < w.groups; ++g) {
        const int begin = g * w.group, end = least(begin + w.group, w.cols_padded);
        for (int column = 0; column < kPanel; ++column) {
            const void* source = args.sources[panel * kPanel + column];
            const SourceRow<Source> row{static_cast<const typename Source::Element*>(source), w.cols};
            F32x16 largest_values = F32x16::zero(), least_values = F32x16::zero(), nothing = F32x16::zero();
            for (int k = begin; k < end; k += 16) {
                const F32x16 values = row.at(k);
                largest_values = max(values, largest_values);  // a NaN leaves them as they are
                least_values = max(F32x16::zero() - values, least_values);
                nothing = nothing + (values - values);  // 0, and NaN for ever once a value is not finite
            }
            const float least_value = -reduce_max(least_values), largest_value = reduce_max(largest_values);
            const bool finite = reduce_add(nothing) == 0;
            const GroupCode code = group_code(least_value, largest_value, finite, nibbles, args.symmetric);
            scales[place(g) + column] = code.scale;
            if (w.zeros != nullptr) {
                const_cast<std::uint8_t*>(w.zeros)[place(g) + column] = static_cast<std::uint8_t>(code.zero);
            }
            const F32x16 inverse = F32x16::broadcast(code.inverse);
            const F32x16 low = F32x16::broadcast(code.low), high = F32x16::broadcast(code.high);
            const I32x16 zero = I32x16::broadcast(code.zero - 128);
            for (int k = begin; k < end; k += 32) {
                std::uint8_t codes[32];
                for (int i = 0; i < 32; i += 16) {
                    std::int8_t sixteen[16];
                    store_i8(sixteen, round(min(max(row.at(k + i) * inverse, low), high)) + zero);
                    for (int j = 0; j < 16; ++j) codes[i + j] = static_cast<std::uint8_t>(sixteen[j] ^ 0x80);
                }
                put(w, panel * kPanel + column, k, codes);
            }
        }
    }
}

// Quantises rows of floats into int8 or int4 panels with f16 scales, in groups of a multiple of 32.
static void pack_quantised(const PackArgs& args, Team& team) {
    const auto one = args.source_type == DType::f32    ? quantise_panel<F32Source>
                     : args.source_type == DType::bf16 ? quantise_panel<Bf16Source>
                                                       : quantise_panel<F16Source>;
    auto body = [&](int thread, int size) {
        const Share share = share_of(args.out.panels, thread, size);
        for (int panel = share.begin; panel < share.end; ++panel) one(args, panel);
    };
    team.run(body);
}

static void pack_codes(const PackCodesArgs& args, Team& team) {
    const Matrix& w = args.out;
    const Put put = put_of(w.format);
    auto body = [&](int thread, int size) {
        const Share share = share_of(w.panels, thread, size);
        for (int row = share.begin * kPanel; row < share.end * kPanel; ++row) {
            for (int k = 0; k < w.cols_padded; k += kSuper) {
                std::uint8_t codes[kSuper];
                const int count = least(kSuper, w.cols_padded - k);
                args.read(args.context, row, k, count, codes);
                for (int i = 0; i < count; i += 32) put(w, row, k + i, codes + i);
            }
        }
    };
    team.run(body);
}

}  // namespace headrace::HEADRACE_ISA

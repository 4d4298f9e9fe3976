// The formats of weight codes, one struct each. A Format says how codes lie in a panel and what they decode to; everything
// else about a matrix (scales, zeros, groups) is data, see code_side.h. A Format has
//   kFeatures   input features of a unit, the least that is decoded at once; divides 32
//   kLines      lines of 64 bytes that a unit has in a panel
//   kVectors    kFeatures / 4: vectors of 16 columns by 4 features, as products of whole numbers read them
//   kWhole      decode() exists: codes are whole numbers, and meet int8 activations
//   kSmall      they are at most 128
//   kUsual      products of it are compiled for tiles of every shape
//   kAsStored   decode() changes nothing: the panel itself is read
//   of(matrix)  what decoding needs
//   decode()    a unit as whole numbers, from 0 to 255
//   Wide        a functor, of(matrix, zeros of the columns): a unit as pairs of bf16, exactly code - zero or the number
//   put(), get()  the codes of one column of a unit, at load and for look-ups
//   number()    what a code stands for, without scale and zero
#pragma once

#include "code_tile.h"

namespace headrace::HEADRACE_ISA {

// Codes of 8 bits.
struct BytesFormat {
    static constexpr int kFeatures = 4, kLines = 1, kVectors = 1;
    static constexpr bool kWhole = true, kSmall = false, kAsStored = true, kUsual = true;
    HEADRACE_INLINE BytesFormat of(const Matrix&) { return {}; }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[1]) const { out[0] = Codes::load(at); }

    struct Wide {
        BytePairs pairs;
        HEADRACE_INLINE Wide of(const Matrix&, I32x16 zeros) { return {BytePairs::of(zeros)}; }
        HEADRACE_METHOD void operator()(const std::uint8_t* at, Pairs (&out)[2]) const {
            pairs(Codes::load(at), out);
        }
    };

    HEADRACE_INLINE void put(std::uint8_t* unit, int column, const std::uint8_t* codes) {
        __builtin_memcpy(unit + 4 * column, codes, 4);
    }
    HEADRACE_INLINE void get(const std::uint8_t* unit, int column, std::uint8_t* codes) {
        __builtin_memcpy(codes, unit + 4 * column, 4);
    }
    HEADRACE_INLINE float number(const Matrix&, std::uint8_t code) { return code; }
};

// Codes of kLow (4 or 2) bits, or kLow + kHigh of them. First lines with the low bits of all codes: kLow bits of a byte for
// each vector, the first one lowest; then, if there are higher bits, one line that holds kHigh bits of each vector alike.
template <int kLow, int kHigh>
struct PlanesFormat {
    static constexpr int kFeatures = 32 / (kHigh == 0 ? kLow : kHigh), kVectors = kFeatures / 4;
    static constexpr int kLineVectors = 8 / kLow, kLowLines = kVectors / kLineVectors, kLines = kLowLines + (kHigh > 0);
    static constexpr bool kWhole = true, kSmall = true, kAsStored = false;
    static constexpr bool kUsual = kLow == 4 && kHigh == 0;
    static constexpr int kLowBits = (1 << kLow) - 1, kHighBits = (1 << kHigh) - 1;
    HEADRACE_INLINE PlanesFormat of(const Matrix&) { return {}; }

    template <int kVector>
    HEADRACE_INLINE void take_bits(const std::uint8_t* at, Codes (&out)[kVectors]) {
        constexpr int kLine = kVector / kLineVectors, kPart = kVector % kLineVectors;
        out[kVector] = shifted<-kLow * kPart>(Codes::load(at + 64 * kLine), kLowBits);
        if constexpr (kHigh > 0) {
            const Codes high = Codes::load(at + 64 * kLowLines);
            out[kVector] = out[kVector] | shifted<kLow - kHigh * kVector>(high, kHighBits << kLow);
        }
        if constexpr (kVector + 1 < kVectors) take_bits<kVector + 1>(at, out);
    }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[kVectors]) const { take_bits<0>(at, out); }

    struct Wide {
        BytePairs pairs;
        HEADRACE_INLINE Wide of(const Matrix&, I32x16 zeros) { return {BytePairs::of(zeros)}; }
        HEADRACE_METHOD void operator()(const std::uint8_t* at, Pairs (&out)[2 * kVectors]) const {
            Codes codes[kVectors];
            PlanesFormat().decode(at, codes);
            HEADRACE_UNROLL for (int v = 0; v < kVectors; ++v) {
                Pairs two[2];
                pairs(codes[v], two);
                out[2 * v] = two[0];
                out[2 * v + 1] = two[1];
            }
        }
    };

    HEADRACE_INLINE void put(std::uint8_t* unit, int column, const std::uint8_t* codes) {
        for (int j = 0; j < 4; ++j) {
            std::uint8_t* at = unit + 4 * column + j;
            unsigned high = 0;
            for (int line = 0; line < kLowLines; ++line) {
                unsigned low = 0;
                for (int part = 0; part < kLineVectors; ++part) {
                    const int v = kLineVectors * line + part;
                    const unsigned code = codes[4 * v + j];
                    low |= (code & kLowBits) << (kLow * part);
                    high |= code >> kLow << (kHigh * v);
                }
                at[64 * line] = static_cast<std::uint8_t>(low);
            }
            if constexpr (kHigh > 0) at[64 * kLowLines] = static_cast<std::uint8_t>(high);
        }
    }
    HEADRACE_INLINE void get(const std::uint8_t* unit, int column, std::uint8_t* codes) {
        for (int i = 0; i < kFeatures; ++i) {
            const int v = i / 4;
            const std::uint8_t* at = unit + 4 * column + i % 4;
            const int low = at[64 * (v / kLineVectors)] >> (kLow * (v % kLineVectors)) & kLowBits;
            const int high = kHigh == 0 ? 0 : at[64 * (kLines - 1)] >> (kHigh * v) & kHighBits;
            codes[i] = static_cast<std::uint8_t>(low | high << kLow);
        }
    }
    HEADRACE_INLINE float number(const Matrix&, std::uint8_t code) { return code; }
};

using NibblesFormat = PlanesFormat<4, 0>;

template <>
struct PlanesFormat<4, 0>::Wide {  // without the way over bytes
    NibblePairs pairs;
    HEADRACE_INLINE Wide of(const Matrix&, I32x16 zeros) { return {NibblePairs::of(zeros)}; }
    HEADRACE_METHOD void operator()(const std::uint8_t* at, Pairs (&out)[4]) const {
        pairs(Codes::load(at), out);
    }
};

// Nibbles that a table of the matrix translates.
struct TableFormat : NibblesFormat {
    static constexpr bool kSmall = false, kUsual = false;
    ByteTable table;
    HEADRACE_INLINE TableFormat of(const Matrix& w) {
        TableFormat format;
        format.table = ByteTable::of(w.table.bytes);
        return format;
    }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[2]) const {
        const Codes both = Codes::load(at);
        out[0] = table(low_nibbles(both));
        out[1] = table(high_nibbles(both));
    }

    struct Wide {
        TablePairs pairs;
        HEADRACE_INLINE Wide of(const Matrix& w, I32x16) { return {TablePairs::of(w.table.numbers)}; }
        HEADRACE_METHOD void operator()(const std::uint8_t* at, Pairs (&out)[4]) const {
            pairs(Codes::load(at), out);
        }
    };
    HEADRACE_INLINE float number(const Matrix& w, std::uint8_t code) {
        return w.input == DType::bf16 ? from_bf16(w.table.numbers[code]) : w.table.bytes[code];
    }
};

// Floats of 8 bits: exact in bf16.
template <int kMantissa, int kPower>
struct Float8Format : BytesFormat {
    static constexpr bool kWhole = false, kUsual = false;
    struct Wide {
        Float8Pairs<kMantissa, kPower> pairs;
        HEADRACE_INLINE Wide of(const Matrix&, I32x16) { return {}; }
        HEADRACE_METHOD void operator()(const std::uint8_t* at, Pairs (&out)[2]) const {
            pairs(Codes::load(at), out);
        }
    };
    HEADRACE_INLINE float number(const Matrix&, std::uint8_t code) { return from_float8<kMantissa, kPower>(code); }
};

using E4M3Format = Float8Format<3, 120>;
using E5M2Format = Float8Format<2, 112>;

// ---- What every format is compiled to besides products ----

using Decode = void (*)(const Matrix&, int panel, int begin, int end, std::uint8_t* to);

// Features [begin, end) of a panel, whole units, as whole numbers: 64 bytes for each 4 features.
template <class Format>
HEADRACE_ALONE void decode_codes(const Matrix& w, int panel, int begin, int end, std::uint8_t* to) {
    const Format format = Format::of(w);
    const std::uint8_t* at = codes_of<Format>(w, panel, begin);
    for (int k = begin; k < end; k += Format::kFeatures, at += 64 * Format::kLines, to += 64 * Format::kVectors) {
        Codes codes[Format::kVectors];
        HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line) HEADRACE_PREFETCH(at + kCodesAhead + 64 * line);
        format.decode(at, codes);
        HEADRACE_UNROLL for (int v = 0; v < Format::kVectors; ++v) codes[v].store(to + 64 * v);
    }
}

// The same as pairs of bf16: 64 bytes for each 2 features.
template <class Format>
HEADRACE_ALONE void decode_pairs(const Matrix& w, int panel, int begin, int end, std::uint8_t* to) {
    const std::uint8_t* at = codes_of<Format>(w, panel, begin);
    for (int k = begin; k < end;) {
        const int group = k / w.group;
        const auto pairs = Format::Wide::of(w, zeros_of(w, panel, group));
        for (const int stop = least((group + 1) * w.group, end); k < stop; k += Format::kFeatures) {
            Pairs out[2 * Format::kVectors];
            HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line) {
                HEADRACE_PREFETCH(at + kCodesAhead + 64 * line);
            }
            pairs(at, out);
            HEADRACE_UNROLL for (int i = 0; i < 2 * Format::kVectors; ++i) out[i].store(to + 64 * i);
            at += 64 * Format::kLines;
            to += 128 * Format::kVectors;
        }
    }
}

// The codes of 32 features from k on, of one output feature; and what `count` of them (whole units) stand for.
template <class Format>
HEADRACE_ALONE void put_codes(const Matrix& w, int row, int k, const std::uint8_t* codes) {
    auto* unit = const_cast<std::uint8_t*>(codes_of<Format>(w, row / kPanel, k));
    for (int i = 0; i < 32; i += Format::kFeatures, unit += 64 * Format::kLines) Format::put(unit, row % kPanel, codes + i);
}
template <class Format>
HEADRACE_ALONE void get_numbers(const Matrix& w, int row, int k, int count, float* numbers) {
    const std::uint8_t* unit = codes_of<Format>(w, row / kPanel, k);
    for (int i = 0; i < count; i += Format::kFeatures, unit += 64 * Format::kLines) {
        std::uint8_t codes[Format::kFeatures];
        Format::get(unit, row % kPanel, codes);
        for (int j = 0; j < Format::kFeatures; ++j) numbers[i + j] = Format::number(w, codes[j]);
    }
}

// A use of each format of codes, by `visit.template operator()<Format>()`.
template <typename Visit>
HEADRACE_INLINE auto with_format(WeightFormat format, Visit visit) {
    switch (format) {
        case WeightFormat::int4: return visit.template operator()<NibblesFormat>();
        case WeightFormat::int6: return visit.template operator()<PlanesFormat<4, 2>>();
        case WeightFormat::int5: return visit.template operator()<PlanesFormat<4, 1>>();
        case WeightFormat::int3: return visit.template operator()<PlanesFormat<2, 1>>();
        case WeightFormat::int2: return visit.template operator()<PlanesFormat<2, 0>>();
        case WeightFormat::table4: return visit.template operator()<TableFormat>();
        case WeightFormat::e4m3: return visit.template operator()<E4M3Format>();
        case WeightFormat::e5m2: return visit.template operator()<E5M2Format>();
        default: return visit.template operator()<BytesFormat>();
    }
}

}  // namespace headrace::HEADRACE_ISA

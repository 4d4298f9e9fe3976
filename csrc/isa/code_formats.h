// The formats of weight codes, one struct each. A Format says how codes lie in a panel and what they decode to; everything
// else about a matrix (scales, zeros, groups) is data, see code_side.h. A Format has
//   kFeatures   input features of a unit, the least that is decoded at once; divides 32
//   kLines      lines of 64 bytes that a unit has in a panel
//   kVectors    kFeatures / 4: vectors of 16 columns by 4 features, as products of whole numbers read them
//   kWhole      decode() exists: codes are whole numbers, and meet int8 activations
//   kRun        0 for codes of 8 bits and of tables, else of run_of(): how many vectors of products a set may add up in 16 bits
//   kUsual      products of it are compiled for tiles of every shape
//   kShortSpan  the spans of 16 or 32 features that it is often stored with, and in super-blocks always
//   kSuperSigned  in super-blocks scales are signed; else there are minima. Formats that are in none do not have it
//   kAsStored   decode() changes nothing: the panel itself is read
//   of(matrix)  what decoding needs
//   decode()    a unit as whole numbers, from 0 to 255; take<kFirst, kCount>() so many of its vectors, where units are of 32;
//               vector<kVector>() one of them, in formats of super-blocks
//   Wide        of(matrix, zeros of the columns); pair<kPair>() two features of a unit, exactly code - zero or the number
//   put(), get()  the codes of one column of a unit, at load and for look-ups
//   number()    what a code stands for, without scale and zero
#pragma once

#include "code_tile.h"

namespace headrace::HEADRACE_ISA {

// Codes of 8 bits.
struct BytesFormat {
    static constexpr int kFeatures = 4, kLines = 1, kVectors = 1;
    static constexpr bool kWhole = true, kAsStored = true, kUsual = true;
    static constexpr int kRun = 0, kShortSpan = 32;
    HEADRACE_INLINE BytesFormat of(const Matrix&) { return {}; }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[1]) const { out[0] = Codes::load(at); }

    struct Wide {
        BytePairs pairs;
        HEADRACE_INLINE Wide of(const Matrix&, I32x16 zeros) { return {BytePairs::of(zeros)}; }
        template <int kPair>
        HEADRACE_METHOD PairFactors pair(const std::uint8_t* at) const {
            return pairs.template pair<kPair>(Codes::load(at));
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

// Some bits of a vector's codes: those of a line's bytes from bit `from` on, and from bit `to` on of the code.
struct CodeBits {
    int line, from, to, bits;
};

// Codes of fewer than 8 bits. A byte of a line holds as many whole codes as fit, one each of as many vectors, the first one
// lowest. What is left of the bytes on top is taken together from line to line, for the vectors that come last.
template <int kBits>
struct BitsFormat {
    static constexpr int kWholeCodes = 8 / kBits, kRest = 8 - kBits * kWholeCodes;  // of a byte
    static constexpr int kLines = kRest == 0 ? 1 : kBits % kRest == 0 ? kBits / kRest : kBits;
    static constexpr int kVectors = 8 * kLines / kBits, kFeatures = 4 * kVectors, kFirstVectors = kLines * kWholeCodes;
    static constexpr bool kWhole = true, kAsStored = false, kUsual = kBits == 4;
    static constexpr int kRun = run_of(kBits), kShortSpan = kBits == 4 || kBits == 5 ? 32 : 16;
    static constexpr bool kSuperSigned = kBits == 3 || kBits == 6;
    HEADRACE_INLINE BitsFormat of(const Matrix&) { return {}; }

    // The bits of a vector's codes, from bit `to` on, that lie in one line.
    HEADRACE_INLINE constexpr CodeBits place_of(int vector, int to) {
        if (vector < kFirstVectors) return {vector / kWholeCodes, kBits * (vector % kWholeCodes), 0, kBits};
        const int place = kBits * (vector - kFirstVectors) + to;  // among the bits that are left
        const int from = kRest == 0 ? 0 : place % kRest;
        return {kRest == 0 ? 0 : place / kRest, 8 - kRest + from, to, least(kRest - from, kBits - to)};
    }
    template <int kVector, int kTo>
    HEADRACE_INLINE void take_bits(const std::uint8_t* at, Codes& out) {
        constexpr CodeBits some = place_of(kVector, kTo);
        constexpr int kLeft = some.to - some.from, kMask = ((1 << some.bits) - 1) << some.to;
        const Codes line = Codes::load(at + 64 * some.line);
        if constexpr (kTo == 0) {
            out = shifted<kLeft>(line, kMask);
        } else {
            out = with_shifted<kLeft>(out, line, kMask);
        }
        if constexpr (kTo + some.bits < kBits) take_bits<kVector, kTo + some.bits>(at, out);
    }
    template <int kFirst, int kCount>
    HEADRACE_INLINE void take(const std::uint8_t* at, Codes* out) {
        take_bits<kFirst, 0>(at, *out);
        if constexpr (kCount > 1) take<kFirst + 1, kCount - 1>(at, out + 1);
    }
    template <int kVector>
    HEADRACE_METHOD Codes vector(const std::uint8_t* at) const {
        Codes out;
        take_bits<kVector, 0>(at, out);
        return out;
    }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[kVectors]) const { take<0, kVectors>(at, out); }

    struct Wide {
        BytePairs pairs;
        HEADRACE_INLINE Wide of(const Matrix&, I32x16 zeros) { return {BytePairs::of(zeros)}; }
        template <int kPair>
        HEADRACE_METHOD PairFactors pair(const std::uint8_t* at) const {
            Codes codes;
            BitsFormat::take<kPair / 2, 1>(at, &codes);
            return pairs.pair<kPair % 2>(codes);
        }
    };

    HEADRACE_INLINE void put(std::uint8_t* unit, int column, const std::uint8_t* codes) {
        for (int line = 0; line < kLines; ++line) __builtin_memset(unit + 64 * line + 4 * column, 0, 4);
        for (int i = 0; i < kFeatures; ++i) {
            for (int to = 0; to < kBits;) {
                const CodeBits some = place_of(i / 4, to);
                const int value = codes[i] >> to & ((1 << some.bits) - 1);
                std::uint8_t& byte = unit[64 * some.line + 4 * column + i % 4];
                byte = static_cast<std::uint8_t>(byte | value << some.from);
                to += some.bits;
            }
        }
    }
    HEADRACE_INLINE void get(const std::uint8_t* unit, int column, std::uint8_t* codes) {
        for (int i = 0; i < kFeatures; ++i) {
            int code = 0;
            for (int to = 0; to < kBits;) {
                const CodeBits some = place_of(i / 4, to);
                const int byte = unit[64 * some.line + 4 * column + i % 4];
                code |= (byte >> some.from & ((1 << some.bits) - 1)) << to;
                to += some.bits;
            }
            codes[i] = static_cast<std::uint8_t>(code);
        }
    }
    HEADRACE_INLINE float number(const Matrix&, std::uint8_t code) { return code; }
};

using NibblesFormat = BitsFormat<4>;

template <>
struct BitsFormat<4>::Wide {  // without the way over bytes
    NibblePairs pairs;
    HEADRACE_INLINE Wide of(const Matrix&, I32x16 zeros) { return {NibblePairs::of(zeros)}; }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(const std::uint8_t* at) const {
        return pairs.pair<kPair>(Codes::load(at));
    }
};

// Nibbles that a table of the matrix translates.
struct TableFormat : NibblesFormat {
    static constexpr bool kUsual = false, kSuperSigned = true;
    static constexpr int kRun = 0;
    ByteTable table;
    HEADRACE_INLINE TableFormat of(const Matrix& w) {
        TableFormat format;
        format.table = ByteTable::of(w.table.bytes);
        return format;
    }
    template <int kVector>
    HEADRACE_METHOD Codes vector(const std::uint8_t* at) const {
        return table(NibblesFormat::vector<kVector>(at));
    }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[2]) const {
        const Codes both = Codes::load(at);
        out[0] = table(low_nibbles(both));
        out[1] = table(high_nibbles(both));
    }

    struct Wide {
        TablePairs pairs;
        HEADRACE_INLINE Wide of(const Matrix& w, I32x16) { return {TablePairs::of(w.table.numbers)}; }
        template <int kPair>
        HEADRACE_METHOD PairFactors pair(const std::uint8_t* at) const {
            return pairs.pair<kPair>(Codes::load(at));
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
        template <int kPair>
        HEADRACE_METHOD PairFactors pair(const std::uint8_t* at) const {
            return pairs.template pair<kPair>(Codes::load(at));
        }
    };
    HEADRACE_INLINE float number(const Matrix&, std::uint8_t code) { return from_float8<kMantissa, kPower>(code); }
};

using E4M3Format = Float8Format<3, 120>;
using E5M2Format = Float8Format<2, 112>;

// ---- What every format is compiled to besides products ----

// use.operator()<i>() for each i from kFirst to kStop.
template <int kFirst, int kStop, typename Use>
HEADRACE_INLINE void for_indices(const Use& use) {
    use.template operator()<kFirst>();
    if constexpr (kFirst + 1 < kStop) for_indices<kFirst + 1, kStop>(use);
}

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

// The same as pairs of features.
template <class Format>
HEADRACE_ALONE void decode_pairs(const Matrix& w, int panel, int begin, int end, std::uint8_t* to) {
    const std::uint8_t* at = codes_of<Format>(w, panel, begin);
    for (int k = begin; k < end;) {
        const int group = k / w.group;
        const auto pairs = Format::Wide::of(w, zeros_of(w, panel, group));
        for (const int stop = least((group + 1) * w.group, end); k < stop; k += Format::kFeatures) {
            HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line) {
                HEADRACE_PREFETCH(at + kCodesAhead + 64 * line);
            }
            // All are made before the first is stored: for all that is known to the compiler, `to` may be where codes are.
            PairFactors out[Format::kFeatures / 2];
            for_indices<0, Format::kFeatures / 2>([&]<int kPair>() __attribute__((always_inline)) { out[kPair] = pairs.template pair<kPair>(at); });
            HEADRACE_UNROLL for (int i = 0; i < Format::kFeatures / 2; ++i) out[i].store(to + sizeof out[0] * i);
            at += 64 * Format::kLines;
            to += sizeof out;
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
        case WeightFormat::int6: return visit.template operator()<BitsFormat<6>>();
        case WeightFormat::int5: return visit.template operator()<BitsFormat<5>>();
        case WeightFormat::int3: return visit.template operator()<BitsFormat<3>>();
        case WeightFormat::int2: return visit.template operator()<BitsFormat<2>>();
        case WeightFormat::table4: return visit.template operator()<TableFormat>();
        case WeightFormat::e4m3: return visit.template operator()<E4M3Format>();
        case WeightFormat::e5m2: return visit.template operator()<E5M2Format>();
        default: return visit.template operator()<BytesFormat>();
    }
}

HEADRACE_INLINE Decode decoder_of(WeightFormat format) {  // null: the panels hold what products read
    return with_format(format, []<class Format>() -> Decode {
        if constexpr (Format::kWhole && !Format::kAsStored) return decode_codes<Format>;
        return nullptr;
    });
}

}  // namespace headrace::HEADRACE_ISA

// Fills f32, bf16 and f16 panels from rows of a checkpoint, sixteen rows of one panel at a time; codes are in pack_codes.h.
#pragma once

#include <cstring>

#include "../kernels.h"
#include "pack_codes.h"

namespace headrace::HEADRACE_ISA {

// A panel is the transpose of its 16 rows in units of 4 bytes: one float, or two bf16 side by side. Sixteen units of
// each row at a time go through a square that stays in registers and the first cache.
template <typename Source, bool kPairs>
static void pack_panel(const PackArgs& args, int panel) {
    constexpr int kFeatures = kPairs ? 32 : 16;  // in sixteen units
    char* out = static_cast<char*>(const_cast<void*>(args.out.data)) + panel * args.out.panel_bytes;
    for (int k = 0; k < args.out.cols_padded; k += kFeatures, out += 16 * 64) {
        alignas(64) std::uint32_t square[16][16];
        for (int c = 0; c < kPanel; ++c) {
            const auto* data = static_cast<const typename Source::Element*>(args.sources[panel * kPanel + c]);
            const SourceRow<Source> row{data, args.out.cols};
            if constexpr (!kPairs) {
                row.at(k).store(reinterpret_cast<float*>(square[c]));
            } else if (data != nullptr && sizeof(typename Source::Element) == 2 && k + kFeatures <= args.out.cols &&
                       args.source_type == DType::bf16) {
                std::memcpy(square[c], data + k, sizeof square[c]);
            } else {
                store_bf16(reinterpret_cast<bf16_t*>(square[c]), row.at(k));
                store_bf16(reinterpret_cast<bf16_t*>(square[c]) + 16, row.at(k + 16));
            }
        }
        for (int unit = 0; unit < 16; ++unit) {
            alignas(64) std::uint32_t line[16];
            for (int c = 0; c < kPanel; ++c) line[c] = square[c][unit];
            std::memcpy(out + unit * 64, line, sizeof line);
        }
    }
}

// An f16 panel is the plain transpose of its 16 rows.
template <typename Source>
static void pack_f16_panel(const PackArgs& args, int panel) {
    auto* out = static_cast<f16_t*>(const_cast<void*>(args.out.data)) + panel * (args.out.panel_bytes / sizeof(f16_t));
    for (int k = 0; k < args.out.cols_padded; k += 16) {
        alignas(64) f16_t square[kPanel][16];
        for (int c = 0; c < kPanel; ++c) {
            const auto* data = static_cast<const typename Source::Element*>(args.sources[panel * kPanel + c]);
            store_f16(square[c], SourceRow<Source>{data, args.out.cols}.at(k));
        }
        for (int feature = 0; feature < 16; ++feature) {
            for (int c = 0; c < kPanel; ++c) *out++ = square[c][feature];
        }
    }
}

static void pack(const PackArgs& args, Team& team) {
    if (is_codes(args.out.format)) {
        pack_quantised(args, team);
        return;
    }
    const bool pairs = args.out.format == WeightFormat::bf16, halves = args.out.format == WeightFormat::f16;
    void (*one)(const PackArgs&, int) = nullptr;
    switch (args.source_type) {
        case DType::bf16: one = halves ? pack_f16_panel<Bf16Source> : pairs ? pack_panel<Bf16Source, true> : pack_panel<Bf16Source, false>; break;
        case DType::f16: one = halves ? pack_f16_panel<F16Source> : pairs ? pack_panel<F16Source, true> : pack_panel<F16Source, false>; break;
        default: one = halves ? pack_f16_panel<F32Source> : pairs ? pack_panel<F32Source, true> : pack_panel<F32Source, false>; break;
    }
    auto work = [&](int thread, int size) {
        const Share share = share_of(args.out.panels, thread, size);
        for (int panel = share.begin; panel < share.end; ++panel) one(args, panel);
    };
    team.run(work);
}

}  // namespace headrace::HEADRACE_ISA

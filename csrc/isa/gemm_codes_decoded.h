// Products of int8 activations with codes that were decoded into memory: where registers are few, some features of a panel
// are decoded once, in the first cache, and all rows go over them. That part is compiled once for all formats.
#pragma once

#include "gemm_codes_direct.h"

namespace headrace::HEADRACE_ISA {

constexpr int kDecodedFeatures = 512;  // of a panel at once: 8 KiB, beside those of four rows

// What decode_codes() writes.
template <int kRunOfCodes, int kSpan>
struct DecodedFormat {
    static constexpr int kFeatures = 4, kLines = 1, kVectors = 1, kRun = kRunOfCodes, kShortSpan = kSpan;
    HEADRACE_INLINE DecodedFormat of(const Matrix&) { return {}; }
    HEADRACE_METHOD void decode(const std::uint8_t* at, Codes (&out)[1]) const { out[0] = Codes::load(at); }
};

// Whether rows meet decoded codes: more than a tile's do, and all where no tiles are compiled for the format. Codes of 8
// bits need no decoding, and whole spans of more features than there is memory for are decoded in registers.
template <class Format>
HEADRACE_INLINE bool is_decoded(const Matrix& w, int rows) {
    const bool chosen = rows > kDirectRows || !(Format::kUsual || kBySixteen);
    return kCodePanels == 1 && !Format::kAsStored && chosen && spans_step(w) <= kDecodedFeatures;
}

// `rows` (up to kPassRows) rows by one panel, the features of a section; `next`: the panel that follows, or null.
template <int kRun>
static void decoded_panel(const CodeTile& tile, int rows, const std::uint8_t* next, const Section& section) {
    const Matrix& w = *tile.weight;
    const Decode decode = decoder_of(w.format);
    const int passes = ceil_div(rows, kCodeRows);
    const std::size_t feature_bytes = w.panel_bytes / w.cols_padded;  // twice the bits of a code
    PanelSpans<1> side;
    alignas(64) std::uint8_t memory[kDecodedFeatures * kPanel];
    for (int begin = section.begin, end, span = 0; begin < section.end; span += ceil_div(end - begin, w.span), begin = end) {
        end = least(spans_end(w, begin, kPassSpans, kDecodedFeatures), section.end);
        load_scales(w, tile.panel, begin, end, w.span, side.scales[0]);
        if (w.zeros != nullptr) load_starts(w, tile.panel, begin, end, w.span, offset_of(kRun), side.starts[0]);
        decode(w, tile.panel, begin, end, memory);
        // Decoding waits for memory, so that the passes prefetch what is decoded next, each its part.
        const bool last = end == w.cols_padded;
        DirectTile pass{.weight = &w, .codes = memory, .activations = tile.activations<char>(0, begin),
                        .activations_stride = tile.in->stride, .row_starts = section.starts + span,
                        .row_scales = section.scales + span, .rows_stride = section.stride * sizeof(float),
                        .scales = side.scales[0][0], .starts = w.zeros == nullptr ? nullptr : side.starts[0][0],
                        .halves = nullptr, .halves_stride = 0, .features = end - begin, .out = tile.out,
                        .out_stride = tile.out_stride, .accumulate = begin > 0,
                        .ask = !last ? tile.codes(0) + feature_bytes * end : next != nullptr ? next : tile.codes(0),
                        .turn = nullptr,
                        .ask_step = last && next == nullptr ? 0 : static_cast<std::size_t>(ceil_div(static_cast<int>(4 * feature_bytes), passes)),
                        .turn_span = -1, .far = false};
        for (int left = passes, row = 0; left > 0; --left) {
            const int some = ceil_div(rows - row, left);
            if (w.span == 16) {
                direct_tile_of<DecodedFormat<kRun, 16>, 1, kCodeRows, 1>(pass, some);
            } else {
                direct_tile_of<DecodedFormat<kRun, 32>, 1, kCodeRows, 1>(pass, some);
            }
            row += some;
            pass.next_rows(some, section.stride);
            pass.ask += (end - begin) / 4 * pass.ask_step;
        }
    }
}

}  // namespace headrace::HEADRACE_ISA

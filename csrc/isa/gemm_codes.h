// Products of int8 activations with weights of codes. A span of input features at a time: a product of whole numbers,
// scaled into the row's accumulator, which starts from the minima where there are some. The order is the same for one row
// as for many, and whichever tiles multiply them.
#pragma once

#include "gemm.h"
#include "gemm_codes_decoded.h"
#include "gemm_codes_super.h"

namespace headrace::HEADRACE_ISA {

constexpr int kMinimaSpans = 32, kMinimaPanels = 4;

// lows[r][16 p + c] = sum over the spans, in order, of minimum * sum of activations, for up to kPassRows rows and
// kMinimaPanels panels: a small product of floats.
HEADRACE_ALONE void multiply_minima(const Rows& in, int row, int rows, const Matrix& w, int panel, int panels, float* lows) {
    alignas(64) float minima[kMinimaPanels][kMinimaSpans][kPanel];
    alignas(64) float sums[kPassRows][kMinimaSpans];
    const void* groups = w.minima == nullptr ? w.scales : w.minima;
    const int features = kMinimaSpans * w.span, spans = spans_of(w);
    for (int begin = 0, span = 0; begin < w.cols_padded; begin += features, span += kMinimaSpans) {
        const int end = least(begin + features, w.cols_padded), count = least(kMinimaSpans, spans - span);
        for (int r = 0; r < rows; ++r) load_sums(in, row + r, span, count, sums[r]);
        for (int p = panel; p < panel + panels; ++p) {
            const std::ptrdiff_t ahead = groups_at(w, groups, p + panels, begin) - groups_at(w, groups, p, begin);
            load_minima(w, p, begin, end, w.span, minima[p - panel], ahead);
        }
        const void* segment = minima;
        const Panels b = {&segment, 1, kPanel * sizeof(float), sizeof minima[0], count};
        gemm_f32(sums[0], sizeof sums[0], rows, b, panels, lows, kLowsStride, begin > 0);
    }
}

HEADRACE_INLINE void add_lows(const float* lows, int rows, int panels, float* out, std::size_t out_stride) {
    for (int r = 0; r < rows; ++r, lows += kLowsStride, out += out_stride) {
        for (int p = 0; p < panels; ++p) {
            (F32x16::load(out + kPanel * p) + F32x16::load(lows + kPanel * p)).store(out + kPanel * p);
        }
    }
}

// The products of up to kPassRows rows by `panels` panels, but for those of minima, which few rows add to `lows`.
template <class Format>
static void multiply_panels(CodeTile tile, int rows, int panels, int next_panel, const Section& section, float* lows) {
    const int width = rows <= kDirectRows ? 1 : kCodePanels;
    for (int taken; panels > 0; panels -= taken, tile.panel += taken, tile.out += taken * kPanel) {
        taken = panels >= width ? width : 1;
        const int following = panels > taken ? tile.panel + taken : next_panel;
        const std::uint8_t* next = following < 0 ? nullptr : tile.codes(following - tile.panel);
        if constexpr (kReadsSupers && requires { Format::kSuperSigned; }) {
            if (rows <= kDirectRows && is_super(tile.weight->scale_type)) {
                super_panel<Format>(tile, rows, next, section, lows);
                if (lows != nullptr) lows += kPanel;
                continue;
            }
        }
        if constexpr (kCodePanels == 1) {
            if (is_decoded<Format>(*tile.weight, rows)) {
                decoded_panel<Format::kRun>(tile, rows, next, section);
            } else {
                direct_panels<Format, 1, Format::kUsual || kBySixteen ? kCodeRows : 1, 1>(tile, rows, next, section, lows);
            }
        } else if (taken == 1) {
            direct_panels<Format, 1, kDirectRows, 1>(tile, rows, next, section, lows);
        } else {  // two passes of 9 rows have 5 and 4. Codes that take more registers to decode leave fewer to rows.
            constexpr int kMost = Format::kUsual ? kCodeRows : kCodeRows * 3 / 4;
            direct_panels<Format, kMost / 2, kMost, kCodePanels>(tile, rows, next, section, lows);
        }
        if (lows != nullptr) lows += kPanel;  // few rows take one panel after the other
    }
}

// Whether minima are in `lows`.
template <class Format>
static bool multiply_codes(const CodeTile& tile, int rows, int panels, int next_panel, float* lows) {
    const Matrix& w = *tile.weight;
    const bool few = has_minima(w) && rows <= kDirectRows && !is_decoded<Format>(w, rows);
    const int factor = w.zeros == nullptr ? offset_of(Format::kRun) - w.middle : 1;
    Section section;
    section.begin = 0;
    for (int span = 0; section.begin < w.cols_padded; span += section.stride, section.begin = section.end) {
        load_section(*tile.in, tile.row, rows, w, span, factor, few, section);
        multiply_panels<Format>(tile, rows, panels, next_panel, section, few ? lows : nullptr);
    }
    return few;
}

// out[r, 16p + c] = sum over k of in[row + r, k] * W[16 (panel + p) + c, k], for `rows` rows and `panels` panels, up to
// kMinimaPanels. `next_panel`: the panels that follow, or -1.
// `in` is encoded as weight.input says, i8 in the weight's spans. Rows and panels may be divided in any way: no bit changes.
// A span has up to 2^16 input features (a sum of theirs has to fit into 32 bits).
static void gemm_whole_codes(const Rows& in, int row, int rows, const Matrix& weight, int panel, int panels, float* out,
                             std::size_t out_stride, int next_panel) {
    alignas(64) float lows[kPassRows * kLowsStride];
    for (int some; rows > 0; rows -= some, row += some, out += some * out_stride) {
        some = least(rows, kPassRows);
        const CodeTile tile{.in = &in, .weight = &weight, .row = row, .panel = panel, .out = out, .out_stride = out_stride};
        const bool done = with_format(weight.format, [&]<class Format>() {
            if constexpr (Format::kWhole) return multiply_codes<Format>(tile, some, panels, next_panel, lows);
            return false;
        });
        if (!has_minima(weight)) continue;
        if (!done) multiply_minima(in, row, some, weight, panel, panels, lows);
        add_lows(lows, some, panels, out, out_stride);
    }
}

}  // namespace headrace::HEADRACE_ISA

// The linear op: cuts the output into blocks of rows and panels, which threads take in turn. A block's panels stay in a
// core's second cache while its rows pass, so weights are read from memory once; its products stay in the first.
#pragma once

#include "../kernels.h"
#include "epilogue.h"
#include "gemm.h"
#include "gemm_codes.h"
#if HEADRACE_TILES
#include "gemm_codes_amx.h"
#endif

namespace headrace::HEADRACE_ISA {

constexpr int kBlockPanels = 4;
constexpr int kBlockRows = 96;      // whole register tiles, and whole AMX tiles
constexpr int kBlockFeatures = 256;  // input features: 4 panels of them stay in the first cache while 96 rows pass

// products[r][16 p + lane] for `rows` rows from first_row on and `panels` panels from first_panel on.
static void multiply(const LinearArgs& args, int first_row, int rows, int first_panel, int panels, float* products,
                     std::size_t c_stride) {
    const Matrix& weight = *args.weight;
    if (weight.format == WeightFormat::int8 || weight.format == WeightFormat::int4) {
#if HEADRACE_TILES
        gemm_codes_amx(args.in, first_row, rows, weight, first_panel, panels, products, c_stride);
#else
        gemm_codes(args.in, first_row, rows, weight, first_panel, panels, products, c_stride);
#endif
        return;
    }
    const bool wide = weight.format == WeightFormat::f32;
    const char* in = static_cast<const char*>(args.in.data) + first_row * args.in.stride;
    const char* data = static_cast<const char*>(weight.data) + first_panel * weight.panel_bytes;
    // Few rows pass once, so a panel is read from end to end; otherwise sums are kept in `products` between blocks.
    const int features = rows <= kTileRows ? weight.cols_padded : wide ? kBlockFeatures / 2 : kBlockFeatures;
    for (int k = 0; k < weight.cols_padded; k += features) {
        const void* segment = data + static_cast<std::size_t>(k) * (wide ? 64 : 32);
        const Panels b = {&segment, 1, 64, weight.panel_bytes, least(features, weight.cols_padded - k)};
        if (wide) {
            gemm_f32(reinterpret_cast<const float*>(in) + k, args.in.stride, rows, b, panels, products, c_stride, k > 0);
        } else {
            gemm_bf16(reinterpret_cast<const bf16_t*>(in) + k, args.in.stride, rows, b, panels, products, c_stride, k > 0);
        }
    }
}

static void linear(const LinearArgs& args, Team& team) {
    const int panels = args.weight->panels, threads = team.size();
    // Panels a block: fewer where the matrix is small, so that every thread gets several blocks; even for the gate.
    int wide = kBlockPanels;
    while (wide > 2 && ceil_div(panels, wide) < 8 * threads) wide /= 2;
    const int columns = ceil_div(panels, wide);
    // Rows are cut too where columns alone are few, at a multiple of a block.
    const int row_blocks = ceil_div(args.rows, kBlockRows);
    const int row_cuts = threads == 1 ? 1 : largest(1, least(row_blocks, ceil_div(8 * threads, columns)));
    int next = 0;
    auto work = [&](int, int) {
        const TileScope scope;
        alignas(64) float products[kBlockRows * kBlockPanels * kPanel];
        for (;;) {
            const int item = take(next);
            if (item >= columns * row_cuts) return;
            const int first_panel = item / row_cuts * wide, some_panels = least(wide, panels - first_panel);
            const Share blocks = share_of(row_blocks, item % row_cuts, row_cuts);
            for (int block = blocks.begin; block < blocks.end; ++block) {
                const int row = block * kBlockRows, rows = least(kBlockRows, args.rows - row);
                multiply(args, row, rows, first_panel, some_panels, products, kBlockPanels * kPanel);
                finish(args, row, rows, first_panel, some_panels, products, kBlockPanels * kPanel);
            }
        }
    };
    team.run(work);
}

}  // namespace headrace::HEADRACE_ISA

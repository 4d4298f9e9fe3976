// The linear op: cuts the output into blocks of rows and panels, a range of them a thread. A block's panels stay in a
// core's second cache while its rows pass, so weights are read from memory once; its products stay in the first.
#pragma once

#include "../kernels.h"
#include "epilogue.h"
#include "gemm.h"
#include "gemm_codes.h"
#include "gemm_codes_bf16.h"
#include "widen.h"
#if HEADRACE_TILES
#include "gemm_codes_amx.h"
#endif

namespace headrace::HEADRACE_ISA {

constexpr int kBlockPanels = 4;
constexpr int kFewRows = 16;
#if HEADRACE_TILES
constexpr int kBlockRows = 192;      // whole rows of tiles
constexpr int kBlockFeatures = 512;  // input features: two panels of them stay in the first cache while the rows pass
#else
constexpr int kBlockRows = 96;        // whole register tiles
constexpr int kBlockFeatures = 2048;  // input features: four panels of them stay in the second cache
#endif

// Items divided into one range a thread, so that each reads its weights as one stream; a thread that has finished its
// own range takes items of others.
class Ranges {
public:
    Ranges(int items, int threads) : items_(items), ranges_(least(threads, kMost)) {
        for (int i = 0; i < ranges_; ++i) next_[i].item = share_of(items, i, ranges_).begin;
    }

    // A thread's position in the ranges: its own first. A range that is empty stays empty and is checked once.
    struct Walk {
        int range;
        int left;  // ranges, this one included
    };
    Walk from(int thread) const { return {thread % ranges_, ranges_}; }

    // An item for this thread only; `items` when none is left.
    int take(Walk& walk) {
        while (peek(walk) < items_) {
            const int item = headrace::HEADRACE_ISA::take(next_[walk.range].item);
            if (item < end_of(walk.range)) return item;
        }
        return items_;
    }

    // What take would return now, without taking it: other threads can still do so.
    int peek(Walk& walk) const {
        for (; walk.left > 0; --walk.left, walk.range = (walk.range + 1) % ranges_) {
            const int item = __atomic_load_n(&next_[walk.range].item, __ATOMIC_RELAXED);
            if (item < end_of(walk.range)) return item;
        }
        return items_;
    }

private:
    int end_of(int range) const { return share_of(items_, range, ranges_).end; }

    static constexpr int kMost = 64;  // more threads than that share ranges
    struct alignas(64) Next {
        int item;
    };
    int items_, ranges_;
    Next next_[kMost];
};

// The place of a block in the output.
struct OutputBlock {
    int row, rows, panel, panels;
};

// products[r][16 p + lane] for a block. `next_panel`: the panels that follow, or -1.
static void multiply(const LinearArgs& args, OutputBlock block, int next_panel, float* products, std::size_t c_stride) {
    const Matrix& weight = *args.weight;
    if (is_codes(weight.format)) {
#if HEADRACE_TILES
        gemm_codes_amx(args.in, block.row, block.rows, weight, block.panel, block.panels, products, c_stride, next_panel);
#else
        if (weight.input == DType::bf16) {
            gemm_pair_codes(args.in, block.row, block.rows, weight, block.panel, block.panels, products, c_stride);
        } else {
            gemm_whole_codes(args.in, block.row, block.rows, weight, block.panel, block.panels, products, c_stride, next_panel);
        }
#endif
        return;
    }
    if constexpr (!kWidensInRegisters) {
        const bool pairs = weight.format == WeightFormat::bf16;
        if (weight.input == DType::f32 && (weight.format == WeightFormat::f16 || (pairs && block.rows > 2))) {
            const auto* in = reinterpret_cast<const float*>(static_cast<const char*>(args.in.data) + block.row * args.in.stride);
            multiply_widened<kBlockPanels>(in, args.in.stride, block.rows, weight, block.panel, block.panels, products, c_stride);
            return;
        }
    }
    const int line = weight.format == WeightFormat::f32 ? 1 : 2;  // input features in 64 bytes of a panel
    const bool floats = weight.input == DType::f32;
    const auto gemm_floats = weight.format == WeightFormat::f32    ? gemm<F32Product>
                             : weight.format == WeightFormat::bf16 ? gemm<WideBf16Product>
                                                                   : gemm<WideF16Product>;
    const char* in = static_cast<const char*>(args.in.data) + block.row * args.in.stride;
    const auto panel_at = [&](int panel, int k) {
        return static_cast<const char*>(weight.data) + panel * weight.panel_bytes + static_cast<std::size_t>(k / line) * 64;
    };
    // Few rows pass over panels once, from end to end. For more, sums are kept in `products` from block to block.
    const int most = block.rows <= kFewRows ? weight.cols_padded : kBlockFeatures / 2 * line;
    for (int k = 0; k < weight.cols_padded; k += most) {
        const int features = least(most, weight.cols_padded - k), next = k + features;
        const void* segment = panel_at(block.panel, k);
        const void* ahead = next < weight.cols_padded ? panel_at(block.panel, next)
                            : next_panel >= 0         ? panel_at(next_panel, 0)
                                                      : nullptr;
        const Panels b = {&segment, 1, 64, weight.panel_bytes, features, ahead};
        if (floats) {
            gemm_floats({reinterpret_cast<const float*>(in) + k, args.in.stride, block.rows, b, block.panels, products,
                         c_stride, k > 0});
        } else {
            gemm_bf16(reinterpret_cast<const bf16_t*>(in) + k, args.in.stride, block.rows, b, block.panels, products,
                      c_stride, k > 0);
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
    const int items = columns * row_cuts;
    Ranges ranges(items, threads);
    auto work = [&](int thread, int) {
        const TileScope scope;
        alignas(64) float products[kBlockRows * kBlockPanels * kPanel];
        constexpr std::size_t kStride = kBlockPanels * kPanel;
        Ranges::Walk walk = ranges.from(thread);
        for (int item; (item = ranges.take(walk)) < items;) {
            const Share blocks = share_of(row_blocks, item % row_cuts, row_cuts);
            const int panel = item / row_cuts * wide;
            for (int i = blocks.begin; i < blocks.end; ++i) {
                const int row = i * kBlockRows;
                const OutputBlock block = {row, least(kBlockRows, args.rows - row), panel, least(wide, panels - panel)};
                // Most likely the next one, so that its weights can be prefetched.
                const int following = i + 1 == blocks.end ? ranges.peek(walk) : items;
                multiply(args, block, following < items ? following / row_cuts * wide : -1, products, kStride);
                finish(args, block.row, block.rows, block.panel, block.panels, products, kStride);
            }
        }
    };
    team.run(work);
}

}  // namespace headrace::HEADRACE_ISA

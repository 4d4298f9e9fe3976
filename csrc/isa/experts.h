// Products of routed rows, each with its own expert's matrix, and what lies around them. The tasks are blocks of panels of
// those experts that have rows, so the work grows with the routed rows, and few experts are shared by all threads.
#pragma once

#include <cstring>

#include "../kernels.h"
#include "linear.h"
#include "rowwise.h"

namespace headrace::HEADRACE_ISA {

static void dispatch(const DispatchArgs& a, Team& team) {
    const std::size_t groups = a.in.type == DType::i8 ? a.in.groups : 0;
    for_rows(a.rows * a.routing.each, static_cast<int>(a.in.stride / sizeof(float)), team, [&](int row) {
        const auto to = static_cast<std::size_t>(row), from = static_cast<std::size_t>(a.routing.sources[row]);
        std::memcpy(static_cast<char*>(a.out.data) + to * a.out.stride, static_cast<const char*>(a.in.data) + from * a.in.stride,
                    a.in.stride);
        if (groups == 0) return;
        std::memcpy(a.out.scales + to * groups, a.in.scales + from * groups, groups * sizeof(float));
        std::memcpy(a.out.sums + to * groups, a.in.sums + from * groups, groups * sizeof(std::int32_t));
    });
}

// Multiplies the products of routed rows by the weights that the rows were chosen with.
static void weigh(const Routing& routing, const OutputBlock& block, float* products, std::size_t stride) {
    for (int r = 0; r < block.rows; ++r, products += stride) {
        const std::int32_t place = block.row + r;
        const std::size_t first = static_cast<std::size_t>(routing.sources[place]) * routing.each;
        int choice = 0;
        while (routing.places[first + choice] != place) ++choice;
        const F32x16 weight = F32x16::broadcast(routing.weights[first + choice]);
        for (int i = 0; i < block.panels * kPanel; i += 16) (F32x16::load(products + i) * weight).store(products + i);
    }
}

static void experts(const ExpertsArgs& a, Team& team) {
    const Routing& routing = a.routing;
    const Matrix& weight = *a.linear.weight;
    const int used = routing.used[0], panels = weight.panels, threads = team.size();
    int wide = kBlockPanels;  // as in `linear`
    while (wide > 2 && used * ceil_div(panels, wide) < 8 * threads) wide /= 2;
    const int columns = ceil_div(panels, wide), items = used * columns;
    Ranges ranges(items, threads);
    auto work = [&](int thread, int) {
        const TileScope scope;
        alignas(64) float products[kBlockRows * kBlockPanels * kPanel];
        constexpr std::size_t kStride = kBlockPanels * kPanel;
        Ranges::Walk walk = ranges.from(thread);
        LinearArgs one = a.linear;
        Matrix matrix;
        one.weight = &matrix;
        for (int item, last = -1; (item = ranges.take(walk)) < items;) {
            const int number = item / columns, expert = routing.used[1 + number], panel = item % columns * wide;
            if (number != last) matrix = expert_of(weight, expert);
            last = number;
            const int begin = routing.begins[expert], end = routing.begins[expert + 1];
            for (int row = begin; row < end; row += kBlockRows) {
                const OutputBlock block = {row, least(kBlockRows, end - row), panel, least(wide, panels - panel)};
                // Most likely the next one, so that its weights can be prefetched.
                const int following = row + kBlockRows >= end ? ranges.peek(walk) : items;
                const bool same = following < items && following / columns == number;
                multiply(one, block, same ? following % columns * wide : -1, products, kStride);
                if (a.scaled) weigh(routing, block, products, kStride);
                finish(one, block.row, block.rows, block.panel, block.panels, products, kStride);
            }
        }
    };
    if (items > 0) team.run(work);
}

static void combine(const CombineArgs& a, Team& team) {
    const int each = a.routing.each;
    for_rows(a.rows, a.cols * each, team, [&](int row) {
        const auto at = static_cast<std::size_t>(row);
        const std::int32_t* places = a.routing.places + at * each;
        const float* weights = a.routing.weights + at * each;
        float* out = reinterpret_cast<float*>(reinterpret_cast<char*>(a.out) + at * a.out_stride);
        const float gate = a.gated ? a.routing.gates[row] : 1.0F;
        const auto* shared = reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.shared) + at * a.shared_stride);
        for (int i = 0; i < a.cols; i += 16) {
            const int n = least(16, a.cols - i);
            F32x16 sum = F32x16::zero();
            for (int j = 0; j < each; ++j) {
                const char* in = reinterpret_cast<const char*>(a.in) + static_cast<std::size_t>(places[j]) * a.in_stride;
                sum = fma(F32x16::broadcast(a.weighted ? weights[j] : 1.0F), F32x16::load(reinterpret_cast<const float*>(in) + i, n), sum);
            }
            if (a.shared != nullptr) sum = fma(F32x16::broadcast(gate), F32x16::load(shared + i, n), sum);
            if (a.add) sum = F32x16::load(out + i, n) + sum;
            sum.store(out + i, n);
        }
    });
}

}  // namespace headrace::HEADRACE_ISA

// Products of the features of each head with a matrix of its own. The tasks are blocks of panels of all heads, so many small
// matrices are one call.
#pragma once

#include "../kernels.h"
#include "linear.h"

namespace headrace::HEADRACE_ISA {

static void heads_linear(const HeadsArgs& a, Team& team) {
    const Matrix& weight = *a.linear.weight;
    const std::size_t in_bytes = dtype_bytes(a.linear.in.type), out_bytes = dtype_bytes(a.linear.out_type);
    const int panels = weight.panels, columns = ceil_div(panels, kBlockPanels), items = weight.experts * columns;
    Ranges ranges(items, team.size());
    auto work = [&](int thread, int) {
        const TileScope scope;
        alignas(64) float products[kBlockRows * kBlockPanels * kPanel];
        constexpr std::size_t kStride = kBlockPanels * kPanel;
        Ranges::Walk walk = ranges.from(thread);
        LinearArgs one = a.linear;
        Matrix matrix;
        one.weight = &matrix;
        for (int item, last = -1; (item = ranges.take(walk)) < items;) {
            const auto head = static_cast<std::size_t>(item / columns);
            const int panel = item % columns * kBlockPanels;
            if (static_cast<int>(head) != last) {
                last = static_cast<int>(head);
                matrix = expert_of(weight, last);
                one.in.data = static_cast<char*>(a.linear.in.data) + head * a.inputs * in_bytes;
                one.out = static_cast<char*>(a.linear.out) + head * a.outputs * out_bytes;
            }
            for (int row = 0; row < a.linear.rows; row += kBlockRows) {
                const OutputBlock block = {row, least(kBlockRows, a.linear.rows - row), panel, least(kBlockPanels, panels - panel)};
                multiply(one, block, -1, products, kStride);
                finish(one, block.row, block.rows, block.panel, block.panels, products, kStride);
            }
        }
    };
    team.run(work);
}

}  // namespace headrace::HEADRACE_ISA

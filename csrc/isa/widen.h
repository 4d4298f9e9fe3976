// 16-bit floats as f32 ahead of a product, for sets without instructions that widen them: in a loop of its own the
// compiler makes vectors of it, and many rows share what was widened once. No bit differs: widening is exact.
#pragma once

#include "gemm.h"

namespace headrace::HEADRACE_ISA {

#if defined(__AVX2__)
constexpr bool kWidensInRegisters = true;
#else
constexpr bool kWidensInRegisters = false;
#endif
constexpr int kWidenedFeatures = 256;

HEADRACE_ALONE void widen_f16(const f16_t* from, float* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = from_f16(from[i]);
}

HEADRACE_ALONE void widen_pairs(const bf16_t* from, float* to, int features) {
    for (int k = 0; k < features; k += 2, from += 2 * kPanel, to += 2 * kPanel) {
        for (int c = 0; c < kPanel; ++c) {
            to[c] = from_bf16(from[2 * c]);
            to[c + kPanel] = from_bf16(from[2 * c + 1]);
        }
    }
}

// products = rows of `in` times up to kPanels panels of a bf16 or f16 matrix.
template <int kPanels>
static void multiply_widened(const float* in, std::size_t in_stride, int rows, const Matrix& weight, int panel, int panels,
                             float* products, std::size_t c_stride) {
    alignas(64) float wide[kPanels][kWidenedFeatures * kPanel];
    for (int k = 0; k < weight.cols_padded; k += kWidenedFeatures) {
        const int features = least(kWidenedFeatures, weight.cols_padded - k);
        for (int p = 0; p < panels; ++p) {
            const auto* from = reinterpret_cast<const std::uint16_t*>(static_cast<const char*>(weight.data) +
                                                                      (panel + p) * weight.panel_bytes);
            from += static_cast<std::size_t>(k) * kPanel;
            weight.format == WeightFormat::f16 ? widen_f16(from, wide[p], features * kPanel)
                                               : widen_pairs(from, wide[p], features);
        }
        const void* segment = wide;
        const Panels b = {&segment, 1, kPanel * sizeof(float), sizeof wide[0], features};
        gemm<F32Product>({in + k, in_stride, rows, b, panels, products, c_stride, k > 0});
    }
}

}  // namespace headrace::HEADRACE_ISA

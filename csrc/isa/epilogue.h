// What happens to a block of products on its way out: bias, then store, add to the residual stream, gate, or multiply by a gate.
#pragma once

#include "../kernels.h"
#include "gates.h"

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE F32x16 bias_of(const Matrix& weight, int panel) {
    return weight.bias == nullptr ? F32x16::zero() : F32x16::load(weight.bias + kPanel * panel);
}

HEADRACE_INLINE void put(const LinearArgs& args, int row, int feature, F32x16 value, int n) {
    char* out = static_cast<char*>(args.out) + row * args.out_stride;
    if (args.out_type == DType::bf16) {
        bf16_t* at = reinterpret_cast<bf16_t*>(out) + feature;
        n == kPanel ? store_bf16(at, value) : store_bf16(at, value, n);
        return;
    }
    float* at = reinterpret_cast<float*>(out) + feature;
    if (args.epilogue == Epilogue::add) value = value + (n == kPanel ? F32x16::load(at) : F32x16::load(at, n));
    n == kPanel ? value.store(at) : value.store(at, n);
}

// The gate of `n` features from `feature` on, where it is a product of its own.
HEADRACE_INLINE F32x16 gate_of(const LinearArgs& args, int row, int feature, int n) {
    const char* gates = reinterpret_cast<const char*>(args.gates) + row * args.gates_stride;
    const float* at = reinterpret_cast<const float*>(gates) + feature;
    return n == kPanel ? F32x16::load(at) : F32x16::load(at, n);
}

// products: [rows][c_stride] floats, the panels from first_panel on side by side.
static void finish(const LinearArgs& args, int first_row, int rows, int first_panel, int panels, const float* products,
                   std::size_t c_stride) {
    const Matrix& weight = *args.weight;
    if (args.epilogue == Epilogue::gate) {
        for (int p = 0; p < panels; p += 2) {
            const F32x16 gate_bias = bias_of(weight, first_panel + p), up_bias = bias_of(weight, first_panel + p + 1);
            for (int r = 0; r < rows; ++r) {
                const float* at = products + r * c_stride + kPanel * p;
                const F32x16 gate = F32x16::load(at) + gate_bias, up = F32x16::load(at + kPanel) + up_bias;
                put(args, first_row + r, (first_panel + p) / 2 * kPanel, gated(args.gate, gate, up), kPanel);
            }
        }
        return;
    }
    for (int p = 0; p < panels; ++p) {
        const int feature = (first_panel + p) * kPanel;
        const int n = least(kPanel, weight.rows - feature);
        const F32x16 bias = bias_of(weight, first_panel + p);
        for (int r = 0; r < rows; ++r) {
            F32x16 value = F32x16::load(products + r * c_stride + kPanel * p) + bias;
            if (args.epilogue == Epilogue::multiply) value = gated(args.gate, gate_of(args, first_row + r, feature, n), value);
            put(args, first_row + r, feature, value, n);
        }
    }
}

}  // namespace headrace::HEADRACE_ISA

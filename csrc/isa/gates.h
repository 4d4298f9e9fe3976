// What feed-forward networks apply to their gate, or to their inner features: SiLU, both forms of GELU, ReLU, its square.
#pragma once

#include "../tensors.h"

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE F32x16 silu(F32x16 x) {  // x / (1 + e^-x)
    return x / (F32x16::broadcast(1.0F) + exp(F32x16::zero() - x));
}

// x * Phi(x). The normal distribution's tail at z = |x| is exp(-z^2 / 2) * P(1 / (1 + 0.3 z)), with P a least-maximum
// fit of our own of relative error 4e-8.
HEADRACE_INLINE F32x16 gelu(F32x16 x) {
    const F32x16 one = F32x16::broadcast(1.0F);
    const F32x16 z = max(F32x16::zero() - x, x);
    const F32x16 t = one / fma(F32x16::broadcast(0.3F), z, one);
    F32x16 p = F32x16::broadcast(-4.509222579470e-3F);
    p = fma(p, t, F32x16::broadcast(6.181477578919e-2F));
    p = fma(p, t, F32x16::broadcast(-2.2167092025299e-1F));
    p = fma(p, t, F32x16::broadcast(2.9504041907878e-1F));
    p = fma(p, t, F32x16::broadcast(-1.2856755909004e-1F));
    p = fma(p, t, F32x16::broadcast(1.6873828919933e-1F));
    p = fma(p, t, F32x16::broadcast(8.623906880517e-2F));
    p = fma(p, t, F32x16::broadcast(1.2359761824279e-1F));
    p = fma(p, t, F32x16::broadcast(1.1930159472142e-1F));
    p = fma(p, t, F32x16::broadcast(1.595281679780e-5F));
    const F32x16 tail = exp(F32x16::broadcast(-0.5F) * z * z) * p;
    // Where the tail underflows, z * 0 would turn an infinite x into a NaN.
    const F32x16 below = select(less(F32x16::broadcast(13.3F), z), F32x16::zero(), x * tail);
    return select(less(x, F32x16::zero()), below, x - below);
}

HEADRACE_INLINE F32x16 gelu_tanh(F32x16 x) {
    const F32x16 inner = x * fma(x * x, F32x16::broadcast(0.79788456F * 0.044715F), F32x16::broadcast(0.79788456F));
    const F32x16 half = F32x16::broadcast(0.5F) * x;
    return fma(half, tanh(inner), half);
}

HEADRACE_INLINE F32x16 apply(Gate gate, F32x16 x) {
    switch (gate) {
        case Gate::silu: return silu(x);
        case Gate::gelu: return gelu(x);
        case Gate::gelu_tanh: return gelu_tanh(x);
        case Gate::relu: return max(x, F32x16::zero());
        case Gate::relu2: {
            const F32x16 positive = max(x, F32x16::zero());
            return positive * positive;
        }
        case Gate::swiglu_oai:
        case Gate::none: break;
    }
    return x;
}

// What a gate and up become together.
HEADRACE_INLINE F32x16 gated(Gate kind, F32x16 gate, F32x16 up) {
    if (kind != Gate::swiglu_oai) return apply(kind, gate) * up;
    const F32x16 one = F32x16::broadcast(1.0F), limit = F32x16::broadcast(7.0F);
    const F32x16 g = min(limit, gate), u = max(F32x16::zero() - limit, min(limit, up));  // a NaN stays one
    return (u + one) * (g / (one + exp(F32x16::broadcast(-1.702F) * g)));
}

}  // namespace headrace::HEADRACE_ISA

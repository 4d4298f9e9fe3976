// exp and tanh on top of a set's arithmetic. Coefficients: least-maximum fits of our own on the intervals named.
#pragma once

namespace headrace::HEADRACE_ISA {

// Relative error <= 2e-7; 0 below -87.3 (no subnormal results), infinity above 88.72; a NaN stays one.
HEADRACE_INLINE F32x16 exp(F32x16 x) {
    // max and min return their second operand if one is a NaN, so x passes through.
    const F32x16 inside = min(F32x16::broadcast(89.0F), max(F32x16::broadcast(-88.0F), x));
    const I32x16 n = round(inside * F32x16::broadcast(0x1.715476p+0F));
    const F32x16 k = to_float(n);
    // x - n ln 2 in two steps: the first constant has 15 bits, so its product is exact.
    F32x16 r = fma(k, F32x16::broadcast(-0x1.62e4p-1F), inside);
    r = fma(k, F32x16::broadcast(-0x1.7f7d1cp-20F), r);
    F32x16 q = F32x16::broadcast(1.3814466221e-3F);  // (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, error 3e-9
    q = fma(q, r, F32x16::broadcast(8.3687804859e-3F));
    q = fma(q, r, F32x16::broadcast(4.1668394229e-2F));
    q = fma(q, r, F32x16::broadcast(1.6666520107e-1F));
    q = fma(q, r, F32x16::broadcast(4.9999993412e-1F));
    const F32x16 result = times_power(F32x16::broadcast(1.0F) + fma(r * r, q, r), n);
    return select(less(x, F32x16::broadcast(-87.33F)), F32x16::zero(), result);
}

// Relative error <= 5e-7; odd bit for bit.
HEADRACE_INLINE F32x16 tanh(F32x16 x) {
    const F32x16 one = F32x16::broadcast(1.0F);
    const F32x16 size = max(F32x16::zero() - x, x);
    const F32x16 z = x * x;
    F32x16 q = F32x16::broadcast(-5.7049839601e-3F);  // (tanh(x) / x - 1) / x^2 for |x| <= 0.625, error 5e-9
    q = fma(q, z, F32x16::broadcast(2.0639084239e-2F));
    q = fma(q, z, F32x16::broadcast(-5.3739714045e-2F));
    q = fma(q, z, F32x16::broadcast(1.3331442184e-1F));
    q = fma(q, z, F32x16::broadcast(-3.3333281941e-1F));
    const F32x16 near = fma(x * z, q, x);
    const F32x16 far = one - F32x16::broadcast(2.0F) / (exp(size + size) + one);
    const F32x16 signed_far = select(less(x, F32x16::zero()), F32x16::zero() - far, far);
    return select(less(size, F32x16::broadcast(0.625F)), near, signed_far);
}

}  // namespace headrace::HEADRACE_ISA

// Pairs of codes for sets without products of bf16: floats at once.
#pragma once

namespace headrace::HEADRACE_ISA {

// Two features of 16 columns as products of codes read them.
struct PairFactors {
    F32x16 first, second;
    HEADRACE_INLINE PairFactors load(const std::uint8_t* p) {
        return {F32x16::load(reinterpret_cast<const float*>(p)), F32x16::load(reinterpret_cast<const float*>(p + 64))};
    }
    HEADRACE_METHOD void store(std::uint8_t* p) const {
        first.store(reinterpret_cast<float*>(p));
        second.store(reinterpret_cast<float*>(p + 64));
    }
};
HEADRACE_INLINE F32x16 dot(F32x16 acc, PairFactors x, const bf16_t* two) {  // in the order of dot() of Pairs
    const Pairs y = Pairs::broadcast(two);
    return fma(x.second, second_of_pairs(y), fma(x.first, first_of_pairs(y), acc));
}

}  // namespace headrace::HEADRACE_ISA

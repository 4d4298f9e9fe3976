// The table of this instruction set: one line a kernel. Included last by every kernels_*.cpp; a kernel's header is
// included here, after the vec_*.h of the translation unit.
#pragma once

#include "../kernels.h"

namespace headrace::HEADRACE_ISA {

extern const Kernels table;
const Kernels table = {
    .name = HEADRACE_ISA_NAME,
    .linear = nullptr,
    .encode = nullptr,
    .embed = nullptr,
    .rotations = nullptr,
    .rope_and_write = nullptr,
    .attention = nullptr,
    .attention_scratch = nullptr,
    .pack = nullptr,
    .argmax = nullptr,
};

}  // namespace headrace::HEADRACE_ISA

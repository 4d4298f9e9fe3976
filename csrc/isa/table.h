// The table of this instruction set: one line a kernel. Included last by every kernels_*.cpp; a kernel's header is
// included here, after the vec_*.h of the translation unit.
#pragma once

#include "../kernels.h"
#include "attention.h"
#include "experts.h"
#include "heads.h"
#include "linear.h"
#include "mass.h"
#include "pack.h"
#include "peak.h"
#include "recurrent.h"
#include "rope.h"
#include "route.h"
#include "rowwise.h"
#include "sampling.h"

namespace headrace::HEADRACE_ISA {

extern const Kernels table;
const Kernels table = {
    .name = HEADRACE_ISA_NAME,
    .layout = kPackedLayout,
    .linear = linear,
    .encode = encode,
    .add = add,
    .embed = embed,
    .rotations = rotations,
    .rope_and_write = rope_and_write,
    .latent_and_write = latent_and_write,
    .heads_linear = heads_linear,
    .attention = attention,
    .attention_scratch = attention_scratch,
    .attention_mass = attention_mass,
    .pack = pack,
    .pack_codes = pack_codes,
    .ungroup = ungroup,
    .sigmoid_gate = sigmoid_gate,
    .convolution = convolution,
    .gated_delta = gated_delta,
    .route = route,
    .dispatch = dispatch,
    .experts = experts,
    .combine = combine,
    .argmax = argmax,
    .soft_cap = soft_cap,
    .peak = peak,
    .read = read,
    .scan_row = scan_row,
    .weigh_row = weigh_row,
    .collect = collect,
    .noise = noise,
};

}  // namespace headrace::HEADRACE_ISA

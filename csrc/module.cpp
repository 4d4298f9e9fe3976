// The Python module headrace._native.
#include "bindings.h"

NB_MODULE(_native, m) {
    headrace::bind_attention(m);
    headrace::bind_cpu_features(m);
    headrace::bind_eviction_parts(m);
    headrace::bind_experts(m);
    headrace::bind_kernels(m);
    headrace::bind_roofline(m);
    headrace::bind_team(m);
    headrace::bind_sampler(m);
    headrace::bind_packed_matrix(m);
    headrace::bind_linear(m);
    headrace::bind_rowwise(m);
    headrace::bind_tape(m);
}

// One bind_ function for each topic; module.cpp calls them all. A binding's Python signature stands in
// src/headrace/_native.pyi.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels.h"

namespace headrace {

// The Python class Kernels: a table of find_kernels, which is never freed.
struct KernelSet {
    const Kernels* table;
};

void bind_attention(nanobind::module_& m);
void bind_cpu_features(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_roofline(nanobind::module_& m);
void bind_packed_matrix(nanobind::module_& m);
void bind_rowwise(nanobind::module_& m);
void bind_tape(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_team(nanobind::module_& m);

}  // namespace headrace

// One bind_ function for each topic; module.cpp calls them all. A binding's Python signature stands in
// src/headrace/_native.pyi.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace {

void bind_cpu_features(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_roofline(nanobind::module_& m);

}  // namespace headrace

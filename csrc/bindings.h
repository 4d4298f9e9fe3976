// One bind_ function for each topic; module.cpp calls them all. A binding's Python signature is in
// src/headrace/_native.pyi.
#pragma once

#include <nanobind/nanobind.h>

#include "arena.h"
#include "kernels.h"

namespace headrace {

// The Python class Kernels: a table of find_kernels, which is never freed.
struct KernelSet {
    const Kernels* table;
};

// The embeddings that a Python object holds: an array [rows, cols] of float32, float16 or bfloat16 as uint16, or a
// PackedMatrix of floats. Throws for anything else. The object must live as long as the arguments are used.
struct Embeddings {
    EmbedArgs args;
    int rows = 0;
};
// Memory for `rows` rows encoded in the format that the matrix reads.
Rows rows_for(const Matrix& weight, int rows, Arena& arena);

// Throws std::invalid_argument where groups do not divide the experts, or hold too few for the choice.
void check_groups(const RouteArgs& args);

// Throws std::invalid_argument where the heads' features are not those of the matrices, or do not fit their rows.
void check_heads(const HeadsArgs& args);

Embeddings embeddings_of(nanobind::handle table);

void bind_attention(nanobind::module_& m);
void bind_cpu_features(nanobind::module_& m);
void bind_eviction_parts(nanobind::module_& m);
void bind_experts(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_roofline(nanobind::module_& m);
void bind_packed_matrix(nanobind::module_& m);
void bind_rowwise(nanobind::module_& m);
void bind_tape(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_team(nanobind::module_& m);

}  // namespace headrace

// Names of types, formats and gates, as Python says them. Parsers throw std::invalid_argument for any other name.
#pragma once

#include <string>

#include "kernels.h"

namespace headrace {

DType dtype_of(const std::string& name);                // "f32", "bf16", "f16", "i8"
WeightFormat weight_format_of(const std::string& name); // "f32", "bf16", "int8", "int4", ...
Gate gate_of(const std::string& name);                  // "none", "silu", "gelu", "gelu_tanh", "swiglu_oai"
Scores scores_of(const std::string& name);              // "softmax", "sigmoid", "softmax_chosen"
GroupScore group_score_of(const std::string& name);     // "max", "top2"
Epilogue epilogue_of(const std::string& name);          // "store", "add", "gate", "multiply"

const char* name_of(DType type);
const char* name_of(WeightFormat format);

}  // namespace headrace

// A weight matrix that owns its memory, filled once from rows of a checkpoint, or from their codes.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.h"
#include "weight_memory.h"

namespace headrace {

// Rows of one tensor of a checkpoint, [rows, cols] without gaps.
struct Part {
    const void* data = nullptr;
    DType type = DType::f32;  // f32 | bf16 | f16
    int rows = 0;
    int cols = 0;
};

// Rows that are codes already, [rows, cols], with [rows, groups] scales and zeros for the groups that begin before `cols`.
struct CodePart {
    const std::uint8_t* codes = nullptr;
    const f16_t* scales = nullptr;
    const std::uint8_t* zeros = nullptr;  // null: in the middle; all parts of a matrix alike
    int rows = 0;
    int cols = 0;
};

struct PackOptions {
    WeightFormat format = WeightFormat::f32;
    DType input = DType::f32;  // how activations will be encoded
    int group = 0;             // int8, int4: features that share a scale, a multiple of 32; 0: all
    bool symmetric = true;
    bool gate = false;         // the first half of the rows is the gate, the rest is up; they alternate by 16 features
    const float* bias = nullptr;  // of the parts' rows, one part after the other, or null
};

class PackedMatrix {
public:
    // Concatenates the rows of the parts and packs them. Throws std::invalid_argument where they do not fit together.
    PackedMatrix(const Kernels& kernels, Team& team, const std::vector<Part>& parts, const PackOptions& options);

    // The same from codes; those of int4, and their zeros, are below 16. `symmetric` follows from the parts' zeros.
    PackedMatrix(const Kernels& kernels, Team& team, const std::vector<CodePart>& parts, PackOptions options);

    const Matrix& matrix() const { return matrix_; }
    std::size_t bytes() const { return memory_.bytes(); }
    bool gated() const { return gated_; }

private:
    // Takes memory for the parts; returns, for each row of the packed matrix, its index in the concatenated parts,
    // or -1 for a row of zeros.
    std::vector<int> lay_out(const std::vector<Part>& parts, const PackOptions& options);

    WeightMemory memory_;
    Matrix matrix_;
    bool gated_ = false;
};

}  // namespace headrace

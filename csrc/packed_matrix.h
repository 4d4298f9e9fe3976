// A weight matrix in its own memory, filled once from rows of a checkpoint or from their codes, or in a mapped file that holds
// what such a matrix held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gguf_blocks.h"
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

// Rows that are codes already, [rows, cols], with [rows, groups] scales, and zeros or minima, for the groups that begin
// before `cols`. Codes of n bits are below 2^n.
struct CodePart {
    const std::uint8_t* codes = nullptr;
    const void* scales = nullptr;         // of PackOptions::scale_type
    const std::uint8_t* zeros = nullptr;  // null: none; all parts of a matrix alike
    const void* minima = nullptr;         // of the scales' type; null: none; all parts of a matrix alike
    int rows = 0;
    int cols = 0;
};

// Rows of raw blocks as a GGUF file holds them.
struct BlockPart {
    const std::uint8_t* data = nullptr;
    int rows = 0;
    int cols = 0;  // a multiple of the block's features
};

// A matrix that was packed before: `bytes` bytes at `data`, its `pieces` one after the other. They are neither copied nor
// changed, but for the order, and stay valid while the matrix lives. zeros, minima, ordered, bias: which of those it has.
struct KeptMatrix {
    const void* data = nullptr;
    std::size_t bytes = 0;
    int rows = 0;
    int cols = 0;
    bool zeros = false;
    bool minima = false;
    bool ordered = false;
    bool bias = false;
};

struct PackOptions {
    WeightFormat format = WeightFormat::f32;
    DType input = DType::f32;  // how activations will be encoded
    int group = 0;             // codes: features that share a scale, a multiple of 16 (int5, int3: of 32, or 16); 0: all
    bool symmetric = true;     // from floats: int8 and int4 without zeros
    bool gate = false;         // the first half of the rows is the gate, the rest is up; they alternate by 16 features
    const float* bias = nullptr;  // of the parts' rows, one part after the other, or null
    int span = 0;              // i8 input: features that share a scale of activations, a divisor of the group; 0: the group
    int middle = -1;           // codes without zeros and minima: the code of 0; -1: half of the codes' range
    ScaleType scale_type = ScaleType::f16;
    float unit = 1;            // every scale is multiplied by it: a power of two
    CodeTable table = {};      // table4
    const std::int32_t* order = nullptr;  // from codes: [cols] the input feature of each column; null: as they are
    int experts = 1;           // room for so many matrices alike, the parts being those of the first
};

class PackedMatrix {
public:
    // Concatenates the rows of the parts and packs them. Throws std::invalid_argument where they do not fit together.
    PackedMatrix(const Kernels& kernels, Team& team, const std::vector<Part>& parts, const PackOptions& options);

    // The same from codes. `symmetric` follows from the parts' zeros.
    PackedMatrix(const Kernels& kernels, Team& team, const std::vector<CodePart>& parts, PackOptions options);

    // The same from blocks of one type, which says everything but `gate` and `bias`. Activations are i8.
    PackedMatrix(const Kernels& kernels, Team& team, const BlockType& type, const std::vector<BlockPart>& parts,
                 const PackOptions& options);

    // Packs the parts of another expert, which fit together as the first one's did. `bias`: null where it had none.
    void put(const Kernels& kernels, Team& team, int expert, const std::vector<Part>& parts, const float* bias);
    void put(const Kernels& kernels, Team& team, int expert, const std::vector<CodePart>& parts, const float* bias);
    void put(const Kernels& kernels, Team& team, int expert, const std::vector<BlockPart>& parts, const float* bias);

    // In packed form already, see KeptMatrix. `options.bias` and `options.order` are not read.
    PackedMatrix(const KeptMatrix& kept, PackOptions options);

    // The same for what blocks were packed into: `type` says everything but `bias`, `gate` and `experts`.
    PackedMatrix(KeptMatrix kept, const BlockType& type, bool gate, int experts);

    const Matrix& matrix() const { return matrix_; }
    std::size_t bytes() const { return memory_.bytes(); }
    const std::vector<WeightMemory::Piece>& pieces() const { return memory_.pieces(); }
    bool gated() const { return gated_; }
    const BlockType* blocks() const { return blocks_; }  // null where it was not packed from blocks

private:
    enum class Beside { nothing, zeros, minima };  // arrays of their own, besides scales

    // Takes memory for the parts; returns, for each row of the packed matrix, its index in the concatenated parts,
    // or -1 for a row of zeros.
    std::vector<int> lay_out(const std::vector<Part>& parts, const PackOptions& options, Beside beside, bool ordered,
                             bool bias);

    // An expert whose parts have these shapes, and its bias. Throws std::invalid_argument for one that is unlike the others.
    Matrix place(int expert, const std::vector<Part>& shapes, const float* bias) const;

    // The parts of an expert, which are checked already, by the order of its packed rows.
    void write(const Kernels& kernels, Team& team, const Matrix& out, const std::vector<Part>& parts);
    void write(const Kernels& kernels, Team& team, const Matrix& out, const std::vector<CodePart>& parts);
    void write(const Kernels& kernels, Team& team, const Matrix& out, const std::vector<BlockPart>& parts);

    // Writes the bias of an expert.
    void fill(const Matrix& out, const std::vector<int>& order, const float* bias) const;

    WeightMemory memory_;
    Matrix matrix_;
    bool gated_ = false;
    bool symmetric_ = true;            // from floats
    const BlockType* blocks_ = nullptr;  // of a matrix from blocks
    std::vector<std::int32_t> order_;  // of a kept matrix: checked, and out of the reach of who changes the file
};

}  // namespace headrace

// The block types of GGUF files: how one block of a row becomes codes, scales and minima, without rounding anything.
// Layouts: ggml's ggml-common.h and the `gguf` package's quants.py.
#pragma once

#include <string>

#include "tensors.h"

namespace headrace {

// One block of a row. K-quants have `scales` (as bytes; k_signed: of signed numbers) and `minima`, one a group.
struct Block {
    std::uint8_t codes[kSuper];
    f16_t scale;    // d; e8m0: its byte
    f16_t minimum;  // Q4_1, Q5_1: what is added; k_minima: dmin
    std::uint8_t scales[kSuper / 16];
    std::uint8_t minima[kSuper / 16];
};

struct BlockType {
    const char* name;     // in lower case: "q4_k"
    int features;         // of a block
    int bytes;
    WeightFormat format;  // the native format that holds it
    int group;
    ScaleType scale_type;
    int middle;           // the code of 0, where there are no minima
    bool minima;          // an array of its own; not k_minima
    float unit;
    const std::int8_t* table;  // [16], or null
    void (*unpack)(const std::uint8_t* block, Block& out);
};

// Null for a type that has no blocks here.
const BlockType* find_block_type(const std::string& name);

}  // namespace headrace

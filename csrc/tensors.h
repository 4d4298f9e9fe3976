// The data that kernels work on: matrices packed at load, encoded activations, the paged KV cache, one step's batch.
// Views own nothing. Layouts are described in docs/kernels.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

enum class DType : std::uint8_t { f32, bf16, f16, i8, e4m3, i4 };  // the last two: of KV caches only

// How the numbers of a weight matrix are stored. From int8 on they are codes, see Matrix.
enum class WeightFormat : std::uint8_t { f32, bf16, f16, int8, int6, int5, int4, int3, int2, table4, e4m3, e5m2 };

// How the scales of codes are stored. k_minima and k_signed are the K-quants' super-blocks of kSuper input features.
enum class ScaleType : std::uint8_t { f16, bf16, f32, e8m0, k_minima, k_signed };

// swiglu_oai is a function of gate and up (gpt-oss); the others multiply up by one of the gate.
enum class Gate : std::uint8_t { none, silu, gelu, gelu_tanh, relu, relu2, swiglu_oai };

using bf16_t = std::uint16_t;  // bit patterns; arithmetic is in float
using f16_t = std::uint16_t;

constexpr int kPanel = 16;       // output features that lie side by side in a packed matrix
constexpr int kInputAlign = 64;  // input features are padded with zeros to a multiple of this: one AMX int8 tile row
constexpr int kMaxGroup = 1 << 30;
constexpr int kMaxHeadDim = 1024;  // features of a head; a head's row lives on the stack
constexpr int kMaxKeyDim = 256;    // features of a key of the gated delta rule; columns of a state lie on the stack
constexpr int kMaxConvWidth = 16;  // positions that a short convolution sees
constexpr int kSuper = 256;        // input features of a super-block
constexpr int kMaxExperts = 4096;  // a row's scores live on the stack
constexpr int kMaxChoices = 64;    // experts of a row

constexpr std::size_t dtype_bytes(DType type) {
    return type == DType::f32 ? 4 : type == DType::i8 || type == DType::e4m3 ? 1 : 2;
}

// Of numbers that lie side by side; an even number of them for i4.
constexpr std::size_t bytes_of(DType type, std::size_t numbers) {
    return type == DType::i4 ? numbers / 2 : numbers * dtype_bytes(type);
}
constexpr bool is_coded(DType type) { return type == DType::i8 || type == DType::e4m3 || type == DType::i4; }

constexpr bool is_codes(WeightFormat format) { return format >= WeightFormat::int8; }
constexpr bool is_super(ScaleType type) { return type == ScaleType::k_minima || type == ScaleType::k_signed; }

constexpr int code_bits(WeightFormat format) {
    switch (format) {
        case WeightFormat::f32: return 32;
        case WeightFormat::bf16:
        case WeightFormat::f16: return 16;
        case WeightFormat::int8:
        case WeightFormat::e4m3:
        case WeightFormat::e5m2: return 8;
        case WeightFormat::int6: return 6;
        case WeightFormat::int5: return 5;
        case WeightFormat::int4:
        case WeightFormat::table4: return 4;
        case WeightFormat::int3: return 3;
        case WeightFormat::int2: return 2;
    }
    return 0;
}

// Bytes of the scales of one panel's group; of one panel's super-block for the K-quants: d and (k_minima) dmin as f16,
// then a scale, then (k_minima) a minimum of one byte for each of its groups, every one of them for 16 output features.
constexpr std::size_t scale_bytes(ScaleType type, int group) {
    const int groups = is_super(type) ? kSuper / group : 0;
    switch (type) {
        case ScaleType::f16:
        case ScaleType::bf16: return 2 * kPanel;
        case ScaleType::f32: return 4 * kPanel;
        case ScaleType::e8m0: return kPanel;
        case ScaleType::k_minima: return static_cast<std::size_t>(kPanel) * (4 + 2 * groups);
        case ScaleType::k_signed: return static_cast<std::size_t>(kPanel) * (2 + groups);
    }
    return 0;
}

// What the sixteen codes of table4 stand for: whole numbers (int8 activations), or bf16 numbers (bf16 activations).
struct CodeTable {
    std::uint8_t bytes[16] = {};  // the whole number plus 128
    bf16_t numbers[16] = {};
};

// A weight matrix [rows, cols] (output features, input features) cut into panels of 16 output features. A panel has
// code_bits(format) * 2 bytes for each input feature:
//   f32     [cols_padded][16]            float
//   bf16    [cols_padded / 2][16][2]     pairs of input features side by side (the VNNI order; also an AMX B tile)
//   f16     [cols_padded][16]
//   codes   as the instruction set packs them; csrc/isa/code_formats.h has the one order that all sets share today
// A code stands for scale * (code - zero), or for scale * code + minimum. Each group of `group` input features (the last
// one may be shorter) has one scale and one zero or minimum an output feature; where there are neither zeros nor minima,
// the zero is `middle`.
struct Matrix {
    WeightFormat format = WeightFormat::f32;
    DType input = DType::f32;          // how activations must be encoded:
                                       //   f32: f32, bf16, f16; bf16: bf16, and codes without minima;
                                       //   i8: codes other than e4m3 and e5m2
                                       // 16-bit floats that meet f32 are widened, which is exact
    int rows = 0;                      // output features
    int cols = 0;                      // input features
    int panels = 0;                    // ceil(rows / 16), after gate and up were interleaved (see Epilogue::gate)
    int cols_padded = 0;               // multiple of kInputAlign
    int group = 0;                     // input features that share a scale; cols_padded: one scale an output feature
    int groups = 0;                    // ceil(cols_padded / group); 0 for floats
    int span = 0;                      // codes: the groups of i8 activations; divides `group`
    int middle = 0;                    // codes: see above
    ScaleType scale_type = ScaleType::f16;
    float unit = 1;                    // every scale is multiplied by it: a power of two
    const void* data = nullptr;        // panel p at data + p * panel_bytes, 64-byte aligned
    std::size_t panel_bytes = 0;
    const void* scales = nullptr;      // [panels][groups, or super-blocks] of scale_bytes(scale_type, group)
    const std::uint8_t* zeros = nullptr;  // [panels][groups][16], or null
    const void* minima = nullptr;      // as scales, or null; k_minima hold their own
    CodeTable table = {};              // table4
    const std::int32_t* order = nullptr;  // [cols] the input feature that a column multiplies (activation order), or null
    const float* bias = nullptr;       // [panels * 16], or null
    int experts = 1;                   // so many matrices of these sizes: each array has one after the other, without gaps
};

// Records of scales of a matrix, or of one of its experts: one for each panel and group, or super-block.
constexpr std::size_t scale_records(const Matrix& m) {
    return static_cast<std::size_t>(m.panels) * (is_super(m.scale_type) ? m.cols_padded / kSuper : m.groups);
}

// One of a matrix's experts, as a matrix.
inline Matrix expert_of(const Matrix& m, int expert) {
    Matrix one = m;
    one.experts = 1;
    const auto ahead = [expert](const auto* array, std::size_t bytes) {
        using Array = decltype(array);
        return array == nullptr ? array : static_cast<Array>(static_cast<const void*>(
                                              reinterpret_cast<const char*>(array) + bytes * static_cast<std::size_t>(expert)));
    };
    const std::size_t records = scale_records(m), scales = records * scale_bytes(m.scale_type, m.group);
    one.data = ahead(static_cast<const char*>(m.data), m.panel_bytes * static_cast<std::size_t>(m.panels));
    one.scales = ahead(static_cast<const char*>(m.scales), scales);
    one.minima = ahead(static_cast<const char*>(m.minima), scales);
    one.zeros = ahead(m.zeros, records * kPanel);
    one.bias = ahead(m.bias, static_cast<std::size_t>(m.panels) * kPanel * sizeof(float));
    return one;
}

// Spans of a matrix's input, the groups of its i8 activations.
constexpr int spans_of(const Matrix& m) { return m.span == 0 ? 0 : (m.cols_padded + m.span - 1) / m.span; }

// Activations [rows, cols], each row padded with zeros to the matrix's cols_padded. i8 rows carry a scale and the sum
// of their codes for each group of `group` features, so that zeros cost one product: x = scale * code.
struct Rows {
    DType type = DType::f32;
    void* data = nullptr;
    std::size_t stride = 0;            // bytes from row to row, a multiple of 64
    float* scales = nullptr;           // i8: [rows][groups]
    std::int32_t* sums = nullptr;      // i8: [rows][groups]
    int group = 0;                     // i8 only
    int groups = 0;                    // i8 only
    const std::int32_t* order = nullptr;  // of the features, as in the matrix that reads them
};

// The experts of a step's rows. A routed row is a row together with one of its choices; those of an expert lie together,
// in the order of their rows.
struct Routing {
    int experts = 0;
    int each = 0;                      // choices of a row
    std::int32_t* chosen = nullptr;    // [rows][each] the experts of each row, best first
    float* weights = nullptr;          // [rows][each]
    float* gates = nullptr;            // [rows] of the shared expert
    std::int32_t* places = nullptr;    // [rows][each] the routed row of each choice
    std::int32_t* sources = nullptr;   // [rows * each] the row of each routed row
    std::int32_t* begins = nullptr;    // [experts + 1] the first routed row of each expert
    std::int32_t* used = nullptr;      // [experts + 1] how many experts have rows, then which
};

// Keys and values of one layer. A block is [num_kv_heads][T * head_dim] elements, key and value alike; in it
// a head's keys and values lie in the order in which a product reads them (T = block_stride positions, D = head_dim):
//   f32   keys [D][T]            values [T][D]
//   bf16  keys [D / 2][T][2]     values [T / 2][D][2]
//   i8    keys [D / 4][T][4] of code + 128, values [T / 2][D][2] of codes, with one float scale a (block, head, position) for
//         keys and one for values
//   e4m3  as bf16, with scales as i8: floats of four exponent and three mantissa bits, no infinities
//   i4    keys [D / 2][T] and values [T][D / 2] bytes of two codes, the first one in the low bits: of a key two neighbouring
//         features, of a value feature i and i + n / 2 of each n = 32 features (16 at the end). Keys have a scale and a minimum
//         a (block, head, feature), values a scale a (block, head, position), all of them bf16: a key is minimum + scale *
//         code (0..15), a value scale * (code - 8). Only whole blocks are coded. The block that a token lies in is read from
//         the `recent` cache (bf16, of a KV group of its own, whose blocks are as large), where keys and values are written
//         first; the write of its last position encodes a block. So what a query reads does not depend on when its keys were
//         computed.
// T is block_size rounded up to a multiple of 16; positions from block_size on are never read. D is a multiple of 16.
// A latent cache (value_dim < head_dim) has no keys of its own: `values` holds rows of D features as above, whose first
// value_dim are the value and all of which are the key. Both have one scale.
// Positions that a sequence has not written hold data of other sequences, NaN included: no result may depend on it.
struct KVCache {
    DType type = DType::f32;
    void* keys = nullptr;
    void* values = nullptr;
    void* key_scales = nullptr;        // i8, e4m3: float [num_blocks][num_kv_heads][block_stride]
    void* value_scales = nullptr;      // the same; i4: bf16, and key_scales [num_blocks][num_kv_heads][D][2]
    int num_kv_heads = 0;
    int head_dim = 0;
    int value_dim = 0;                 // a multiple of 16; head_dim but for a latent cache
    int block_size = 0;                // positions that a block holds
    int block_stride = 0;              // positions that it has room for: T
    void* recent_keys = nullptr;       // i4
    void* recent_values = nullptr;
    int recent_group = 0;              // KV group of the recent cache

    bool latent() const { return keys == nullptr; }
    bool whole() const { return type == DType::i8 && !latent(); }  // multiplied as whole numbers
    int key_features() const { return type == DType::f32 ? 1 : whole() ? 4 : 2; }  // of a key that lie side by side
    float* key_floats() const { return static_cast<float*>(key_scales); }
    float* value_floats() const { return static_cast<float*>(value_scales); }

    // i4: the cache of recent blocks.
    KVCache recent() const {
        KVCache wide = *this;
        wide.type = DType::bf16;
        wide.keys = recent_keys;
        wide.values = recent_values;
        wide.key_scales = wide.value_scales = nullptr;
        return wide;
    }
};

// One step: `tokens` of `seqs` sequences packed one after the other, each in rising position.
struct GroupTables {                   // one a KV group; see core.types.TableUpdate for live blocks
    const std::int32_t* block_tables = nullptr;  // [seqs, table_width]
    const std::int32_t* dropped = nullptr;       // [seqs]: entry i >= sink_blocks holds logical block i + dropped
    const std::int64_t* slots = nullptr;         // [tokens]: block * block_size + offset, where a token's KV goes; -1: nowhere
    int table_width = 0;
    int sink_blocks = 0;
    const std::int64_t* more_slots = nullptr;    // [Step.more[tokens]]: where else keys and values go
    const std::int32_t* evicted = nullptr;       // [seqs] or null: the token at position p has place p - evicted of the table
    const std::int32_t* targets = nullptr;       // [Step.num_observed, target_width]: blocks that tokens are moved to
    int target_width = 0;
};

// A sequence of the step whose last rows decide which of its tokens stay, see eviction.h.
struct Observed {
    int seq = 0;
    int rows = 0;
    int memory = 0;                              // where its sums lie between steps
    bool fresh = false;                          // they start with the first of these rows
    bool moves = false;                          // the last of these rows is the last one that decides
};

// Where the recurrent states of one group lie: sequence s starts from slot sources[s], from zero if that is -1. After
// the first counts[w] of its tokens the state goes to slots[w], for the w from firsts[s] to firsts[s + 1], whose counts do
// not fall and end with all of its tokens. Sequences take turns: each finds what those before it wrote.
struct StateTables {
    const std::int32_t* sources = nullptr;  // [seqs]
    const std::int32_t* firsts = nullptr;   // [seqs + 1]
    const std::int32_t* counts = nullptr;   // [firsts[seqs]]
    const std::int32_t* slots = nullptr;    // [firsts[seqs]]
};

struct Step {
    int tokens = 0;
    int seqs = 0;
    const std::int64_t* ids = nullptr;           // [tokens]
    const std::int64_t* positions = nullptr;     // [tokens]
    const std::int32_t* cu_q = nullptr;          // [seqs + 1]
    const std::int32_t* kv_lens = nullptr;       // [seqs], this step's own writes included
    const GroupTables* groups = nullptr;
    const StateTables* states = nullptr;         // one a group of recurrent states
    int wanted = 0;
    int logits = 0;                              // the first so many of the wanted rows go through the head
    const std::int64_t* wanted_rows = nullptr;   // [wanted]: tokens whose logits or final hidden states are computed
    const std::int32_t* more = nullptr;          // [tokens + 1] or null: token t's KV also goes to the more_slots from
                                                 // more[t] to more[t + 1] of each group
    int num_observed = 0;
    const Observed* observed = nullptr;
};

}  // namespace headrace

// What every instruction set implements: one table of functions, compiled once for each set from csrc/isa/ and chosen
// at run time. Every function splits its work over the team and returns when it is done.
//
// Batch invariance: an output row depends only on its own input row (and its sequence's KV), with one fixed order of
// reduction, whatever the number of rows, of threads, or the position in the batch. See docs/kernels.md.
#pragma once

#include "team.h"
#include "tensors.h"

namespace headrace {

// out[t, :] = in[t, :] @ W^T + bias, then one of:
//   store: written to out;  add: added to out (the residual stream, f32);
//   gate: W holds 16 gate features and 16 up features in turn (panels 2i and 2i + 1), bias alike, and
//         out[t, 16i + c] = gate(W_2i) * W_2i+1, so out has half as many features as W has panels * 16;
//   multiply: times gate(gates[t, :]), where the gate is a product of its own
enum class Epilogue : std::uint8_t { store, add, gate, multiply };

struct LinearArgs {
    Rows in;
    const Matrix* weight = nullptr;
    int rows = 0;                    // T
    Epilogue epilogue = Epilogue::store;
    Gate gate = Gate::none;
    const float* gates = nullptr;    // [T, weight->rows], for multiply
    std::size_t gates_stride = 0;    // bytes
    DType out_type = DType::f32;     // f32 | bf16 (bf16 not for add)
    void* out = nullptr;             // [T, ...]; all but gate write weight->rows features and nothing after them
    std::size_t out_stride = 0;      // bytes
};

// A norm of a row: x * rsqrt(mean(x^2) + eps) * weight. With `centred`, of x - mean(x), and `bias` is added if there is one.
struct NormArgs {
    const float* weight = nullptr;   // [cols], or null: no norm
    const float* bias = nullptr;     // [cols], or null
    bool centred = false;
    float eps = 0;
};

// Encodes f32 rows in the format that a matrix reads, after a norm or a function of each feature if there is one, and a
// product with other rows if there are any.
// Features from `cols` to `cols_padded` are written as zeros. i8: one scale a group, max|x| / 127, round to nearest even.
struct EncodeArgs {
    const float* in = nullptr;
    std::size_t in_stride = 0;       // bytes
    const std::int64_t* gather = nullptr;  // [rows] rows of `in` to take, or null for 0, 1, 2, ...
    NormArgs norm;
    Gate gate = Gate::none;          // applied to every feature
    const float* times = nullptr;    // [rows, cols] that multiply the features last, or null
    std::size_t times_stride = 0;    // bytes
    const std::int64_t* times_gather = nullptr;  // [rows] rows of `times` to take, or null for 0, 1, 2, ...
    int rows = 0;
    int cols = 0;
    int cols_padded = 0;
    Rows out;                        // features in the order out.order, if it has one
    int each = 1;                    // rows for each row of the step, which a tape counts
};

// out[t, :] += scale * in[t, :], or scale times its norm; then all of out[t, :] is multiplied by `decay`, if there is one.
struct AddArgs {
    const float* in = nullptr;
    std::size_t in_stride = 0;       // bytes
    NormArgs norm;
    int norm_cols = 0;               // so many columns in turn have a norm of their own, all with the same weights; 0: all
    float scale = 1;
    const float* decay = nullptr;    // one number
    int rows = 0;
    int cols = 0;
    float* out = nullptr;
    std::size_t out_stride = 0;      // bytes
};

// Rows whose columns come in groups, each with the columns of every part, taken apart: out[t, g * width + i] of a part.
struct UngroupPart {
    float* out = nullptr;
    std::size_t stride = 0;          // bytes
    int width = 0;                   // columns of a group
};

struct UngroupArgs {
    const float* in = nullptr;
    std::size_t in_stride = 0;       // bytes
    int rows = 0;
    int groups = 0;
    int width = 0;                   // columns of a group, over all parts
    int count = 0;
    UngroupPart parts[4];
};

// out[t, :] *= sigmoid(gates[t, :])
struct SigmoidGateArgs {
    const float* gates = nullptr;
    std::size_t gates_stride = 0;    // bytes
    int rows = 0;
    int cols = 0;
    float* out = nullptr;
    std::size_t out_stride = 0;      // bytes
};

// A causal convolution of each channel, then SiLU. With `gated` the input has b, c and x of so many channels: b * x is
// convolved, and the result is multiplied by c. See ops/reference/recurrent.py.
struct ConvArgs {
    const float* in = nullptr;       // [tokens, channels or 3 * channels]
    std::size_t in_stride = 0;       // bytes
    const float* weight = nullptr;   // [width, channels], the oldest position first
    const float* bias = nullptr;     // [channels], or null
    int channels = 0;
    int width = 0;
    bool gated = false;
    float* states = nullptr;         // [slots, width - 1, channels]
    int group = 0;                   // of Step::states
    const Step* step = nullptr;
    float* out = nullptr;            // [tokens, channels]
    std::size_t out_stride = 0;      // bytes
};

// The gated delta rule, then the norm of each head's output times the SiLU of its gate. See ops/reference/recurrent.py.
struct DeltaArgs {
    float* qkv = nullptr;            // [tokens, 2 * key_heads * key_dim + heads * value_dim]; q and k are normalised in place
    std::size_t qkv_stride = 0;      // bytes
    const float* gates = nullptr;    // [tokens, heads * value_dim]
    std::size_t gates_stride = 0;    // bytes
    float* numbers = nullptr;        // [tokens, 2 * heads]: beta, then decay; they become factors in place
    std::size_t numbers_stride = 0;  // bytes
    const float* rate = nullptr;     // [heads], a logarithm
    const float* time = nullptr;     // [heads]
    const float* norm = nullptr;     // [value_dim]
    float eps = 0;
    int heads = 0;
    int key_heads = 0;
    bool tiled = false;              // head h belongs to key head h modulo key_heads; else those of one stand side by side
    int key_dim = 0;
    int value_dim = 0;               // a multiple of 16
    float* states = nullptr;         // [slots, heads, key_dim, value_dim]
    int group = 0;                   // of Step::states
    const Step* step = nullptr;
    float* out = nullptr;            // [tokens, heads * value_dim]
    std::size_t out_stride = 0;      // bytes
};

// Which experts each row goes to, from a logit an expert. See models/spec.py: RouterSpec.
enum class Scores : std::uint8_t { softmax, sigmoid, softmax_chosen };
enum class GroupScore : std::uint8_t { max, top2 };

struct RouteArgs {
    const float* logits = nullptr;   // [rows, experts], and with `shared` one more: of the shared expert
    std::size_t logits_stride = 0;   // bytes
    const float* bias = nullptr;     // [experts] added to scores for the choice only, or null
    const float* expert_scale = nullptr;  // [experts] multiplies the weights, or null
    int rows = 0;
    Scores scores = Scores::softmax;
    bool normalize = false;
    float scale = 1;
    int groups = 1;
    int top_groups = 1;
    GroupScore group_score = GroupScore::max;
    bool shared = false;
    Routing out;
};

// Copies encoded rows to their routed rows.
struct DispatchArgs {
    Rows in;
    Routing routing;
    int rows = 0;
    Rows out;
};

// `linear` for routed rows: each multiplies the matrix of its expert. The epilogue is not add.
struct ExpertsArgs {
    LinearArgs linear;               // `rows` is not read
    Routing routing;
    bool scaled = false;             // products are multiplied by the weights of the choice, before a bias
    int rows = 0;                    // of the step, before routing
};

// out[t, :] = sum of weights[t, j] * in[places[t, j], :] in the order of j, then of shared[t, :], which with `gated` is
// multiplied by gates[t]; with `add` it is added to what is there. Unless `weighted` the weights count as one.
struct CombineArgs {
    const float* in = nullptr;       // [rows * each, cols]
    std::size_t in_stride = 0;       // bytes
    Routing routing;
    const float* shared = nullptr;   // [rows, cols], or null
    std::size_t shared_stride = 0;   // bytes
    bool gated = false;
    bool weighted = true;
    bool add = false;
    int rows = 0;
    int cols = 0;
    float* out = nullptr;
    std::size_t out_stride = 0;      // bytes
};

// out[t, :] = scale * table[ids[t], :] as f32; with `add` it is added to what is there. The table lies in rows, or is a packed matrix: of codes, or the head of a model that
// ties the two.
struct EmbedArgs {
    const std::int64_t* ids = nullptr;
    int rows = 0;
    int cols = 0;
    DType type = DType::f32;         // f32 | bf16 | f16: of the table, or of packed floats
    const void* table = nullptr;     // [vocab, cols], or null
    const Matrix* packed = nullptr;  // where there is no table: without a gate; `add` needs a table
    float scale = 1;
    bool add = false;
    bool positions = false;          // a tape fills `ids` with the tokens' positions
    float* out = nullptr;
    std::size_t out_stride = 0;      // bytes
};

// Splits qkv [T, (Hq + 2 Hkv) * D] f32, normalises the heads of q and k if asked, rotates them by `cos` and `sin`
// [T, R / 2] (x[i] pairs with x[i + R/2], features from R on stay; interleaved: the first R features are brought into that
// order before, even ones first), and writes
// q as [Hkv][T][G][D] of `q_type` (G = Hq / Hkv), k and v into the cache at the step's slots.
// With sink tables, q rotated by them is written to q_sink, too.
// keys_are_values: there are no columns of v, which is k before its norm and rotation. Without `writes` there are none of k
// either, and nothing is written to the cache: an earlier layer of the step has done it.
struct RopeArgs {
    const float* qkv = nullptr;
    std::size_t qkv_stride = 0;      // bytes
    int num_heads = 0;
    int rotated = 0;                 // R; 0: none
    bool interleaved = false;
    double temperature_beta = 0;     // queries are multiplied by 1 + beta * log(1 + floor((position + shift) / length))
    std::int64_t temperature_length = 1;
    std::int64_t temperature_shift = 0;
    bool normed = false;             // the heads of q and k are normalised, without weights where there are none
    const float* q_norm = nullptr;   // [D], or null
    const float* k_norm = nullptr;
    bool v_norm = false;             // the heads of v are normalised, without weights
    bool keys_are_values = false;
    bool writes = true;
    float eps = 0;
    const float* cos = nullptr;
    const float* sin = nullptr;
    const float* sink_cos = nullptr; // null: no sinks
    const float* sink_sin = nullptr;
    KVCache kv;
    const Step* step = nullptr;
    int group = 0;                   // KV group of the layer
    DType q_type = DType::f32;       // f32 with an f32 cache, else bf16
    void* q = nullptr;
    void* q_sink = nullptr;
};

// Rotates the last features of every query head and of the one key, and writes the latter with its latent into a latent
// cache at the step's slots. `q` has the heads' other features already.
struct LatentArgs {
    const float* query = nullptr;    // [T, H, key_dim + R]: of each head the last R features are rotated
    std::size_t query_stride = 0;    // bytes
    const float* latent = nullptr;   // [T, latent + R]
    std::size_t latent_stride = 0;   // bytes
    int num_heads = 0;
    int key_dim = 0;
    bool interleaved = false;        // as in RopeArgs
    const float* cos = nullptr;      // [T, R / 2]
    const float* sin = nullptr;
    KVCache kv;
    const Step* step = nullptr;
    int group = 0;                   // KV group of the layer
    DType q_type = DType::f32;       // f32 with an f32 cache, else bf16
    void* q = nullptr;               // [T, H, latent + R]
};

// A product for each head, with its own matrix of `linear.weight`: head h reads the features from h * inputs on and
// writes those from h * outputs on.
struct HeadsArgs {
    LinearArgs linear;               // the epilogue is store
    int inputs = 0;
    int outputs = 0;
};

// Rotations of a step: cos and sin of position * frequency, times `factor`, computed in double.
// Positions above `limit` are taken as `limit`; 0: no limit.
struct RotationArgs {
    const Step* step = nullptr;
    const double* frequencies = nullptr;  // [half]
    int half = 0;
    double factor = 1;
    std::int64_t limit = 0;
    float* cos = nullptr;            // [T, half]
    float* sin = nullptr;
};

// Causal attention of a ragged batch over the paged cache, softmax in f32. See docs/kernels.md for spans.
struct AttentionArgs {
    const void* q = nullptr;         // [Hkv][T][G][D], f32 with an f32 cache, else bf16
    const void* q_sink = nullptr;    // the same, rotated for keys before `sinks`; null: q serves them too
    KVCache kv;
    const Step* step = nullptr;
    int group = 0;                   // KV group of the layer
    int num_heads = 0;
    float scale = 1;
    int window = 0;                  // keys at a distance >= window are hidden, but for the sinks; 0: no window
    bool chunked = false;            // and those before the last multiple of `window`
    int sinks = 0;
    float soft_cap = 0;              // 0: none
    const float* slopes = nullptr;   // [Hq], or null: a score gets so much less for each position to the key (ALiBi)
    const float* learned_sinks = nullptr;  // [Hq]: a logit of each head that takes part in the softmax, without a value
    DType out_type = DType::f32;     // f32 | bf16
    void* out = nullptr;             // [T, Hq * D]
    std::size_t out_stride = 0;      // bytes
    void* scratch = nullptr;         // attention_scratch() bytes, 64-byte aligned
};

// What the softmax of some query rows of one sequence and KV head gives to each key, added to `sums`. Each of the rows of a token
// sees the keys up to the token's place in the table. See csrc/isa/mass.h, and eviction.h for its use.
constexpr int kMassRows = 4;         // rows that share a pass over the keys

struct MassArgs {
    const void* q = nullptr;         // [rows][D], f32 with an f32 cache, else bf16
    int rows = 0;
    int each = 1;                    // rows of a token
    KVCache kv;                      // not a latent one, and not of i4
    const std::int32_t* table = nullptr;  // blocks of the sequence
    int head = 0;
    std::int64_t first = 0;          // place of the first row's token
    float scale = 1;
    float soft_cap = 0;              // 0: none
    const float* learned_sinks = nullptr;  // [each], or null
    float* scores = nullptr;         // [kMassRows][stride]
    std::size_t stride = 0;          // at least the places, and 16 more
    float* sums = nullptr;           // [places]
};

// Fills a packed matrix from rows of a checkpoint, rounding to nearest where the format is smaller. Row r of the packed
// matrix is read from sources[r] (`cols` values of `source_type`; null: a row of zeros); the caller interleaves gate and
// up by ordering the pointers. The destination arrays of `out` are written through.
struct PackArgs {
    const void* const* sources = nullptr;  // [panels * 16]
    DType source_type = DType::f32;        // f32 | bf16 | f16
    Matrix out;
    bool symmetric = true;                 // int8, int4: zero in the middle; else from the group's minimum
};

// Fills the panels of a matrix with existing codes; scales, zeros and minima are not touched. `read` gives `count` codes of
// a row of the packed matrix from input feature k on, a multiple of kSuper, up to cols_padded: `count` is a multiple of 32,
// and at most kSuper. Any thread may call it.
struct PackCodesArgs {
    void (*read)(const void* context, int row, int k, int count, std::uint8_t* codes) = nullptr;
    const void* context = nullptr;
    Matrix out;
};

// Per row of logits [rows, cols]: the index of the largest value, the lowest one on ties; NaN counts as smallest.
struct ArgmaxArgs {
    const float* logits = nullptr;
    std::size_t stride = 0;          // bytes
    int rows = 0;
    int cols = 0;
    std::int64_t* out = nullptr;
};

// logits = scale * logits, then cap * tanh(logits / cap) unless the cap is 0 (Gemma 2), in place.
struct SoftCapArgs {
    float* logits = nullptr;
    std::size_t stride = 0;          // bytes
    int rows = 0;
    int cols = 0;
    float cap = 0;
    float scale = 1;
};

// The sampler reads a row of logits in groups of this many.
constexpr int kSampleGroup = 256;

// The weight of a logit is exp((logit - highest) * inverse_temperature), 0 where the exponent lies below `floor`.
struct WeighArgs {
    float inverse_temperature = 1;
    float highest = 0;
    float floor = 0;
};

// What the noise of a sequence's tokens at one position is computed from, see `noise_word` in sampler.h.
struct NoiseArgs {
    std::uint32_t key[2] = {};       // the seed, low half first
    std::uint32_t position[2] = {};  // low half first
};

// The layout of packed matrices as tensors.h describes it: files that hold such matrices state it. Whatever changes the bytes of
// a packed matrix, for one instruction set or for all, gives the layout another name.
constexpr const char* kPackedLayout = "panels-of-16.2";

struct Kernels {
    const char* name;                // "amx", "avx512", "avx512_vnni", "avx2", "portable"
    const char* layout;              // of packed matrices; sets with equal layouts read the same bytes
    void (*linear)(const LinearArgs&, Team&);
    void (*encode)(const EncodeArgs&, Team&);
    void (*add)(const AddArgs&, Team&);
    void (*embed)(const EmbedArgs&, Team&);
    void (*rotations)(const RotationArgs&, Team&);
    void (*rope_and_write)(const RopeArgs&, Team&);
    void (*latent_and_write)(const LatentArgs&, Team&);
    void (*heads_linear)(const HeadsArgs&, Team&);
    void (*attention)(const AttentionArgs&, Team&);
    std::size_t (*attention_scratch)(const AttentionArgs& shape, int max_tokens, int max_seqs, int threads);
    void (*attention_mass)(const MassArgs&);  // on the calling thread
    void (*pack)(const PackArgs&, Team&);
    void (*pack_codes)(const PackCodesArgs&, Team&);
    void (*ungroup)(const UngroupArgs&, Team&);
    void (*sigmoid_gate)(const SigmoidGateArgs&, Team&);
    void (*convolution)(const ConvArgs&, Team&);
    void (*gated_delta)(const DeltaArgs&, Team&);
    void (*route)(const RouteArgs&, Team&);
    void (*dispatch)(const DispatchArgs&, Team&);
    void (*experts)(const ExpertsArgs&, Team&);
    void (*combine)(const CombineArgs&, Team&);
    void (*argmax)(const ArgmaxArgs&, Team&);
    void (*soft_cap)(const SoftCapArgs&, Team&);

    // The roofline. `peak` runs only products of `type` (f32, bf16, i8) on every thread, `rounds` times a few
    // hundred, and returns how many multiplications and additions that were: 0 for a type without a product here.
    // `read` reads a buffer (a multiple of 512 bytes, 64-byte aligned) once, each thread a part of it.
    double (*peak)(DType type, std::int64_t rounds, Team&);
    void (*read)(const void* data, std::size_t bytes, Team&);

    // The sampler's passes over one row, each on the calling thread only. `scan_row` gives the largest logit and, for group
    // g, sixteen largest ones of sixteen logits each: maxima[16 * g + l] of logits 256 * g + l, + 16, + 32, ...; it
    // returns whether the row holds a NaN, and is about the largest only if not; `tops` gets the largest of each group.
    // `weigh_row` adds up the weights of each group. `collect` writes the indices, in rising order, of all logits that are not below `bound`, and returns how many.
    bool (*scan_row)(const float* row, int cols, float* maxima, float* tops, float* highest);
    void (*weigh_row)(const float* row, int cols, const WeighArgs&, double* sums);
    int (*collect)(const float* row, int cols, float bound, std::int32_t* ids);

    // Noise words of the tokens of `blocks` blocks of four (at most kSampleGroup / 4 of them) from block `first` on: writes
    // tokens and words, in no order, where the word is `least` or more, and returns how many. May go on to
    // the 256th token.
    int (*noise)(const NoiseArgs&, std::uint32_t first, int blocks, std::uint32_t least, std::int32_t* tokens,
                 std::uint32_t* words);
};

// The table of that name, or null if this build or this CPU lacks it. "amx-emulated" is the AMX table with its tile
// instructions emulated in plain C++, for tests on other machines.
const Kernels* find_kernels(const char* name);

// The tables that find_kernels knows on this machine, best first, null after the last one, which is "amx-emulated" where
// it is built.
const Kernels* kernels_at(int index);

}  // namespace headrace

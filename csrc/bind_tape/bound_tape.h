// A tape whose buffers, rotations and KV caches Python refers to by number. bind_tape.cpp binds its memory and its steps, each
// other file of this folder the calls of one kind: functions that check their arguments and append the call.
#pragma once

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "../bindings.h"
#include "../names.h"
#include "../packed_matrix.h"
#include "../tape.h"

namespace headrace {

using Memory = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;
template <typename T, int dimensions = 1>
using Array = nanobind::ndarray<T, nanobind::ndim<dimensions>, nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array<const float>;
using Vectors = std::vector<Floats>;  // of a norm: none, its weight, or weight and bias

using EvictedTokens = std::vector<std::optional<Array<const std::int32_t>>>;  // of each KV group: of each sequence
using ObservedRows = std::tuple<Array<const std::int32_t, 2>,  // of each: sequence, rows, memory, is it fresh, does it move
                                std::vector<std::optional<Array<const std::int32_t, 2>>>>;  // targets in each KV group that evicts

[[noreturn]] inline void refuse(const std::string& why) { throw std::invalid_argument(why); }

inline void require(bool holds, const char* otherwise) {
    if (!holds) refuse(otherwise);
}

inline Scope scope_of(const std::string& name) {
    if (name == "tokens") return Scope::tokens;
    if (name == "gathered") return Scope::gathered;
    if (name == "logits") return Scope::logits;
    refuse("scope " + name + " is unknown");
}

// Appends a thing; its number.
template <typename T>
int add(std::vector<T>& things, T thing) {
    things.push_back(thing);
    return static_cast<int>(things.size()) - 1;
}

template <typename T>
const T& at(const std::vector<T>& things, int index) {
    require(index >= 0 && index < static_cast<int>(things.size()), "the tape has nothing of that number");
    return things[index];
}

// The arguments of a norm of `cols` features.
inline NormArgs viewed(const Vectors& vectors, bool centred, float eps, int cols) {
    require(vectors.size() <= 2, "a norm has a weight, and may have a bias");
    for (const Floats& one : vectors) require(static_cast<int>(one.size()) == cols, "a norm has one weight a column");
    NormArgs args;
    if (!vectors.empty()) args.weight = vectors[0].data();
    if (vectors.size() > 1) args.bias = vectors[1].data();
    args.centred = centred;
    args.eps = eps;
    return args;
}

struct Rotation {
    const float* cos = nullptr;
    const float* sin = nullptr;
    int half = 0;
};

struct Cache {
    KVCache kv;
    int group = 0;

    // Of the features of queries.
    DType q_type() const { return kv.type == DType::f32 ? DType::f32 : DType::bf16; }
};

struct StateMemory {
    int slots = 0;
    int group = 0;
    float* memory = nullptr;
    std::size_t floats = 0;  // of a slot
};

struct BoundTape {
    BoundTape(const KernelSet& of, Team& threads, int max_tokens, int max_seqs, int max_logits, int vocab_size)
        : kernels(*of.table), team(threads), tape(kernels, threads, {max_tokens, max_seqs, max_logits, vocab_size}) {}

    // A buffer of f32 with at least so many columns; its stride in bytes goes to `stride`.
    float* floats_of(int buffer, std::size_t cols, std::size_t& stride) const {
        const Rows& rows = at(buffers, buffer);
        require(rows.type == DType::f32 && rows.stride >= cols * sizeof(float) && each[buffer] == 1, "these are rows of f32, wide enough");
        stride = rows.stride;
        return static_cast<float*>(rows.data);
    }

    // Queries of that many heads, which a cache can be asked with.
    const Rows& queries_of(int buffer, int num_heads, const Cache& cache) const {
        const Rows& rows = at(buffers, buffer);
        require(rows.type == cache.q_type(), "queries do not match the cache");
        require(num_heads > 0 && num_heads % cache.kv.num_kv_heads == 0 &&
                    rows.stride == static_cast<std::size_t>(num_heads) * cache.kv.head_dim * dtype_bytes(rows.type),
                "queries have the features of all heads");
        return rows;
    }

    // What a product with a matrix reads.
    LinearArgs product(int source, const Matrix& m) const {
        LinearArgs args;
        args.in = at(buffers, source);
        args.weight = &m;
        require(args.in.type == m.input, "the activations are not encoded as the matrix wants them");
        require(args.in.stride >= m.cols_padded * dtype_bytes(args.in.type), "the activations are too short");
        require(m.input != DType::i8 || (args.in.group == m.span && args.in.groups == spans_of(m)),
                "the activations' groups are not those of the matrix");
        require(args.in.order == m.order, "the activations are not in the order of the matrix's columns");
        return args;
    }

    // The array lives as long as the tape.
    template <typename A>
    void keep(const A& array) {
        kept.push_back(nanobind::ndarray<nanobind::ro>(array));
    }

    // Keeps the weights of a norm, too.
    NormArgs norm_of(const Vectors& vectors, bool centred, float eps, int cols) {
        const NormArgs args = viewed(vectors, centred, eps, cols);
        for (const Floats& one : vectors) keep(one);
        return args;
    }

    const Kernels& kernels;
    Team& team;
    Tape tape;
    std::vector<KVGroup> groups;
    std::vector<Rows> buffers;
    std::vector<int> each;  // rows of each buffer for each row of a step
    std::vector<Routing> routings;
    std::vector<Rotation> rotations;
    std::vector<Cache> caches;
    std::vector<GroupTables> tables;
    std::vector<int> slots;  // of each group of states
    std::vector<StateMemory> states;
    std::vector<StateTables> moves;
    std::vector<Observed> observed;
    std::vector<nanobind::ndarray<nanobind::ro>> kept;
};

// What a step knows of eviction; after the tables of the groups.
void add_evicted(BoundTape& self, const EvictedTokens& evicted, int seqs);
void add_observed(BoundTape& self, const ObservedRows& observed, Step& step);

void bind_eviction(nanobind::class_<BoundTape>& tape);
void bind_mixers(nanobind::class_<BoundTape>& tape);
void bind_products(nanobind::class_<BoundTape>& tape);
void bind_rows(nanobind::class_<BoundTape>& tape);

}  // namespace headrace

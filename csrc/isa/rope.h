// Rotations of a step, and the work between the QKV product and attention: head norms, rope, writing keys and values, or
// latents, into the cache. Included by the translation unit of an instruction set, after its vectors.
#pragma once

#include "../kernels.h"
#include "kv_codes.h"

namespace headrace::HEADRACE_ISA {

// Runs body(first, last) over the tokens: on the caller alone where waking other threads costs more than they save.
template <typename F>
inline void over_tokens(int tokens, int worth, Team& team, F& body) {
    if (tokens < worth || team.size() == 1) {
        body(0, tokens);
        return;
    }
    auto work = [&](int thread, int size) {
        const Share share = share_of(tokens, thread, size);  // whole tokens: a row is never shared
        body(share.begin, share.end);
    };
    team.run(work);
}

inline void rotations(const RotationArgs& args, Team& team) {
    auto body = [&](int first, int last) {
        for (int t = first; t < last; ++t) {
            std::int64_t position = args.step->positions[t];
            if (args.limit > 0 && position > args.limit) position = args.limit;
            const std::size_t row = static_cast<std::size_t>(t) * args.half;
            for (int i = 0; i < args.half; ++i) {
                const double angle = static_cast<double>(position) * args.frequencies[i];
                args.cos[row + i] = static_cast<float>(__builtin_cos(angle) * args.factor);
                args.sin[row + i] = static_cast<float>(__builtin_sin(angle) * args.factor);
            }
        }
    };
    over_tokens(args.step->tokens, 4, team, body);
}

// RMSNorm of one head's row, in place: lane i adds elements i, i + 16, ... Without weights they are all one.
inline void norm_head(float* x, int dim, const float* weight, float eps) {
    F32x16 sum = F32x16::zero();
    for (int i = 0; i < dim; i += 16) {
        const F32x16 v = F32x16::load(x + i);
        sum = fma(v, v, sum);
    }
    const float mean = reduce_add(sum) / static_cast<float>(dim);
    const F32x16 factor = F32x16::broadcast(1.0f / __builtin_sqrtf(mean + eps));
    for (int i = 0; i < dim; i += 16) {
        const F32x16 v = F32x16::load(x + i) * factor;
        (weight == nullptr ? v : v * F32x16::load(weight + i)).store(x + i);
    }
}

// out = x with its first 2 * half features rotated; x and out are distinct.
inline void rotate_head(const float* x, float* out, int dim, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; i += 16) {
        const int n = half - i < 16 ? half - i : 16;
        const F32x16 first = F32x16::load(x + i, n), second = F32x16::load(x + half + i, n);
        const F32x16 c = F32x16::load(cos + i, n), s = F32x16::load(sin + i, n);
        (first * c - second * s).store(out + i, n);
        (second * c + first * s).store(out + half + i, n);
    }
    for (int i = 2 * half; i < dim; ++i) out[i] = x[i];
}

inline void store_head(const float* x, int dim, DType type, void* out, std::size_t at) {
    for (int i = 0; i < dim; i += 16) {
        const F32x16 v = F32x16::load(x + i);
        if (type == DType::f32) {
            v.store(static_cast<float*>(out) + at + i);
        } else {
            store_bf16(static_cast<bf16_t*>(out) + at + i, v);
        }
    }
}

// A row of keys and one of values to one position of a head's block; kKeys neighbouring features of a key lie side by side.
// A store writes only its own position, since another thread may write the next one.
template <int kKeys, typename T>
inline void scatter_head(const T* key, const T* value, const KVCache& kv, std::size_t base, int offset) {
    T* keys = static_cast<T*>(kv.keys) + base + kKeys * offset;
    const int dim = kv.head_dim;
    for (int i = 0; i < dim; i += kKeys) {
        __builtin_memcpy(keys + static_cast<std::size_t>(i) * kv.block_stride, key + i, kKeys * sizeof(T));
    }
    T* row = static_cast<T*>(kv.values) + base + 2 * static_cast<std::size_t>(offset / 2) * dim + offset % 2;
    for (int i = 0; i < dim; ++i) row[2 * i] = value[i];
}

// Prefetches the lines that write_head will write: they are scattered over a block that was not used since the last
// step, and stores alone would wait for one after the other. Inlined, as GCC 12 drops calls of functions that do nothing but prefetch.
HEADRACE_INLINE void expect_head(const KVCache& kv, std::int64_t slot, int head) {
    const std::size_t dim = kv.head_dim, stride = kv.block_stride, element = dtype_bytes(kv.type);
    const std::size_t block = slot / kv.block_size, offset = slot % kv.block_size;
    const std::size_t base = (block * kv.num_kv_heads + head) * stride * dim * element;
    const std::size_t pair = kv.type == DType::f32 ? 1 : 2, features = kv.key_features();  // positions, features side by side
    const char* key = static_cast<const char*>(kv.keys) + base + features * offset * element;
    const std::size_t key_step = features * stride * element, line = key_step < 64 ? 64 : key_step;
    for (std::size_t at = 0; at < dim * stride * element; at += line) HEADRACE_PREFETCH_WRITE(key + at);
    const char* value = static_cast<const char*>(kv.values) + base + offset / pair * pair * dim * element;
    for (std::size_t at = 0; at < pair * dim * element; at += 64) HEADRACE_PREFETCH_WRITE(value + at);
}

inline void write_head(const KVCache& kv, const float* key, const float* value, std::int64_t slot, int head) {
    const int dim = kv.head_dim, stride = kv.block_stride;
    const std::int64_t block = slot / kv.block_size;
    const int offset = static_cast<int>(slot % kv.block_size);
    const std::size_t at = static_cast<std::size_t>(block) * kv.num_kv_heads + head;
    const std::size_t base = at * stride * dim;
    if (kv.type == DType::f32) {
        float* keys = static_cast<float*>(kv.keys) + base;
        float* values = static_cast<float*>(kv.values) + base + static_cast<std::size_t>(offset) * dim;
        for (int i = 0; i < dim; ++i) keys[static_cast<std::size_t>(i) * stride + offset] = key[i];
        for (int i = 0; i < dim; ++i) values[i] = value[i];
    } else if (kv.type == DType::bf16) {
        alignas(64) bf16_t k[kMaxHeadDim], v[kMaxHeadDim];
        store_head(key, dim, DType::bf16, k, 0);
        store_head(value, dim, DType::bf16, v, 0);
        scatter_head<2>(k, v, kv, base, offset);
    } else if (kv.type == DType::i8) {
        alignas(64) std::int8_t k[kMaxHeadDim], v[kMaxHeadDim];
        kv.key_floats()[at * stride + offset] = quantize_head(key, dim, k);
        kv.value_floats()[at * stride + offset] = quantize_head(value, dim, v);
        for (int i = 0; i < dim; ++i) k[i] = static_cast<std::int8_t>(k[i] ^ -128);  // code + 128
        scatter_head<4>(k, v, kv, base, offset);
    } else {
        alignas(64) std::uint8_t k[kMaxHeadDim], v[kMaxHeadDim];
        kv.key_floats()[at * stride + offset] = quantize_head(key, dim, k);
        kv.value_floats()[at * stride + offset] = quantize_head(value, dim, v);
        scatter_head<2>(k, v, kv, base, offset);
    }
}

// Where keys and values are written first: of i4 caches in the recent one.
inline KVCache written(const KVCache& kv) { return kv.type == DType::i4 ? kv.recent() : kv; }
inline int written_group(const KVCache& kv, int group) { return kv.type == DType::i4 ? kv.recent_group : group; }

// Where else the key and value of a token go.
template <typename Write>
inline void for_more_slots(const Step& step, int group, int t, const Write& write) {
    if (step.more == nullptr) return;
    for (std::int32_t at = step.more[t]; at < step.more[t + 1]; ++at) write(step.groups[group].more_slots[at]);
}

// One token: all its query heads to [Hkv][T][G][D], all its key and value heads to its slot. `next`: the slot of the
// token that follows in this thread, or -1.
inline void rope_token(const RopeArgs& args, int t, std::int64_t next) {
    alignas(64) float x[kMaxHeadDim], rotated[kMaxHeadDim];
    const KVCache kv = written(args.kv);
    const int to = written_group(args.kv, args.group);
    const int dim = kv.head_dim, num_kv = kv.num_kv_heads, group = args.num_heads / num_kv, half = args.rotated / 2;
    const float* row = reinterpret_cast<const float*>(reinterpret_cast<const char*>(args.qkv) +
                                                      static_cast<std::size_t>(t) * args.qkv_stride);
    const std::size_t angle = static_cast<std::size_t>(t) * half;
    auto load = [&](const float* from, const float* norm) {
        for (int i = 0; i < dim; i += 16) F32x16::load(from + i).store(x + i);
        if (args.normed) norm_head(x, dim, norm, args.eps);
        if (!args.interleaved) return;
        for (int i = 0; i < half; ++i) {
            rotated[i] = x[2 * i];
            rotated[half + i] = x[2 * i + 1];
        }
        for (int i = 0; i < 2 * half; ++i) x[i] = rotated[i];
    };
    float warmth = 1.0f;
    if (args.temperature_beta != 0) {
        const std::int64_t steps = (args.step->positions[t] + args.temperature_shift) / args.temperature_length;
        warmth = static_cast<float>(1.0 + args.temperature_beta * __builtin_log1p(static_cast<double>(steps)));
    }
    for (int head = 0; head < args.num_heads; ++head) {
        const std::size_t kv_row = static_cast<std::size_t>(head / group) * args.step->tokens + t;
        const std::size_t at = (kv_row * group + head % group) * dim;
        load(row + static_cast<std::size_t>(head) * dim, args.q_norm);
        for (int i = 0; warmth != 1.0f && i < dim; ++i) x[i] *= warmth;
        rotate_head(x, rotated, dim, args.cos + angle, args.sin + angle, half);
        store_head(rotated, dim, args.q_type, args.q, at);
        if (args.sink_cos == nullptr) continue;
        rotate_head(x, rotated, dim, args.sink_cos + angle, args.sink_sin + angle, half);
        store_head(rotated, dim, args.q_type, args.q_sink, at);
    }
    if (!args.writes) return;
    const std::int64_t slot = args.step->groups[to].slots[t];
    if (slot < 0) return;  // only its logits are needed: its KV is in the cache, or another sequence's token writes it
    const float* keys = row + static_cast<std::size_t>(args.num_heads) * dim;
    const float* values = args.keys_are_values ? keys : keys + static_cast<std::size_t>(num_kv) * dim;
    for (int head = 0; head < num_kv; ++head) {
        load(keys + static_cast<std::size_t>(head) * dim, args.k_norm);
        rotate_head(x, rotated, dim, args.cos + angle, args.sin + angle, half);
        if (next >= 0) expect_head(kv, next, head);
        const float* value = values + static_cast<std::size_t>(head) * dim;
        if (args.v_norm) {
            for (int i = 0; i < dim; i += 16) F32x16::load(value + i).store(x + i);
            norm_head(x, dim, nullptr, args.eps);
            value = x;
        }
        write_head(kv, rotated, value, slot, head);
        for_more_slots(*args.step, to, t, [&](std::int64_t more) { write_head(kv, rotated, value, more, head); });
    }
}

// Encodes the blocks of an i4 cache whose last positions the step has written.
inline void encode_blocks(const RopeArgs& args, Team& team) {
    const Step& step = *args.step;
    const GroupTables &to = step.groups[args.group], &from = step.groups[args.kv.recent_group];
    const int size = args.kv.block_size;
    const auto ends = [size](std::int64_t slot) { return slot >= 0 && slot % size == size - 1; };
    const auto each = [&](int t, const auto& visit) {
        if (ends(to.slots[t])) visit(from.slots[t], to.slots[t]);
        if (step.more == nullptr) return;
        for (std::int32_t at = step.more[t]; at < step.more[t + 1]; ++at) {
            if (ends(to.more_slots[at])) visit(from.more_slots[at], to.more_slots[at]);
        }
    };
    int blocks = 0;
    for (int t = 0; t < step.tokens; ++t) each(t, [&](std::int64_t, std::int64_t) { ++blocks; });
    if (blocks == 0) return;
    auto body = [&](int first, int last) {
        for (int t = first; t < last; ++t) {
            each(t, [&](std::int64_t source, std::int64_t target) {
                for (int head = 0; head < args.kv.num_kv_heads; ++head) {
                    encode_block(args.kv, static_cast<std::size_t>(source / size) * args.kv.num_kv_heads + head,
                                 static_cast<std::size_t>(target / size) * args.kv.num_kv_heads + head);
                }
            });
        }
    };
    over_tokens(step.tokens, 4, team, body);
}

inline void rope_and_write(const RopeArgs& args, Team& team) {
    const std::int64_t* slots = args.step->groups[written_group(args.kv, args.group)].slots;
    const KVCache kv = written(args.kv);
    auto body = [&](int first, int last) {
        const bool writes = args.writes && first < last && slots[first] >= 0;
        for (int head = 0; writes && head < kv.num_kv_heads; ++head) {
            expect_head(kv, slots[first], head);
        }
        for (int t = first; t < last; ++t) rope_token(args, t, t + 1 < last ? slots[t + 1] : -1);
    };
    over_tokens(args.step->tokens, 4, team, body);
    if (args.writes && args.kv.type == DType::i4) encode_blocks(args, team);
}

// A row of latent and key to its position, in the order of values; see KVCache.
inline void write_latent(const KVCache& kv, const float* row, std::int64_t slot) {
    const int dim = kv.head_dim;
    const std::int64_t block = slot / kv.block_size;
    const int offset = static_cast<int>(slot % kv.block_size);
    const std::size_t base = static_cast<std::size_t>(block) * kv.block_stride * dim;
    const std::size_t at = base + 2 * static_cast<std::size_t>(offset / 2) * dim + offset % 2;
    if (kv.type == DType::f32) {
        store_head(row, dim, DType::f32, kv.values, base + static_cast<std::size_t>(offset) * dim);
    } else if (kv.type == DType::bf16) {
        alignas(64) bf16_t narrow[kMaxHeadDim];
        store_head(row, dim, DType::bf16, narrow, 0);
        bf16_t* to = static_cast<bf16_t*>(kv.values) + at;
        for (int i = 0; i < dim; ++i) to[2 * i] = narrow[i];
    } else {
        const auto write = [&](auto code) {
            using Code = decltype(code);
            alignas(64) Code codes[kMaxHeadDim];
            kv.value_floats()[static_cast<std::size_t>(block) * kv.block_stride + offset] = quantize_head(row, dim, codes);
            Code* to = static_cast<Code*>(kv.values) + at;
            for (int i = 0; i < dim; ++i) to[2 * i] = codes[i];
        };
        kv.type == DType::i8 ? write(std::int8_t{}) : write(std::uint8_t{});
    }
}

// One token: the rotated features of all its query heads behind what they are multiplied with already, and its row of the
// cache.
inline void latent_token(const LatentArgs& args, int t) {
    alignas(64) float x[kMaxHeadDim], row[kMaxHeadDim];
    const KVCache& kv = args.kv;
    const int dim = kv.head_dim, latent = kv.value_dim, rotated = dim - latent, half = rotated / 2;
    const std::size_t at = static_cast<std::size_t>(t), angle = at * half;
    const auto rotate = [&](const float* from, float* to) {
        for (int i = 0; i < half; ++i) {
            x[i] = args.interleaved ? from[2 * i] : from[i];
            x[half + i] = args.interleaved ? from[2 * i + 1] : from[half + i];
        }
        rotate_head(x, to, rotated, args.cos + angle, args.sin + angle, half);
    };
    const auto* queries = reinterpret_cast<const float*>(reinterpret_cast<const char*>(args.query) + at * args.query_stride);
    for (int head = 0; head < args.num_heads; ++head) {
        rotate(queries + static_cast<std::size_t>(head) * (args.key_dim + rotated) + args.key_dim, row);
        store_head(row, rotated, args.q_type, args.q, (at * args.num_heads + head) * dim + latent);
    }
    const std::int64_t slot = args.step->groups[args.group].slots[t];
    if (slot < 0) return;  // as in rope_token
    const auto* made = reinterpret_cast<const float*>(reinterpret_cast<const char*>(args.latent) + at * args.latent_stride);
    for (int i = 0; i < latent; i += 16) F32x16::load(made + i).store(row + i);
    rotate(made + latent, row + latent);
    write_latent(kv, row, slot);
    for_more_slots(*args.step, args.group, t, [&](std::int64_t more) { write_latent(kv, row, more); });
}

inline void latent_and_write(const LatentArgs& args, Team& team) {
    auto body = [&](int first, int last) {
        for (int t = first; t < last; ++t) latent_token(args, t);
    };
    over_tokens(args.step->tokens, 4, team, body);
}

}  // namespace headrace::HEADRACE_ISA

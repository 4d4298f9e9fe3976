// Layers with a recurrent state, and what lies around them: sequences that start from nothing, from another's slot and from
// their own, that leave copies on the way, and that have no tokens in this step.
#include <vector>

#include "driver.h"

namespace headrace::driver {
namespace {

// Four sequences in the slots of one group.
struct Tables {
    const std::vector<std::int32_t> cu{0, 1, 18, 18, 58, 63};
    const std::vector<std::int32_t> sources{-1, 2, 3, 4, 0}, firsts{0, 1, 4, 4, 5, 6};
    const std::vector<std::int32_t> counts{1, 16, 17, 17, 40, 5}, slots{0, 1, 2, 5, 4, 3};
    StateTables tables{sources.data(), firsts.data(), counts.data(), slots.data()};
    Step step;

    Tables() {
        step.tokens = cu.back();
        step.seqs = static_cast<int>(sources.size());
        step.cu_q = cu.data();
        step.states = &tables;
    }
};

constexpr int kSlots = 6;

void check_convolution(const Kernels& kernels, const Teams& teams, int channels, int width, bool gated, bool bias) {
    const Tables given;
    const std::size_t tokens = given.step.tokens, size = static_cast<std::size_t>(channels) * (width - 1);
    Noise noise(channels);
    Guarded<float> in(tokens * channels * (gated ? 3 : 1)), weight(static_cast<std::size_t>(width) * channels), biases(channels);
    in.fill(noise);
    weight.fill(noise);
    biases.fill(noise);
    Guarded<float> alone(tokens * channels), shared(tokens * channels), first(kSlots * size), second(kSlots * size);
    ConvArgs args;
    args.in = in.data();
    args.in_stride = channels * (gated ? 3 : 1) * sizeof(float);
    args.weight = weight.data();
    args.bias = bias ? biases.data() : nullptr;
    args.channels = channels;
    args.width = width;
    args.gated = gated;
    args.step = &given.step;
    args.out_stride = channels * sizeof(float);
    for (const bool one : {true, false}) {
        args.states = one ? first.fill(0.25F).data() : second.fill(0.25F).data();
        args.out = one ? alone.data() : shared.data();
        kernels.convolution(args, one ? teams.one : teams.many);
    }
    require(finite(alone) && finite(first), "convolutions are finite", kernels.name);
    require(alone == shared && first == second, "convolutions do not depend on threads", kernels.name);
}

void check_delta(const Kernels& kernels, const Teams& teams, int heads, int key_heads, int key_dim, int value_dim) {
    const Tables given;
    const std::size_t tokens = given.step.tokens, values = static_cast<std::size_t>(heads) * value_dim, size = values * key_dim;
    const std::size_t wide = 2 * static_cast<std::size_t>(key_heads) * key_dim + values;
    Noise noise(key_dim);
    Guarded<float> qkv(tokens * wide), gates(tokens * values), numbers(tokens * 2 * heads), rate(heads), time(heads), norm(value_dim);
    for (Guarded<float>* one : {&gates, &rate, &time, &norm}) one->fill(noise);
    Guarded<float> alone(tokens * values), shared(tokens * values), first(kSlots * size), second(kSlots * size);
    DeltaArgs args;
    args.qkv = qkv.data();
    args.qkv_stride = wide * sizeof(float);
    args.gates = gates.data();
    args.gates_stride = values * sizeof(float);
    args.numbers = numbers.data();
    args.numbers_stride = 2 * heads * sizeof(float);
    args.rate = rate.data();
    args.time = time.data();
    args.norm = norm.data();
    args.eps = 1e-6F;
    args.heads = heads;
    args.key_heads = key_heads;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.step = &given.step;
    args.out_stride = values * sizeof(float);
    for (const bool one : {true, false}) {
        args.states = one ? first.fill(0.25F).data() : second.fill(0.25F).data();
        args.out = one ? alone.data() : shared.data();
        Noise same(value_dim);  // both are changed in place
        qkv.fill(same);
        numbers.fill(same);
        numbers[0] = numbers[heads] = 3e38F;  // a step so large that nothing is kept
        kernels.gated_delta(args, one ? teams.one : teams.many);
    }
    require(finite(alone) && finite(first), "the delta rule is finite", kernels.name);
    require(alone == shared && first == second, "the delta rule does not depend on threads", kernels.name);
}

// Heads of queries, keys and values that lie together are taken apart; a gate is applied; rows are added, normalised or not.
void check_beside(const Kernels& kernels, const Teams& teams, int rows, int groups, int first, int second) {
    const std::size_t width = first + second, cols = groups * width;
    Noise noise(rows);
    Guarded<float> in(rows * cols), one(static_cast<std::size_t>(rows) * groups * first), two(static_cast<std::size_t>(rows) * groups * second);
    in.fill(noise);
    UngroupArgs args;
    args.in = in.data();
    args.in_stride = cols * sizeof(float);
    args.rows = rows;
    args.groups = groups;
    args.width = static_cast<int>(width);
    args.count = 2;
    args.parts[0] = {one.data(), groups * first * sizeof(float), first};
    args.parts[1] = {two.data(), groups * second * sizeof(float), second};
    kernels.ungroup(args, teams.many);
    for (int row = 0; row < rows; ++row) {
        for (int group = 0; group < groups; ++group) {
            const float* from = in.data() + row * cols + group * width;
            const float* there = two.data() + (static_cast<std::size_t>(row) * groups + group) * second;
            require(std::memcmp(from + first, there, second * sizeof(float)) == 0, "groups are taken apart", kernels.name);
        }
    }
    Guarded<float> weight(cols), alone(rows * cols), shared(rows * cols);
    weight.fill(noise);
    for (Guarded<float>* out : {&alone, &shared}) {
        Team& team = out == &alone ? teams.one : teams.many;
        out->fill(1.0F);
        const std::size_t stride = cols * sizeof(float);
        const int features = static_cast<int>(cols);
        const NormArgs scaled{.weight = weight.data(), .eps = 1e-5F};
        const NormArgs centred{.weight = weight.data(), .bias = weight.data(), .centred = true, .eps = 1e-5F};
        kernels.sigmoid_gate({in.data(), stride, rows, features, out->data(), stride}, team);
        for (const NormArgs& norm : {NormArgs{}, scaled, centred}) {
            kernels.add({.in = in.data(), .in_stride = stride, .norm = norm, .scale = 0.5F, .rows = rows, .cols = features,
                         .out = out->data(), .out_stride = stride}, team);
        }
    }
    require(finite(alone), "gated rows are finite", kernels.name);
    require(alone == shared, "gated rows do not depend on threads", kernels.name);
}

}  // namespace

void run_recurrent(const Kernels& kernels, const Teams& teams) {
    check_convolution(kernels, teams, 1, 2, false, false);
    check_convolution(kernels, teams, 77, 4, false, true);
    check_convolution(kernels, teams, 640, 3, true, false);
    check_convolution(kernels, teams, 40, kMaxConvWidth, true, true);
    check_delta(kernels, teams, 1, 1, 1, 16);
    check_delta(kernels, teams, 4, 2, 24, 48);
    check_delta(kernels, teams, 6, 2, 128, 144);
    check_delta(kernels, teams, 2, 2, kMaxKeyDim, 80);
    check_beside(kernels, teams, 1, 3, 1, 5);
    check_beside(kernels, teams, 40, 4, 33, 96);
}

}  // namespace headrace::driver

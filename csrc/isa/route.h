// The choice of experts: scores of every row in float32, the best of them with their weights, and the routed rows.
#pragma once

#include "../kernels.h"
#include "rowwise.h"
#include "vec_math.h"

namespace headrace::HEADRACE_ISA {

// The indices of the `most` largest of `count` values in falling order, equal ones in rising order of index. NaN counts as
// minus infinity, so that there are always `most` indices.
HEADRACE_ALONE void largest_of(const float* values, int count, int most, std::int32_t* found) {
    float top[kMaxChoices];
    int filled = 0;
    for (int i = 0; i < count; ++i) {
        const float value = values[i] == values[i] ? values[i] : -__builtin_huge_valf();
        if (filled == most && !(value > top[most - 1])) continue;
        int place = filled < most ? filled++ : most - 1;
        for (; place > 0 && value > top[place - 1]; --place) {
            top[place] = top[place - 1];
            found[place] = found[place - 1];
        }
        top[place] = value;
        found[place] = i;
    }
}

// values[i] = e^(values[i] - largest); the sum. The array has room for a multiple of 16, and minus infinity after `count`.
HEADRACE_ALONE float exponentials(float* values, int count) {
    F32x16 most = F32x16::load(values);
    for (int i = 16; i < count; i += 16) most = max(most, F32x16::load(values + i));
    const F32x16 highest = F32x16::broadcast(reduce_max(most));
    F32x16 sum = F32x16::zero();
    for (int i = 0; i < count; i += 16) {
        const F32x16 power = exp(F32x16::load(values + i) - highest);
        power.store(values + i);
        sum = sum + power;
    }
    return reduce_add(sum);
}

HEADRACE_INLINE int padded(int count) { return ceil_div(count, 16) * 16; }

// Minus infinity in place of scores outside of the best groups.
HEADRACE_ALONE void keep_groups(const RouteArgs& a, float* ranked) {
    const int size = a.out.experts / a.groups;
    float totals[kMaxExperts] = {};
    std::int32_t best[kMaxChoices];
    for (int g = 0; g < a.groups; ++g) {
        std::int32_t top[2];
        const int counted = a.group_score == GroupScore::max ? 1 : 2;
        largest_of(ranked + g * size, size, counted, top);
        totals[g] = ranked[g * size + top[0]] + (counted == 2 ? ranked[g * size + top[1]] : 0.0F);
    }
    largest_of(totals, a.groups, a.top_groups, best);
    for (int g = 0; g < a.groups; ++g) {
        bool kept = false;
        for (int i = 0; i < a.top_groups; ++i) kept = kept || best[i] == g;
        for (int e = g * size; !kept && e < (g + 1) * size; ++e) ranked[e] = -__builtin_huge_valf();
    }
}

static void route_row(const RouteArgs& a, int row) {
    constexpr float kTiny = 1e-20F;  // added to a sum that may be 0
    const int experts = a.out.experts, each = a.out.each;
    const auto* logits = reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.logits) + row * a.logits_stride);
    alignas(64) float values[kMaxExperts], ranked[kMaxExperts];
    for (int e = 0; e < padded(experts); ++e) values[e] = e < experts ? logits[e] : -__builtin_huge_valf();
    if (a.scores == Scores::softmax) {
        const F32x16 sum = F32x16::broadcast(exponentials(values, experts));
        for (int e = 0; e < experts; e += 16) (F32x16::load(values + e) / sum).store(values + e);
    } else if (a.scores == Scores::sigmoid) {
        const F32x16 one = F32x16::broadcast(1.0F);
        for (int e = 0; e < experts; e += 16) {
            (one / (one + exp(F32x16::zero() - F32x16::load(values + e)))).store(values + e);
        }
    }
    for (int e = 0; e < experts; ++e) ranked[e] = a.bias == nullptr ? values[e] : values[e] + a.bias[e];
    if (a.top_groups < a.groups) keep_groups(a, ranked);
    std::int32_t* chosen = a.out.chosen + static_cast<std::size_t>(row) * each;
    largest_of(ranked, experts, each, chosen);

    alignas(64) float weights[kMaxChoices];
    for (int j = 0; j < padded(each); ++j) weights[j] = j < each ? values[chosen[j]] : -__builtin_huge_valf();
    float divisor = 1.0F;
    if (a.scores == Scores::softmax_chosen) divisor = exponentials(weights, each);
    if (a.normalize) {
        float sum = kTiny;
        for (int j = 0; j < each; ++j) sum += weights[j] / divisor;
        divisor *= sum;
    }
    float* out = a.out.weights + static_cast<std::size_t>(row) * each;
    for (int j = 0; j < each; ++j) {
        const float weight = weights[j] / divisor * a.scale;
        out[j] = a.expert_scale == nullptr ? weight : weight * a.expert_scale[chosen[j]];
    }
    if (a.shared) {
        float gate[16] = {logits[experts]};
        const F32x16 one = F32x16::broadcast(1.0F);
        (one / (one + exp(F32x16::zero() - F32x16::load(gate)))).store(gate);
        a.out.gates[row] = gate[0];
    }
}

// The routed rows, by a count of each expert's. One thread: it takes a small part of the time of the choice.
static void place_rows(const Routing& r, int rows) {
    const int pairs = rows * r.each;
    for (int e = 0; e <= r.experts; ++e) r.begins[e] = 0;
    for (int i = 0; i < pairs; ++i) ++r.begins[r.chosen[i] + 1];
    int used = 0;
    for (int e = 0; e < r.experts; ++e) {
        if (r.begins[e + 1] > 0) r.used[1 + used++] = e;
        r.begins[e + 1] += r.begins[e];
    }
    r.used[0] = used;
    for (int row = 0, i = 0; row < rows; ++row) {
        for (int j = 0; j < r.each; ++j, ++i) {
            const int place = r.begins[r.chosen[i]]++;
            r.places[i] = place;
            r.sources[place] = row;
        }
    }
    for (int e = r.experts; e > 0; --e) r.begins[e] = r.begins[e - 1];  // each has become the next one's begin
    r.begins[0] = 0;
}

static void route(const RouteArgs& a, Team& team) {
    constexpr int kWork = 8;  // a choice takes about as long as so many features of a row elsewhere
    for_rows(a.rows, a.out.experts * kWork, team, [&](int row) { route_row(a, row); });
    place_rows(a.out, a.rows);
}

}  // namespace headrace::HEADRACE_ISA

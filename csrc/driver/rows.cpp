// Kernels that take one row at a time. Rows that are not finite are given too: their numbers may be anything, but making
// them must not overflow.
#include "driver.h"

namespace headrace::driver {
namespace {

void encode(const Kernels& kernels, Team& team, int rows, int cols, DType type, float planted) {
    const int padded = (cols + kInputAlign - 1) / kInputAlign * kInputAlign, group = 32;
    Noise noise(cols);
    Guarded<float> x(static_cast<std::size_t>(rows) * cols), norm(cols);
    x.fill(noise);
    norm.fill(noise);
    for (int i = 0; i < cols; i += 2) x[i] = planted;
    Rows out;
    out.type = type;
    out.stride = padded * dtype_bytes(type);
    Guarded<char> data(out.stride * rows);
    const std::size_t groups = padded / group;
    Guarded<float> scales(groups * rows);
    Guarded<std::int32_t> sums(groups * rows);
    out.data = data.data();
    out.scales = scales.data();
    out.sums = sums.data();
    out.group = group;
    out.groups = static_cast<int>(groups);
    Guarded<std::int64_t> gather(rows);
    for (int row = 0; row < rows; ++row) gather[row] = rows - 1 - row;
    const std::size_t stride = cols * sizeof(float);
    const NormArgs scaled{.weight = norm.data(), .eps = 1e-5F}, centred{.weight = norm.data(), .bias = norm.data(), .centred = true, .eps = 1e-5F};
    for (const NormArgs& given : {scaled, centred}) {
        kernels.encode({.in = x.data(), .in_stride = stride, .gather = gather.data(), .norm = given, .rows = rows, .cols = cols,
                        .cols_padded = padded, .out = out}, team);
    }
    kernels.encode({.in = x.data(), .in_stride = stride, .rows = rows, .cols = cols, .cols_padded = padded, .out = out}, team);
}

}  // namespace

void run_rows(const Kernels& kernels, const Teams& teams) {
    const float big = 3e38F;
    for (const DType type : {DType::f32, DType::bf16, DType::i8}) {
        for (const int cols : {1, 77, 640}) {
            for (const float planted : {0.5F, big, big * 10, -big * 10, big * 10 - big * 10}) {
                encode(kernels, teams.many, 40, cols, type, planted);
            }
        }
    }
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        constexpr int kVocab = 50, kRows = 300, kCols = 77;
        Noise noise(1);
        Guarded<float> table(static_cast<std::size_t>(kVocab) * kCols / (type == DType::f32 ? 1 : 2));
        Guarded<float> out(static_cast<std::size_t>(kRows) * kCols);
        table.fill(noise);
        Guarded<std::int64_t> ids(kRows);
        for (int i = 0; i < kRows; ++i) ids[i] = i % kVocab;
        kernels.embed({.ids = ids.data(), .rows = kRows, .cols = kCols, .type = type, .table = table.data(),
                       .out = out.data(), .out_stride = kCols * sizeof(float)}, teams.many);
    }
    constexpr int kRows = 40, kCols = 1003;
    Noise noise(2);
    Guarded<float> logits(static_cast<std::size_t>(kRows) * kCols);
    logits.fill(noise);
    Guarded<std::int64_t> best(kRows);
    kernels.soft_cap({logits.data(), kCols * sizeof(float), kRows, kCols, 3.0F}, teams.many);
    kernels.argmax({logits.data(), kCols * sizeof(float), kRows, kCols, best.data()}, teams.many);
    require(finite(logits), "soft-capped logits are finite", kernels.name);
    for (int row = 0; row < kRows; ++row) require(best[row] >= 0 && best[row] < kCols, "arg-max is a column", kernels.name);
}

}  // namespace headrace::driver

// Packing, encoding and products: every format, every epilogue, few and many rows, tails of panels and features.
#include <vector>

#include "driver.h"

namespace headrace::driver {
namespace {

struct Format {
    WeightFormat weight;
    DType input;
    int group;       // 0: one scale a row
    bool symmetric;
};

int round_up(int n, int step) { return (n + step - 1) / step * step; }

// A matrix in buffers of its own, packed from rows of floats.
struct Packed {
    static std::size_t panel_bytes(WeightFormat format, int cols_padded) {
        return static_cast<std::size_t>(cols_padded) * (kPanel * code_bits(format) / 8);
    }

    Packed(const Kernels& kernels, Team& team, const Format& f, int rows, int cols, bool gate)
        : panels(round_up(round_up(rows, kPanel) / kPanel, gate ? 2 : 1)),
          cols_padded(round_up(cols, kInputAlign)),
          group(f.group == 0 ? cols_padded : f.group),
          groups(is_codes(f.weight) ? (cols_padded + group - 1) / group : 0),
          data(panel_bytes(f.weight, cols_padded) * panels),
          scales(static_cast<std::size_t>(panels) * groups * kPanel),
          zeros(f.symmetric ? 0 : scales.size()),
          bias(static_cast<std::size_t>(panels) * kPanel),
          source(static_cast<std::size_t>(rows) * cols) {
        Noise noise(rows * 31 + cols);
        source.fill(noise);
        bias.fill(noise);
        matrix = {.format = f.weight, .input = f.input, .rows = rows, .cols = cols, .panels = panels,
                  .cols_padded = cols_padded, .group = groups == 0 ? 0 : group, .groups = groups,
                  .span = groups == 0 ? 0 : group, .middle = groups == 0 ? 0 : 1 << (code_bits(f.weight) - 1), .data = data.data(),
                  .panel_bytes = panel_bytes(f.weight, cols_padded), .scales = groups == 0 ? nullptr : scales.data(),
                  .zeros = groups == 0 || f.symmetric ? nullptr : zeros.data(), .bias = bias.data()};
        std::vector<const void*> sources(static_cast<std::size_t>(panels) * kPanel, nullptr);
        for (int row = 0; row < rows; ++row) sources[row] = source.data() + static_cast<std::size_t>(row) * cols;
        kernels.pack({sources.data(), DType::f32, matrix, f.symmetric}, team);
    }

    int panels, cols_padded, group, groups;
    Guarded<std::uint8_t> data;
    Guarded<f16_t> scales;
    Guarded<std::uint8_t> zeros;
    Guarded<float> bias, source;
    Matrix matrix;
};

void multiply(const Kernels& kernels, Team& team, const Packed& packed, int rows, const Guarded<float>& x, Epilogue epilogue,
              Guarded<float>& out) {
    const Matrix& w = packed.matrix;
    Rows in;
    in.type = w.input;
    in.stride = round_up(static_cast<int>(w.cols_padded * dtype_bytes(w.input)), 64);
    Guarded<char> encoded(in.stride * rows);
    const std::size_t count = w.input == DType::i8 ? static_cast<std::size_t>(rows) * spans_of(w) : 0;
    Guarded<float> scales(count);
    Guarded<std::int32_t> sums(count);
    in.data = encoded.data();
    in.scales = scales.data();
    in.sums = sums.data();
    in.group = w.span;
    in.groups = spans_of(w);
    EncodeArgs encode;
    encode.in = x.data();
    encode.in_stride = w.cols * sizeof(float);
    encode.rows = rows;
    encode.cols = w.cols;
    encode.cols_padded = w.cols_padded;
    encode.out = in;
    kernels.encode(encode, team);
    const int features = epilogue == Epilogue::gate ? w.panels * kPanel / 2 : w.rows;
    LinearArgs args;
    args.in = in;
    args.weight = &w;
    args.rows = rows;
    args.epilogue = epilogue;
    args.gate = epilogue == Epilogue::gate || epilogue == Epilogue::multiply ? Gate::silu : Gate::none;
    Guarded<float> gates(epilogue == Epilogue::multiply ? out.size() : 0);
    if (epilogue == Epilogue::multiply) {
        gates.fill(0.5F);
        args.gates = gates.data();
        args.gates_stride = features * sizeof(float);
    }
    args.out = out.data();
    args.out_stride = features * sizeof(float);
    if (epilogue == Epilogue::add) out.fill(1.0F);
    kernels.linear(args, team);
}

// The table of a model that ties it to its head: a packed matrix, read a row at a time.
void embed(const Kernels& kernels, Team& team, const Packed& packed, DType type) {
    const Matrix& w = packed.matrix;
    Guarded<std::int64_t> ids(300);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) % w.rows;
    Guarded<float> out(ids.size() * w.cols);
    kernels.embed({.ids = ids.data(), .rows = static_cast<int>(ids.size()), .cols = w.cols, .type = type, .packed = &w,
                   .out = out.data(), .out_stride = w.cols * sizeof(float)}, team);
    require(finite(out), "rows of a packed table are finite", kernels.name);
}

}  // namespace

void run_products(const Kernels& kernels, const Teams& teams) {
    const Format formats[] = {
        {WeightFormat::f32, DType::f32, 0, true},   {WeightFormat::bf16, DType::bf16, 0, true},
        {WeightFormat::bf16, DType::f32, 0, true},  {WeightFormat::f16, DType::f32, 0, true},
        {WeightFormat::int8, DType::i8, 64, true},  {WeightFormat::int8, DType::bf16, 0, false},
        {WeightFormat::int4, DType::i8, 32, false}, {WeightFormat::int4, DType::bf16, 64, true},
    };
    for (const Format& format : formats) {
        for (const auto& [features, cols] : {std::pair{77, 100}, {16, 64}, {1, 1}, {48, 2100}}) {
            for (const Epilogue epilogue : {Epilogue::store, Epilogue::add, Epilogue::gate, Epilogue::multiply}) {
                const bool gate = epilogue == Epilogue::gate;
                const Packed packed(kernels, teams.many, format, features, cols, gate);
                if (packed.groups == 0 && epilogue == Epilogue::store) {
                    const bool wide = format.weight == WeightFormat::f32, halves = format.weight == WeightFormat::f16;
                    embed(kernels, teams.many, packed, wide ? DType::f32 : halves ? DType::f16 : DType::bf16);
                }
                for (const int rows : {1, 3, 7, 17, 33}) {
                    if (cols > 1000 && rows != 3 && rows != 17) continue;
                    Noise noise(rows);
                    Guarded<float> x(static_cast<std::size_t>(rows) * cols);
                    x.fill(noise);
                    const std::size_t wide = gate ? packed.panels * kPanel / 2 : features;
                    Guarded<float> alone(rows * wide), shared(rows * wide);
                    multiply(kernels, teams.one, packed, rows, x, epilogue, alone);
                    multiply(kernels, teams.many, packed, rows, x, epilogue, shared);
                    require(finite(alone), "products are finite", kernels.name);
                    require(alone == shared, "products do not depend on threads", kernels.name);
                }
            }
        }
    }
}

}  // namespace headrace::driver

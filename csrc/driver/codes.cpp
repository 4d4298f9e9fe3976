// Matrices of existing codes: every type of GGUF blocks, every native format of codes, products and look-ups, packed here and
// mapped from a file.
#include <cstring>
#include <stdexcept>
#include <vector>

#include "../packed_matrix.h"
#include "driver.h"

namespace headrace::driver {
namespace {

void multiply(const Kernels& kernels, Team& team, const Matrix& w, int rows, const Guarded<float>& x, Guarded<float>& out) {
    Rows in;
    in.type = w.input;
    in.stride = w.cols_padded * dtype_bytes(w.input);
    in.group = w.span;
    in.groups = spans_of(w);
    in.order = w.order;
    Guarded<char> encoded(in.stride * rows);
    const std::size_t count = w.input == DType::i8 ? static_cast<std::size_t>(rows) * in.groups : 0;
    Guarded<float> scales(count);
    Guarded<std::int32_t> sums(count);
    in.data = encoded.data();
    in.scales = scales.data();
    in.sums = sums.data();
    kernels.encode({.in = x.data(), .in_stride = w.cols * sizeof(float), .rows = rows, .cols = w.cols,
                    .cols_padded = w.cols_padded, .out = in}, team);
    LinearArgs args;
    args.in = in;
    args.weight = &w;
    args.rows = rows;
    args.out = out.data();
    args.out_stride = w.rows * sizeof(float);
    kernels.linear(args, team);
}

void check(const Kernels& kernels, const Teams& teams, const PackedMatrix& packed) {
    const Matrix& w = packed.matrix();
    Guarded<std::int64_t> ids(w.rows);
    for (int i = 0; i < w.rows; ++i) ids[i] = i;
    Guarded<float> weights(static_cast<std::size_t>(w.rows) * w.cols);
    kernels.embed({.ids = ids.data(), .rows = w.rows, .cols = w.cols, .packed = &w, .out = weights.data(),
                   .out_stride = w.cols * sizeof(float)}, teams.many);
    require(finite(weights), "dequantised rows are finite", kernels.name);
    for (const int rows : {1, 4, 7, 33}) {
        Noise noise(rows);
        Guarded<float> x(static_cast<std::size_t>(rows) * w.cols);
        x.fill(noise);
        Guarded<float> alone(static_cast<std::size_t>(rows) * w.rows), shared(alone.size());
        multiply(kernels, teams.one, w, rows, x, alone);
        multiply(kernels, teams.many, w, rows, x, shared);
        require(finite(alone), "products of codes are finite", kernels.name);
        require(alone == shared, "products of codes do not depend on threads", kernels.name);
    }
}

template <class Map>
bool refused(Map map, const KeptMatrix& kept) {
    try {
        map(kept);
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

// The same matrix in memory as a mapped file gives it, up to an inaccessible page. `map` makes a matrix of what is kept.
template <class Map>
void check_mapped(const Kernels& kernels, const Teams& teams, const PackedMatrix& packed, KeptMatrix kept, Map map) {
    const Matrix& w = packed.matrix();
    Guarded<char> memory(packed.bytes());
    char* at = memory.data();
    for (const WeightMemory::Piece& piece : packed.pieces()) {
        std::memcpy(at, piece.start, piece.bytes);
        at += piece.bytes;
    }
    kept.data = memory.data();
    kept.bytes = memory.size();
    kept.rows = w.rows;
    kept.cols = w.cols;
    const PackedMatrix mapped = map(kept);
    check(kernels, teams, mapped);
    Noise noise(5);
    Guarded<float> x(static_cast<std::size_t>(5) * w.cols);
    x.fill(noise);
    Guarded<float> here(static_cast<std::size_t>(5) * w.rows), there(here.size());
    multiply(kernels, teams.one, w, 5, x, here);
    multiply(kernels, teams.one, mapped.matrix(), 5, x, there);
    require(here == there, "a mapped matrix has the products of the packed one", kernels.name);
    KeptMatrix other = kept;
    other.bytes -= 4096;
    require(refused(map, other), "memory that is too short is refused", kernels.name);
    other = kept;
    other.bytes += 4096;  // refused before it is read
    require(refused(map, other), "memory that is left over is refused", kernels.name);
    if (!kept.ordered) return;
    const std::size_t order = memory.size() - (w.cols * sizeof(std::int32_t) + 4095) / 4096 * 4096;  // the last piece
    std::memset(memory.data() + order, 0x7f, sizeof(std::int32_t));
    require(refused(map, kept), "an order that is none is refused", kernels.name);
}

// Blocks of random bits, with finite scales.
void check_blocks(const Kernels& kernels, const Teams& teams, const BlockType& type, std::initializer_list<int> scales) {
    constexpr int kRows = 21, kCols = 512;
    const int blocks = kRows * kCols / type.features;
    Noise noise(type.bytes);
    Guarded<std::uint8_t> raw(static_cast<std::size_t>(blocks) * type.bytes);
    raw.fill(noise);
    for (int block = 0; block < blocks; ++block) {
        for (const int at : scales) raw[static_cast<std::size_t>(block) * type.bytes + at] &= 0xbf;  // of f16: below 2
        if (type.scale_type == ScaleType::e8m0) raw[static_cast<std::size_t>(block) * type.bytes] &= 0x7f;
    }
    const PackedMatrix packed(kernels, teams.many, type, {{raw.data(), kRows, kCols}}, {});
    check(kernels, teams, packed);
    check_mapped(kernels, teams, packed, {}, [&](const KeptMatrix& kept) { return PackedMatrix(kept, type, false, 1); });
}

void check_codes(const Kernels& kernels, const Teams& teams, WeightFormat format, DType input, int group, int span) {
    constexpr int kRows = 21, kCols = 200;
    const int groups = (kCols + group - 1) / group;
    Noise noise(static_cast<int>(format) * 100 + group);
    Guarded<std::uint8_t> codes(static_cast<std::size_t>(kRows) * kCols);
    const unsigned most = format == WeightFormat::e5m2 ? 0x7b : format == WeightFormat::e4m3 ? 0x7e : (1U << code_bits(format)) - 1;
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(noise.bits() % (most + 1));
    Guarded<float> scales(static_cast<std::size_t>(kRows) * groups);
    scales.fill(noise);
    std::vector<std::int32_t> order;
    for (int i = 0; i < kCols; ++i) order.push_back(kCols - 1 - i);
    PackOptions options{.format = format, .input = input, .group = group, .span = span, .scale_type = ScaleType::f32,
                        .order = order.data()};
    for (int i = 0; i < 16; ++i) {
        options.table.bytes[i] = static_cast<std::uint8_t>(16 * i);
        options.table.numbers[i] = static_cast<bf16_t>(0x3f80 + i);
    }
    const CodePart part{codes.data(), scales.data(), nullptr, nullptr, kRows, kCols};
    const auto map = [&](const KeptMatrix& kept) { return PackedMatrix(kept, options); };
    const PackedMatrix packed(kernels, teams.many, std::vector<CodePart>{part}, options);
    check(kernels, teams, packed);
    check_mapped(kernels, teams, packed, {.ordered = true}, map);
    if (input != DType::i8 || format == WeightFormat::table4) return;
    const CodePart with_minima{codes.data(), scales.data(), nullptr, scales.data(), kRows, kCols};
    const PackedMatrix second(kernels, teams.many, std::vector<CodePart>{with_minima}, options);
    check(kernels, teams, second);
    check_mapped(kernels, teams, second, {.minima = true, .ordered = true}, map);
}

}  // namespace

void run_codes(const Kernels& kernels, const Teams& teams) {
    const struct {
        const char* name;
        std::initializer_list<int> scales;  // the high bytes of the f16 numbers of a block
    } types[] = {{"q4_0", {1}}, {"q4_1", {1, 3}}, {"q5_0", {1}}, {"q5_1", {1, 3}}, {"q8_0", {1}}, {"q2_k", {81, 83}},
                 {"q3_k", {109}}, {"q4_k", {1, 3}}, {"q5_k", {1, 3}}, {"q6_k", {209}}, {"iq4_nl", {1}}, {"iq4_xs", {1}},
                 {"mxfp4", {}}};
    for (const auto& [name, scales] : types) {
        const BlockType* type = find_block_type(name);
        require(type != nullptr, "a type of blocks is known", name);
        check_blocks(kernels, teams, *type, scales);
    }
    using F = WeightFormat;
    for (const F format : {F::int8, F::int6, F::int5, F::int4, F::int3, F::int2, F::table4}) {
        check_codes(kernels, teams, format, DType::i8, 64, 32);
        check_codes(kernels, teams, format, DType::bf16, 32, 0);
    }
    check_codes(kernels, teams, F::int6, DType::i8, 16, 0);
    check_codes(kernels, teams, F::e4m3, DType::bf16, 128, 0);
    check_codes(kernels, teams, F::e5m2, DType::bf16, 128, 0);
}

}  // namespace headrace::driver

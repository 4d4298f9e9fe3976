// Faults on purpose, each made by a kernel that is given a false size or a neighbour: what shows that the sanitizers see
// into the kernels.
#include <climits>
#include <cstring>
#include <thread>
#include <vector>

#include "driver.h"

namespace headrace::driver {
namespace {

struct Product {
    explicit Product(int rows, int rows_of_output)
        : weights(4 * kPanel * kInputAlign), in(static_cast<std::size_t>(rows) * kInputAlign),
          out(static_cast<std::size_t>(rows_of_output) * 4 * kPanel) {
        weights.fill(1.0F);
        in.fill(1.0F);
        matrix.rows = 4 * kPanel;
        matrix.cols = matrix.cols_padded = kInputAlign;
        matrix.panels = 4;
        matrix.data = weights.data();
        matrix.panel_bytes = kPanel * kInputAlign * sizeof(float);
        args.in.data = in.data();
        args.in.stride = kInputAlign * sizeof(float);
        args.weight = &matrix;
        args.rows = rows;
        args.out = out.data();
        args.out_stride = 4 * kPanel * sizeof(float);
    }
    Guarded<float> weights, in, out;
    Matrix matrix;
    LinearArgs args;
};

}  // namespace

void plant(const char* fault) {
    Team one(1), other(1);
    const Kernels& kernels = *find_kernels("portable");
    if (std::strcmp(fault, "overrun") == 0) {
        Product product(8, 7);  // the last row is past the output
        kernels.linear(product.args, one);
    } else if (std::strcmp(fault, "overflow") == 0) {
        Product product(8, 8);
        product.args.rows = INT_MAX;  // the number of blocks of rows is more than an int holds on the way
        kernels.linear(product.args, one);
    } else if (std::strcmp(fault, "race") == 0) {
        Product product(8, 8);
        std::thread second([&] {  // two teams write one output
            for (int i = 0; i < 1000; ++i) kernels.linear(product.args, other);
        });
        for (int i = 0; i < 1000; ++i) kernels.linear(product.args, one);
        second.join();
    } else {
        require(false, "no fault of that name");
    }
    std::fprintf(stderr, "the planted %s went unnoticed\n", fault);
    std::exit(0);
}

}  // namespace headrace::driver

// The kernels without Python, for the compiler's sanitizers: `make sanitize`. Every case runs on buffers of the smallest
// size that csrc/kernels.h allows, once on the caller alone and once on a team, and both must give the same bits.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "../kernels.h"
#include "guarded.h"

namespace headrace::driver {

inline void require(bool condition, const char* what, const char* kernels = "") {
    if (condition) return;
    std::fprintf(stderr, "wrong: %s %s\n", kernels, what);
    std::exit(2);
}

// Whether all values are finite, outputs and inputs.
inline bool finite(const Guarded<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!(values[i] - values[i] == 0)) return false;
    }
    return true;
}

struct Teams {
    Team& one;
    Team& many;
};

void run_products(const Kernels& kernels, const Teams& teams);
void run_codes(const Kernels& kernels, const Teams& teams);
void run_attention(const Kernels& kernels, const Teams& teams);
void run_eviction(const Kernels& kernels, const Teams& teams);
void run_experts(const Kernels& kernels, const Teams& teams);
void run_recurrent(const Kernels& kernels, const Teams& teams);
void run_rows(const Kernels& kernels, const Teams& teams);
void run_sampling(const Kernels& kernels, const Teams& teams);
void run_threads();
[[noreturn]] void plant(const char* fault);  // causes the fault of that name, which a sanitizer must report

}  // namespace headrace::driver

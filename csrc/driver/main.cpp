#include <cstring>

#include "driver.h"

extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace {

// `headrace_driver` runs everything, `headrace_driver --plant overrun|race|overflow` causes that fault.
int run(int argc, char** argv) {
    using namespace headrace;
    using namespace headrace::driver;
    if (argc == 3 && std::strcmp(argv[1], "--plant") == 0) plant(argv[2]);
    require(argc == 1, "usage: headrace_driver [--plant overrun|race|overflow]");
    Team one(1), many(3);
    const Teams teams{one, many};
    run_threads();
    for (int i = 0; const Kernels* kernels = kernels_at(i); ++i) {
        run_products(*kernels, teams);
        run_codes(*kernels, teams);
        run_attention(*kernels, teams);
        run_eviction(*kernels, teams);
        run_experts(*kernels, teams);
        run_recurrent(*kernels, teams);
        run_rows(*kernels, teams);
        run_sampling(*kernels, teams);
        std::printf("%s: clean\n", kernels->name);
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }

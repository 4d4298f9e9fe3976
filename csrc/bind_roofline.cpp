#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings.h"
#include "roofline.h"

namespace nb = nanobind;

namespace headrace {
namespace {

const Kernels& kernels_named(const std::string& name) {
    const Kernels* kernels = find_kernels(name.c_str());
    if (kernels == nullptr) throw std::invalid_argument("this build or this CPU has no kernels named " + name);
    return *kernels;
}

DType type_named(const std::string& name) {
    if (name == "f32") return DType::f32;
    if (name == "bf16") return DType::bf16;
    if (name == "i8") return DType::i8;
    throw std::invalid_argument("there is no product of type " + name);
}

void check(int threads, int runs) {
    constexpr int kMostThreads = 4096, kMostRuns = 1000;
    if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("threads must be 1 to 4096");
    if (runs < 1 || runs > kMostRuns) throw std::invalid_argument("runs must be 1 to 1000");
}

}  // namespace

void bind_roofline(nb::module_& m) {
    m.def(
        "measure_read",
        [](const std::string& name, int threads, std::size_t buffer_bytes, int runs) {
            const Kernels& kernels = kernels_named(name);
            check(threads, runs);
            if (buffer_bytes < 1) throw std::invalid_argument("buffer_bytes must be at least 1");
            const nb::gil_scoped_release released;
            Team team(threads);
            return measure_read(kernels, team, buffer_bytes, runs);
        },
        nb::arg("kernels"), nb::kw_only(), nb::arg("threads"), nb::arg("buffer_bytes"), nb::arg("runs"));
    m.def(
        "measure_peak",
        [](const std::string& name, const std::string& type, int threads, double seconds, int runs) {
            const Kernels& kernels = kernels_named(name);
            const DType product = type_named(type);
            check(threads, runs);
            if (!(seconds > 0 && seconds <= 60)) throw std::invalid_argument("seconds must be above 0, at most 60");
            const nb::gil_scoped_release released;
            return measure_peak(kernels, threads, product, seconds, runs);
        },
        nb::arg("kernels"), nb::arg("type"), nb::kw_only(), nb::arg("threads"), nb::arg("seconds"),
        nb::arg("runs"));
}

}  // namespace headrace

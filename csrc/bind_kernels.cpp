#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kernels.h"

namespace nb = nanobind;

namespace headrace {

void bind_kernels(nb::module_& m) {
    m.def("available_kernels", [] {
        std::vector<std::string> names;
        for (int i = 0; kernels_at(i) != nullptr; ++i) names.emplace_back(kernels_at(i)->name);
        return names;
    });
}

}  // namespace headrace

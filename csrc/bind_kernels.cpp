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
    nb::class_<KernelSet>(m, "Kernels")
        .def(
            "__init__",
            [](KernelSet* self, const std::string& name) {
                const Kernels* table = find_kernels(name.c_str());
                if (!table) throw nb::value_error(("this machine has no kernels named " + name).c_str());
                new (self) KernelSet{table};
            },
            nb::arg("name"))
        .def_prop_ro("name", [](const KernelSet& self) { return std::string(self.table->name); })
        .def_prop_ro("layout", [](const KernelSet& self) { return std::string(self.table->layout); });
}

}  // namespace headrace

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "cpu_features.h"

namespace nb = nanobind;

namespace headrace {

void bind_cpu_features(nb::module_& m) {
    nb::class_<CpuInfo>(m, "CpuInfo")
        .def_ro("vendor", &CpuInfo::vendor)
        .def_ro("brand", &CpuInfo::brand)
        .def_ro("flags", &CpuInfo::flags)
        .def_ro("l1d_bytes", &CpuInfo::l1d_bytes)
        .def_ro("l2_bytes", &CpuInfo::l2_bytes)
        .def_ro("l3_bytes", &CpuInfo::l3_bytes);
    m.def("detect_cpu", &detect_cpu);
    m.def(
        "usable_cpu_flags",
        [](std::uint32_t leaf1_ecx, std::uint32_t leaf7_ebx, std::uint32_t leaf7_ecx, std::uint32_t leaf7_edx,
           std::uint32_t leaf7_1_eax, std::uint64_t xcr0, bool amx_granted) {
            return usable_flags(
                {leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax, xcr0, amx_granted});
        },
        nb::kw_only(), nb::arg("leaf1_ecx"), nb::arg("leaf7_ebx"), nb::arg("leaf7_ecx"), nb::arg("leaf7_edx"),
        nb::arg("leaf7_1_eax"), nb::arg("xcr0"), nb::arg("amx_granted"));
}

}  // namespace headrace

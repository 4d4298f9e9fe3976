#include "kernels.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cpu_features.h"

namespace headrace {

#define HEADRACE_SET(set) \
    namespace set {       \
    extern const Kernels table; \
    }
HEADRACE_SET(portable)
HEADRACE_SET(amx_emulated)
HEADRACE_SET(avx2)
HEADRACE_SET(avx512_vnni)
HEADRACE_SET(avx512)
HEADRACE_SET(amx)
#undef HEADRACE_SET

namespace {

struct Candidate {
    const Kernels* table;
    std::vector<const char*> flags;  // what the CPU must have, named as in cpu_features.cpp
};

const std::vector<Candidate>& candidates() {  // best first; the emulation last, since it is slow
#define HEADRACE_AVX512 "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"
    static const std::vector<Candidate> all = {
#if HEADRACE_HAVE_AMX
        {&amx::table, {HEADRACE_AVX512, "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}},
#endif
#if HEADRACE_HAVE_AVX512
        {&avx512::table, {HEADRACE_AVX512, "avx512_bf16"}},
#endif
#if HEADRACE_HAVE_AVX512_VNNI
        {&avx512_vnni::table, {HEADRACE_AVX512}},
#endif
#if HEADRACE_HAVE_AVX2
        {&avx2::table, {"avx2", "fma", "f16c"}},
#endif
        {&portable::table, {}},
#if HEADRACE_HAVE_AMX_EMULATED
        {&amx_emulated::table, {}},
#endif
    };
#undef HEADRACE_AVX512
    return all;
}

const std::vector<const Kernels*>& usable() {
    static const std::vector<const Kernels*> tables = [] {
        const CpuInfo cpu = detect_cpu();
        const std::vector<std::string>& have = cpu.flags;
        std::vector<const Kernels*> result;
        for (const Candidate& candidate : candidates()) {
            const bool complete = std::all_of(candidate.flags.begin(), candidate.flags.end(), [&](const char* flag) {
                return std::find(have.begin(), have.end(), flag) != have.end();
            });
            if (complete) result.push_back(candidate.table);
        }
#if HEADRACE_HAVE_AVX512 && HEADRACE_HAVE_AVX512_VNNI
        // Intel's cores multiply pairs of bf16 at half the rate of floats, AMD's at twice the rate.
        const auto bf16 = std::find(result.begin(), result.end(), &avx512::table);
        if (cpu.vendor == "GenuineIntel" && bf16 != result.end()) std::rotate(bf16, bf16 + 1, bf16 + 2);
#endif
        return result;
    }();
    return tables;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
    for (const Kernels* table : usable()) {
        if (std::strcmp(table->name, name) == 0) return table;
    }
    return nullptr;
}

const Kernels* kernels_at(int index) {
    return index < static_cast<int>(usable().size()) ? usable()[index] : nullptr;
}

}  // namespace headrace

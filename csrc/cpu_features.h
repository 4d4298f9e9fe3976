// What this CPU can run: instruction sets that both the CPU and the operating system support, and cache sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// The CPUID words that hold the flags below, and the registers that the operating system saves on a context switch.
struct FeatureWords {
    std::uint32_t leaf1_ecx = 0;
    std::uint32_t leaf7_ebx = 0;
    std::uint32_t leaf7_ecx = 0;
    std::uint32_t leaf7_edx = 0;
    std::uint32_t leaf7_1_eax = 0;
    std::uint64_t xcr0 = 0;
    bool amx_granted = false;  // the kernel gave this process the AMX tile state
};

struct CpuInfo {
    std::string vendor;
    std::string brand;
    std::vector<std::string> flags;  // names as Linux prints them in /proc/cpuinfo, sorted
    std::int64_t l1d_bytes = 0;      // 0: unknown
    std::int64_t l2_bytes = 0;
    std::int64_t l3_bytes = 0;
};

// Pure: the flags that are safe to use, given the words. A set whose registers the operating system does not save
// is left out even if the CPU has it.
std::vector<std::string> usable_flags(const FeatureWords& words);

// Reads this CPU, and requests AMX permission from the kernel. Everything is empty where the CPU is not x86.
CpuInfo detect_cpu();

}  // namespace headrace

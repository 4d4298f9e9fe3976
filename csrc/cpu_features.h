// What this CPU can run: instruction sets that both the silicon and the operating system offer, and cache sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// The CPUID words that hold the flags below, and what the operating system agreed to save on a context switch.
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
// is left out, whatever the silicon says.
std::vector<std::string> usable_flags(const FeatureWords& words);

// Reads this CPU, asking the kernel for AMX permission on the way. Everything is empty where the CPU is not x86.
CpuInfo detect_cpu();

}  // namespace headrace

#include "cpu_features.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)
#define HEADRACE_X86 1
#if defined(_MSC_VER)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace {
namespace {

// XCR0 bits: which register files the operating system saves.
constexpr std::uint64_t kAvxState = 0x6;         // XMM, YMM
constexpr std::uint64_t kAvx512State = 0xe6;     // and opmask, upper ZMM, ZMM16-31
constexpr std::uint64_t kAmxState = 0x60000;     // tile configuration, tile data

constexpr bool bit(std::uint32_t word, int index) { return ((word >> index) & 1U) != 0; }
constexpr bool saves(std::uint64_t xcr0, std::uint64_t state) { return (xcr0 & state) == state; }

#if HEADRACE_X86

using Registers = std::array<std::uint32_t, 4>;  // EAX, EBX, ECX, EDX

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
    Registers r{};
#if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
    std::copy(out, out + 4, r.begin());
#else
    __cpuid_count(leaf, subleaf, r[0], r[1], r[2], r[3]);
#endif
    return r;
}

std::uint64_t read_xcr0() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
#endif
}

// Linux allocates the 8 KiB of AMX tile state only for processes that request it (arch_prctl(2)); without the request
// the first tile instruction raises a fatal signal. The grant holds for every thread and is inherited by fork.
bool request_amx() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr long kReqXcompPerm = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;          // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0;
#else
    return false;
#endif
}

FeatureWords read_words(std::uint32_t max_leaf) {
    FeatureWords words;
    words.leaf1_ecx = cpuid(1)[2];
    if (max_leaf >= 7) {
        const Registers leaf7 = cpuid(7, 0);
        words.leaf7_ebx = leaf7[1];
        words.leaf7_ecx = leaf7[2];
        words.leaf7_edx = leaf7[3];
        if (leaf7[0] >= 1) words.leaf7_1_eax = cpuid(7, 1)[0];
    }
    constexpr int kOsxsave = 27;
    if (bit(words.leaf1_ecx, kOsxsave)) words.xcr0 = read_xcr0();
    words.amx_granted = saves(words.xcr0, kAmxState) && request_amx();
    return words;
}

std::string brand_string() {
    if (cpuid(0x80000000U)[0] < 0x80000004U) return "";
    std::array<char, 49> text{};
    for (std::uint32_t part = 0; part < 3; ++part) {
        const Registers r = cpuid(0x80000002U + part);
        std::memcpy(text.data() + 16 * part, r.data(), 16);
    }
    std::string brand(text.data());
    const auto first = brand.find_first_not_of(' ');
    if (first == std::string::npos) return "";
    return brand.substr(first, brand.find_last_not_of(' ') - first + 1);
}

// Intel describes caches in leaf 4, AMD in 0x8000001D, with the same layout: size = ways * partitions * line * sets.
void read_caches(CpuInfo& info, std::uint32_t max_leaf) {
    const bool amd = info.vendor == "AuthenticAMD" || info.vendor == "HygonGenuine";
    const std::uint32_t leaf = amd ? 0x8000001DU : 4U;
    if (amd ? cpuid(0x80000000U)[0] < leaf : max_leaf < leaf) return;
    for (std::uint32_t index = 0; index < 16; ++index) {
        const Registers r = cpuid(leaf, index);
        const std::uint32_t type = r[0] & 0x1f;
        constexpr std::uint32_t kNone = 0, kInstruction = 2;
        if (type == kNone) break;
        if (type == kInstruction) continue;
        const std::int64_t ways = (r[1] >> 22) + 1, partitions = ((r[1] >> 12) & 0x3ff) + 1;
        const std::int64_t line = (r[1] & 0xfff) + 1, sets = static_cast<std::int64_t>(r[2]) + 1;
        const std::int64_t bytes = ways * partitions * line * sets;
        switch ((r[0] >> 5) & 0x7) {
            case 1: info.l1d_bytes = bytes; break;
            case 2: info.l2_bytes = bytes; break;
            case 3: info.l3_bytes = bytes; break;
            default: break;
        }
    }
}

#endif  // HEADRACE_X86

}  // namespace

std::vector<std::string> usable_flags(const FeatureWords& w) {
    const bool avx = saves(w.xcr0, kAvxState) && bit(w.leaf1_ecx, 28);
    const bool avx512 = avx && saves(w.xcr0, kAvx512State) && bit(w.leaf7_ebx, 16);
    const bool amx = saves(w.xcr0, kAmxState) && w.amx_granted && bit(w.leaf7_edx, 24);
    const struct {
        const char* name;
        bool usable;
    } table[] = {
        // sorted by name
        {"amx_bf16", amx && bit(w.leaf7_edx, 22)},
        {"amx_int8", amx && bit(w.leaf7_edx, 25)},
        {"amx_tile", amx},
        {"avx2", avx && bit(w.leaf7_ebx, 5)},
        {"avx512_bf16", avx512 && bit(w.leaf7_1_eax, 5)},
        {"avx512_fp16", avx512 && bit(w.leaf7_edx, 23)},
        {"avx512_vnni", avx512 && bit(w.leaf7_ecx, 11)},
        {"avx512bw", avx512 && bit(w.leaf7_ebx, 30)},
        {"avx512dq", avx512 && bit(w.leaf7_ebx, 17)},
        {"avx512f", avx512},
        {"avx512vl", avx512 && bit(w.leaf7_ebx, 31)},
        {"avx_vnni", avx && bit(w.leaf7_1_eax, 4)},
        {"f16c", avx && bit(w.leaf1_ecx, 29)},
        {"fma", avx && bit(w.leaf1_ecx, 12)},
    };
    std::vector<std::string> names;
    for (const auto& row : table) {
        if (row.usable) names.emplace_back(row.name);
    }
    return names;
}

CpuInfo detect_cpu() {
    CpuInfo info;
#if HEADRACE_X86
    const Registers leaf0 = cpuid(0);
    std::array<char, 12> vendor{};
    std::memcpy(vendor.data(), &leaf0[1], 4);      // EBX, EDX, ECX: the order of the letters
    std::memcpy(vendor.data() + 4, &leaf0[3], 4);
    std::memcpy(vendor.data() + 8, &leaf0[2], 4);
    info.vendor.assign(vendor.data(), vendor.size());
    info.brand = brand_string();
    info.flags = usable_flags(read_words(leaf0[0]));
    read_caches(info, leaf0[0]);
#endif
    return info;
}

}  // namespace headrace

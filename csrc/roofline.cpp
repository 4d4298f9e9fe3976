#include "roofline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// The speeds of one thread, in rising order; empty where the set has no product of this type.
std::vector<double> peak_of_one(const Kernels& kernels, DType type, double seconds, int runs) {
    Team alone(1);
    std::int64_t rounds = 64;
    double took = 0;
    for (;; rounds *= 2) {  // until a run is long enough to be timed; this also warms the core up
        took = std::numeric_limits<double>::infinity();
        for (int trial = 0; trial < 3; ++trial) {
            const auto start = Clock::now();
            if (kernels.peak(type, rounds, alone) == 0) return {};
            took = std::min(took, seconds_since(start));
        }
        if (took >= seconds / 4) break;
    }
    rounds = static_cast<std::int64_t>(static_cast<double>(rounds) * seconds / took) + 1;
    std::vector<double> speeds;
    for (int run = 0; run < runs; ++run) {
        const auto start = Clock::now();
        const double operations = kernels.peak(type, rounds, alone);
        speeds.push_back(operations / seconds_since(start));
    }
    std::sort(speeds.begin(), speeds.end());
    return speeds;
}

constexpr std::align_val_t kAlign{std::size_t{1} << 21};  // a huge page

struct Freed {
    void operator()(unsigned char* data) const { ::operator delete(data, kAlign); }
};

}  // namespace

std::vector<double> measure_read(const Kernels& kernels, Team& team, std::size_t buffer_bytes, int runs) {
    constexpr std::size_t kPage = 4096;
    constexpr std::size_t kParts = 16;  // timed one by one: a short part is less likely to be interrupted
    const std::size_t bytes = (buffer_bytes + kPage - 1) / kPage * kPage;
    const std::unique_ptr<unsigned char, Freed> owner(static_cast<unsigned char*>(::operator new(bytes, kAlign)));
    unsigned char* data = owner.get();
#if defined(__linux__)
    madvise(data, bytes, MADV_HUGEPAGE);  // weights have the same; without it page walks are measured too
#endif
    // Written, or every page would map to the shared zero page.
    auto fill = [&](int thread, int size) {
        const std::size_t first = bytes / kPage * thread / size * kPage;
        const std::size_t last = bytes / kPage * (thread + 1) / size * kPage;
        std::memset(data + first, 1, last - first);
    };
    team.run(fill);
    kernels.read(data, bytes, team);
    std::vector<double> speeds;
    for (int run = 0; run < runs; ++run) {
        for (std::size_t part = 0; part < kParts; ++part) {
            const std::size_t first = bytes / kPage * part / kParts * kPage;
            const std::size_t last = bytes / kPage * (part + 1) / kParts * kPage;
            if (first == last) continue;
            const auto start = Clock::now();
            kernels.read(data + first, last - first, team);
            speeds.push_back(static_cast<double>(last - first) / seconds_since(start));
        }
    }
    return speeds;
}

std::vector<double> measure_peak(const Kernels& kernels, int threads, DType type, double seconds, int runs) {
    std::vector<std::vector<double>> speeds(threads);
    std::vector<std::thread> started;
    for (int thread = 1; thread < threads; ++thread) {
        started.emplace_back([&, thread] { speeds[thread] = peak_of_one(kernels, type, seconds, runs); });
    }
    speeds[0] = peak_of_one(kernels, type, seconds, runs);
    for (std::thread& thread : started) thread.join();
    std::vector<double> sums(speeds[0].size(), 0.0);
    for (const std::vector<double>& one : speeds) {
        for (std::size_t run = 0; run < sums.size(); ++run) sums[run] += one[run];
    }
    return sums;
}

}  // namespace headrace

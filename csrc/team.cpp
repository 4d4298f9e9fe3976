#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace {
namespace {

using Word = std::atomic<std::uint32_t>;
using Clock = std::chrono::steady_clock;

// Longer than any pause between two instructions of a tape, too short to matter for power.
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void sleep_while(Word& word, std::uint32_t value) {
#ifdef __linux__
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    word.wait(value);
#endif
}

void wake(Word& word) {
#ifdef __linux__
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
#else
    word.notify_all();
#endif
}

// Spins until done() holds; false after the time limit for spinning.
template <typename Done>
bool spin_until(Done done) {
    for (int round = 0; round < 64; ++round) {
        if (done()) return true;
        pause();
    }
    const auto end = Clock::now() + kSpin;
    do {
        for (int round = 0; round < 32; ++round) {
            if (done()) return true;
            pause();
        }
    } while (Clock::now() < end);
    return false;
}

#ifdef __linux__
// One hardware thread of each core that this process may use, then their siblings.
std::vector<int> cores() {
    std::vector<int> first, siblings;
    std::vector<std::string> seen;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        const std::string path =
            "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
        std::string name = std::to_string(cpu);
        if (FILE* file = std::fopen(path.c_str(), "r")) {
            char line[256];
            if (std::fgets(line, sizeof line, file)) name = line;
            std::fclose(file);
        }
        bool known = false;
        for (const std::string& other : seen) known = known || other == name;
        (known ? siblings : first).push_back(cpu);
        seen.push_back(name);
    }
    first.insert(first.end(), siblings.begin(), siblings.end());
    return first;
}
#endif

// With more threads than cores, waiting threads must not spin: they would take cores from the working ones.
bool crowded(int threads) {
#ifdef __linux__
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return threads > CPU_COUNT(&allowed);
#endif
    const unsigned known = std::thread::hardware_concurrency();
    return known != 0 && threads > static_cast<int>(known);
}

void stay_on(int cpu) {
#ifdef __linux__
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
#else
    (void)cpu;
#endif
}

}  // namespace

// A run cuts its work into one share for each thread. A share is done by its own thread, or by a faster one that has
// finished its own share. So a run never waits for a thread that sleeps or that the system has descheduled, unless it has
// already begun its share. Threads that have finished check the other shares through a common counter, each share once: a
// run of n threads takes about 2 n atomic operations, not n * n.
struct Team::Shared {
    struct alignas(64) Share {
        Word taken{0};             // the last run in which a thread took it
    };

    alignas(64) Word epoch{0};     // the number of the run; one begins when it changes
    // High half: the number of the run. Low half: the first share that only its own thread has checked.
    alignas(64) std::atomic<std::uint64_t> open{0};
    alignas(64) Word unfinished{0};  // shares of the run that are not done
    alignas(64) Word asleep{0};    // threads that wait for the next run in the kernel
    Word caller_asleep{0};
    std::atomic<bool> closing{false};
    Work work = nullptr;           // read by threads that have taken a share: the run lasts at least until that is done
    void* context = nullptr;
    const int size;
    const bool patient;            // never spins
    std::mutex one_run;            // two Python threads may call with the GIL released
    std::vector<Share> shares;
    std::vector<std::thread> threads;

    Shared(int size, bool pin) : size(size), patient(crowded(size)), shares(size) {
        std::vector<int> places;
#ifdef __linux__
        if (pin) places = cores();
#else
        (void)pin;
#endif
        sigset_t all, before;  // signals are handled by the process's own threads
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (int thread = 1; thread < size; ++thread) {
            const int place = places.empty() ? -1 : places[thread % places.size()];
            threads.emplace_back([this, thread, place] { serve(thread, place); });
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Shared() {
        closing.store(true);
        announce();
        for (std::thread& thread : threads) thread.join();
    }

    void serve(int thread, int place) {
        if (place >= 0) stay_on(place);
        std::uint32_t seen = 0;
        for (;;) {
            await_change(seen);
            seen = epoch.load(std::memory_order_acquire);
            if (closing.load()) return;
            do_shares(thread, seen);
        }
    }

    // The thread's own share, then those of threads that are late.
    void do_shares(int thread, std::uint32_t run) {
        do_share(thread, run);
        std::uint64_t at = open.load(std::memory_order_relaxed);
        while (static_cast<std::uint32_t>(at >> 32) == run && static_cast<std::uint32_t>(at) < static_cast<std::uint32_t>(size)) {
            if (!open.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
            do_share(static_cast<int>(static_cast<std::uint32_t>(at)), run);
            at = open.load(std::memory_order_relaxed);
        }
    }

    // Does a share of the run if it is still free. A thread that is late to a run that has ended finds all taken.
    void do_share(int share, std::uint32_t run) {
        std::uint32_t before = run - 1;
        if (shares[share].taken.load(std::memory_order_relaxed) != before) return;
        if (!shares[share].taken.compare_exchange_strong(before, run)) return;
        work(context, share, size);
        if (unfinished.fetch_sub(1) == 1 && caller_asleep.load() != 0) wake(unfinished);
    }

    void await_change(std::uint32_t seen) {
        const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen; };
        if (!patient && spin_until(changed)) return;
        asleep.fetch_add(1);
        while (!changed()) sleep_while(epoch, seen);
        asleep.fetch_sub(1);
    }

    void announce() {
        epoch.fetch_add(1);  // sequentially consistent with `asleep`: a thread that goes to sleep after this sees the new epoch
        if (asleep.load() != 0) wake(epoch);
    }

    void run(Work next, void* its_context) {
        work = next;
        context = its_context;
        unfinished.store(size, std::memory_order_relaxed);
        const std::uint32_t current = epoch.load(std::memory_order_relaxed) + 1;
        open.store(static_cast<std::uint64_t>(current) << 32, std::memory_order_relaxed);
        announce();
        do_shares(0, current);
        const auto done = [&] { return unfinished.load(std::memory_order_acquire) == 0; };
        if (!patient && spin_until(done)) return;
        caller_asleep.store(1);
        while (const std::uint32_t left = unfinished.load()) sleep_while(unfinished, left);
        caller_asleep.store(0);
    }
};

Team::Team(int size, bool pin) : size_(size < 1 ? 1 : size), pin_(pin), shared_(make()) {}

Team::~Team() = default;

Team::Shared* Team::make() const { return new Shared(size_, pin_); }

void Team::run(Work work, void* context) {
    Shared& shared = shared_.get([this] { return make(); });
    const std::lock_guard<std::mutex> alone(shared.one_run);
    if (size_ == 1) {
        work(context, 0, 1);
        return;
    }
    shared.run(work, context);
}

}  // namespace headrace

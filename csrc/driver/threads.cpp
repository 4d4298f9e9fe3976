// The team: many short runs, callers on several threads, more threads than cores, and a child of a fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "driver.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kCanFork = false;  // this sanitizer does not follow threads of a forked child
#else
constexpr bool kCanFork = true;
#endif

namespace headrace::driver {
namespace {

// Every share of every run is done once, and what it wrote is seen by the caller.
void count_shares(Team& team, int runs) {
    std::vector<int> done(team.size(), 0);
    auto share = [&](int thread, int) { ++done[thread]; };
    for (int i = 0; i < runs; ++i) {
        team.run(share);
        for (const int count : done) require(count == i + 1, "every share is done once a run");
    }
}

}  // namespace

void run_threads() {
    for (const int size : {1, 2, 3, 5, 16, 64}) {
        Team team(size);
        count_shares(team, 300);
        std::vector<std::thread> callers;
        for (int i = 0; i < 3; ++i) callers.emplace_back([&] { count_shares(team, 100); });
        for (std::thread& caller : callers) caller.join();
    }
    if (!kCanFork) return;
    Team team(3);
    count_shares(team, 10);
    const pid_t child = fork();
    if (child == 0) {
        std::vector<std::thread> callers;  // the first calls of a child, all at once
        for (int i = 0; i < 4; ++i) callers.emplace_back([&] { count_shares(team, 50); });
        for (std::thread& caller : callers) caller.join();
        _exit(0);
    }
    int status = 1;
    require(waitpid(child, &status, 0) == child && status == 0, "a child's team works");
    count_shares(team, 10);
}

}  // namespace headrace::driver

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nanobind/stl/vector.h>

#include <atomic>

#include "bindings.h"
#include "team.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// The operating system's ids of the team's threads, each reported by its own thread: each waits in its share for the others.
std::vector<std::int64_t> thread_ids(Team& team) {
    std::vector<std::int64_t> ids(team.size());
    std::atomic<int> here{0};
    auto report = [&](int thread, int size) {
        ids[thread] = syscall(SYS_gettid);
        here.fetch_add(1);
        while (here.load() < size) sched_yield();
    };
    team.run(report);
    return ids;
}

void run_empty(Team& team, int times) {
    auto nothing = [](int, int) {};
    for (int i = 0; i < times; ++i) team.run(nothing);
}

}  // namespace

void bind_team(nb::module_& m) {
    nb::class_<Team>(m, "Team")
        .def(nb::init<int, bool>(), nb::arg("size"), nb::arg("pin") = false)
        .def_prop_ro("size", &Team::size)
        .def("thread_ids", &thread_ids, nb::call_guard<nb::gil_scoped_release>())
        .def("run_empty", &run_empty, nb::arg("times"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace headrace

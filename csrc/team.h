// The threads that kernels run on: one team a process, of the requested size; the caller is thread 0.
// Between two runs in quick succession (the instructions of a tape) the others spin for some microseconds; then they
// sleep, so that an idle engine uses no core.
#pragma once

#include "fork.h"

namespace headrace {

class Team {
public:
    // pin: thread i stays on the i-th core that this process may use, but for thread 0: the caller is not
    // pinned, since its child threads and processes would inherit the affinity.
    explicit Team(int size, bool pin = false);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Calls work(context, thread, size) once for every thread of the team and returns when all are done. Another
    // thread may do the share of a late one, so `thread` numbers a share: memory kept by that number, such as scratch, is
    // used by one thread at a time. Callers on several threads take turns; work must not call run itself. After a fork the
    // child gets threads of its own.
    using Work = void (*)(void* context, int thread, int size);
    void run(Work work, void* context);

    template <typename F>
    void run(F& body) {  // body(thread, size)
        run([](void* context, int thread, int size) { (*static_cast<F*>(context))(thread, size); }, &body);
    }

private:
    struct Shared;
    Shared* make() const;

    int size_;
    bool pin_;
    PerProcess<Shared> shared_;
};

}  // namespace headrace

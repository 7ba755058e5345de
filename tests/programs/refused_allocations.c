/* On which threads does ONNX Runtime allocate, and what if an allocation is refused?
 *
 * This library is loaded before all others (LD_PRELOAD). It replaces the operator of C++ by which ONNX Runtime allocates tensors on the host. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static atomic_bool counts;
static atomic_int all, on_others;
/* The index of the allocation that is refused. A negative number refuses none. */
static int refused_at;
static pid_t caller;
static struct timespec pause_ns;

static void *symbol_of_libstdcxx(const char *name) {
    void *library = dlopen("libstdc++.so.6", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) abort();
    return found;
}

/* operator new(std::size_t, std::align_val_t) */
void *_ZnwmSt11align_val_t(size_t size, size_t alignment) {
    static void *(*_Atomic allocate)(size_t, size_t);
    if (!allocate) allocate = (void *(*)(size_t, size_t))symbol_of_libstdcxx("_ZnwmSt11align_val_t");
    if (atomic_load(&counts)) {
        int index = atomic_fetch_add(&all, 1);
        if (gettid() != caller) {
            /* It is never refused: the thread would end, and its caller would wait for it forever. */
            atomic_fetch_add(&on_others, 1);
        } else {
            /* Gives the other threads time to take their part of a loop. */
            nanosleep(&pause_ns, NULL);
            if (index == refused_at) ((void (*)(void))symbol_of_libstdcxx("_ZSt17__throw_bad_allocv"))();
        }
    }
    return allocate(size, alignment);
}

/* Counts allocations from now on, and refuses one of them if it is this thread's. This thread pauses after each of its own. */
void begin_counting(int refuse_at, long pause_us) {
    caller = gettid();
    refused_at = refuse_at;
    pause_ns.tv_nsec = pause_us * 1000;
    atomic_store(&all, 0);
    atomic_store(&on_others, 0);
    atomic_store(&counts, 1);
}

/* Ends the count. Returns the number of allocations. */
int end_counting(void) {
    atomic_store(&counts, 0);
    return atomic_load(&all);
}

/* How many allocations other threads made than the one that began the count. */
int counted_on_other_threads(void) { return atomic_load(&on_others); }

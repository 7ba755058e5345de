/* What would a CUDA driver answer, if there were one? A stand-in for tests: the driver's symbols over host memory. NOT CUDA.
 *
 * It has the rules of the real one that nerite's code must keep to, and refuses where the real one does:
 *  - calls before cuInit, and calls that need a current context and have none, are errors;
 *  - "device" memory is a memfd mapped without any right, so that whoever touches a device address from the host dies at
 *    once; only the copies of the driver reach it (by pread and pwrite);
 *  - an IPC handle can be opened by another process of this user, not by the one that made it; opening it again in the
 *    same process gives the same address and counts; a handle of memory that was freed opens nothing;
 *  - page-locked ranges must not overlap, and only what was locked can be unlocked;
 *  - a device has 8 GiB, and refuses an allocation beyond them.
 *
 * A copy from device memory fails if the first bytes that it copies are "LOST" and four zeros: so a test has memory that cannot be read.
 *
 * STAND_IN_DEVICES says how many devices there are (default 2, at most 8). STAND_IN_COUNTS names a file that the counts below are kept
 * in, for a test that watches another process. STAND_IN_FAIL names one call that fails in this process. STAND_IN_GATE
 * names a file without which no context is made: cuDevicePrimaryCtxRetain makes a file of that name and ".reached", and waits.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct { int device; } *CUcontext;
typedef struct { int device; } *CUstream;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { unsigned char bytes[64]; } CUipcMemHandle;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713,
};

#define DEVICES_MAX 8
#define TABLE_MAX 65536
#define DEVICE_BYTES ((size_t)8 << 30)
#define MAGIC 0x6e65726974653a31ull /* a handle of ours */

/* The order is known to the tests (compile.rs). */
typedef struct {
    int64_t contexts;    /* primary contexts retained */
    int64_t allocations; /* device allocations of this process */
    int64_t imports;     /* IPC handles open, each opening counted */
    int64_t pinned;      /* cuMemHostAlloc blocks */
    int64_t locked;      /* cuMemHostRegister ranges */
    int64_t streams;
    int64_t to_device;   /* bytes */
    int64_t to_host;
    int64_t within;
    int64_t pinned_to_device; /* bytes of to_device whose host side was page-locked */
    int64_t pinned_to_host;
    int64_t waits; /* for all work of the current context */
} Counts;

typedef struct {
    uint64_t magic;
    int32_t pid, fd, device, unused;
    uint64_t inode, bytes, serial;
} Handle;

typedef struct {
    CUdeviceptr base;
    size_t bytes;
    int fd, device, refs, imported;
    uint64_t serial;
} Memory;

typedef struct { uintptr_t base; size_t bytes; int is_pool; } Range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised, devices;
static uint64_t serial;
static Memory memories[TABLE_MAX];
static int memory_count;
static Range ranges[TABLE_MAX];
static int range_count;
static Counts own_counts, *counts = &own_counts;
static struct { int device; } contexts[DEVICES_MAX];
static int retained[DEVICES_MAX];
static __thread CUcontext stack[64];
static __thread int depth;
static __thread char failing[64];

Counts *standInCounts(void) { return counts; }

/* The call of that name fails from now on, on this thread. */
void standInFail(const char *call) { snprintf(failing, sizeof failing, "%s", call); }

static int fails(const char *call) {
    const char *always = getenv("STAND_IN_FAIL");
    return (always && strcmp(always, call) == 0) || strcmp(failing, call) == 0;
}

#define ENTER(needs_context)                                       \
    do {                                                           \
        if (!initialised) return NOT_INITIALIZED;                  \
        if ((needs_context) && depth == 0) return INVALID_CONTEXT; \
        if (fails(__func__)) return OUT_OF_MEMORY;                 \
    } while (0)

static void add(int64_t *to, int64_t n) { __atomic_fetch_add(to, n, __ATOMIC_SEQ_CST); }
static int current(void) { return stack[depth - 1]->device; }

CUresult cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (fails(__func__)) return NO_DEVICE;
    pthread_mutex_lock(&lock);
    if (!initialised) {
        const char *n = getenv("STAND_IN_DEVICES"), *path = getenv("STAND_IN_COUNTS");
        devices = n ? atoi(n) : 2;
        if (devices > DEVICES_MAX) devices = DEVICES_MAX;
        if (path) {
            int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (fd >= 0 && ftruncate(fd, sizeof(Counts)) == 0) {
                void *at = mmap(NULL, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                if (at != MAP_FAILED) counts = at;
            }
            if (fd >= 0) close(fd);
        }
        for (int d = 0; d < DEVICES_MAX; d++) contexts[d].device = d;
        initialised = devices > 0;
    }
    pthread_mutex_unlock(&lock);
    return devices > 0 ? SUCCESS : NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version) { *version = 12040; return SUCCESS; }
CUresult cuDeviceGetCount(int *count) { ENTER(0); *count = devices; return SUCCESS; }

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(0);
    if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
    ENTER(0);
    snprintf(name, (size_t)len, "Stand-in device %d (host memory, not CUDA)", device);
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(0);
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = (unsigned char)(device + 1);
    return SUCCESS;
}

/* The places that stand_in_nvml.c knows. */
CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice device) {
    ENTER(0);
    if (device < 0 || device >= devices) return INVALID_DEVICE;
    snprintf(text, (size_t)len, "0000:%02x:00.0", device + 1);
    return SUCCESS;
}

CUresult cuDeviceGetAttribute(int *number, int attribute, CUdevice device) {
    ENTER(0);
    if (device < 0 || device >= devices) return INVALID_DEVICE;
    /* Compute capability, major and minor: 9.0, of a GPU that models may run on. */
    if (attribute != 75 && attribute != 76) return INVALID_VALUE;
    *number = attribute == 75 ? 9 : 0;
    return SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { ENTER(0); (void)device; *bytes = DEVICE_BYTES; return SUCCESS; }

/* A driver that takes long, until the test lets it go on. */
static void wait_at_gate(void) {
    const char *gate = getenv("STAND_IN_GATE");
    if (!gate) return;
    char reached[512];
    snprintf(reached, sizeof reached, "%s.reached", gate);
    close(open(reached, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    while (access(gate, F_OK) != 0) usleep(1000);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(0);
    if (device < 0 || device >= devices) return INVALID_DEVICE;
    wait_at_gate();
    add(&counts->contexts, 1);
    __atomic_fetch_add(&retained[device], 1, __ATOMIC_SEQ_CST);
    *context = (CUcontext)&contexts[device];
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(0);
    if (device < 0 || device >= devices || retained[device] <= 0) return INVALID_CONTEXT;
    add(&counts->contexts, -1);
    __atomic_fetch_sub(&retained[device], 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(0);
    if (!context || depth == 64 || retained[context->device] <= 0) return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(1);
    depth--;
    if (context) *context = stack[depth];
    return SUCCESS;
}

/* The lock is held. */
static Memory *find(CUdeviceptr at, size_t bytes) {
    for (int i = 0; i < memory_count; i++) {
        Memory *m = &memories[i];
        if (at >= m->base && bytes <= m->bytes && at - m->base <= m->bytes - bytes) return m;
    }
    return NULL;
}

static CUresult enter_memory(int fd, size_t bytes, int device, int imported, uint64_t number, CUdeviceptr *out) {
    if (memory_count == TABLE_MAX) return OUT_OF_MEMORY;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    memories[memory_count++] = (Memory){(CUdeviceptr)(uintptr_t)at, bytes, fd, device, 1, imported, number};
    *out = (CUdeviceptr)(uintptr_t)at;
    return SUCCESS;
}

static void leave_memory(Memory *m) {
    munmap((void *)(uintptr_t)m->base, m->bytes);
    close(m->fd);
    *m = memories[--memory_count];
}

/* Bytes that this process has on the current device. The lock is held. */
static size_t used_bytes(void) {
    size_t used = 0;
    for (int i = 0; i < memory_count; i++)
        if (memories[i].device == current() && !memories[i].imported) used += memories[i].bytes;
    return used;
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    ENTER(1);
    if (bytes == 0) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int is_full = bytes > DEVICE_BYTES - used_bytes();
    pthread_mutex_unlock(&lock);
    if (is_full) return OUT_OF_MEMORY;
    size_t whole = (bytes + 511) / 512 * 512;
    int fd = memfd_create("stand-in-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)whole) != 0) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    CUresult result = enter_memory(fd, whole, current(), 0, ++serial, at);
    pthread_mutex_unlock(&lock);
    if (result == SUCCESS) add(&counts->allocations, 1);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    Memory *m = find(at, 1);
    CUresult result = m && m->base == at && !m->imported ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS) {
        leave_memory(m);
        add(&counts->allocations, -1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    size_t used = used_bytes();
    pthread_mutex_unlock(&lock);
    *total = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - used;
    return SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    Memory *m = find(at, 1);
    if (m) *base = m->base, *bytes = m->bytes;
    pthread_mutex_unlock(&lock);
    return m ? SUCCESS : INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr at) {
    ENTER(1);
    if (attribute != 9) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    Memory *m = find(at, 1);
    if (m) *(int *)value = m->device;
    pthread_mutex_unlock(&lock);
    return m ? SUCCESS : INVALID_VALUE;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    Memory *m = find(at, 1);
    struct stat found;
    CUresult result = m && !m->imported && fstat(m->fd, &found) == 0 ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS) {
        Handle mine = {MAGIC, getpid(), m->fd, m->device, 0, found.st_ino, m->bytes, m->serial};
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &mine, sizeof mine);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags) {
    ENTER(1);
    Handle h;
    memcpy(&h, &handle, sizeof h);
    if (flags != 1 || h.magic != MAGIC) return INVALID_VALUE;
    if (h.pid == getpid()) return INVALID_CONTEXT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat found;
    if (fd < 0) return INVALID_VALUE;
    if (fstat(fd, &found) != 0 || found.st_ino != h.inode || (uint64_t)found.st_size != h.bytes) {
        close(fd);
        return INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    CUresult result = SUCCESS;
    uint64_t number = h.serial ^ ((uint64_t)(uint32_t)h.pid << 32);
    Memory *open_already = NULL;
    for (int i = 0; i < memory_count; i++)
        if (memories[i].imported && memories[i].serial == number) open_already = &memories[i];
    if (open_already) {
        open_already->refs++;
        *at = open_already->base;
        close(fd);
    } else {
        result = enter_memory(fd, h.bytes, h.device, 1, number, at);
        if (result != SUCCESS) close(fd);
    }
    pthread_mutex_unlock(&lock);
    if (result == SUCCESS) add(&counts->imports, 1);
    return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    Memory *m = find(at, 1);
    CUresult result = m && m->base == at && m->imported ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS) {
        if (--m->refs == 0) leave_memory(m);
        add(&counts->imports, -1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The lock is held. */
static Range *range_of(const void *at, size_t bytes) {
    uintptr_t from = (uintptr_t)at;
    for (int i = 0; i < range_count; i++)
        if (from < ranges[i].base + ranges[i].bytes && ranges[i].base < from + bytes) return &ranges[i];
    return NULL;
}

CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    ENTER(1);
    if (bytes == 0 || flags > 7) return INVALID_VALUE;
    size_t whole = (bytes + 4095) / 4096 * 4096;
    *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*at == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    ranges[range_count++] = (Range){(uintptr_t)*at, whole, 1};
    pthread_mutex_unlock(&lock);
    add(&counts->pinned, 1);
    return SUCCESS;
}

CUresult cuMemFreeHost(void *at) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    Range *r = range_of(at, 1);
    CUresult result = r && r->base == (uintptr_t)at && r->is_pool ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS) {
        munmap(at, r->bytes);
        *r = ranges[--range_count];
        add(&counts->pinned, -1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    ENTER(1);
    if (!at || bytes == 0 || flags > 15) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUresult result = range_of(at, bytes) ? ALREADY_REGISTERED : SUCCESS;
    if (result == SUCCESS) {
        ranges[range_count++] = (Range){(uintptr_t)at, bytes, 0};
        add(&counts->locked, 1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemHostUnregister(void *at) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    Range *r = range_of(at, 1);
    CUresult result = r && r->base == (uintptr_t)at && !r->is_pool ? SUCCESS : NOT_REGISTERED;
    if (result == SUCCESS) {
        *r = ranges[--range_count];
        add(&counts->locked, -1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER(1);
    if (flags > 1) return INVALID_VALUE;
    *stream = malloc(sizeof **stream);
    (*stream)->device = current();
    add(&counts->streams, 1);
    return SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) { ENTER(1); free(stream); add(&counts->streams, -1); return SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { ENTER(1); return stream ? SUCCESS : INVALID_HANDLE; }

CUresult cuCtxSynchronize(void) { ENTER(1); add(&counts->waits, 1); return SUCCESS; }

/* Moves bytes between a file and memory; 0 if all went. */
static int move(int fd, char *host, off_t at, size_t bytes, int writing) {
    while (bytes > 0) {
        ssize_t n = writing ? pwrite(fd, host, bytes, at) : pread(fd, host, bytes, at);
        if (n <= 0) return -1;
        host += n, at += n, bytes -= (size_t)n;
    }
    return 0;
}

/* Whether device memory is not to be read. */
static int is_lost(int fd, off_t at, size_t bytes) {
    char first[8];
    return bytes >= sizeof first && pread(fd, first, sizeof first, at) == sizeof first && memcmp(first, "LOST\0\0\0\0", sizeof first) == 0;
}

static CUresult copy(CUdeviceptr device, char *host, size_t bytes, int writing) {
    if (bytes == 0) return SUCCESS;
    pthread_mutex_lock(&lock);
    Memory *m = find(device, bytes);
    int fd = m ? m->fd : -1;
    off_t at = m ? (off_t)(device - m->base) : 0;
    Range *r = range_of(host, bytes);
    int pinned = r && r->base <= (uintptr_t)host && (uintptr_t)host + bytes <= r->base + r->bytes;
    pthread_mutex_unlock(&lock);
    if (!m || (!writing && is_lost(fd, at, bytes)) || move(fd, host, at, bytes, writing) != 0) return INVALID_VALUE;
    add(writing ? &counts->to_device : &counts->to_host, (int64_t)bytes);
    if (pinned) add(writing ? &counts->pinned_to_device : &counts->pinned_to_host, (int64_t)bytes);
    return SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    ENTER(1);
    return stream ? copy(to, (char *)(uintptr_t)from, bytes, 1) : INVALID_HANDLE;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(1);
    return stream ? copy(from, to, bytes, 0) : INVALID_HANDLE;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(1);
    if (!stream) return INVALID_HANDLE;
    char *between = malloc(bytes ? bytes : 1);
    pthread_mutex_lock(&lock);
    Memory *a = find(from, bytes), *b = find(to, bytes);
    int ok = a && b && !is_lost(a->fd, (off_t)(from - a->base), bytes) && move(a->fd, between, (off_t)(from - a->base), bytes, 0) == 0 &&
             move(b->fd, between, (off_t)(to - b->base), bytes, 1) == 0;
    pthread_mutex_unlock(&lock);
    free(between);
    if (ok) add(&counts->within, (int64_t)bytes);
    return ok ? SUCCESS : INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **name) {
    switch (code) {
    case SUCCESS: *name = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case ALREADY_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; break;
    case NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; break;
    default: *name = NULL; return INVALID_VALUE;
    }
    return SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char **text) {
    switch (code) {
    case SUCCESS: *text = "no error"; break;
    case INVALID_VALUE: *text = "invalid argument"; break;
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    case NOT_INITIALIZED: *text = "initialization error"; break;
    case NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case INVALID_DEVICE: *text = "invalid device ordinal"; break;
    case INVALID_CONTEXT: *text = "invalid device context"; break;
    case INVALID_HANDLE: *text = "invalid resource handle"; break;
    case ALREADY_REGISTERED: *text = "part or all of the requested memory range is already mapped"; break;
    case NOT_REGISTERED: *text = "pointer does not correspond to a registered memory region"; break;
    default: *text = NULL; return INVALID_VALUE;
    }
    return SUCCESS;
}

/* What would ONNX Runtime's CUDA provider do with our calls, if there were a GPU? A stand-in for tests. NOT CUDA.
 *
 * It is the ONNX Runtime of this host (REAL), whose results are its own, and puts itself between it and its caller: it claims to
 * have the provider, and where the caller names memory of a device it computes on a copy of its own, fetched and brought through the
 * stand-in driver (DRIVER), whose device memory nobody else can touch. It has the rules that nerite's code must keep to:
 *  - a tensor of a device is taken by sessions of that device alone, and only at an address that is a multiple of 256;
 *  - its bytes are read when the session runs, not before;
 *  - an output is on the device only after it was bound and the bound outputs were synchronised, as if the device took its time;
 *  - what was bound must be unbound before it is released, and nothing is released that is unknown.
 *
 * The places of functions in the library's table never change; they are counted from 0 in onnxruntime_c_api.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CREATE_STATUS = 0, CREATE_SESSION = 7, SESSION_OF_BYTES = 8, RUN = 9, TENSOR_WITH_DATA = 49, CPU_MEMORY_INFO = 69, MEMORY_NAME = 71,
    MEMORY_ID = 72, RELEASE_VALUE = 96, PROVIDERS = 125, RELEASE_PROVIDERS = 126, BIND_OUTPUT = 137, CLEAR_OUTPUTS = 142,
    SYNCHRONIZE_OUTPUTS = 203, APPEND_CUDA = 204, CREATE_OPTIONS = 205, UPDATE_OPTIONS = 206, RELEASE_OPTIONS = 208,
    TABLE = 276, /* what a library of version 17 has */
    FAIL = 1, DEVICES_MAX = 8, ALIGN = 256,
};

typedef void *Status;
typedef struct { void **(*get)(uint32_t); const char *(*version)(void); } Base;
typedef struct Tensor { struct Tensor *next; void *value, *binding; char *copy; uint64_t at; size_t len; int device, unfetched; } Tensor;
typedef struct Seat { struct Seat *next; const void *of; int device; } Seat; /* of options or of a session */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void **real, *table[TABLE], *driver, *cpu, *streams[DEVICES_MAX], *contexts[DEVICES_MAX];
static const char *(*real_version)(void);
static Tensor *tensors;
static Seat *seats;

#define REAL_CALL(place, ...) ((Status(*)(__VA_ARGS__))real[place])
#define DRIVER_CALL(name, ...) ((int (*)(__VA_ARGS__))dlsym(driver, name))

static Status refuse(const char *why) { return REAL_CALL(CREATE_STATUS, int, const char *)(FAIL, why); }

/* The lock is held in all of these. */
static Tensor *tensor(const void *value) {
    Tensor *t = tensors;
    while (t && t->value != value) t = t->next;
    return t;
}

static int device_of(const void *of) {
    for (Seat *s = seats; s; s = s->next)
        if (s->of == of) return s->device;
    return -1;
}

static void seat(const void *of, int device) {
    Seat *s = malloc(sizeof *s);
    *s = (Seat){seats, of, device};
    seats = s;
}

static int carry(Tensor *t, int to_device) {
    int d = t->device, ok = 1;
    if (!contexts[d]) ok = !DRIVER_CALL("cuDevicePrimaryCtxRetain", void **, int)(&contexts[d], d);
    if (!ok || DRIVER_CALL("cuCtxPushCurrent_v2", void *)(contexts[d])) return 0;
    if (!streams[d]) ok = !DRIVER_CALL("cuStreamCreate", void **, unsigned)(&streams[d], 1);
    if (ok && to_device)
        ok = !DRIVER_CALL("cuMemcpyHtoDAsync_v2", uint64_t, const void *, size_t, void *)(t->at, t->copy, t->len, streams[d]);
    else if (ok)
        ok = !DRIVER_CALL("cuMemcpyDtoHAsync_v2", void *, uint64_t, size_t, void *)(t->copy, t->at, t->len, streams[d]);
    DRIVER_CALL("cuCtxPopCurrent_v2", void **)(NULL);
    return ok;
}

static Status providers(char ***names, int *count) {
    static char *all[] = {"CUDAExecutionProvider", "CPUExecutionProvider"};
    *names = all, *count = 2;
    return NULL;
}

static Status release_providers(char **names, int count) { (void)names, (void)count; return NULL; }
static Status create_options(int **options) { *options = calloc(1, sizeof **options); return NULL; }
static void release_options(int *options) { free(options); }

static Status update_options(int *options, const char *const *keys, const char *const *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i], "device_id") == 0) *options = atoi(values[i]);
    return NULL;
}

static Status append_cuda(const void *session_options, const int *options) {
    if (*options < 0 || *options >= DEVICES_MAX) return refuse("no such device");
    pthread_mutex_lock(&lock);
    seat(session_options, *options);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* A session is on the device that its options name. */
static void seat_session(const void *options, const void *session) {
    pthread_mutex_lock(&lock);
    /* Options of a session on the host may lie where older ones lay. */
    int device = device_of(options);
    for (Seat *s = seats; s; s = s->next)
        if (s->of == options) s->of = NULL;
    if (session) seat(session, device);
    pthread_mutex_unlock(&lock);
}

static Status create_session(const void *env, const char *path, const void *options, void **session) {
    Status status = REAL_CALL(CREATE_SESSION, const void *, const char *, const void *, void **)(env, path, options, session);
    seat_session(options, status ? NULL : *session);
    return status;
}

static Status session_of_bytes(const void *env, const void *bytes, size_t len, const void *options, void **session) {
    Status status = REAL_CALL(SESSION_OF_BYTES, const void *, const void *, size_t, const void *, void **)(env, bytes, len, options, session);
    seat_session(options, status ? NULL : *session);
    return status;
}

static Status tensor_with_data(const void *info, void *data, size_t len, const int64_t *shape, size_t rank, int type, void **value) {
    const char *name = "";
    int device = 0;
    REAL_CALL(MEMORY_NAME, const void *, const char **)(info, &name);
    REAL_CALL(MEMORY_ID, const void *, int *)(info, &device);
    int there = strcmp(name, "Cuda") == 0;
    if (there && ((uintptr_t)data % ALIGN || device >= DEVICES_MAX)) return refuse("the stand-in takes no such address");
    char *copy = there ? aligned_alloc(ALIGN, (len + ALIGN) / ALIGN * ALIGN) : data;
    Status status = REAL_CALL(TENSOR_WITH_DATA, const void *, void *, size_t, const int64_t *, size_t, int, void **)(
        there ? cpu : info, copy, len, shape, rank, type, value);
    if (!there || status) return status;
    Tensor *t = malloc(sizeof *t);
    pthread_mutex_lock(&lock);
    *t = (Tensor){tensors, *value, NULL, copy, (uintptr_t)data, len, device, 0};
    tensors = t;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void release_value(void *value) {
    pthread_mutex_lock(&lock);
    Tensor **at = &tensors;
    while (*at && (*at)->value != value) at = &(*at)->next;
    Tensor *t = *at;
    if (t) *at = t->next;
    pthread_mutex_unlock(&lock);
    ((void (*)(void *))real[RELEASE_VALUE])(value);
    if (!t) return;
    if (t->binding) fprintf(stderr, "stand-in: an output was released while it was bound\n"), abort();
    free(t->copy);
    free(t);
}

static Status run(void *session, const void *options, const char *const *input_names, const void *const *inputs, size_t input_count,
                  const char *const *output_names, size_t output_count, void **outputs) {
    const char *wrong = NULL;
    pthread_mutex_lock(&lock);
    int device = device_of(session);
    for (size_t i = 0; i < input_count + output_count; i++) {
        Tensor *t = tensor(i < input_count ? inputs[i] : outputs[i - input_count]);
        if (!t) continue;
        if (t->device != device) wrong = "a tensor of another device than the session's";
        else if (i < input_count && !carry(t, 0)) wrong = "an input could not be fetched";
    }
    pthread_mutex_unlock(&lock);
    if (wrong) return refuse(wrong);
    Status status = REAL_CALL(RUN, void *, const void *, const char *const *, const void *const *, size_t, const char *const *, size_t,
                              void **)(session, options, input_names, inputs, input_count, output_names, output_count, outputs);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !status && i < output_count; i++) {
        Tensor *t = tensor(outputs[i]);
        if (t) t->unfetched = 1;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void rebind(void *from, const void *value, void *to) {
    pthread_mutex_lock(&lock);
    for (Tensor *t = tensors; t; t = t->next)
        if (value ? t->value == value : t->binding == from) t->binding = to;
    pthread_mutex_unlock(&lock);
}

static Status bind_output(void *binding, const char *name, const void *value) {
    rebind(NULL, value, binding);
    return REAL_CALL(BIND_OUTPUT, void *, const char *, const void *)(binding, name, value);
}

static void clear_outputs(void *binding) {
    rebind(binding, NULL, NULL);
    ((void (*)(void *))real[CLEAR_OUTPUTS])(binding);
}

static Status synchronize_outputs(void *binding) {
    int ok = 1;
    pthread_mutex_lock(&lock);
    for (Tensor *t = tensors; t; t = t->next) {
        if (t->binding != binding || !t->unfetched) continue;
        ok &= carry(t, 1);
        t->unfetched = 0;
    }
    pthread_mutex_unlock(&lock);
    return ok ? REAL_CALL(SYNCHRONIZE_OUTPUTS, void *)(binding) : refuse("an output could not be brought");
}

static void open_both(void) {
    void *library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
    driver = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!library || !driver) fprintf(stderr, "stand-in: %s\n", dlerror()), abort();
    const Base *base = ((const Base *(*)(void))dlsym(library, "OrtGetApiBase"))();
    real = base->get(17), real_version = base->version;
    if (!real) fprintf(stderr, "stand-in: the library is older than 1.17\n"), abort();
    memcpy(table, real, sizeof table);
    REAL_CALL(CPU_MEMORY_INFO, int, int, void **)(0, 0, &cpu);
    struct { int place; void *call; } ours[] = {
        {CREATE_SESSION, create_session}, {SESSION_OF_BYTES, session_of_bytes}, {RUN, run}, {TENSOR_WITH_DATA, tensor_with_data}, {RELEASE_VALUE, release_value},
        {PROVIDERS, providers}, {RELEASE_PROVIDERS, release_providers}, {BIND_OUTPUT, bind_output}, {CLEAR_OUTPUTS, clear_outputs},
        {SYNCHRONIZE_OUTPUTS, synchronize_outputs}, {APPEND_CUDA, append_cuda}, {CREATE_OPTIONS, create_options},
        {UPDATE_OPTIONS, update_options}, {RELEASE_OPTIONS, release_options},
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) table[ours[i].place] = ours[i].call;
}

static void **get(uint32_t version) {
    pthread_once(&once, open_both);
    return version == 17 ? table : NULL;
}

static const char *version(void) {
    pthread_once(&once, open_both);
    return real_version();
}

const Base *OrtGetApiBase(void) {
    static const Base base = {get, version};
    return &base;
}

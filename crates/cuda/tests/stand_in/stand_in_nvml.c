/* What would NVML answer, if there were one? A stand-in for tests: its symbols over numbers of its own. NOT NVML.
 *
 * It knows the two devices of stand_in_driver.c, by their places on the bus. Functions before nvmlInit_v2 fail, as they do in the real one.
 *
 * -DFAIL='"function"' names one that fails with -DCODE=n (default 999, unknown error), -DHANG='"function"' one that never returns;
 * both from the call on that -DAFTER=n lets pass (default 0), and only for the device -DDEVICE=n if that is said.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef FAIL
#define FAIL ""
#endif
#ifndef CODE
#define CODE 999
#endif
#ifndef HANG
#define HANG ""
#endif
#ifndef AFTER
#define AFTER 0
#endif
#ifndef DEVICE
#define DEVICE -1
#endif

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { DEVICES = 2 };

struct device { unsigned number; atomic_ullong energy_mj; };
typedef struct device *nvmlDevice_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;

static const unsigned long long GIB = 1ull << 30, MIB = 1ull << 20;

static struct device devices[DEVICES] = { { 0, 5000000 }, { 1, 7000000 } };
static atomic_int started;
static atomic_int passed;

/* What happens before a function does anything. */
static int enter(const char *name, nvmlDevice_t device) {
    int fails = strcmp(name, FAIL) == 0, hangs = strcmp(name, HANG) == 0;
    int meant = DEVICE < 0 || !device || (int)device->number == DEVICE;
    if (meant && (fails || hangs) && atomic_fetch_add(&passed, 1) >= AFTER) {
        while (hangs) pause();
        return CODE;
    }
    return started ? SUCCESS : UNINITIALIZED;
}

#define ENTER(device) do { int code = enter(__func__, device); if (code != SUCCESS) return code; } while (0)

int nvmlInit_v2(void) {
    int code = enter(__func__, 0);
    if (code != SUCCESS && code != UNINITIALIZED) return code;
    started = 1;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *place, nvmlDevice_t *device) {
    ENTER(0);
    unsigned domain, bus, slot, function;
    if (sscanf(place, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return INVALID_ARGUMENT;
    if (domain || slot || function || bus < 1 || bus > DEVICES) return NOT_FOUND;
    *device = &devices[bus - 1];
    return SUCCESS;
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    ENTER(device);
    if (length < 41) return INSUFFICIENT_SIZE;
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012x", device->number + 1);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    ENTER(device);
    rates->gpu = 25 * (device->number + 1);
    rates->memory = 7;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    ENTER(device);
    memory->total = 8 * GIB;
    memory->used = (device->number + 1) * GIB + 512 * MIB;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

#ifndef OLD /* a driver before 510 */
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    ENTER(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return INVALID_ARGUMENT;
    memory->total = 8 * GIB;
    memory->reserved = 512 * MIB;
    memory->used = (device->number + 1) * GIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
#endif

int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    ENTER(device);
    *milliwatts = 100500 * (device->number + 1);
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts) {
    ENTER(device);
    *milliwatts = 700000;
    return SUCCESS;
}

/* 2.5 J more each time. */
int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    ENTER(device);
    *millijoules = atomic_fetch_add(&device->energy_mj, 2500);
    return SUCCESS;
}

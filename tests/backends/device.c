/* What does a compiled backend get of tensors on a GPU?
 *
 * It copies IN to OUT. Where one of them lies on a GPU, the CUDA driver that NERITE_CUDA_LIBRARY names copies it. Parameters of the response tell the
 * type, the device and the CUDA IPC handle (as hexadecimal digits) of either memory, by its buffer attributes.
 */
#include "backend.h"

#include <dlfcn.h>

/* A function of the driver. */
#define CUDA(name, ...) cuda(#name, ((int (*)())dlsym(driver, #name))(__VA_ARGS__))

static void* driver;
static _Thread_local void* stream;

static Error* cuda(const char* name, int code) {
  char text[128];
  if (code == 0) return NULL;
  snprintf(text, sizeof text, "%s: %d", name, code);
  return TRITONSERVER_ErrorNew(INTERNAL, text);
}

typedef struct {
  char* address;
  uint32_t kind;
  int64_t id;
  uint64_t bytes;
} Memory;

Error* TRITONBACKEND_Initialize(Backend* backend) {
  (void)backend;
  driver = dlopen(getenv("NERITE_CUDA_LIBRARY"), RTLD_NOW);
  return driver == NULL ? TRITONSERVER_ErrorNew(UNAVAILABLE, dlerror()) : CUDA(cuInit, 0);
}

#ifdef PREFERS_HOST
Error* TRITONBACKEND_GetBackendAttribute(Backend* backend, Attributes* attributes) {
  (void)backend;
  return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, 1, 0, NULL, 0);
}
#endif

Error* TRITONBACKEND_Finalize(Backend* backend) {
  (void)backend;
  dlclose(driver);
  return NULL;
}

/* Fails if the attributes differ from what the call told that gave the memory. */
static Error* tell(Response* response, const char* side, const Memory* memory, BufferAttributes* attributes) {
  uint32_t kind;
  int64_t id;
  size_t bytes;
  void* handle;
  char key[32], digits[2 * 64 + 1] = "";
  TRY(TRITONSERVER_BufferAttributesMemoryType(attributes, &kind));
  TRY(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &bytes));
  TRY(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
  if (kind != memory->kind || id != memory->id || bytes != memory->bytes) return TRITONSERVER_ErrorNew(INTERNAL, "the attributes are of other memory");
  for (int at = 0; handle != NULL && at < 64; at++) snprintf(digits + 2 * at, 3, "%02x", ((const unsigned char*)handle)[at]);
  snprintf(key, sizeof key, "%s_kind", side);
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, key, TRITONSERVER_MemoryTypeString(kind)));
  snprintf(key, sizeof key, "%s_device", side);
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, key, id));
  snprintf(key, sizeof key, "%s_handle", side);
  return TRITONBACKEND_ResponseSetStringParameter(response, key, digits);
}

static Error* copy(const Memory* from, const Memory* to) {
  Error* error = NULL;
  uint64_t source = (uint64_t)(uintptr_t)from->address, target = (uint64_t)(uintptr_t)to->address;
  size_t bytes = from->bytes;
  if (from->kind == GPU && to->kind == GPU) {
    error = CUDA(cuMemcpyDtoDAsync_v2, target, source, bytes, stream);
  } else if (from->kind == GPU) {
    error = CUDA(cuMemcpyDtoHAsync_v2, to->address, source, bytes, stream);
  } else if (to->kind == GPU) {
    error = CUDA(cuMemcpyHtoDAsync_v2, target, from->address, bytes, stream);
  } else {
    memcpy(to->address, from->address, bytes);
  }
  return error != NULL ? error : CUDA(cuStreamSynchronize, stream);
}

static Error* answer(Instance* instance, Request* request, Response* response) {
  Input* input;
  Output* output;
  BufferAttributes* attributes;
  Memory from = {.kind = CPU}, to = {.kind = GPU};
  const char* name;
  const void* base;
  void* buffer;
  uint32_t type, dims, buffers, kind;
  int32_t device;
  const int64_t* shape;
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &from.bytes, &buffers));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &base, &from.bytes, &from.kind, &from.id));
  from.address = (char*)base;
  TRY(TRITONBACKEND_InputBufferAttributes(input, 0, &base, &attributes));
  TRY(tell(response, "in", &from, attributes));
  to.id = device;
  to.bytes = from.bytes;
  TRY(TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", NULL, &to.kind, &to.id));
  kind = to.kind;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", type, shape, dims));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, to.bytes, &to.kind, &to.id));
  /* Memory of the host may be page-locked, which the properties do not tell. */
  if ((kind == GPU) != (to.kind == GPU)) return TRITONSERVER_ErrorNew(INTERNAL, "the output lies elsewhere than was said");
  to.address = buffer;
  TRY(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  TRY(tell(response, "out", &to, attributes));
  return copy(&from, &to);
}

/* The context of the GPU is current on this thread meanwhile. */
static Error* answer_in_context(Instance* instance, Request* request, Response* response) {
  void* context;
  int32_t device;
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  TRY(CUDA(cuDevicePrimaryCtxRetain, &context, device));
  TRY(CUDA(cuCtxPushCurrent_v2, context));
  TRY(CUDA(cuStreamCreate, &stream, 1));
  Error* error = answer(instance, request, response);
  TRY(CUDA(cuStreamDestroy_v2, stream));
  TRY(CUDA(cuCtxPopCurrent_v2, &context));
  TRY(CUDA(cuDevicePrimaryCtxRelease_v2, device));
  return error;
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  for (uint32_t at = 0; at < count; at++) {
    Response* response;
    const uint64_t begun = now_ns();
    LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[at]));
    Error* error = answer_in_context(instance, requests[at], response);
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
    const uint64_t end = now_ns();
    LOG_IF_ERROR(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[at], error == NULL, begun, begun, end, end));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    LOG_IF_ERROR(TRITONBACKEND_RequestRelease(requests[at], RELEASE_ALL));
  }
  return NULL;
}

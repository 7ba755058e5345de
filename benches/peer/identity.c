/* What does it cost Triton to return a request's inputs, with as little of a model as can be?
 *
 * The peer that nerite is compared with comes without a compiled backend. This is one, so that what is measured is the
 * server and not a Python interpreter. It does less than NVIDIA's own identity backend (no collector of inputs, no
 * response parameters, no metrics): where that tilts the comparison, it tilts it towards the peer.
 *
 *     gcc -O2 -shared -fPIC -o identity/libtriton_identity.so identity.c
 *
 * The server's functions stay undefined and no library is named to provide them: the server's executable has loaded its
 * libtritonserver, under whatever file name its package gave it, where every library loaded later finds it.
 *
 * Every input INPUT<x> is returned as OUTPUT<x>, of the same datatype and shape, copied once. Host memory only.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

enum { API_MAJOR = 1 };
enum { ERROR_INTERNAL = 1, ERROR_INVALID_ARG = 3, ERROR_UNSUPPORTED = 5 };
enum { MEMORY_CPU = 0, MEMORY_CPU_PINNED = 1 };
enum { RELEASE_ALL = 1 };
enum { COMPLETE_FINAL = 1 };
enum { NAME_BYTES_MAX = 256 };

typedef struct Error Error;
typedef struct Backend Backend;
typedef struct Instance Instance;
typedef struct Request Request;
typedef struct Input Input;
typedef struct Response Response;
typedef struct Output Output;

/* The few of Triton's functions that are needed. All but the first two answer NULL, or an error that is ours to free. */
Error* TRITONSERVER_ErrorNew(int code, const char* message);
void TRITONSERVER_ErrorDelete(Error*);
Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor);
Error* TRITONBACKEND_RequestInputCount(Request*, uint32_t* count);
Error* TRITONBACKEND_RequestInputByIndex(Request*, uint32_t index, Input**);
Error* TRITONBACKEND_RequestRelease(Request*, uint32_t flags);
Error* TRITONBACKEND_InputProperties(
    Input*, const char** name, int* datatype, const int64_t** shape, uint32_t* dims, uint64_t* bytes, uint32_t* buffers);
Error* TRITONBACKEND_InputBuffer(
    Input*, uint32_t index, const void** base, uint64_t* bytes, int* memory, int64_t* memory_id);
Error* TRITONBACKEND_ResponseNew(Response**, Request*);
Error* TRITONBACKEND_ResponseOutput(
    Response*, Output**, const char* name, int datatype, const int64_t* shape, uint32_t dims);
Error* TRITONBACKEND_OutputBuffer(Output*, void** base, uint64_t bytes, int* memory, int64_t* memory_id);
Error* TRITONBACKEND_ResponseSend(Response*, uint32_t flags, Error*);
Error* TRITONBACKEND_ModelInstanceReportStatistics(
    Instance*, Request*, bool success, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end,
    uint64_t exec_end);
Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    Instance*, uint64_t batch_size, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end,
    uint64_t exec_end);

EXPORTED Error* TRITONBACKEND_Initialize(Backend*);
EXPORTED Error* TRITONBACKEND_ModelInstanceExecute(Instance*, Request**, uint32_t count);

#define TRY(call)              \
  do {                         \
    Error* failed_ = (call);   \
    if (failed_ != NULL) {     \
      return failed_;          \
    }                          \
  } while (0)

Error* TRITONBACKEND_Initialize(Backend* backend)
{
  (void)backend;
  uint32_t major = 0;
  uint32_t minor = 0;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  return major == API_MAJOR ? NULL : TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "written for backend API version 1");
}

/* Errors about which nothing more can be done: the request they belong to is over. */
static void drop(Error* error)
{
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
}

static uint64_t now_ns(void)
{
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (uint64_t)at.tv_sec * 1000000000U + (uint64_t)at.tv_nsec;
}

static bool on_host(int memory)
{
  return memory == MEMORY_CPU || memory == MEMORY_CPU_PINNED;
}

static Error* output_name(const char* input, char (*name)[NAME_BYTES_MAX])
{
  static const char prefix[] = "INPUT";
  if (strncmp(input, prefix, sizeof prefix - 1) != 0) {
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "names of inputs must begin with INPUT");
  }
  const int length = snprintf(*name, sizeof *name, "OUTPUT%s", input + sizeof prefix - 1);
  if (length < 0 || (size_t)length >= sizeof *name) {
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the name of an input is too long");
  }
  return NULL;
}

/* An input may come in parts; the output is always one. */
static Error* copy_parts(Input* input, uint32_t parts, char* to, uint64_t room)
{
  for (uint32_t part = 0; part < parts; part++) {
    const void* from = NULL;
    uint64_t bytes = 0;
    int memory = MEMORY_CPU;
    int64_t memory_id = 0;
    TRY(TRITONBACKEND_InputBuffer(input, part, &from, &bytes, &memory, &memory_id));
    if (!on_host(memory)) {
      return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an input is not in host memory");
    }
    if (bytes > room) {
      return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the parts of an input are larger than the input");
    }
    if (bytes > 0) {
      memcpy(to, from, bytes);
    }
    to += bytes;
    room -= bytes;
  }
  return NULL;
}

static Error* echo_input(Request* request, uint32_t index, Response* response)
{
  Input* input = NULL;
  TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
  const char* given = NULL;
  int datatype = 0;
  const int64_t* shape = NULL;
  uint32_t dims = 0;
  uint64_t bytes = 0;
  uint32_t parts = 0;
  TRY(TRITONBACKEND_InputProperties(input, &given, &datatype, &shape, &dims, &bytes, &parts));
  char name[NAME_BYTES_MAX];
  TRY(output_name(given, &name));
  Output* output = NULL;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape, dims));
  void* to = NULL;
  int memory = MEMORY_CPU;
  int64_t memory_id = 0;
  TRY(TRITONBACKEND_OutputBuffer(output, &to, bytes, &memory, &memory_id));
  if (!on_host(memory)) {
    return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "an output is wanted outside of host memory");
  }
  return copy_parts(input, parts, to, bytes);
}

static Error* echo_inputs(Request* request, Response* response)
{
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; index++) {
    TRY(echo_input(request, index, response));
  }
  return NULL;
}

/* Nothing is set up before the inputs are read, so computing spans the whole of what is done for a request. */
static void answer(Instance* instance, Request* request)
{
  const uint64_t start = now_ns();
  Response* response = NULL;
  Error* error = TRITONBACKEND_ResponseNew(&response, request);
  const bool can_answer = error == NULL;
  if (can_answer) {
    error = echo_inputs(request, response);
  }
  const bool success = error == NULL;
  const uint64_t computed = now_ns();
  if (can_answer) {
    drop(TRITONBACKEND_ResponseSend(response, COMPLETE_FINAL, error));
  }
  drop(error);
  const uint64_t end = now_ns();
  drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, success, start, start, computed, end));
  drop(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
}

/* Batch sizes count requests: right for models without a batch dimension, which is what is measured. */
Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, uint32_t count)
{
  const uint64_t start = now_ns();
  for (uint32_t at = 0; at < count; at++) {
    answer(instance, requests[at]);
  }
  const uint64_t end = now_ns();
  drop(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, end, end));
  return NULL;
}

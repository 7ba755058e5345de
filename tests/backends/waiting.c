/* What does a compiled backend do that waits for its client?
 *
 * The model's parameter `mode` says for what: `canary` waits until the first element of IN is not 0 any more, and copies IN to OUT, in whose first element
 * it has said by 7 before that it waits. `request` and `factory` wait until the client's cancellation is seen at the request, or at a factory of it.
 * All give up after two minutes, and `canary` when its client cancels.
 */
#include "backend.h"

static const uint64_t LONGEST_NS = 120000000000u;

typedef struct {
  char mode[16];
} ModelState;

Error* TRITONBACKEND_ModelInitialize(Model* model) {
  Message* message;
  const char* json;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  char* text = strndup(json, size);
  ModelState* state = calloc(1, sizeof *state);
  parameter(text, "mode", state->mode, sizeof state->mode);
  free(text);
  TRY(TRITONSERVER_MessageDelete(message));
  return TRITONBACKEND_ModelSetState(model, state);
}

Error* TRITONBACKEND_ModelFinalize(Model* model) {
  void* state;
  TRY(TRITONBACKEND_ModelState(model, &state));
  free(state);
  return NULL;
}

static Error* until_canary(Request* request, Response* response) {
  Input* input;
  Output* output;
  const void* base;
  void* buffer;
  const char* name;
  uint32_t type, dims, buffers, kind = CPU;
  const int64_t* shape;
  uint64_t bytes, end = now_ns() + LONGEST_NS;
  int64_t id = 0;
  bool is_cancelled = false;
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &bytes, &buffers));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &base, &bytes, &kind, &id));
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", type, shape, dims));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &kind, &id));
  *(volatile float*)buffer = 7;
  while (*(volatile const float*)base == 0 && now_ns() < end && !is_cancelled) {
    usleep(1000);
    TRY(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  }
  if (*(volatile const float*)base == 0) return TRITONSERVER_ErrorNew(CANCELLED, "no canary came");
  /* The client writes the first element last. */
  atomic_thread_fence(memory_order_acquire);
  memcpy(buffer, base, bytes);
  return NULL;
}

static Error* until_cancelled(Request* request, bool by_factory) {
  Factory* factory;
  const char* name;
  char text[128];
  uint64_t end = now_ns() + LONGEST_NS;
  bool is_cancelled = false;
  TRY(TRITONBACKEND_RequestId(request, &name));
  TRY(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  snprintf(text, sizeof text, "request '%s' waits", name);
  LOG_IF_ERROR(TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, text));
  while (!is_cancelled && now_ns() < end) {
    usleep(1000);
    TRY(by_factory ? TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled)
                   : TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  }
  TRY(TRITONBACKEND_ResponseFactoryDelete(factory));
  snprintf(text, sizeof text, "request '%s' is %scancelled", name, is_cancelled ? "" : "not ");
  LOG_IF_ERROR(TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, text));
  return TRITONSERVER_ErrorNew(CANCELLED, "cancelled as it was wished");
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  Model* model;
  void* found;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &found));
  ModelState* state = found;
  for (uint32_t at = 0; at < count; at++) {
    Response* response;
    LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[at]));
    Error* error = strcmp(state->mode, "canary") == 0 ? until_canary(requests[at], response)
                                                      : until_cancelled(requests[at], strcmp(state->mode, "factory") == 0);
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    LOG_IF_ERROR(TRITONBACKEND_RequestRelease(requests[at], RELEASE_ALL));
  }
  return NULL;
}

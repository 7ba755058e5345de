/* What does a compiled backend do that keeps something of a sequence, or gives requests back to run again?
 *
 * The parameter `mode` of a model chooses: `sum` adds IN up over a sequence in an implicit state, `again` runs a request as often as IN says. Parameters
 * of a request: `skip` leaves the state as it is, `fail` answers with an error after the update, `state` names another state, `adds` adds to what the
 * memory of the new state holds, and tells as `same` whether that is where the state before it was.
 */
#include "backend.h"

enum { SEQUENCES = 1024 };

typedef struct {
  bool runs_again;
  /* Runs of the request of each sequence, by its number. One instance runs them all. */
  int runs[SEQUENCES];
} ModelState;

static Error* number(Request* request, const char* name, float* value) {
  Input* input;
  const void* base;
  uint64_t bytes;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &base, &bytes, &kind, &id));
  if (bytes != sizeof *value) return TRITONSERVER_ErrorNew(INVALID_ARG, "an input that is not one FP32");
  memcpy(value, base, sizeof *value);
  return NULL;
}

static Error* put(Response* response, float value) {
  static const int64_t one[1] = {1};
  Output* output;
  void* buffer;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_FP32, one, 1));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &kind, &id));
  memcpy(buffer, &value, sizeof value);
  return NULL;
}

typedef struct {
  bool skips, fails, adds;
  const char* state;
} Wish;

static Error* read_wish(Request* request, Wish* wish) {
  uint32_t count;
  *wish = (Wish){.state = "SUM_OUT"};
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t at = 0; at < count; at++) {
    const char* key;
    uint32_t type;
    const void* value;
    TRY(TRITONBACKEND_RequestParameter(request, at, &key, &type, &value));
    if (strcmp(key, "skip") == 0) wish->skips = true;
    if (strcmp(key, "fail") == 0) wish->fails = true;
    if (strcmp(key, "adds") == 0) wish->adds = true;
    if (strcmp(key, "state") == 0) wish->state = value;
  }
  return NULL;
}

static Error* keep(Request* request, const char* name, float value) {
  static const int64_t one[1] = {1};
  State* state;
  void* buffer;
  BufferAttributes* attributes;
  size_t bytes = 0;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_StateNew(&state, request, name, TYPE_FP32, one, 1));
  TRY(TRITONBACKEND_StateBuffer(state, &buffer, sizeof value, &kind, &id));
  TRY(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &bytes));
  if (bytes != sizeof value) return TRITONSERVER_ErrorNew(INTERNAL, "the state's buffer is told to have another size");
  memcpy(buffer, &value, sizeof value);
  return TRITONBACKEND_StateUpdate(state);
}

/* Adds to the state where it is. */
static Error* add(Request* request, Response* response, float value, float* sum) {
  static const int64_t one[1] = {1};
  Input* input;
  State* state;
  const void* before;
  void* buffer;
  uint64_t bytes;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_RequestInput(request, "SUM_IN", &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &before, &bytes, &kind, &id));
  TRY(TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TYPE_FP32, one, 1));
  TRY(TRITONBACKEND_StateBuffer(state, &buffer, sizeof value, &kind, &id));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "same", buffer == before));
  memcpy(sum, buffer, sizeof *sum);
  *sum += value;
  memcpy(buffer, sum, sizeof *sum);
  return TRITONBACKEND_StateUpdate(state);
}

static Error* sum(Request* request, Response* response) {
  float value, before;
  uint32_t wanted;
  Wish wish;
  TRY(read_wish(request, &wish));
  TRY(number(request, "IN", &value));
  if (strcmp(wish.state, "SUM_OUT") != 0) return keep(request, wish.state, value);
  if (wish.adds) {
    TRY(add(request, response, value, &before));
    return put(response, before);
  }
  TRY(number(request, "SUM_IN", &before));
  TRY(TRITONBACKEND_RequestOutputCount(request, &wanted));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "wanted", wanted));
  if (!wish.skips) TRY(keep(request, wish.state, before + value));
  if (wish.fails) return TRITONSERVER_ErrorNew(INVALID_ARG, "fails after the update on purpose");
  return put(response, before + value);
}

static void answer(Request* request, ModelState* state) {
  Response* response = NULL;
  if (state->runs_again) {
    uint64_t id = 0;
    float times = 0;
    LOG_IF_ERROR(TRITONBACKEND_RequestCorrelationId(request, &id));
    LOG_IF_ERROR(number(request, "IN", &times));
    int* runs = &state->runs[id % SEQUENCES];
    *runs += 1;
    if (*runs < (int)times) {
      Error* refused = TRITONBACKEND_RequestRelease(request, RESCHEDULE);
      if (refused == NULL) return;
      /* It is this backend's still. */
      LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
      LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, refused));
      TRITONSERVER_ErrorDelete(refused);
      *runs = 0;
      LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
      return;
    }
    LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
    LOG_IF_ERROR(put(response, (float)*runs));
    *runs = 0;
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
  } else {
    LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
    Error* error = sum(request, response);
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
  }
  LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
}

Error* TRITONBACKEND_ModelInitialize(Model* model) {
  Message* message;
  const char* json;
  size_t size;
  ModelState* state = calloc(1, sizeof *state);
  TRY(TRITONBACKEND_ModelSetState(model, state));
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  state->runs_again = memmem(json, size, "\"string_value\":\"again\"", 22) != NULL;
  return TRITONSERVER_MessageDelete(message);
}

Error* TRITONBACKEND_ModelFinalize(Model* model) {
  void* state;
  TRY(TRITONBACKEND_ModelState(model, &state));
  free(state);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  Model* model;
  void* state;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  for (uint32_t at = 0; at < count; at++) answer(requests[at], state);
  return NULL;
}

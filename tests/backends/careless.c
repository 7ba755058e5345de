/* What does a compiled backend do that is careless with the server's memory and its clients' time?
 *
 * The model's parameter "mode" says how:
 *   unwritten  OUT has the size of IN, and is not written
 *   unknown    answers with an output that the model does not have
 *   flood      a decoupled model, which sends IN in as many responses as the first element says, within its run
 *   keep       neither answers nor releases a request, and says in the log that it has it
 *   thread     a thread of its own aborts
 *   load       loads the model that the parameter "peer" names while it is loaded itself
 *   texts      has parameters of its response say how the server refuses what is not there
 */
#include "backend.h"

static const int64_t RESPONSES_MAX = 1 << 24;

typedef struct {
  char mode[32];
} ModelState;

typedef struct {
  const void* data;
  uint64_t bytes;
  uint32_t type;
  uint32_t dims;
  const int64_t* shape;
} Tensor;

Error* TRITONBACKEND_ModelInitialize(Model* model) {
  Message* config;
  const char* json;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
  char* text = strndup(json, size);
  ModelState* state = calloc(1, sizeof *state);
  parameter(text, "mode", state->mode, sizeof state->mode);
  char peer[64];
  parameter(text, "peer", peer, sizeof peer);
  free(text);
  TRY(TRITONSERVER_MessageDelete(config));
  TRY(TRITONBACKEND_ModelSetState(model, state));
  if (strcmp(state->mode, "load") != 0) return NULL;
  Server* server;
  TRY(TRITONBACKEND_ModelServer(model, &server));
  return TRITONSERVER_ServerLoadModel(server, peer);
}

Error* TRITONBACKEND_ModelFinalize(Model* model) {
  void* state;
  TRY(TRITONBACKEND_ModelState(model, &state));
  free(state);
  return NULL;
}

static Error* read_input(Request* request, Tensor* tensor) {
  Input* input;
  const char* name;
  uint32_t buffers, kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputProperties(input, &name, &tensor->type, &tensor->shape, &tensor->dims, &tensor->bytes, &buffers));
  return TRITONBACKEND_InputBuffer(input, 0, &tensor->data, &tensor->bytes, &kind, &id);
}

static Error* add_output(Response* response, const char* name, const Tensor* like, bool is_written) {
  Output* output;
  void* buffer;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, name, like->type, like->shape, like->dims));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, like->bytes, &kind, &id));
  if (is_written) memcpy(buffer, like->data, like->bytes);
  return NULL;
}

/* Sends responses until all are sent or nobody wants them. */
static Error* flood(Request* request, const Tensor* tensor) {
  Factory* factory;
  TRY(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  float wanted = 0;
  memcpy(&wanted, tensor->data, tensor->bytes < sizeof wanted ? tensor->bytes : sizeof wanted);
  for (int64_t at = 0; at < (int64_t)wanted && at < RESPONSES_MAX; at++) {
    bool is_cancelled = false;
    Response* response;
    TRY(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
    if (is_cancelled) break;
    TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    TRY(add_output(response, "OUT", tensor, true));
    TRY(TRITONBACKEND_ResponseSend(response, 0, NULL));
  }
  TRY(TRITONBACKEND_ResponseFactorySendFlags(factory, FINAL));
  return TRITONBACKEND_ResponseFactoryDelete(factory);
}

/* A parameter of the response says what the server answered. */
static Error* tell(Response* response, const char* name, Error* refused) {
  char text[512] = "ok";
  if (refused != NULL) {
    snprintf(text, sizeof text, "%s: %s", TRITONSERVER_ErrorCodeString(refused), TRITONSERVER_ErrorMessage(refused));
    TRITONSERVER_ErrorDelete(refused);
  }
  return TRITONBACKEND_ResponseSetStringParameter(response, name, text);
}

static Error* tell_texts(Instance* instance, Request* request, Response* response) {
  Model* model;
  Message* message;
  Input* input;
  const char* text;
  const void* base = request;
  uint64_t bytes = 1;
  uint32_t kind = CPU;
  int64_t id = 0;
  size_t size;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(tell(response, "version", TRITONBACKEND_ModelConfig(model, 2, &message)));
  TRY(tell(response, "input", TRITONBACKEND_RequestInput(request, "zz", &input)));
  TRY(tell(response, "input_name", TRITONBACKEND_RequestInputName(request, 1, &text)));
  TRY(tell(response, "output_name", TRITONBACKEND_RequestOutputName(request, 1, &text)));
  TRY(tell(response, "correlation", TRITONBACKEND_RequestCorrelationIdString(request, &text)));
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(tell(response, "buffer", TRITONBACKEND_InputBuffer(input, 7, &base, &bytes, &kind, &id)));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "base", base == NULL && bytes == 0 ? "NULL" : "something"));
  TRY(TRITONBACKEND_ModelInstanceHostPolicy(instance, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  char policy[256];
  snprintf(policy, sizeof policy, "%.*s", (int)size, text);
  return TRITONBACKEND_ResponseSetStringParameter(response, "policy", policy);
}

static void* abort_apart(void* unused) {
  (void)unused;
  abort();
}

static void answer(const char* mode, Instance* instance, Request* request) {
  Tensor tensor;
  Response* response;
  pthread_t thread;
  if (strcmp(mode, "keep") == 0) {
    LOG_IF_ERROR(TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, "a request is kept"));
    return;
  }
  if (strcmp(mode, "thread") == 0 && pthread_create(&thread, NULL, abort_apart, NULL) == 0) pthread_join(thread, NULL);
  LOG_IF_ERROR(read_input(request, &tensor));
  if (strcmp(mode, "flood") == 0) {
    LOG_IF_ERROR(flood(request, &tensor));
  } else {
    LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
    if (strcmp(mode, "texts") == 0) LOG_IF_ERROR(tell_texts(instance, request, response));
    bool is_unknown = strcmp(mode, "unknown") == 0;
    Error* error = add_output(response, is_unknown ? "NOSUCH" : "OUT", &tensor, strcmp(mode, "unwritten") != 0);
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
  }
  LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, uint32_t count) {
  Model* model;
  void* state;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  for (uint32_t at = 0; at < count; at++) answer(((ModelState*)state)->mode, instance, requests[at]);
  return NULL;
}

/* What does a compiled backend do that is written for Triton?
 *
 * One library, whose models choose what they do by their parameter `mode`. tests/conformance/compiled_setup.py builds it with the C compiler, and
 * the same file runs in nerite and in Triton 2.51.
 */
#include "backend.h"

#include <unistd.h>

typedef struct {
  char mode[32];
  int delay_ms;
  /* A run of read_long goes on while this file exists. */
  char gate[256];
  Family* family;
  Metric* executions;
  /* The configuration that the model was initialized with. */
  char* config;
  /* How many executions, or initializations of instances, are under way, and the most at a time. */
  atomic_int running, most_running;
  /* Of the mode late. */
  pthread_t thread;
  bool has_thread;
  atomic_int held;
} ModelState;

/* Whether the backend is between its first function and its last. */
static atomic_bool is_initialized;
static int finalize_ms;
/* Instances that it prefers, if it prefers some. */
static int preferred_count;
/* Whether instances may be initialized at the same time. */
static bool is_parallel;

Error* TRITONBACKEND_Initialize(Backend* backend) {
  if (atomic_exchange(&is_initialized, true)) return TRITONSERVER_ErrorNew(INTERNAL, "the backend is initialized twice");
  uint32_t major, minor;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != 1 || minor < 19) return TRITONSERVER_ErrorNew(UNSUPPORTED, "triton backend API version does not support this backend");
  const char* name;
  TRY(TRITONBACKEND_BackendName(backend, &name));
  Message* config;
  const char* json;
  size_t size;
  TRY(TRITONBACKEND_BackendConfig(backend, &config));
  TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
  char text[1024];
  snprintf(text, sizeof text, "backend %s is told %.*s", name, (int)size, json);
  LOG_IF_ERROR(TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, text));
  if (memmem(json, size, "\"fail\":\"initialize\"", 19) != NULL) return TRITONSERVER_ErrorNew(INTERNAL, "initialize fails on purpose");
  const char* wait = memmem(json, size, "\"finalize_ms\":\"", 15);
  if (wait != NULL) finalize_ms = atoi(wait + 15);
  const char* prefers = memmem(json, size, "\"prefer\":\"", 10);
  preferred_count = prefers == NULL ? 0 : atoi(prefers + 10);
  is_parallel = memmem(json, size, "\"parallel\":\"0\"", 14) == NULL;
  if (memmem(json, size, "\"policy\":\"1\"", 12) != NULL) TRY(TRITONBACKEND_BackendSetExecutionPolicy(backend, DEVICE_BLOCKING));
  MemoryManager* manager;
  void* memory;
  TRY(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  TRY(TRITONBACKEND_MemoryManagerAllocate(manager, &memory, CPU, 0, 100));
  TRY(TRITONBACKEND_BackendSetState(backend, memory));
  return NULL;
}

Error* TRITONBACKEND_Finalize(Backend* backend) {
  MemoryManager* manager;
  void* memory;
  TRY(TRITONBACKEND_BackendState(backend, &memory));
  TRY(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  TRY(TRITONBACKEND_MemoryManagerFree(manager, memory, CPU, 0));
  usleep((useconds_t)finalize_ms * 1000);
  atomic_store(&is_initialized, false);
  return TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, "backend is finalized");
}

Error* TRITONBACKEND_GetBackendAttribute(Backend* backend, Attributes* attributes) {
  (void)backend;
  /* Where there is no GPU, the first is passed over. */
  if (preferred_count > 0) {
    TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, KIND_GPU, (uint64_t)preferred_count + 4, NULL, 0));
    TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, KIND_CPU, (uint64_t)preferred_count, NULL, 0));
  }
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, is_parallel);
}

/* A model without inputs gets one input and one output of 4 FP32; of a size that there is not, where that is wished. */
static Error* complete(Model* model, bool is_wrong) {
  static const char completed[] =
      "{\"max_batch_size\":0,"
      "\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}],"
      "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}]}";
  static const char wrong[] =
      "{\"max_batch_size\":0,"
      "\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}],"
      "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_FP32\",\"dims\":[0]}]}";
  Message* message;
  const char* json = is_wrong ? wrong : completed;
  TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, json, strlen(json)));
  Error* error = TRITONBACKEND_ModelSetConfig(model, 1, message);
  TRY(TRITONSERVER_MessageDelete(message));
  return error;
}

/* A counter of the model's own, which must not be set. */
static Error* start_counting(Model* model, ModelState* state) {
  const char* name;
  TRY(TRITONBACKEND_ModelName(model, &name));
  TRY(TRITONSERVER_MetricFamilyNew(&state->family, 0, "sample_executions", "Batches that the sample backend ran"));
  Parameter* label = TRITONSERVER_ParameterNew("model", 0, name);
  const Parameter* labels[] = {label};
  TRY(TRITONSERVER_MetricNew(&state->executions, state->family, labels, 1));
  TRITONSERVER_ParameterDelete(label);
  Error* refused = TRITONSERVER_MetricSet(state->executions, 1);
  if (refused == NULL) return TRITONSERVER_ErrorNew(INTERNAL, "a counter was set");
  TRITONSERVER_ErrorDelete(refused);
  return NULL;
}

static void begin_counted(ModelState* state) {
  int running = atomic_fetch_add(&state->running, 1) + 1, most = atomic_load(&state->most_running);
  while (running > most && !atomic_compare_exchange_weak(&state->most_running, &most, running)) {
  }
}

/* Ends when two instances of the model are being initialized, or after the time that the model says. */
static void wait_for_second_instance(ModelState* state) {
  uint64_t end = now_ns() + (uint64_t)state->delay_ms * 1000000u;
  begin_counted(state);
  while (atomic_load(&state->most_running) < 2 && now_ns() < end) usleep(1000);
  atomic_fetch_sub(&state->running, 1);
}

/* So many bytes of the host, and one more on the GPU of number 1. */
static Error* say_memory(void* of, Error* (*say)(void*, BufferAttributes**, uint32_t), size_t bytes) {
  BufferAttributes* all[2];
  for (int i = 0; i < 2; i++) {
    TRY(TRITONSERVER_BufferAttributesNew(&all[i]));
    TRY(TRITONSERVER_BufferAttributesSetMemoryType(all[i], i * 2));
    TRY(TRITONSERVER_BufferAttributesSetMemoryTypeId(all[i], i));
    TRY(TRITONSERVER_BufferAttributesSetByteSize(all[i], bytes + i));
  }
  TRY(say(of, all, 2));
  for (int i = 0; i < 2; i++) TRY(TRITONSERVER_BufferAttributesDelete(all[i]));
  return NULL;
}

Error* TRITONBACKEND_ModelInitialize(Model* model) {
  Message* message;
  const char* json;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  char* text = strndup(json, size);
  TRY(TRITONSERVER_MessageDelete(message));
  ModelState* state = calloc(1, sizeof *state);
  char delay[16];
  parameter(text, "mode", state->mode, sizeof state->mode);
  parameter(text, "delay_ms", delay, sizeof delay);
  state->delay_ms = atoi(delay);
  parameter(text, "gate", state->gate, sizeof state->gate);
  bool completes, is_empty = strstr(text, "\"input\":[]") != NULL;
  state->config = text;
  TRY(TRITONBACKEND_ModelSetState(model, state));
  /* What was set is freed at the end, which comes after a failure as well. */
  if (strcmp(state->mode, "refuse_model") == 0) return TRITONSERVER_ErrorNew(INVALID_ARG, "the model is refused on purpose");
  if (strcmp(state->mode, "count") == 0) TRY(start_counting(model, state));
  if (strcmp(state->mode, "memory") == 0) TRY(say_memory(model, TRITONBACKEND_ModelReportMemoryUsage, 1000));
  TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  return completes && is_empty ? complete(model, strcmp(state->mode, "complete_wrong") == 0) : NULL;
}

static Error* say_finalized(const char* what, void* object, Error* (*name_of)(void*, const char**)) {
  const char* name;
  char text[256];
  TRY(name_of(object, &name));
  snprintf(text, sizeof text, "%s %s is finalized", what, name);
  return TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, text);
}

Error* TRITONBACKEND_ModelFinalize(Model* model) {
  void* found;
  TRY(TRITONBACKEND_ModelState(model, &found));
  ModelState* state = found;
  if (state->executions != NULL) {
    TRY(TRITONSERVER_MetricDelete(state->executions));
    TRY(TRITONSERVER_MetricFamilyDelete(state->family));
  }
  if (state->has_thread) pthread_join(state->thread, NULL);
  while (strcmp(state->mode, "stuck") == 0) pause();
  free(state->config);
  free(state);
  return say_finalized("model", model, TRITONBACKEND_ModelName);
}

Error* TRITONBACKEND_ModelInstanceFinalize(Instance* instance) {
  Model* model;
  void* state;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  if (atomic_load(&((ModelState*)state)->held) > 0) {
    fputs("sample: an instance is finalized while a request of it is held\n", stderr);
    abort();
  }
  return say_finalized("instance", instance, TRITONBACKEND_ModelInstanceName);
}

Error* TRITONBACKEND_ModelInstanceInitialize(Instance* instance) {
  Model* model;
  void* state;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  if (strcmp(((ModelState*)state)->mode, "refuse_instance") == 0)
    return TRITONSERVER_ErrorNew(UNAVAILABLE, "the instance is refused on purpose");
  if (strcmp(((ModelState*)state)->mode, "memory") == 0)
    TRY(say_memory(instance, TRITONBACKEND_ModelInstanceReportMemoryUsage, 10));
  if (strcmp(((ModelState*)state)->mode, "crowd_at_load") == 0) wait_for_second_instance(state);
  return TRITONBACKEND_ModelInstanceSetState(instance, state);
}

typedef struct {
  const char* name;
  uint32_t type, dims, buffers;
  const int64_t* shape;
  uint64_t bytes;
  const void* data;
} Tensor;

static Error* read_input(Input* input, Tensor* tensor) {
  TRY(TRITONBACKEND_InputProperties(
      input, &tensor->name, &tensor->type, &tensor->shape, &tensor->dims, &tensor->bytes, &tensor->buffers));
  tensor->data = NULL;
  /* Who wants one in parts reads it by `copy_input`. */
  if (tensor->buffers != 1) return NULL;
  uint32_t kind = CPU;
  int64_t id = 0;
  return TRITONBACKEND_InputBuffer(input, 0, &tensor->data, &tensor->bytes, &kind, &id);
}

/* All buffers of an input, one after the other. */
static Error* copy_input(Input* input, const Tensor* tensor, char* into) {
  for (uint32_t at = 0; at < tensor->buffers; at++) {
    const void* base;
    uint64_t bytes;
    uint32_t kind = CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_InputBuffer(input, at, &base, &bytes, &kind, &id));
    memcpy(into, base, bytes);
    into += bytes;
  }
  return NULL;
}

static bool is_wanted(Request* request, const char* name) {
  uint32_t count = 0;
  TRITONBACKEND_RequestOutputCount(request, &count);
  for (uint32_t at = 0; at < count; at++) {
    const char* wanted = NULL;
    if (TRITONBACKEND_RequestOutputName(request, at, &wanted) == NULL && strcmp(wanted, name) == 0) return true;
  }
  return false;
}

static Error* place(Response* response, const char* name, const Tensor* like, uint64_t bytes, void** buffer) {
  Output* output;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, name, like->type, like->shape, like->dims));
  return TRITONBACKEND_OutputBuffer(output, buffer, bytes, &kind, &id);
}

/* The first input, and memory of its size for OUT. */
static Error* first_input_and_output(Request* request, Response* response, Tensor* tensor, void** buffer) {
  Input* input;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(read_input(input, tensor));
  return place(response, "OUT", tensor, tensor->bytes, buffer);
}

/* IN to OUT, whose memory is asked for twice: what the second call says is a parameter of the response. */
static Error* place_twice(Request* request, Response* response) {
  Input* input;
  Output* output;
  Tensor tensor;
  void *first, *second = NULL;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(read_input(input, &tensor));
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", tensor.type, tensor.shape, tensor.dims));
  TRY(TRITONBACKEND_OutputBuffer(output, &first, tensor.bytes, &kind, &id));
  Error* refused = TRITONBACKEND_OutputBuffer(output, &second, tensor.bytes, &kind, &id);
  if (refused == NULL || TRITONSERVER_ErrorCode(refused) != ALREADY_EXISTS)
    return TRITONSERVER_ErrorNew(INTERNAL, "an output has two buffers");
  memcpy(first, tensor.data, tensor.bytes);
  Error* error = TRITONBACKEND_ResponseSetStringParameter(response, "refused", TRITONSERVER_ErrorMessage(refused));
  TRITONSERVER_ErrorDelete(refused);
  return error;
}

/* IN, IN1, … to OUT, OUT1, … */
static Error* identity(Request* request, Response* response) {
  uint32_t count;
  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t at = 0; at < count; at++) {
    Input* input;
    Tensor tensor;
    char name[64];
    void* buffer;
    TRY(TRITONBACKEND_RequestInputByIndex(request, at, &input));
    TRY(read_input(input, &tensor));
    snprintf(name, sizeof name, "OUT%s", tensor.name + 2);
    if (!is_wanted(request, name)) continue;
    TRY(place(response, name, &tensor, tensor.bytes, &buffer));
    TRY(copy_input(input, &tensor, buffer));
  }
  return NULL;
}

/* OUT = IN + IN1, OUT1 = IN - IN1, of FP32 */
static Error* add_sub(Request* request, Response* response) {
  Input *first, *second;
  Tensor a, b;
  TRY(TRITONBACKEND_RequestInput(request, "IN", &first));
  TRY(TRITONBACKEND_RequestInput(request, "IN1", &second));
  TRY(read_input(first, &a));
  TRY(read_input(second, &b));
  if (a.type != TYPE_FP32 || a.bytes != b.bytes) return TRITONSERVER_ErrorNew(INVALID_ARG, "IN and IN1 differ");
  const float *x = a.data, *y = b.data;
  for (int sign = 1; sign >= -1; sign -= 2) {
    const char* name = sign > 0 ? "OUT" : "OUT1";
    void* buffer;
    if (!is_wanted(request, name)) continue;
    TRY(place(response, name, &a, a.bytes, &buffer));
    float* sum = buffer;
    for (size_t at = 0; at < a.bytes / sizeof *sum; at++) sum[at] = x[at] + (float)sign * y[at];
  }
  return NULL;
}

/* What the request says of itself goes back as parameters, beside its input. */
static Error* tell(Request* request, Response* response) {
  const char *id, *text, *name;
  uint64_t number = 0;
  uint32_t flags, count;
  char key[160];
  TRY(TRITONBACKEND_RequestId(request, &id));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "id", id));
  Error* refused = TRITONBACKEND_RequestCorrelationId(request, &number);
  if (refused != NULL) {
    TRY(TRITONBACKEND_ResponseSetStringParameter(response, "refused", TRITONSERVER_ErrorMessage(refused)));
    TRITONSERVER_ErrorDelete(refused);
    TRY(TRITONBACKEND_RequestCorrelationIdString(request, &text));
    TRY(TRITONBACKEND_ResponseSetStringParameter(response, "sequence", text));
  } else {
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, "sequence", (int64_t)number));
  }
  TRY(TRITONBACKEND_RequestFlags(request, &flags));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "flags", flags));
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t at = 0; at < count; at++) {
    uint32_t type;
    const void* value;
    TRY(TRITONBACKEND_RequestParameter(request, at, &name, &type, &value));
    snprintf(key, sizeof key, "got_%s", name);
    if (type == 0) TRY(TRITONBACKEND_ResponseSetStringParameter(response, key, value));
    if (type == 1) TRY(TRITONBACKEND_ResponseSetIntParameter(response, key, *(const int64_t*)value));
    if (type == 2) TRY(TRITONBACKEND_ResponseSetBoolParameter(response, key, *(const bool*)value));
    if (type == 3) TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, key, *(const double*)value));
  }
  uint32_t kind = CPU;
  int64_t place = 0;
  Error* unplaced = TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", NULL, &kind, &place);
  if (unplaced == NULL) {
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, "out_kind", kind));
  } else {
    TRITONSERVER_ErrorDelete(unplaced);
  }
  Input* none = NULL;
  Error* unknown = TRITONBACKEND_RequestInput(request, "nothing", &none);
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "unknown", TRITONSERVER_ErrorMessage(unknown)));
  TRITONSERVER_ErrorDelete(unknown);
  TRY(identity(request, response));
  uint32_t output_type, named_type;
  const int64_t *shape, *named_shape;
  uint64_t dims, named_dims;
  TRY(TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &output_type, &shape, &dims));
  TRY(TRITONBACKEND_InferenceResponseOutputByName(response, name, &named_type, &named_shape, &named_dims));
  if (output_type != named_type || dims != named_dims || dims != 1 || shape[0] != named_shape[0])
    return TRITONSERVER_ErrorNew(INTERNAL, "an output is told in two ways");
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "made", name));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "made_elements", shape[0]));
  Error* none_such = TRITONBACKEND_InferenceResponseOutputByName(response, "NONE", &named_type, &named_shape, &named_dims);
  if (none_such == NULL) return TRITONSERVER_ErrorNew(INTERNAL, "an output that is not there is told");
  TRITONSERVER_ErrorDelete(none_such);
  return NULL;
}

/* The configuration that the model was initialized with goes back beside its input. */
static Error* tell_config(Request* request, Response* response, const ModelState* state) {
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "config", state->config));
  return identity(request, response);
}

/* The input as it is for instances of this host policy. */
static Error* identity_by_policy(Instance* instance, Request* request, Response* response) {
  Message* message;
  const char* json;
  size_t size;
  char policy[64];
  TRY(TRITONBACKEND_ModelInstanceHostPolicy(instance, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  const char* end = memchr(json + 2, '"', size - 2);
  snprintf(policy, sizeof policy, "%.*s", end == NULL ? 0 : (int)(end - json - 2), json + 2);
  Input* input;
  Tensor tensor = {.data = NULL};
  void* buffer;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputPropertiesForHostPolicy(
      input, policy, &tensor.name, &tensor.type, &tensor.shape, &tensor.dims, &tensor.bytes, &tensor.buffers));
  TRY(place(response, "OUT", &tensor, tensor.bytes, &buffer));
  char* into = buffer;
  for (uint32_t at = 0; at < tensor.buffers; at++) {
    uint64_t bytes;
    uint32_t kind = CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_InputBufferForHostPolicy(input, policy, at, &tensor.data, &bytes, &kind, &id));
    memcpy(into, tensor.data, bytes);
    into += bytes;
  }
  return NULL;
}

/* Tells where its input and its output lie. */
static Error* tell_addresses(Request* request, Response* response) {
  Tensor tensor;
  void* buffer;
  TRY(first_input_and_output(request, response, &tensor, &buffer));
  memcpy(buffer, tensor.data, tensor.bytes);
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "in_address", (int64_t)(intptr_t)tensor.data));
  return TRITONBACKEND_ResponseSetIntParameter(response, "out_address", (int64_t)(intptr_t)buffer);
}

/* Tells how many executions, or initializations of instances, were under way at a time, at most. */
static Error* tell_most(Request* request, Response* response, ModelState* state) {
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "most", atomic_load(&state->most_running)));
  return identity(request, response);
}

/* Adds a point of its own to the request's trace. */
static Error* report_activity(Request* request, Response* response) {
  Trace* trace;
  TRY(TRITONBACKEND_RequestTrace(request, &trace));
  if (trace != NULL) TRY(TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "a point of its own"));
  return identity(request, response);
}

/* Takes as long as the model says, and tells how many executions of the model there were at a time, at most. */
static Error* crowd(Request* request, Response* response, ModelState* state) {
  begin_counted(state);
  usleep((useconds_t)state->delay_ms * 1000);
  atomic_fetch_sub(&state->running, 1);
  return tell_most(request, response, state);
}

/* Reads its input for as long as the model says, and answers with the sum of its bytes. While the file of the parameter `gate` exists, it reads on for a
 * minute at most, and a byte in the file says that it has begun. The whole input is read once more after the file is gone. */
static Error* read_long(Request* request, Response* response, const ModelState* state) {
  Tensor tensor;
  void* buffer;
  TRY(first_input_and_output(request, response, &tensor, &buffer));
  volatile const unsigned char* bytes = tensor.data;
  uint64_t begun = now_ns(), end = begun + (uint64_t)state->delay_ms * 1000000u;
  unsigned sum = 0;
  bool is_held;
  FILE* gate = fopen(state->gate, "r+");
  if (gate != NULL) {
    fputc('.', gate);
    fclose(gate);
  }
  do {
    is_held = access(state->gate, F_OK) == 0 && now_ns() < begun + 60000000000u;
    for (uint64_t at = 0; at < tensor.bytes; at += 1024) sum += bytes[at];
    usleep(1000);
  } while (is_held || now_ns() < end);
  memset(buffer, (int)(sum & 1), tensor.bytes);
  return NULL;
}

/* The first element of IN says how the process ends, if it does. */
static Error* die(Request* request, Response* response) {
  Input* input;
  Tensor tensor;
  float how;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(read_input(input, &tensor));
  memcpy(&how, tensor.data, sizeof how);
  if (how == 1) *(volatile int*)16 = 1;
  if (how == 2) {
    fputs("sample: aborts on purpose\n", stderr);
    abort();
  }
  if (how == 3) _exit(7);
  return identity(request, response);
}

/* Writes to the standard error for as many milliseconds as the first element of IN says. */
static Error* noise(Request* request, Response* response) {
  Input* input;
  Tensor tensor;
  float ms;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(read_input(input, &tensor));
  memcpy(&ms, tensor.data, sizeof ms);
  uint64_t end = now_ns() + (uint64_t)ms * 1000000u;
  while (now_ns() < end) fputs("sample: noise noise noise noise noise noise noise noise noise\n", stderr);
  return identity(request, response);
}

/* Reads behind the end of memory of its own, for a tool that has to see that. */
static Error* overrun(Request* request, Response* response) {
  volatile unsigned char* own = malloc(8);
  volatile size_t at = 8;
  unsigned char found = own[at];
  free((void*)own);
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "found", found));
  return identity(request, response);
}

static void report(Instance* instance, Request* request, bool success, uint64_t start) {
  uint64_t end = now_ns();
  LOG_IF_ERROR(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, success, start, start, end, end));
  LOG_IF_ERROR(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, start, start, end, end));
}

/* Each element of IN as a response of its own, from another thread, after the request was given back. */
typedef struct {
  Factory* factory;
  int32_t* elements;
  size_t count;
} Repeat;

static Error* repeat_one(Factory* factory, int32_t element) {
  static const int64_t one = 1;
  const Tensor like = {.type = TYPE_INT32, .dims = 1, .shape = &one};
  Response* response;
  void* buffer;
  TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  TRY(place(response, "OUT", &like, sizeof element, &buffer));
  memcpy(buffer, &element, sizeof element);
  return TRITONBACKEND_ResponseSend(response, 0, NULL);
}

static void* repeat(void* argument) {
  Repeat* work = argument;
  bool is_cancelled = false;
  for (size_t at = 0; at < work->count && !is_cancelled; at++) {
    LOG_IF_ERROR(repeat_one(work->factory, work->elements[at]));
    LOG_IF_ERROR(TRITONBACKEND_ResponseFactoryIsCancelled(work->factory, &is_cancelled));
  }
  LOG_IF_ERROR(TRITONBACKEND_ResponseFactorySendFlags(work->factory, FINAL));
  LOG_IF_ERROR(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work->elements);
  free(work);
  return NULL;
}

static Error* start_repeat(Instance* instance, Request* request, uint64_t start) {
  Input* input;
  Tensor tensor;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(read_input(input, &tensor));
  Repeat* work = calloc(1, sizeof *work);
  work->count = tensor.bytes / sizeof *work->elements;
  work->elements = malloc(tensor.bytes + 1);
  if (tensor.bytes > 0) memcpy(work->elements, tensor.data, tensor.bytes);
  TRY(TRITONBACKEND_ResponseFactoryNew(&work->factory, request));
  report(instance, request, true, start);
  LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
  pthread_t thread;
  if (pthread_create(&thread, NULL, repeat, work) != 0) return TRITONSERVER_ErrorNew(INTERNAL, "no thread");
  pthread_detach(thread);
  return NULL;
}

/* Answers on another thread, and has the request for a while after that. */
typedef struct {
  Instance* instance;
  Request* request;
  ModelState* state;
} Late;

static void* answer_late(void* argument) {
  Late* work = argument;
  uint64_t start = now_ns();
  Response* response = NULL;
  Input* input;
  Tensor tensor = {.bytes = 0};
  volatile unsigned sum = 0;
  LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, work->request));
  Error* error = identity(work->request, response);
  LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
  usleep((useconds_t)work->state->delay_ms * 1000);
  LOG_IF_ERROR(TRITONBACKEND_RequestInputByIndex(work->request, 0, &input));
  LOG_IF_ERROR(read_input(input, &tensor));
  for (uint64_t at = 0; at < tensor.bytes; at++) sum += ((const unsigned char*)tensor.data)[at];
  report(work->instance, work->request, error == NULL, start);
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  LOG_IF_ERROR(TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, "a request is released late"));
  atomic_fetch_sub(&work->state->held, 1);
  LOG_IF_ERROR(TRITONBACKEND_RequestRelease(work->request, RELEASE_ALL));
  free(work);
  return NULL;
}

static Error* start_late(Instance* instance, ModelState* state, Request* request) {
  if (state->has_thread) pthread_join(state->thread, NULL);
  Late* work = calloc(1, sizeof *work);
  *work = (Late){.instance = instance, .request = request, .state = state};
  atomic_fetch_add(&state->held, 1);
  state->has_thread = pthread_create(&state->thread, NULL, answer_late, work) == 0;
  return state->has_thread ? NULL : TRITONSERVER_ErrorNew(INTERNAL, "no thread");
}

static void answer(Instance* instance, ModelState* state, Request* request) {
  uint64_t start = now_ns();
  const char* mode = state->mode;
  if (strcmp(mode, "repeat") == 0) {
    LOG_IF_ERROR(start_repeat(instance, request, start));
    return;
  }
  if (strcmp(mode, "late") == 0) {
    LOG_IF_ERROR(start_late(instance, state, request));
    return;
  }
  Response* response = NULL;
  LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
  Error* error = strcmp(mode, "add_sub") == 0     ? add_sub(request, response)
                 : strcmp(mode, "tell") == 0      ? tell(request, response)
                 : strcmp(mode, "overrun") == 0   ? overrun(request, response)
                 : strcmp(mode, "die") == 0       ? die(request, response)
                 : strcmp(mode, "noise") == 0     ? noise(request, response)
                 : strcmp(mode, "place_twice") == 0 ? place_twice(request, response)
                 : strcmp(mode, "read_long") == 0 ? read_long(request, response, state)
                 : strcmp(mode, "config") == 0    ? tell_config(request, response, state)
                 : strcmp(mode, "crowd") == 0     ? crowd(request, response, state)
                 : strcmp(mode, "crowd_at_load") == 0 ? tell_most(request, response, state)
                 : strcmp(mode, "addresses") == 0 ? tell_addresses(request, response)
                 : strcmp(mode, "by_policy") == 0 ? identity_by_policy(instance, request, response)
                 : strcmp(mode, "reports") == 0   ? report_activity(request, response)
                 : strcmp(mode, "fail") == 0 || strcmp(mode, "answer_error") == 0 ? TRITONSERVER_ErrorNew(INVALID_ARG, "fails on purpose")
                                                  : identity(request, response);
  /* An error may be the answer that the backend wants to give. */
  bool success = error == NULL || strcmp(mode, "answer_error") == 0;
  if (strcmp(mode, "throw_away") == 0) {
    LOG_IF_ERROR(TRITONBACKEND_ResponseDelete(response));
  } else {
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
  }
  if (strcmp(mode, "twice") == 0) {
    /* The same response, and another one after the last. */
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
    LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
  }
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  report(instance, request, success, start);
  if (strcmp(mode, "leak") != 0) LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
  if (strcmp(mode, "release_twice") == 0) {
    const char* id;
    LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
    LOG_IF_ERROR(TRITONBACKEND_RequestId(request, &id));
  }
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  void* found;
  TRY(TRITONBACKEND_ModelInstanceState(instance, &found));
  ModelState* state = found;
  if (strcmp(state->mode, "refuse") == 0) return TRITONSERVER_ErrorNew(UNAVAILABLE, "the batch is refused on purpose");
  if (state->executions != NULL) LOG_IF_ERROR(TRITONSERVER_MetricIncrement(state->executions, 1));
  for (uint32_t at = 0; at < count; at++) answer(instance, state, requests[at]);
  return NULL;
}

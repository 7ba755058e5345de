/* Does each function work that the Python, identity and ONNX Runtime backends import, and some more, and is its misuse refused?
 *
 * Each request calls the functions, first as the interface says, then with NULL and with objects that are not there any more. OUT is one text, a line
 * for each finding since the library was loaded: `good NAME`, `bad NAME CODE` for an error that was wanted, or `wrong NAME: why`. The names whose misuse
 * is tried are one text, the request's parameter `names`. What is found after the request was given back is in the answer to the next one.
 */
#include "findings.h"

static void errors(void) {
  Error* error = TRITONSERVER_ErrorNew(NOT_FOUND, "not there");
  HOLDS(TRITONSERVER_ErrorNew, error != NULL);
  HOLDS(TRITONSERVER_ErrorCode, TRITONSERVER_ErrorCode(error) == NOT_FOUND && TRITONSERVER_ErrorCode(NULL) == UNKNOWN);
  HOLDS(TRITONSERVER_ErrorCodeString, strcmp(TRITONSERVER_ErrorCodeString(error), "Not found") == 0);
  HOLDS(TRITONSERVER_ErrorMessage, strcmp(TRITONSERVER_ErrorMessage(error), "not there") == 0);
  TRITONSERVER_ErrorDelete(error);
  /* A deleted error has no text, and deleting it again does nothing. */
  HOLDS(TRITONSERVER_ErrorDelete, strcmp(TRITONSERVER_ErrorMessage(error), "") == 0);
  TRITONSERVER_ErrorDelete(error);
  TRITONSERVER_ErrorDelete(NULL);
}

static void words(void) {
  HOLDS(TRITONSERVER_LogIsEnabled, TRITONSERVER_LogIsEnabled(ERROR));
  GOOD(TRITONSERVER_LogMessage, INFO, __FILE__, __LINE__, "every function is called");
  HOLDS(TRITONSERVER_DataTypeString, strcmp(TRITONSERVER_DataTypeString(TYPE_FP32), "FP32") == 0);
  HOLDS(TRITONSERVER_DataTypeString, strcmp(TRITONSERVER_DataTypeString(99), "<invalid>") == 0);
  HOLDS(TRITONSERVER_StringToDataType, TRITONSERVER_StringToDataType("BYTES") == TYPE_BYTES);
  HOLDS(TRITONSERVER_StringToDataType, TRITONSERVER_StringToDataType("none") == 0 && TRITONSERVER_StringToDataType(NULL) == 0);
  HOLDS(TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeByteSize(TYPE_FP32) == 4 && TRITONSERVER_DataTypeByteSize(TYPE_BYTES) == 0);
  HOLDS(TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeByteSize(99) == 0);
  HOLDS(TRITONSERVER_MemoryTypeString, strcmp(TRITONSERVER_MemoryTypeString(CPU_PINNED), "CPU_PINNED") == 0);
  HOLDS(TRITONSERVER_MemoryTypeString, strcmp(TRITONSERVER_MemoryTypeString(9), "<invalid>") == 0);
  HOLDS(TRITONSERVER_InstanceGroupKindString, strcmp(TRITONSERVER_InstanceGroupKindString(1), "CPU") == 0);
  HOLDS(TRITONSERVER_InstanceGroupKindString, strcmp(TRITONSERVER_InstanceGroupKindString(9), "<invalid>") == 0);
}

static void messages(void) {
  const char* json;
  size_t size;
  GOOD(TRITONSERVER_MessageNewFromSerializedJson, &last.message, "{\"a\":1}", 7);
  GOOD(TRITONSERVER_MessageSerializeToJson, last.message, &json, &size);
  HOLDS(TRITONSERVER_MessageSerializeToJson, size == 7 && memcmp(json, "{\"a\":1}", 7) == 0);
  GOOD(TRITONSERVER_MessageDelete, last.message);
  Message* none;
  BAD(INVALID_ARG, TRITONSERVER_MessageNewFromSerializedJson, &none, "{\"a\"", 4);

  Parameter* text = TRITONSERVER_ParameterNew("key", 0, "value");
  Parameter* bytes = TRITONSERVER_ParameterBytesNew("key", report, sizeof report);
  HOLDS(TRITONSERVER_ParameterNew, text != NULL);
  HOLDS(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("key", 99, "value") == NULL && TRITONSERVER_ParameterNew(NULL, 0, "value") == NULL);
  HOLDS(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("key", 0, NULL) == NULL);
  HOLDS(TRITONSERVER_ParameterBytesNew, bytes != NULL);
  TRITONSERVER_ParameterDelete(bytes);
  TRITONSERVER_ParameterDelete(text);
  TRITONSERVER_ParameterDelete(text);
  TRITONSERVER_ParameterDelete(NULL);
  HOLDS(TRITONSERVER_ParameterDelete, true);
}

static void metrics(void) {
  static const double bounds[] = {1, 10};
  uint32_t kind;
  double value;
  Parameter* label = TRITONSERVER_ParameterNew("of", 0, "every");
  const Parameter* labels[] = {label};
  GOOD(TRITONSERVER_MetricFamilyNew, &last.family, 1, "every_gauge", "A gauge");
  GOOD(TRITONSERVER_GetMetricFamilyKind, last.family, &kind);
  HOLDS(TRITONSERVER_GetMetricFamilyKind, kind == 1);
  GOOD(TRITONSERVER_MetricNew, &last.metric, last.family, labels, 1);
  GOOD(TRITONSERVER_GetMetricKind, last.metric, &kind);
  HOLDS(TRITONSERVER_GetMetricKind, kind == 1);
  GOOD(TRITONSERVER_MetricSet, last.metric, 5);
  GOOD(TRITONSERVER_MetricIncrement, last.metric, -2);
  GOOD(TRITONSERVER_MetricValue, last.metric, &value);
  HOLDS(TRITONSERVER_MetricValue, value == 3);
  BAD(UNSUPPORTED, TRITONSERVER_MetricObserve, last.metric, 1);
  BAD(INTERNAL, TRITONSERVER_MetricFamilyDelete, last.family);
  GOOD(TRITONSERVER_MetricDelete, last.metric);
  GOOD(TRITONSERVER_MetricFamilyDelete, last.family);

  GOOD(TRITONSERVER_MetricFamilyNew, &last.family, 2, "every_histogram", "A histogram");
  GOOD(TRITONSERVER_MetricArgsNew, &last.args);
  GOOD(TRITONSERVER_MetricArgsSetHistogram, last.args, bounds, 2);
  GOOD(TRITONSERVER_MetricNewWithArgs, &last.metric, last.family, labels, 1, last.args);
  GOOD(TRITONSERVER_GetMetricKind, last.metric, &kind);
  HOLDS(TRITONSERVER_GetMetricKind, kind == 2);
  GOOD(TRITONSERVER_MetricArgsDelete, last.args);
  GOOD(TRITONSERVER_MetricObserve, last.metric, 3);
  BAD(UNSUPPORTED, TRITONSERVER_MetricSet, last.metric, 1);
  BAD(UNSUPPORTED, TRITONSERVER_MetricIncrement, last.metric, 1);
  BAD(UNSUPPORTED, TRITONSERVER_MetricValue, last.metric, &value);
  GOOD(TRITONSERVER_MetricDelete, last.metric);
  GOOD(TRITONSERVER_MetricFamilyDelete, last.family);
  TRITONSERVER_ParameterDelete(label);
}

/* Whether the attributes are those of so many bytes of the host. */
static bool tells_host(BufferAttributes* told, size_t expected) {
  uint32_t kind = 99;
  int64_t id = 99;
  size_t bytes = expected + 1;
  void* handle = report;
  GOOD(TRITONSERVER_BufferAttributesMemoryType, told, &kind);
  GOOD(TRITONSERVER_BufferAttributesMemoryTypeId, told, &id);
  GOOD(TRITONSERVER_BufferAttributesByteSize, told, &bytes);
  GOOD(TRITONSERVER_BufferAttributesCudaIpcHandle, told, &handle);
  return kind == CPU && id == 0 && bytes == expected && handle == NULL;
}

static void attributes(void) {
  uint32_t kind = 99;
  int64_t id = 99;
  size_t bytes = 0;
  void* handle = report;
  GOOD(TRITONSERVER_BufferAttributesNew, &last.buffer);
  GOOD(TRITONSERVER_BufferAttributesSetMemoryType, last.buffer, CPU);
  GOOD(TRITONSERVER_BufferAttributesSetMemoryTypeId, last.buffer, 0);
  GOOD(TRITONSERVER_BufferAttributesSetByteSize, last.buffer, 1234);
  GOOD(TRITONSERVER_BufferAttributesCudaIpcHandle, last.buffer, &handle);
  HOLDS(TRITONSERVER_BufferAttributesCudaIpcHandle, handle == NULL);
  LOG_IF_ERROR(TRITONSERVER_BufferAttributesByteSize(last.buffer, &bytes));
  HOLDS(TRITONSERVER_BufferAttributesSetByteSize, bytes == 1234);
  LOG_IF_ERROR(TRITONSERVER_BufferAttributesSetMemoryType(last.buffer, GPU));
  LOG_IF_ERROR(TRITONSERVER_BufferAttributesSetMemoryTypeId(last.buffer, 3));
  GOOD(TRITONSERVER_BufferAttributesMemoryType, last.buffer, &kind);
  GOOD(TRITONSERVER_BufferAttributesMemoryTypeId, last.buffer, &id);
  HOLDS(TRITONSERVER_BufferAttributesSetMemoryType, kind == GPU);
  HOLDS(TRITONSERVER_BufferAttributesSetMemoryTypeId, id == 3);
  GOOD(TRITONSERVER_BufferAttributesSetCudaIpcHandle, last.buffer, report);
  GOOD(TRITONSERVER_BufferAttributesCudaIpcHandle, last.buffer, &handle);
  HOLDS(TRITONSERVER_BufferAttributesSetCudaIpcHandle, handle != NULL && memcmp(handle, report, 64) == 0);
  GOOD(TRITONBACKEND_ModelReportMemoryUsage, last.model, &last.buffer, 1);
  GOOD(TRITONBACKEND_ModelInstanceReportMemoryUsage, last.instance, &last.buffer, 1);
  GOOD(TRITONSERVER_BufferAttributesDelete, last.buffer);
  /* Attributes that are not there any more, among those that a report names. */
  BAD(INVALID_ARG, TRITONBACKEND_ModelReportMemoryUsage, last.model, &last.buffer, 1);
  BAD(INVALID_ARG, TRITONBACKEND_ModelInstanceReportMemoryUsage, last.instance, &last.buffer, 1);
}

static void backend_itself(Backend* backend) {
  const char *name, *folder, *json;
  uint32_t major, minor, kind;
  size_t size;
  Message* config;
  MemoryManager* manager;
  void* memory = NULL;
  GOOD(TRITONBACKEND_ApiVersion, &major, &minor);
  HOLDS(TRITONBACKEND_ApiVersion, major == 1 && minor >= 19);
  GOOD(TRITONBACKEND_BackendName, backend, &name);
  HOLDS(TRITONBACKEND_BackendName, strcmp(name, "every") == 0);
  GOOD(TRITONBACKEND_BackendConfig, backend, &config);
  LOG_IF_ERROR(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
  HOLDS(TRITONBACKEND_BackendConfig, size > 0 && memmem(json, size, "cmdline", 7) != NULL);
  GOOD(TRITONBACKEND_BackendArtifacts, backend, &kind, &folder);
  HOLDS(TRITONBACKEND_BackendArtifacts, kind == 0 && access(folder, R_OK) == 0);
  GOOD(TRITONBACKEND_BackendSetExecutionPolicy, backend, DEVICE_BLOCKING);
  GOOD(TRITONBACKEND_BackendExecutionPolicy, backend, &kind);
  HOLDS(TRITONBACKEND_BackendExecutionPolicy, kind == DEVICE_BLOCKING);
  GOOD(TRITONBACKEND_BackendSetExecutionPolicy, backend, BLOCKING);
  GOOD(TRITONBACKEND_BackendExecutionPolicy, backend, &kind);
  HOLDS(TRITONBACKEND_BackendExecutionPolicy, kind == BLOCKING);
  BAD(INVALID_ARG, TRITONBACKEND_BackendSetExecutionPolicy, backend, 2);
  GOOD(TRITONBACKEND_BackendMemoryManager, backend, &manager);
  GOOD(TRITONBACKEND_MemoryManagerAllocate, manager, &memory, CPU, 0, 100);
  memset(memory, 1, 100);
  GOOD(TRITONBACKEND_MemoryManagerFree, manager, memory, CPU, 0);
  BAD(UNSUPPORTED, TRITONBACKEND_MemoryManagerAllocate, manager, &memory, GPU, 0, 100);
  BAD(INVALID_ARG, TRITONBACKEND_MemoryManagerAllocate, manager, &memory, 99, 0, 100);
  BAD(UNAVAILABLE, TRITONBACKEND_MemoryManagerAllocate, manager, &memory, CPU, 0, UINT64_MAX);
  GOOD(TRITONBACKEND_BackendSetState, backend, report);
  GOOD(TRITONBACKEND_BackendState, backend, &memory);
  HOLDS(TRITONBACKEND_BackendState, memory == report);
}

Error* TRITONBACKEND_Initialize(Backend* backend) {
  last.backend = backend;
  backend_itself(backend);
  return NULL;
}

Error* TRITONBACKEND_GetBackendAttribute(Backend* backend, Attributes* attributes) {
  static const uint64_t devices[] = {0};
  (void)backend;
  last.attributes = attributes;
  GOOD(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup, attributes, 1, 1, devices, 1);
  GOOD(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading, attributes, true);
  return NULL;
}

Error* TRITONBACKEND_ModelInitialize(Model* model) {
  const char *name, *folder;
  uint64_t version;
  uint32_t kind;
  bool completes;
  void* state = NULL;
  Message* config;
  Backend* backend;
  last.model = model;
  GOOD(TRITONBACKEND_ModelName, model, &name);
  HOLDS(TRITONBACKEND_ModelName, strcmp(name, "every") == 0);
  GOOD(TRITONBACKEND_ModelVersion, model, &version);
  HOLDS(TRITONBACKEND_ModelVersion, version == 1);
  GOOD(TRITONBACKEND_ModelRepository, model, &kind, &folder);
  HOLDS(TRITONBACKEND_ModelRepository, kind == 0 && access(folder, R_OK) == 0);
  GOOD(TRITONBACKEND_ModelAutoCompleteConfig, model, &completes);
  GOOD(TRITONBACKEND_ModelConfig, model, 1, &config);
  GOOD(TRITONBACKEND_ModelSetConfig, model, 1, config);
  BAD(INVALID_ARG, TRITONBACKEND_ModelConfig, model, 2, &config);
  BAD(INVALID_ARG, TRITONBACKEND_ModelSetConfig, model, 2, config);
  LOG_IF_ERROR(TRITONSERVER_MessageDelete(config));
  BAD(INVALID_ARG, TRITONBACKEND_ModelSetConfig, model, 1, config);
  GOOD(TRITONBACKEND_ModelServer, model, &last.server);
  GOOD(TRITONBACKEND_ModelBackend, model, &backend);
  HOLDS(TRITONBACKEND_ModelBackend, backend == last.backend);
  GOOD(TRITONBACKEND_ModelSetState, model, report);
  GOOD(TRITONBACKEND_ModelState, model, &state);
  HOLDS(TRITONBACKEND_ModelState, state == report);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceInitialize(Instance* instance) {
  const char *name, *json;
  uint32_t kind;
  int32_t device;
  size_t size;
  void* state = NULL;
  Message* policy;
  Model* model;
  bool is_passive = true;
  uint32_t count = 99;
  int64_t id;
  last.instance = instance;
  GOOD(TRITONBACKEND_ModelInstanceName, instance, &name);
  HOLDS(TRITONBACKEND_ModelInstanceName, strcmp(name, "every_0") == 0);
  GOOD(TRITONBACKEND_ModelInstanceKind, instance, &kind);
  HOLDS(TRITONBACKEND_ModelInstanceKind, kind == 1);
  GOOD(TRITONBACKEND_ModelInstanceDeviceId, instance, &device);
  HOLDS(TRITONBACKEND_ModelInstanceDeviceId, device == 0);
  GOOD(TRITONBACKEND_ModelInstanceHostPolicy, instance, &policy);
  LOG_IF_ERROR(TRITONSERVER_MessageSerializeToJson(policy, &json, &size));
  HOLDS(TRITONBACKEND_ModelInstanceHostPolicy, size > 1 && json[0] == '{');
  GOOD(TRITONBACKEND_ModelInstanceIsPassive, instance, &is_passive);
  HOLDS(TRITONBACKEND_ModelInstanceIsPassive, !is_passive);
  GOOD(TRITONBACKEND_ModelInstanceProfileCount, instance, &count);
  HOLDS(TRITONBACKEND_ModelInstanceProfileCount, count == 0);
  BAD(INVALID_ARG, TRITONBACKEND_ModelInstanceProfileName, instance, 0, &name);
  count = 99;
  GOOD(TRITONBACKEND_ModelInstanceSecondaryDeviceCount, instance, &count);
  HOLDS(TRITONBACKEND_ModelInstanceSecondaryDeviceCount, count == 0);
  BAD(INVALID_ARG, TRITONBACKEND_ModelInstanceSecondaryDeviceProperties, instance, 0, &name, &id);
  GOOD(TRITONBACKEND_ModelInstanceModel, instance, &model);
  HOLDS(TRITONBACKEND_ModelInstanceModel, model == last.model);
  GOOD(TRITONBACKEND_ModelInstanceSetState, instance, report);
  GOOD(TRITONBACKEND_ModelInstanceState, instance, &state);
  HOLDS(TRITONBACKEND_ModelInstanceState, state == report);
  return NULL;
}

/* The names whose misuse is tried, and whether the sequence has a text for a name. */
typedef struct {
  const char* names;
  bool has_text;
} Wish;

static void request_itself(Request* request, Wish* wish) {
  const char *text, *key, *name;
  uint64_t number;
  uint32_t flags, count, type;
  const void* value;
  bool is_cancelled = true;
  GOOD(TRITONBACKEND_RequestId, request, &text);
  HOLDS(TRITONBACKEND_RequestId, strcmp(text, "mine") == 0);
  Error* refused = TRITONBACKEND_RequestCorrelationId(request, &number);
  wish->has_text = refused != NULL;
  if (wish->has_text) {
    bad("TRITONBACKEND_RequestCorrelationId", INVALID_ARG, refused);
    GOOD(TRITONBACKEND_RequestCorrelationIdString, request, &text);
    HOLDS(TRITONBACKEND_RequestCorrelationIdString, strcmp(text, "by name") == 0);
  } else {
    HOLDS(TRITONBACKEND_RequestCorrelationId, number > 0);
    BAD(INVALID_ARG, TRITONBACKEND_RequestCorrelationIdString, request, &text);
  }
  GOOD(TRITONBACKEND_RequestFlags, request, &flags);
  HOLDS(TRITONBACKEND_RequestFlags, flags == 3);
  GOOD(TRITONBACKEND_RequestIsCancelled, request, &is_cancelled);
  HOLDS(TRITONBACKEND_RequestIsCancelled, !is_cancelled);
  GOOD(TRITONBACKEND_InferenceRequestTimeoutMicroseconds, request, &number);
  HOLDS(TRITONBACKEND_InferenceRequestTimeoutMicroseconds, number == 60000000);
  GOOD(TRITONBACKEND_RequestParameterCount, request, &count);
  for (uint32_t at = 0; at < count; at++) {
    GOOD(TRITONBACKEND_RequestParameter, request, at, &key, &type, &value);
    if (strcmp(key, "names") == 0 && type == 0) wish->names = value;
  }
  HOLDS(TRITONBACKEND_RequestParameter, wish->names != NULL);
  BAD(INVALID_ARG, TRITONBACKEND_RequestParameter, request, count, &key, &type, &value);
  GOOD(TRITONBACKEND_RequestInputCount, request, &count);
  BAD(INVALID_ARG, TRITONBACKEND_RequestInputName, request, count, &name);
  BAD(INVALID_ARG, TRITONBACKEND_RequestInputByIndex, request, count, &last.input);
  BAD(INVALID_ARG, TRITONBACKEND_RequestInput, request, "nothing", &last.input);
  GOOD(TRITONBACKEND_RequestInputByIndex, request, 0, &last.input);
  GOOD(TRITONBACKEND_RequestInputName, request, 0, &name);
  GOOD(TRITONBACKEND_RequestInput, request, "IN", &last.input);
  GOOD(TRITONBACKEND_RequestOutputCount, request, &count);
  HOLDS(TRITONBACKEND_RequestOutputCount, count == 1);
  GOOD(TRITONBACKEND_RequestOutputName, request, 0, &name);
  HOLDS(TRITONBACKEND_RequestOutputName, strcmp(name, "OUT") == 0);
  BAD(INVALID_ARG, TRITONBACKEND_RequestOutputName, request, count, &name);
}

static void input_itself(Input* input) {
  const char* name;
  uint32_t type, dims, buffers, kind = CPU;
  const int64_t* shape;
  uint64_t bytes;
  int64_t id = 0;
  const void *base, *same;
  BufferAttributes* told;
  GOOD(TRITONBACKEND_InputProperties, input, &name, &type, &shape, &dims, &bytes, &buffers);
  HOLDS(TRITONBACKEND_InputProperties, strcmp(name, "IN") == 0 && type == TYPE_FP32 && dims == 1 && shape[0] == 4 && bytes == 16 && buffers == 1);
  GOOD(TRITONBACKEND_InputProperties, input, NULL, NULL, NULL, NULL, NULL, NULL);
  GOOD(TRITONBACKEND_InputPropertiesForHostPolicy, input, "default", &name, &type, &shape, &dims, &bytes, &buffers);
  HOLDS(TRITONBACKEND_InputPropertiesForHostPolicy, dims == 1 && shape[0] == 4 && bytes == 16);
  GOOD(TRITONBACKEND_InputBuffer, input, 0, &base, &bytes, &kind, &id);
  HOLDS(TRITONBACKEND_InputBuffer, bytes == 16 && kind == CPU && ((const float*)base)[3] == 4);
  GOOD(TRITONBACKEND_InputBufferForHostPolicy, input, "default", 0, &same, &bytes, &kind, &id);
  HOLDS(TRITONBACKEND_InputBufferForHostPolicy, same == base && bytes == 16);
  GOOD(TRITONBACKEND_InputBufferAttributes, input, 0, &same, &told);
  HOLDS(TRITONBACKEND_InputBufferAttributes, same == base && tells_host(told, 16));
  /* A buffer that is not there is empty. */
  GOOD(TRITONBACKEND_InputBuffer, input, 1, &same, &bytes, &kind, &id);
  HOLDS(TRITONBACKEND_InputBuffer, same == NULL && bytes == 0);
  same = base;
  GOOD(TRITONBACKEND_InputBufferForHostPolicy, input, "default", 1, &same, &bytes, &kind, &id);
  HOLDS(TRITONBACKEND_InputBufferForHostPolicy, same == NULL && bytes == 0);
  BAD(INVALID_ARG, TRITONBACKEND_InputBufferAttributes, input, 1, &base, &told);
}

static void states(Request* request) {
  static const int64_t one = 1;
  uint32_t kind = CPU;
  int64_t id = 0;
  void* place;
  State* none;
  GOOD(TRITONBACKEND_StateNew, &last.state, request, "SUM_OUT", TYPE_FP32, &one, 1);
  GOOD(TRITONBACKEND_StateBuffer, last.state, &place, 4, &kind, &id);
  memset(place, 0, 4);
  GOOD(TRITONBACKEND_StateUpdate, last.state);
  BAD(INVALID_ARG, TRITONBACKEND_StateNew, &none, request, "NONE", TYPE_FP32, &one, 1);
  BAD(INVALID_ARG, TRITONBACKEND_StateNew, &none, request, "SUM_OUT", 99, &one, 1);
}

/* What is asked of the model `plain`, by its callbacks. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t over;
  int left, freed;
} Work;

static Error* allocate(Allocator* allocator, const char* output, size_t bytes, uint32_t kind, int64_t id, void* userp, void** buffer,
                       void** buffer_userp, uint32_t* actual_kind, int64_t* actual_id) {
  (void)allocator, (void)output, (void)kind, (void)id;
  *buffer = malloc(bytes);
  *buffer_userp = userp;
  *actual_kind = CPU;
  *actual_id = 0;
  return NULL;
}

static Error* free_memory(Allocator* allocator, void* buffer, void* buffer_userp, size_t bytes, uint32_t kind, int64_t id) {
  (void)allocator, (void)kind, (void)id, (void)bytes;
  ((Work*)buffer_userp)->freed += 1;
  free(buffer);
  return NULL;
}

static Error* query(Allocator* allocator, void* userp, const char* output, size_t* bytes, uint32_t* kind, int64_t* id) {
  (void)allocator, (void)userp, (void)output, (void)bytes;
  *kind = CPU;
  *id = 0;
  return NULL;
}

static void one_less(Work* work) {
  pthread_mutex_lock(&work->lock);
  work->left -= 1;
  pthread_cond_signal(&work->over);
  pthread_mutex_unlock(&work->lock);
}

static void respond(Answer* answer, uint32_t flags, void* userp) {
  if (answer != NULL) last.answer = answer;
  if (flags & FINAL) one_less(userp);
}

static void give_back(Asked* asked, uint32_t flags, void* userp) {
  (void)asked;
  if (flags & RELEASE_ALL) one_less(userp);
}

static void answer_itself(Answer* answer, Work* work) {
  uint32_t count, type, kind;
  int64_t id;
  uint64_t dims;
  size_t bytes;
  const char* name;
  const void *value, *base;
  const int64_t* shape;
  void* userp;
  HOLDS(TRITONSERVER_InferenceResponseError, TRITONSERVER_InferenceResponseError(answer) == NULL);
  GOOD(TRITONSERVER_InferenceResponseParameterCount, answer, &count);
  HOLDS(TRITONSERVER_InferenceResponseParameterCount, count > 0);
  GOOD(TRITONSERVER_InferenceResponseParameter, answer, 0, &name, &type, &value);
  BAD(INVALID_ARG, TRITONSERVER_InferenceResponseParameter, answer, count, &name, &type, &value);
  GOOD(TRITONSERVER_InferenceResponseOutputCount, answer, &count);
  HOLDS(TRITONSERVER_InferenceResponseOutputCount, count == 1);
  GOOD(TRITONSERVER_InferenceResponseOutput, answer, 0, &name, &type, &shape, &dims, &base, &bytes, &kind, &id, &userp);
  HOLDS(TRITONSERVER_InferenceResponseOutput, strcmp(name, "OUT") == 0 && shape[0] == 4 && bytes == 16 && ((const float*)base)[3] == 4);
  HOLDS(TRITONSERVER_InferenceResponseOutput, userp == work);
  BAD(INVALID_ARG, TRITONSERVER_InferenceResponseOutput, answer, 1, &name, &type, &shape, &dims, &base, &bytes, &kind, &id, &userp);
  GOOD(TRITONSERVER_InferenceResponseDelete, answer);
  HOLDS(TRITONSERVER_InferenceResponseDelete, work->freed == 1);
  BAD(INVALID_ARG, TRITONSERVER_InferenceResponseDelete, answer);
  bad("TRITONSERVER_InferenceResponseError", INVALID_ARG, TRITONSERVER_InferenceResponseError(answer));
}

static void fill(Asked* asked, bool has_text) {
  static const float values[] = {1, 2, 3, 4};
  static const int64_t four = 4;
  static char long_text[200];
  memset(long_text, 'x', sizeof long_text - 1);
  GOOD(TRITONSERVER_InferenceRequestSetId, asked, "asked");
  GOOD(TRITONSERVER_InferenceRequestSetFlags, asked, 3);
  GOOD(TRITONSERVER_InferenceRequestSetCorrelationId, asked, 7);
  if (has_text) GOOD(TRITONSERVER_InferenceRequestSetCorrelationIdString, asked, "seven");
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestSetCorrelationIdString, asked, long_text);
  GOOD(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds, asked, 60000000);
  GOOD(TRITONSERVER_InferenceRequestSetStringParameter, asked, "said", "by every");
  GOOD(TRITONSERVER_InferenceRequestSetIntParameter, asked, "count", 7);
  GOOD(TRITONSERVER_InferenceRequestSetBoolParameter, asked, "yes", true);
  GOOD(TRITONSERVER_InferenceRequestAddInput, asked, "IN", TYPE_FP32, &four, 1);
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestAddInput, asked, "IN", TYPE_FP32, &four, 1);
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestAddInput, asked, "IN1", 99, &four, 1);
  GOOD(TRITONSERVER_InferenceRequestAppendInputData, asked, "IN", values, sizeof values, CPU, 0);
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestAppendInputData, asked, "IN1", values, sizeof values, CPU, 0);
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestAppendInputData, asked, "IN", NULL, 4, CPU, 0);
  GOOD(TRITONSERVER_InferenceRequestAddRequestedOutput, asked, "OUT");
}

static void ask(Trace* trace, bool has_text) {
  Work work = {.left = 2};
  Trace* child;
  const char* context;
  pthread_mutex_init(&work.lock, NULL);
  pthread_cond_init(&work.over, NULL);
  GOOD(TRITONSERVER_ResponseAllocatorNew, &last.allocator, allocate, free_memory, NULL);
  GOOD(TRITONSERVER_ResponseAllocatorSetQueryFunction, last.allocator, query);
  BAD(NOT_FOUND, TRITONSERVER_InferenceRequestNew, &last.asked, last.server, "nobody", -1);
  GOOD(TRITONSERVER_InferenceRequestNew, &last.asked, last.server, "plain", -1);
  fill(last.asked, has_text);
  /* Neither function is set. */
  BAD(INVALID_ARG, TRITONSERVER_ServerInferAsync, last.server, last.asked, NULL);
  GOOD(TRITONSERVER_InferenceRequestSetReleaseCallback, last.asked, give_back, &work);
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestSetResponseCallback, last.asked, last.allocator, &work, NULL, &work);
  GOOD(TRITONSERVER_InferenceRequestSetResponseCallback, last.asked, last.allocator, &work, respond, &work);
  GOOD(TRITONSERVER_InferenceTraceSpawnChildTrace, trace, &child);
  if (trace != NULL) {
    GOOD(TRITONSERVER_InferenceTraceReportActivity, trace, now_ns(), "EVERY");
    GOOD(TRITONSERVER_InferenceTraceContext, trace, &context);
    last.trace = child;
  }
  GOOD(TRITONSERVER_ServerInferAsync, last.server, last.asked, child);
  pthread_mutex_lock(&work.lock);
  while (work.left > 0) pthread_cond_wait(&work.over, &work.lock);
  pthread_mutex_unlock(&work.lock);
  answer_itself(last.answer, &work);
  /* It is over. */
  GOOD(TRITONSERVER_InferenceRequestCancel, last.asked);
  GOOD(TRITONSERVER_InferenceRequestDelete, last.asked);
  BAD(INVALID_ARG, TRITONSERVER_InferenceRequestDelete, last.asked);
  GOOD(TRITONSERVER_ResponseAllocatorDelete, last.allocator);
}

static void control(void) {
  static const char config[] =
      "{\"backend\":\"sample\",\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}],"
      "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}]}";
  bool is_ready = false;
  uint32_t flags;
  const Parameter* brought[] = {TRITONSERVER_ParameterNew("config", 0, config), TRITONSERVER_ParameterBytesNew("file:1/data", config, 10)};
  GOOD(TRITONSERVER_ServerLoadModelWithParameters, last.server, "brought", brought, 2);
  TRITONSERVER_ParameterDelete((Parameter*)brought[0]);
  TRITONSERVER_ParameterDelete((Parameter*)brought[1]);
  BAD(INVALID_ARG, TRITONSERVER_ServerLoadModelWithParameters, last.server, "brought", brought, 2);
  GOOD(TRITONSERVER_ServerModelIsReady, last.server, "brought", -1, &is_ready);
  HOLDS(TRITONSERVER_ServerModelIsReady, is_ready);
  GOOD(TRITONSERVER_ServerModelTransactionProperties, last.server, "brought", -1, &flags, NULL);
  HOLDS(TRITONSERVER_ServerModelTransactionProperties, flags == TXN_ONE_TO_ONE);
  BAD(NOT_FOUND, TRITONSERVER_ServerModelTransactionProperties, last.server, "nobody", -1, &flags, NULL);
  GOOD(TRITONSERVER_ServerUnloadModel, last.server, "brought");
  GOOD(TRITONSERVER_ServerUnloadModelAndDependents, last.server, "brought");
}

static void response_itself(Request* request) {
  static const int64_t one = 1;
  uint32_t kind = CPU;
  int64_t id = 0;
  void *buffer, *second;
  Output* none;
  BufferAttributes* told;
  bool is_cancelled = true;
  GOOD(TRITONBACKEND_ResponseFactoryNew, &last.factory, request);
  GOOD(TRITONBACKEND_ResponseFactoryIsCancelled, last.factory, &is_cancelled);
  HOLDS(TRITONBACKEND_ResponseFactoryIsCancelled, !is_cancelled);
  GOOD(TRITONBACKEND_ResponseFactorySendFlags, last.factory, 0);
  GOOD(TRITONBACKEND_ResponseNewFromFactory, &last.response, last.factory);
  GOOD(TRITONBACKEND_ResponseDelete, last.response);
  BAD(INVALID_ARG, TRITONBACKEND_ResponseDelete, last.response);
  GOOD(TRITONBACKEND_RequestOutputBufferProperties, request, "OUT", NULL, &kind, &id);
  BAD(UNAVAILABLE, TRITONBACKEND_RequestOutputBufferProperties, request, NULL, NULL, &kind, &id);
  GOOD(TRITONBACKEND_ResponseNew, &last.response, request);
  GOOD(TRITONBACKEND_ResponseSetStringParameter, last.response, "text", "value");
  GOOD(TRITONBACKEND_ResponseSetIntParameter, last.response, "int", 1);
  GOOD(TRITONBACKEND_ResponseSetBoolParameter, last.response, "bool", true);
  GOOD(TRITONBACKEND_ResponseSetDoubleParameter, last.response, "double", 0.5);
  BAD(INVALID_ARG, TRITONBACKEND_ResponseOutput, last.response, &none, "OUT", 99, &one, 1);
  GOOD(TRITONBACKEND_ResponseOutput, last.response, &last.output, "OUT", TYPE_BYTES, &one, 1);
  BAD(INVALID_ARG, TRITONBACKEND_OutputBufferAttributes, last.output, &told);
  /* Memory of no bytes may be asked for again. */
  GOOD(TRITONBACKEND_OutputBuffer, last.output, &buffer, 0, &kind, &id);
  GOOD(TRITONBACKEND_OutputBufferAttributes, last.output, &told);
  HOLDS(TRITONBACKEND_OutputBufferAttributes, tells_host(told, 0));
  kind = GPU;
  id = 5;
  uint32_t bytes = (uint32_t)length;
  GOOD(TRITONBACKEND_OutputBuffer, last.output, &buffer, sizeof bytes + bytes, &kind, &id);
  HOLDS(TRITONBACKEND_OutputBuffer, kind == CPU && id == 0);
  memcpy(buffer, &bytes, sizeof bytes);
  memcpy((char*)buffer + sizeof bytes, report, bytes);
  GOOD(TRITONBACKEND_OutputBufferAttributes, last.output, &told);
  HOLDS(TRITONBACKEND_OutputBufferAttributes, tells_host(told, sizeof bytes + bytes));
  BAD(ALREADY_EXISTS, TRITONBACKEND_OutputBuffer, last.output, &second, bytes, &kind, &id);
  BAD(INVALID_ARG, TRITONBACKEND_ResponseSend, last.response, FINAL, last.message);
  GOOD(TRITONBACKEND_ResponseSend, last.response, FINAL, NULL);
  BAD(INVALID_ARG, TRITONBACKEND_ResponseFactorySendFlags, last.factory, FINAL);
  GOOD(TRITONBACKEND_ResponseFactoryDelete, last.factory);
}

static void misuse_all(const char* names) {
  char* all = strdup(names);
  for (char *rest = NULL, *name = strtok_r(all, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) misuse(name);
  free(all);
}

static void answer(Request* request) {
  Wish wish = {0};
  Trace* trace;
  uint64_t now = now_ns();
  last.request = request;
  errors();
  words();
  messages();
  metrics();
  attributes();
  request_itself(request, &wish);
  input_itself(last.input);
  states(request);
  GOOD(TRITONBACKEND_RequestTrace, request, &trace);
  ask(trace, wish.has_text);
  control();
  char* names = strdup(wish.names == NULL ? "" : wish.names);
  response_itself(request);
  GOOD(TRITONBACKEND_ModelInstanceReportStatistics, last.instance, request, true, now, now, now, now);
  GOOD(TRITONBACKEND_ModelInstanceReportBatchStatistics, last.instance, 1, now, now, now, now);
  GOOD(TRITONBACKEND_RequestRelease, request, RELEASE_ALL);
  BAD(INVALID_ARG, TRITONBACKEND_RequestRelease, request, RELEASE_ALL);
  misuse_all(names);
  free(names);
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t at = 0; at < count; at++) answer(requests[at]);
  return NULL;
}

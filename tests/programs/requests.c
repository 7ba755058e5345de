/* Which requests can a program make that say less of themselves, or more, than usual?
 *
 *   requests <raw|policies|labels|traces|properties|changes|descriptions|words> <repository> <directory of backends>
 *
 * It prints what comes of each request, one fact to a line. tests/conformance/test_program_requests.py runs it with this server's library and with
 * that of Triton 2.51.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

/* What came of a call that may fail, and whether it did not. */
static bool tell(const char* what, Error* error) {
  if (error == NULL) {
    printf("%s: well\n", what);
    return true;
  }
  printf("%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  return false;
}

static const char *repository, *backends;
static Server* server;
static Allocator* allocator;

/* One request: whether it was given back, and its last answer. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool is_final, is_released;
  Answer* answer;
} Call;

static Error* allocate(Allocator* of, const char* output, size_t bytes, uint32_t kind, int64_t id, void* userp, void** buffer, void** buffer_userp,
                       uint32_t* actual_kind, int64_t* actual_id) {
  (void)of, (void)output, (void)kind, (void)id, (void)userp;
  *buffer = bytes == 0 ? NULL : malloc(bytes);
  *buffer_userp = NULL;
  *actual_kind = CPU;
  *actual_id = 0;
  return NULL;
}

static Error* release(Allocator* of, void* buffer, void* buffer_userp, size_t bytes, uint32_t kind, int64_t id) {
  (void)of, (void)buffer_userp, (void)bytes, (void)kind, (void)id;
  free(buffer);
  return NULL;
}

static void respond(Answer* answer, uint32_t flags, void* userp) {
  Call* call = userp;
  pthread_mutex_lock(&call->lock);
  if (answer != NULL) call->answer = answer;
  call->is_final |= (flags & FINAL) != 0;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

static void give_back(Asked* request, uint32_t flags, void* userp) {
  Call* call = userp;
  (void)flags;
  MUST(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&call->lock);
  call->is_released = true;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

static void start(void) {
  Options* given;
  MUST(TRITONSERVER_ServerOptionsNew(&given));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(given, repository));
  MUST(TRITONSERVER_ServerOptionsSetBackendDirectory(given, backends));
  MUST(TRITONSERVER_ServerOptionsSetModelControlMode(given, CONTROL_NONE));
  MUST(TRITONSERVER_ServerOptionsSetExitTimeout(given, 20));
  MUST(TRITONSERVER_ServerOptionsSetLogInfo(given, false));
  MUST(TRITONSERVER_ServerOptionsSetGpuMetrics(given, false));
  MUST(TRITONSERVER_ServerNew(&server, given));
  MUST(TRITONSERVER_ServerOptionsDelete(given));
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
}

static Asked* new_request(const char* model) {
  Asked* request;
  MUST(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  MUST(TRITONSERVER_InferenceRequestSetId(request, "7"));
  return request;
}

static void print_bytes(uint32_t type, const void* base, size_t bytes) {
  const unsigned char* each = base;
  if (type != TYPE_FP32)
    for (size_t at = 0; at < bytes; at++) printf(each[at] >= ' ' && each[at] <= '~' ? "%c" : "\\%d", each[at]);
  else
    for (size_t at = 0; at < bytes / sizeof(float); at++) printf(" %g", (double)((const float*)base)[at]);
}

static void tell_answer(const char* what, Answer* answer) {
  uint32_t count = 0;
  Error* error = TRITONSERVER_InferenceResponseError(answer);
  if (error != NULL) {
    printf("%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    return;
  }
  MUST(TRITONSERVER_InferenceResponseOutputCount(answer, &count));
  printf("%s:", what);
  for (uint32_t index = 0; index < count; index++) {
    const char* name;
    uint32_t type, kind;
    const int64_t* shape;
    uint64_t dims;
    const void* base;
    size_t bytes;
    int64_t device;
    void* userp;
    MUST(TRITONSERVER_InferenceResponseOutput(answer, index, &name, &type, &shape, &dims, &base, &bytes, &kind, &device, &userp));
    printf(" %s %s[", name, TRITONSERVER_DataTypeString(type));
    for (uint64_t at = 0; at < dims; at++) printf("%s%lld", at == 0 ? "" : ",", (long long)shape[at]);
    printf("] ");
    print_bytes(type, base, bytes);
  }
  printf("\n");
}

/* Sends a request. The answer, which the caller deletes; NULL if the request was refused, which is told. */
static Answer* send(const char* what, Asked* request, Trace* trace) {
  static Call call;
  memset(&call, 0, sizeof call);
  pthread_mutex_init(&call.lock, NULL);
  pthread_cond_init(&call.changed, NULL);
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, give_back, &call));
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, respond, &call));
  Error* error = TRITONSERVER_ServerInferAsync(server, request, trace);
  if (error != NULL) {
    tell(what, error);
    MUST(TRITONSERVER_InferenceRequestDelete(request));
    return NULL;
  }
  pthread_mutex_lock(&call.lock);
  while (!call.is_final || !call.is_released) pthread_cond_wait(&call.changed, &call.lock);
  pthread_mutex_unlock(&call.lock);
  return call.answer;
}

static void ask(const char* what, Asked* request) {
  Answer* answer = send(what, request, NULL);
  if (answer == NULL) return;
  tell_answer(what, answer);
  MUST(TRITONSERVER_InferenceResponseDelete(answer));
}

static const float first[4] = {1, 2, 3, 4}, second[4] = {10, 20, 30, 40}, third[4] = {5, 6, 7, 8};

static void ask_raw(const char* what, const char* model, const void* base, size_t bytes) {
  Asked* request = new_request(model);
  if (!tell(what, TRITONSERVER_InferenceRequestAddRawInput(request, "given"))) return;
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "given", base, bytes, CPU, 0));
  ask(what, request);
}

/* One input, whose name, datatype and shape are the model's. */
static void raw(void) {
  static const int64_t shape[] = {4};
  ask_raw("free", "free", first, sizeof first);
  ask_raw("batched", "batched", first, sizeof first);
  ask_raw("fixed", "fixed", first, sizeof first);
  ask_raw("fixed short", "fixed", first, sizeof first - 4);
  ask_raw("text", "text", "hello", 5);
  ask_raw("texts", "texts", "hello", 5);
  ask_raw("two free", "two_free", first, sizeof first);
  ask_raw("two inputs", "add", first, sizeof first);
  Asked* request = new_request("free");
  tell("raw in parts", TRITONSERVER_InferenceRequestAddRawInput(request, "given"));
  tell("another raw", TRITONSERVER_InferenceRequestAddRawInput(request, "more"));
  tell("another", TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  tell("unknown", TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "given", first, sizeof first, CPU, 0));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "given", second, sizeof second, CPU, 0));
  ask("raw in parts", request);
  request = new_request("free");
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  tell("raw behind another", TRITONSERVER_InferenceRequestAddRawInput(request, "given"));
  MUST(TRITONSERVER_InferenceRequestDelete(request));
  request = new_request("free");
  MUST(TRITONSERVER_InferenceRequestAddRawInput(request, "given"));
  tell("removed", TRITONSERVER_InferenceRequestRemoveInput(request, "given"));
  tell("named after it", TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  MUST(TRITONSERVER_InferenceRequestDelete(request));
}

/* Data for instances of one host policy beside that for all others; NULL for none. */
static void ask_by_policy(const char* what, const char* model, const float* plain, const char* policy, const float* own, size_t own_bytes) {
  static const int64_t shape[] = {4};
  Asked* request = new_request(model);
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  if (plain != NULL) MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", plain, sizeof first, CPU, 0));
  if (policy != NULL) MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", own, own_bytes, CPU, 0, policy));
  ask(what, request);
}

static void policies(void) {
  static const int64_t shape[] = {4};
  ask_by_policy("plain", "on_cpu", first, NULL, NULL, 0);
  ask_by_policy("of cpu", "on_cpu", first, "cpu", second, sizeof second);
  ask_by_policy("of another", "on_cpu", first, "p", second, sizeof second);
  ask_by_policy("of p", "on_p", first, "p", second, sizeof second);
  ask_by_policy("of cpu for p", "on_p", first, "cpu", second, sizeof second);
  ask_by_policy("without plain", "on_cpu", NULL, "cpu", second, sizeof second);
  ask_by_policy("without plain of another", "on_cpu", NULL, "p", second, sizeof second);
  ask_by_policy("short", "on_cpu", first, "cpu", second, sizeof second - 4);
  ask_by_policy("built in", "built_in", first, "cpu", second, sizeof second);
  ask_by_policy("built in of another", "built_in", first, "p", second, sizeof second);
  ask_by_policy("read plainly", "plainly", first, "cpu", second, sizeof second);
  Asked* request = new_request("on_cpu");
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", second, 8, CPU, 0, "cpu"));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", third, 8, CPU, 0, "cpu"));
  ask("in parts", request);
  request = new_request("on_cpu");
  tell("unknown", TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "NONE", second, 8, CPU, 0, "cpu"));
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", second, sizeof second, CPU, 0, "cpu"));
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputData(request, "IN"));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
  ask("removed", request);
}

static void tell_label(Answer* answer, uint32_t output, size_t number) {
  const char* label = "untouched";
  char what[64];
  snprintf(what, sizeof what, "label %zu of output %u", number, output);
  Error* error = TRITONSERVER_InferenceResponseOutputClassificationLabel(answer, output, number, &label);
  if (error != NULL) {
    tell(what, error);
  } else {
    printf("%s: %s\n", what, label == NULL ? "NULL" : label);
  }
}

static void labels(void) {
  static const int64_t shape[] = {4};
  static const char* models[] = {"labelled", "free"};
  for (int at = 0; at < 2; at++) {
    Asked* request = new_request(models[at]);
    MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
    MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
    Answer* answer = send("labels", request, NULL);
    printf("labels: %s\n", models[at]);
    tell_label(answer, 0, 0);
    tell_label(answer, 0, 2);
    tell_label(answer, 0, 3);
    tell_label(answer, 1, 0);
    MUST(TRITONSERVER_InferenceResponseDelete(answer));
  }
}

static void add_input(Asked* request, const char* name, const float* values) {
  static const int64_t shape[] = {4};
  MUST(TRITONSERVER_InferenceRequestAddInput(request, name, TYPE_FP32, shape, 1));
  if (values != NULL) MUST(TRITONSERVER_InferenceRequestAppendInputData(request, name, values, sizeof first, CPU, 0));
}

/* What is set of a request is told by it, and by the model that gets it. */
static void properties(void) {
  uint32_t flags, count, priority = 0;
  uint64_t number = 0;
  const char* text = NULL;
  Asked* request = new_request("told");
  MUST(TRITONSERVER_InferenceRequestId(request, &text));
  printf("id: %s\n", text);
  MUST(TRITONSERVER_InferenceRequestSetPriority(request, 7));
  MUST(TRITONSERVER_InferenceRequestPriority(request, &priority));
  MUST(TRITONSERVER_InferenceRequestPriorityUInt64(request, &number));
  printf("priority: %u %llu\n", priority, (unsigned long long)number);
  MUST(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 1ull << 40));
  MUST(TRITONSERVER_InferenceRequestPriorityUInt64(request, &number));
  printf("large priority: %llu\n", (unsigned long long)number);
  tell("large priority in 32 bits", TRITONSERVER_InferenceRequestPriority(request, &priority));
  MUST(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 0));
  MUST(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 60000000));
  MUST(TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &number));
  printf("timeout: %llu\n", (unsigned long long)number);
  MUST(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "nine"));
  MUST(TRITONSERVER_InferenceRequestCorrelationIdString(request, &text));
  printf("sequence by name: %s\n", text);
  tell("number of a name", TRITONSERVER_InferenceRequestCorrelationId(request, &number));
  MUST(TRITONSERVER_InferenceRequestSetCorrelationId(request, 9));
  MUST(TRITONSERVER_InferenceRequestCorrelationId(request, &number));
  printf("sequence: %llu\n", (unsigned long long)number);
  tell("name of a number", TRITONSERVER_InferenceRequestCorrelationIdString(request, &text));
  MUST(TRITONSERVER_InferenceRequestSetFlags(request, 3));
  MUST(TRITONSERVER_InferenceRequestFlags(request, &flags));
  printf("flags: %u\n", flags);
  bool is_cancelled = true;
  tell("cancelled", TRITONSERVER_InferenceRequestIsCancelled(request, &is_cancelled));
  tell("cancel", TRITONSERVER_InferenceRequestCancel(request));
  MUST(TRITONSERVER_InferenceRequestSetDoubleParameter(request, "half", 0.5));
  MUST(TRITONSERVER_InferenceRequestSetIntParameter(request, "seven", 7));
  add_input(request, "IN", first);
  Answer* answer = send("told", request, NULL);
  if (answer == NULL) return;
  tell_answer("told", answer);
  MUST(TRITONSERVER_InferenceResponseParameterCount(answer, &count));
  for (uint32_t at = 0; at < count; at++) {
    const char* key;
    uint32_t type;
    const void* value;
    MUST(TRITONSERVER_InferenceResponseParameter(answer, at, &key, &type, &value));
    if (strcmp(key, "got_half") == 0) printf("%s: %s %g\n", key, TRITONSERVER_ParameterTypeString(type), *(const double*)value);
    if (strcmp(key, "got_seven") == 0) printf("%s: %s %lld\n", key, TRITONSERVER_ParameterTypeString(type), *(const long long*)value);
  }
  MUST(TRITONSERVER_InferenceResponseDelete(answer));
}

/* What was added to a request is removed again. */
static void changes(void) {
  BufferAttributes* attributes;
  Asked* request = new_request("add");
  add_input(request, "IN", third);
  add_input(request, "NONE", third);
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  tell("unknown after that", TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
  add_input(request, "IN", first);
  add_input(request, "IN1", NULL);
  MUST(TRITONSERVER_BufferAttributesNew(&attributes));
  MUST(TRITONSERVER_BufferAttributesSetMemoryType(attributes, CPU));
  MUST(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 0));
  MUST(TRITONSERVER_BufferAttributesSetByteSize(attributes, sizeof second));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(request, "IN1", second, attributes));
  tell("unknown", TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(request, "NONE", second, attributes));
  MUST(TRITONSERVER_BufferAttributesDelete(attributes));
  MUST(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT"));
  MUST(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT1"));
  MUST(TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "OUT"));
  tell("not requested", TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "OUT"));
  ask("one output", request);
  request = new_request("add");
  add_input(request, "IN", first);
  add_input(request, "IN1", second);
  MUST(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT1"));
  MUST(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request));
  ask("all outputs", request);
}

/* Called once for each piece of memory that `allocate` gave. */
static Error* describe(Allocator* of, const char* output, BufferAttributes* attributes, void* userp, void* buffer_userp) {
  (void)of;
  printf("describe: %s%s%s\n", output, userp == NULL ? "" : " not ours", buffer_userp == NULL ? "" : " not ours");
  TRITONSERVER_BufferAttributesSetMemoryType(attributes, CPU);
  TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 0);
  return TRITONSERVER_BufferAttributesSetByteSize(attributes, sizeof first);
}

static Error* refuse_to_describe(Allocator* of, const char* output, BufferAttributes* attributes, void* userp, void* buffer_userp) {
  (void)of, (void)output, (void)attributes, (void)userp, (void)buffer_userp;
  return TRITONSERVER_ErrorNew(UNAVAILABLE, "not described on purpose");
}

static void descriptions(void) {
  for (int is_refused = 0; is_refused < 2; is_refused++) {
    MUST(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, is_refused ? refuse_to_describe : describe));
    Asked* request = new_request("add");
    add_input(request, "IN", first);
    add_input(request, "IN1", second);
    ask(is_refused ? "refused" : "described", request);
  }
}

static void tell_words(void) {
  printf("parameters:");
  for (uint32_t type = 0; type < 6; type++) printf(" %s", TRITONSERVER_ParameterTypeString(type));
  printf("\nlevels:");
  for (uint32_t level = 0; level < 16; level = level == 0 ? 1 : 2 * level) printf(" %s", TRITONSERVER_InferenceTraceLevelString(level));
  printf("\n");
}

static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t noted = PTHREAD_COND_INITIALIZER;
static int released_traces, userp_of_traces;
static uint64_t last_ns;

static void note_activity(Trace* trace, uint32_t activity, uint64_t ns, void* userp) {
  uint64_t id, parent;
  int64_t version;
  const char *model, *request, *context;
  pthread_mutex_lock(&noting);
  MUST(TRITONSERVER_InferenceTraceId(trace, &id));
  MUST(TRITONSERVER_InferenceTraceParentId(trace, &parent));
  MUST(TRITONSERVER_InferenceTraceModelName(trace, &model));
  MUST(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  MUST(TRITONSERVER_InferenceTraceRequestId(trace, &request));
  MUST(TRITONSERVER_InferenceTraceContext(trace, &context));
  /* REQUEST_END comes when the server is done with the request, which may be after its answer. */
  printf("activity %s: %s %lld '%s' %s%s%s; %s\n", TRITONSERVER_InferenceTraceActivityString(activity), model, (long long)version, request,
         parent == 4711 ? "of 4711" : parent == 0 ? "of none" : "of another", userp == &userp_of_traces ? "" : " not ours",
         ns > 1000000 ? "" : " no time", activity == 10 ? "" : context);
  last_ns = ns;
  pthread_mutex_unlock(&noting);
}

static void note_tensor(Trace* trace, uint32_t activity, const char* name, uint32_t type, const void* base, size_t bytes, const int64_t* shape,
                        uint64_t dims, uint32_t kind, int64_t device, void* userp) {
  const char* model;
  pthread_mutex_lock(&noting);
  MUST(TRITONSERVER_InferenceTraceModelName(trace, &model));
  printf("tensor %s: %s %s %s[%lld] %zu bytes on %s %lld%s", TRITONSERVER_InferenceTraceActivityString(activity), model, name,
         TRITONSERVER_DataTypeString(type), dims == 1 ? (long long)shape[0] : -1, bytes, TRITONSERVER_MemoryTypeString(kind), (long long)device,
         userp == &userp_of_traces ? "" : " not ours");
  print_bytes(type, base, bytes);
  printf("\n");
  pthread_mutex_unlock(&noting);
}

static void release_trace(Trace* trace, void* userp) {
  pthread_mutex_lock(&noting);
  if (userp != &userp_of_traces) printf("not ours\n");
  MUST(TRITONSERVER_InferenceTraceDelete(trace));
  released_traces++;
  pthread_cond_broadcast(&noted);
  pthread_mutex_unlock(&noting);
}

static void ask_traced(const char* what, const char* model, uint32_t level, bool has_tensors, int traces) {
  static const int64_t shape[] = {4};
  Trace* trace;
  uint64_t id;
  printf("traced: %s\n", what);
  if (has_tensors) {
    MUST(TRITONSERVER_InferenceTraceTensorNew(&trace, level, 4711, note_activity, note_tensor, release_trace, &userp_of_traces));
  } else {
    MUST(TRITONSERVER_InferenceTraceNew(&trace, level, 4711, note_activity, release_trace, &userp_of_traces));
  }
  MUST(TRITONSERVER_InferenceTraceId(trace, &id));
  if (id == 0) printf("no id\n");
  MUST(TRITONSERVER_InferenceTraceSetContext(trace, "ours"));
  Asked* request = new_request(model);
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
  Answer* answer = send(what, request, trace);
  /* The trace of a refused request stays the program's. */
  if (answer == NULL) tell("deleted", TRITONSERVER_InferenceTraceDelete(trace));
  if (answer != NULL) MUST(TRITONSERVER_InferenceResponseDelete(answer));
  pthread_mutex_lock(&noting);
  while (released_traces < traces) pthread_cond_wait(&noted, &noting);
  printf("released: %d\n", released_traces);
  released_traces = 0;
  pthread_mutex_unlock(&noting);
}

enum { LEVEL_DISABLED = 0, LEVEL_MIN = 1, LEVEL_TIMESTAMPS = 4, LEVEL_TENSORS = 8 };

static void traces(void) {
  Trace *trace, *child;
  uint64_t id, parent;
  ask_traced("times", "free", LEVEL_TIMESTAMPS, false, 1);
  ask_traced("tensors", "free", LEVEL_TENSORS, true, 1);
  ask_traced("both", "free", LEVEL_TIMESTAMPS | LEVEL_TENSORS, true, 1);
  ask_traced("disabled", "free", LEVEL_DISABLED, false, 1);
  ask_traced("min", "free", LEVEL_MIN, false, 1);
  ask_traced("refused", "add", LEVEL_TIMESTAMPS, false, 0);
  ask_traced("failed", "fail", LEVEL_TIMESTAMPS, false, 1);
  ask_traced("ensemble", "both", LEVEL_TIMESTAMPS, false, 3);
  ask_traced("reports", "reports", LEVEL_TIMESTAMPS, false, 1);
  /* One that is not sent, and a child of it. */
  MUST(TRITONSERVER_InferenceTraceNew(&trace, LEVEL_TIMESTAMPS, 0, note_activity, release_trace, &userp_of_traces));
  MUST(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  MUST(TRITONSERVER_InferenceTraceId(trace, &id));
  MUST(TRITONSERVER_InferenceTraceParentId(child, &parent));
  printf("child: %s\n", id == parent ? "of its parent" : "of another");
  MUST(TRITONSERVER_InferenceTraceReportActivity(trace, 5000000, "own report"));
  MUST(TRITONSERVER_InferenceTraceDelete(child));
  MUST(TRITONSERVER_InferenceTraceDelete(trace));
  printf("deleted: %d\n", released_traces);
}

int main(int count, char** words) {
  if (count != 4) return 2;
  repository = words[2];
  backends = words[3];
  setvbuf(stdout, NULL, _IOLBF, 0);
  start();
  void (*what)(void) = strcmp(words[1], "raw") == 0        ? raw
                       : strcmp(words[1], "policies") == 0 ? policies
                       : strcmp(words[1], "labels") == 0   ? labels
                       : strcmp(words[1], "properties") == 0 ? properties
                       : strcmp(words[1], "changes") == 0 ? changes
                       : strcmp(words[1], "descriptions") == 0 ? descriptions
                       : strcmp(words[1], "words") == 0 ? tell_words
                                                           : traces;
  what();
  MUST(TRITONSERVER_ServerDelete(server));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return 0;
}

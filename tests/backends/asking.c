/* What does a compiled backend do that asks other models?
 *
 * Its requests say by their parameters which model is asked and how: `target` (its name), `wait` (within execute), `parts` (each input in so many
 * pieces), `wanted` (one output), `id`, `sequence`, `cancel`, `hang_ms` (when it gets back what it asked), `breaks` (the rules of the interface). All inputs of the request go to the other model from where they lie, and its outputs
 * come back under their own names. A request without a target is told what was counted so far. `control` has models loaded and looked at, has the server's reports told, and says what the instance answers that is asked whether it is ready.
 */
#include "backend.h"

typedef struct {
  Server* server;
  Allocator* allocator;
  bool leaks;
  /* Its threads, which must have ended before the library is closed. */
  pthread_mutex_t lock;
  pthread_t* threads;
  size_t thread_count;
  atomic_int allocated, freed, started, requests, released, responses, queried;
  /* What ModelInstanceReady says: `r`eady, `u`nready, or `h`angs for a second. */
  atomic_char readiness;
} ModelState;

/* One request on its way: that of the client, and the one that was made of it. */
typedef struct {
  ModelState* state;
  Instance* instance;
  Request* request;
  Factory* factory;
  Asked* asked;
  bool breaks;
  int64_t hang_ms;
  /* The last response and the release of what was asked. */
  int left;
  pthread_mutex_t lock;
  pthread_cond_t over;
} Work;

/* What a parameter of a request is, NULL or 0 without it. */
typedef struct {
  const char *target, *wanted, *id, *control, *config;
  int64_t wait, parts, sequence, cancel, breaks, hang_ms;
} Wish;

static Error* read_wish(Request* request, Wish* wish) {
  uint32_t count;
  memset(wish, 0, sizeof *wish);
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t at = 0; at < count; at++) {
    const char* key;
    uint32_t type;
    const void* value;
    TRY(TRITONBACKEND_RequestParameter(request, at, &key, &type, &value));
    if (strcmp(key, "target") == 0) wish->target = value;
    if (strcmp(key, "wanted") == 0) wish->wanted = value;
    if (strcmp(key, "id") == 0) wish->id = value;
    if (strcmp(key, "control") == 0) wish->control = value;
    if (strcmp(key, "config") == 0) wish->config = value;
    if (strcmp(key, "wait") == 0) wish->wait = *(const int64_t*)value;
    if (strcmp(key, "parts") == 0) wish->parts = *(const int64_t*)value;
    if (strcmp(key, "sequence") == 0) wish->sequence = *(const int64_t*)value;
    if (strcmp(key, "breaks") == 0) wish->breaks = *(const int64_t*)value;
    if (strcmp(key, "hang_ms") == 0) wish->hang_ms = *(const int64_t*)value;
    if (strcmp(key, "cancel") == 0) wish->cancel = *(const int64_t*)value;
  }
  return NULL;
}

static Error* allocate(Allocator* allocator, const char* output, size_t bytes, uint32_t kind, int64_t id, void* userp, void** buffer,
                       void** buffer_userp, uint32_t* actual_kind, int64_t* actual_id) {
  (void)allocator, (void)kind, (void)id;
  Work* work = userp;
  if (strcmp(output, "OUT_REFUSED") == 0) return TRITONSERVER_ErrorNew(UNAVAILABLE, "no memory on purpose");
  *buffer = bytes > 0 ? malloc(bytes) : NULL;
  *buffer_userp = work->state;
  *actual_kind = CPU;
  *actual_id = 0;
  atomic_fetch_add(&work->state->allocated, 1);
  return NULL;
}

static Error* free_memory(Allocator* allocator, void* buffer, void* buffer_userp, size_t bytes, uint32_t kind, int64_t id) {
  (void)allocator, (void)kind, (void)id, (void)bytes;
  ModelState* state = buffer_userp;
  free(buffer);
  atomic_fetch_add(&state->freed, 1);
  return NULL;
}

static Error* start(Allocator* allocator, void* userp) {
  (void)allocator;
  Work* work = userp;
  atomic_fetch_add(&work->state->started, 1);
  return NULL;
}

static Error* query(Allocator* allocator, void* userp, const char* output, size_t* bytes, uint32_t* kind, int64_t* id) {
  (void)allocator, (void)output, (void)bytes;
  Work* work = userp;
  *kind = CPU;
  *id = 0;
  atomic_fetch_add(&work->state->queried, 1);
  return NULL;
}

/* One thing less to wait for. After the last the client's request goes back, and the work ends unless somebody waits for it. */
static void one_less(Work* work, int how_many) {
  pthread_mutex_lock(&work->lock);
  work->left -= how_many;
  if (work->left == 0) pthread_cond_signal(&work->over);
  pthread_mutex_unlock(&work->lock);
}

static void finish(Work* work) {
  uint64_t now = now_ns();
  LOG_IF_ERROR(TRITONBACKEND_ModelInstanceReportStatistics(work->instance, work->request, true, now, now, now, now));
  LOG_IF_ERROR(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  LOG_IF_ERROR(TRITONBACKEND_RequestRelease(work->request, RELEASE_ALL));
  free(work);
}

static void* wait_and_finish(void* argument) {
  Work* work = argument;
  pthread_mutex_lock(&work->lock);
  while (work->left > 0) pthread_cond_wait(&work->over, &work->lock);
  pthread_mutex_unlock(&work->lock);
  finish(work);
  return NULL;
}

static Error* copy_parameters(Answer* answer, Response* response) {
  uint32_t count;
  TRY(TRITONSERVER_InferenceResponseParameterCount(answer, &count));
  for (uint32_t at = 0; at < count; at++) {
    const char* key;
    uint32_t type;
    const void* value;
    TRY(TRITONSERVER_InferenceResponseParameter(answer, at, &key, &type, &value));
    if (type == 0) TRY(TRITONBACKEND_ResponseSetStringParameter(response, key, value));
    if (type == 1) TRY(TRITONBACKEND_ResponseSetIntParameter(response, key, *(const int64_t*)value));
    if (type == 2) TRY(TRITONBACKEND_ResponseSetBoolParameter(response, key, *(const bool*)value));
  }
  return NULL;
}

static Error* copy_outputs(Answer* answer, Response* response) {
  const char *model, *id;
  int64_t version;
  uint32_t count;
  TRY(TRITONSERVER_InferenceResponseModel(answer, &model, &version));
  TRY(TRITONSERVER_InferenceResponseId(answer, &id));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "asked_model", model));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "asked_version", version));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "asked_id", id));
  TRY(copy_parameters(answer, response));
  TRY(TRITONSERVER_InferenceResponseOutputCount(answer, &count));
  for (uint32_t at = 0; at < count; at++) {
    const char* name;
    uint32_t type, kind;
    const int64_t* shape;
    uint64_t dims;
    const void* base;
    size_t bytes;
    int64_t place;
    void *userp, *buffer;
    Output* output;
    TRY(TRITONSERVER_InferenceResponseOutput(answer, at, &name, &type, &shape, &dims, &base, &bytes, &kind, &place, &userp));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, name, type, shape, (uint32_t)dims));
    uint32_t wished = CPU;
    TRY(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &wished, &place));
    if (bytes > 0) memcpy(buffer, base, bytes);
  }
  return NULL;
}

static void respond(Answer* answer, uint32_t flags, void* userp) {
  Work* work = userp;
  bool is_last = (flags & FINAL) != 0;
  if (answer == NULL) {
    if (is_last) LOG_IF_ERROR(TRITONBACKEND_ResponseFactorySendFlags(work->factory, FINAL));
  } else {
    atomic_fetch_add(&work->state->responses, 1);
    Response* response = NULL;
    Error* error = TRITONSERVER_InferenceResponseError(answer);
    LOG_IF_ERROR(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
    Error* own = error == NULL ? copy_outputs(answer, response) : NULL;
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, is_last ? FINAL : 0, error != NULL ? error : own));
    if (own != NULL) TRITONSERVER_ErrorDelete(own);
    if (!work->state->leaks) LOG_IF_ERROR(TRITONSERVER_InferenceResponseDelete(answer));
    if (work->breaks) LOG_IF_ERROR(TRITONSERVER_InferenceResponseDelete(answer));
  }
  if (is_last) one_less(work, 1);
}

static void give_back(Asked* asked, uint32_t flags, void* userp) {
  Work* work = userp;
  if ((flags & RELEASE_ALL) == 0) return;
  usleep((useconds_t)work->hang_ms * 1000);
  atomic_fetch_add(&work->state->released, 1);
  LOG_IF_ERROR(TRITONSERVER_InferenceRequestDelete(asked));
  one_less(work, 1);
}

/* An input goes on from where it lies, in so many pieces. */
static Error* pass_on(Asked* asked, Input* input, uint64_t parts) {
  const char* name;
  uint32_t type, dims, buffers, kind = CPU;
  const int64_t* shape;
  uint64_t bytes;
  int64_t id = 0;
  const void* base;
  TRY(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &bytes, &buffers));
  TRY(TRITONSERVER_InferenceRequestAddInput(asked, name, type, shape, dims));
  if (buffers == 0) return NULL;
  TRY(TRITONBACKEND_InputBuffer(input, 0, &base, &bytes, &kind, &id));
  if (parts == 0) parts = 1;
  uint64_t from = 0;
  for (uint64_t part = 0; part < parts; part++) {
    uint64_t to = bytes * (part + 1) / parts;
    TRY(TRITONSERVER_InferenceRequestAppendInputData(asked, name, (const char*)base + from, to - from, kind, id));
    from = to;
  }
  return NULL;
}

/* What a trace says of itself goes to the log. */
static Error* look_at(Trace* trace) {
  const char *model, *request, *context;
  int64_t version;
  uint64_t id, parent;
  char text[512];
  TRY(TRITONSERVER_InferenceTraceModelName(trace, &model));
  TRY(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  TRY(TRITONSERVER_InferenceTraceRequestId(trace, &request));
  TRY(TRITONSERVER_InferenceTraceId(trace, &id));
  TRY(TRITONSERVER_InferenceTraceParentId(trace, &parent));
  TRY(TRITONSERVER_InferenceTraceContext(trace, &context));
  snprintf(text, sizeof text, "trace of %s %d request '%s' id %d parent %d context '%s'", model, (int)version, request, id > 0, (int)parent,
           context == NULL ? "" : context);
  return TRITONSERVER_LogMessage(INFO, __FILE__, __LINE__, text);
}

static Error* ask(Work* work, const Wish* wish) {
  uint32_t count;
  Trace *trace = NULL, *child = NULL;
  TRY(TRITONSERVER_InferenceRequestNew(&work->asked, work->state->server, wish->target, -1));
  Asked* asked = work->asked;
  if (wish->id != NULL) TRY(TRITONSERVER_InferenceRequestSetId(asked, wish->id));
  if (wish->sequence != 0) {
    TRY(TRITONSERVER_InferenceRequestSetCorrelationId(asked, (uint64_t)wish->sequence));
    TRY(TRITONSERVER_InferenceRequestSetFlags(asked, 1));
  }
  TRY(TRITONSERVER_InferenceRequestSetStringParameter(asked, "said", "by asking"));
  TRY(TRITONSERVER_InferenceRequestSetIntParameter(asked, "count", 7));
  TRY(TRITONSERVER_InferenceRequestSetBoolParameter(asked, "yes", true));
  TRY(TRITONBACKEND_RequestInputCount(work->request, &count));
  for (uint32_t at = 0; at < count; at++) {
    Input* input;
    TRY(TRITONBACKEND_RequestInputByIndex(work->request, at, &input));
    TRY(pass_on(asked, input, (uint64_t)wish->parts));
  }
  if (wish->wanted != NULL) TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(asked, wish->wanted));
  TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(asked, give_back, work));
  TRY(TRITONSERVER_InferenceRequestSetResponseCallback(asked, work->state->allocator, work, respond, work));
  TRY(TRITONBACKEND_RequestTrace(work->request, &trace));
  if (trace != NULL) {
    TRY(look_at(trace));
    TRY(TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "ASKING_ANOTHER_MODEL"));
    TRY(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  }
  /* Locked, as a backend may do that the functions above must not be called by this thread. */
  pthread_mutex_lock(&work->lock);
  Error* refused = TRITONSERVER_ServerInferAsync(work->state->server, asked, child);
  pthread_mutex_unlock(&work->lock);
  if (refused == NULL && wish->breaks != 0) {
    /* What is the server's is sent again and deleted. */
    LOG_IF_ERROR(TRITONSERVER_ServerInferAsync(work->state->server, asked, NULL));
    LOG_IF_ERROR(TRITONSERVER_InferenceRequestDelete(asked));
  }
  return refused;
}

static void begin(Instance* instance, ModelState* state, Request* request, const Wish* wish) {
  Work* work = calloc(1, sizeof *work);
  *work = (Work){.state = state, .instance = instance, .request = request, .left = 3};
  pthread_mutex_init(&work->lock, NULL);
  pthread_cond_init(&work->over, NULL);
  work->breaks = wish->breaks != 0;
  work->hang_ms = wish->hang_ms;
  atomic_fetch_add(&state->requests, 1);
  LOG_IF_ERROR(TRITONBACKEND_ResponseFactoryNew(&work->factory, request));
  Error* refused = ask(work, wish);
  if (refused != NULL) {
    Response* response = NULL;
    if (work->asked != NULL) LOG_IF_ERROR(TRITONSERVER_InferenceRequestDelete(work->asked));
    LOG_IF_ERROR(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
    LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, refused));
    TRITONSERVER_ErrorDelete(refused);
    finish(work);
    return;
  }
  if (wish->cancel != 0) {
    /* Locked, as above. */
    pthread_mutex_lock(&work->lock);
    LOG_IF_ERROR(TRITONSERVER_InferenceRequestCancel(work->asked));
    pthread_mutex_unlock(&work->lock);
  }
  one_less(work, 1);
  if (wish->wait != 0) {
    wait_and_finish(work);
    return;
  }
  pthread_mutex_lock(&state->lock);
  state->threads = realloc(state->threads, (state->thread_count + 1) * sizeof *state->threads);
  if (pthread_create(&state->threads[state->thread_count], NULL, wait_and_finish, work) == 0) state->thread_count += 1;
  pthread_mutex_unlock(&state->lock);
}

static Error* tell_counts(ModelState* state, Response* response) {
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "allocated", atomic_load(&state->allocated)));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "freed", atomic_load(&state->freed)));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "started", atomic_load(&state->started)));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "queried", atomic_load(&state->queried)));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "requests", atomic_load(&state->requests)));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "released", atomic_load(&state->released)));
  return TRITONBACKEND_ResponseSetIntParameter(response, "responses", atomic_load(&state->responses));
}

/* A report of the server as a parameter of the response. */
static Error* tell_message(Response* response, const char* key, Message* message) {
  const char* json;
  size_t size;
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  char* text = strndup(json, size);
  Error* error = TRITONBACKEND_ResponseSetStringParameter(response, key, text);
  free(text);
  TRY(TRITONSERVER_MessageDelete(message));
  return error;
}

static Error* tell_reports(Server* server, const char* model, Response* response) {
  Message* message;
  Metrics* metrics;
  const char* page;
  size_t size;
  bool is_ready;
  TRY(TRITONSERVER_ServerIsReady(server, &is_ready));
  TRY(TRITONBACKEND_ResponseSetBoolParameter(response, "is_ready", is_ready));
  TRY(TRITONSERVER_ServerMetadata(server, &message));
  TRY(tell_message(response, "server", message));
  TRY(TRITONSERVER_ServerModelMetadata(server, model, -1, &message));
  TRY(tell_message(response, "model", message));
  TRY(TRITONSERVER_ServerModelStatistics(server, model, -1, &message));
  TRY(tell_message(response, "statistics", message));
  TRY(TRITONSERVER_ServerModelIndex(server, 1, &message));
  TRY(tell_message(response, "index", message));
  TRY(TRITONSERVER_ServerModelConfig(server, model, -1, 1, &message));
  TRY(tell_message(response, "config", message));
  TRY(TRITONSERVER_ServerMetrics(server, &metrics));
  TRY(TRITONSERVER_MetricsFormatted(metrics, 0, &page, &size));
  char* text = strndup(page, size);
  Error* error = TRITONBACKEND_ResponseSetStringParameter(response, "metrics", text);
  free(text);
  TRY(TRITONSERVER_MetricsDelete(metrics));
  return error;
}

static Error* control(ModelState* state, const Wish* wish, Response* response) {
  const char *what = wish->control, *target = wish->target;
  if (strcmp(what, "load") == 0) {
    if (wish->config == NULL) return TRITONSERVER_ServerLoadModel(state->server, target);
    const Parameter* config = TRITONSERVER_ParameterNew("config", 0, wish->config);
    Error* error = TRITONSERVER_ServerLoadModelWithParameters(state->server, target, &config, 1);
    TRITONSERVER_ParameterDelete((Parameter*)config);
    return error;
  }
  if (strcmp(what, "unload") == 0) return TRITONSERVER_ServerUnloadModel(state->server, target);
  if (strcmp(what, "reports") == 0) return tell_reports(state->server, target, response);
  if (strcmp(what, "readiness") == 0) {
    atomic_store(&state->readiness, target[0]);
    return NULL;
  }
  bool is_ready;
  uint32_t transactions, batches;
  TRY(TRITONSERVER_ServerModelIsReady(state->server, target, -1, &is_ready));
  TRY(TRITONBACKEND_ResponseSetBoolParameter(response, "is_ready", is_ready));
  if (!is_ready) return NULL;
  TRY(TRITONSERVER_ServerModelTransactionProperties(state->server, target, -1, &transactions, NULL));
  TRY(TRITONSERVER_ServerModelBatchProperties(state->server, target, -1, &batches, NULL));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "transactions", transactions));
  return TRITONBACKEND_ResponseSetIntParameter(response, "batches", batches);
}

static void answer_itself(Request* request, ModelState* state, const Wish* wish) {
  Response* response;
  LOG_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
  Error* error = wish->control != NULL ? control(state, wish, response) : tell_counts(state, response);
  LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, error));
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
}

Error* TRITONBACKEND_ModelInitialize(Model* model) {
  Message* message;
  const char* json;
  size_t size;
  ModelState* state = calloc(1, sizeof *state);
  pthread_mutex_init(&state->lock, NULL);
  TRY(TRITONBACKEND_ModelSetState(model, state));
  TRY(TRITONBACKEND_ModelServer(model, &state->server));
  TRY(TRITONSERVER_ResponseAllocatorNew(&state->allocator, allocate, free_memory, start));
  TRY(TRITONSERVER_ResponseAllocatorSetQueryFunction(state->allocator, query));
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  state->leaks = memmem(json, size, "\"leak_response\"", 15) != NULL;
  return TRITONSERVER_MessageDelete(message);
}

Error* TRITONBACKEND_ModelFinalize(Model* model) {
  void* found;
  TRY(TRITONBACKEND_ModelState(model, &found));
  ModelState* state = found;
  for (size_t at = 0; at < state->thread_count; at++) pthread_join(state->threads[at], NULL);
  free(state->threads);
  TRY(TRITONSERVER_ResponseAllocatorDelete(state->allocator));
  if (!state->leaks) free(state);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceInitialize(Instance* instance) {
  Model* model;
  void* state;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  return TRITONBACKEND_ModelInstanceSetState(instance, state);
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  void* state;
  TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
  for (uint32_t at = 0; at < count; at++) {
    Wish wish;
    TRY(read_wish(requests[at], &wish));
    if (wish.target != NULL && wish.control == NULL) {
      begin(instance, state, requests[at], &wish);
    } else {
      answer_itself(requests[at], state, &wish);
    }
  }
  return NULL;
}

/* Newer servers than 2.51 call it. */
Error* TRITONBACKEND_ModelInstanceReady(Instance* instance) {
  void* found;
  TRY(TRITONBACKEND_ModelInstanceState(instance, &found));
  ModelState* state = found;
  char readiness = atomic_load(&state->readiness);
  if (readiness == 'h') sleep(1);
  return readiness == 'u' ? TRITONSERVER_ErrorNew(UNAVAILABLE, "the instance is not ready on purpose") : NULL;
}

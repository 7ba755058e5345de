/* What does a program do that has the server in its own process?
 *
 *   in_process <what> <repository> <directory of backends>
 *
 * It prints what it finds, one fact to a line, and ends with 0 if nothing failed that must not. tests/conformance/test_in_process.py runs it with this
 * server's library and with that of Triton 2.51.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

/* What came of a call that may fail. */
static void tell(const char* what, Error* error) {
  if (error == NULL) {
    printf("%s: well\n", what);
    return;
  }
  printf("%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

static void tell_message(const char* what, Message* message) {
  const char* json;
  size_t bytes;
  MUST(TRITONSERVER_MessageSerializeToJson(message, &json, &bytes));
  printf("%s: %.*s\n", what, (int)bytes, json);
  MUST(TRITONSERVER_MessageDelete(message));
}

static const char *repository, *backends;

static Options* options(uint32_t control, const char* startup) {
  Options* made;
  MUST(TRITONSERVER_ServerOptionsNew(&made));
  MUST(TRITONSERVER_ServerOptionsSetServerId(made, "inside"));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(made, repository));
  MUST(TRITONSERVER_ServerOptionsSetBackendDirectory(made, backends));
  MUST(TRITONSERVER_ServerOptionsSetModelControlMode(made, control));
  if (startup != NULL) MUST(TRITONSERVER_ServerOptionsSetStartupModel(made, startup));
  MUST(TRITONSERVER_ServerOptionsSetExitTimeout(made, 20));
  MUST(TRITONSERVER_ServerOptionsSetLogInfo(made, false));
  MUST(TRITONSERVER_ServerOptionsSetGpuMetrics(made, false));
  return made;
}

static Server* start(uint32_t control, const char* startup) {
  Options* given = options(control, startup);
  Server* server = NULL;
  MUST(TRITONSERVER_ServerNew(&server, given));
  MUST(TRITONSERVER_ServerOptionsDelete(given));
  for (int tries = 0; tries < 1000; tries++) {
    bool is_live = false, is_ready = false;
    MUST(TRITONSERVER_ServerIsLive(server, &is_live));
    MUST(TRITONSERVER_ServerIsReady(server, &is_ready));
    if (is_live && is_ready) return server;
    usleep(10000);
  }
  printf("the server is not ready\n");
  exit(1);
}

/* One request, and what came of it. */
typedef struct {
  float memory[2][16];
  int places, freed, responses, released;
  bool is_final;
  Error* error;
  char text[256];
  pthread_mutex_t lock;
  pthread_cond_t changed;
} Call;

static Error* allocate(Allocator* allocator, const char* output, size_t bytes, uint32_t kind, int64_t id, void* userp, void** buffer,
                       void** buffer_userp, uint32_t* actual_kind, int64_t* actual_id) {
  (void)allocator, (void)output, (void)kind, (void)id;
  Call* call = userp;
  if (call->places == 2 || bytes > sizeof call->memory[0]) return TRITONSERVER_ErrorNew(UNAVAILABLE, "no place is left");
  *buffer = call->memory[call->places++];
  *buffer_userp = call;
  *actual_kind = CPU;
  *actual_id = 0;
  return NULL;
}

static Error* release(Allocator* allocator, void* buffer, void* buffer_userp, size_t bytes, uint32_t kind, int64_t id) {
  (void)allocator, (void)buffer, (void)bytes, (void)kind, (void)id;
  ((Call*)buffer_userp)->freed++;
  return NULL;
}

static void read_response(Call* call, Answer* answer) {
  const char* model;
  const char* id;
  int64_t version;
  uint32_t count;
  Error* error = TRITONSERVER_InferenceResponseError(answer);
  if (error != NULL) {
    snprintf(call->text, sizeof call->text, "%s: %s", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    return;
  }
  MUST(TRITONSERVER_InferenceResponseModel(answer, &model, &version));
  MUST(TRITONSERVER_InferenceResponseId(answer, &id));
  MUST(TRITONSERVER_InferenceResponseOutputCount(answer, &count));
  int at = snprintf(call->text, sizeof call->text, "%s %lld '%s'", model, (long long)version, id);
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
    bool is_ours = userp == call && (const char*)base >= (char*)call->memory && (const char*)base < (char*)(call->memory + 2);
    const float* values = base;
    at += snprintf(call->text + at, sizeof call->text - (size_t)at, " %s %s[%lld] %s", name, TRITONSERVER_DataTypeString(type),
                   dims == 1 ? (long long)shape[0] : -1, is_ours ? "ours" : "elsewhere");
    for (size_t each = 0; each < bytes / sizeof *values; each++)
      at += snprintf(call->text + at, sizeof call->text - (size_t)at, " %g", (double)values[each]);
  }
}

static void respond(Answer* answer, uint32_t flags, void* userp) {
  Call* call = userp;
  if (answer != NULL) {
    read_response(call, answer);
    MUST(TRITONSERVER_InferenceResponseDelete(answer));
  }
  pthread_mutex_lock(&call->lock);
  call->responses += answer != NULL;
  call->is_final |= (flags & FINAL) != 0;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

static void give_back(Asked* request, uint32_t flags, void* userp) {
  Call* call = userp;
  if (flags & RELEASE_ALL) MUST(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&call->lock);
  call->released++;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

static const float first[4] = {1, 2, 3, 4}, second[4] = {10, 20, 30, 40};

/* Sends a request of two inputs, the first of them in two parts. */
static Error* ask(Server* server, Allocator* allocator, Call* call, const char* model, int inputs) {
  static const int64_t shape[] = {4};
  Asked* request;
  memset(call, 0, sizeof *call);
  pthread_mutex_init(&call->lock, NULL);
  pthread_cond_init(&call->changed, NULL);
  Error* refused = TRITONSERVER_InferenceRequestNew(&request, server, model, -1);
  if (refused != NULL) return refused;
  MUST(TRITONSERVER_InferenceRequestSetId(request, "7"));
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, give_back, call));
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", first, sizeof first, CPU, 0));
  if (inputs == 2) {
    MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN1", TYPE_FP32, shape, 1));
    MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN1", second, sizeof second, CPU, 0));
  }
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, call, respond, call));
  Error* error = TRITONSERVER_ServerInferAsync(server, request, NULL);
  if (error != NULL) MUST(TRITONSERVER_InferenceRequestDelete(request));
  return error;
}

static void await(Call* call) {
  pthread_mutex_lock(&call->lock);
  while (!call->is_final || !call->released) pthread_cond_wait(&call->changed, &call->lock);
  pthread_mutex_unlock(&call->lock);
}

static void infer(Server* server, Allocator* allocator, const char* model, int inputs) {
  Call call;
  Error* refused = ask(server, allocator, &call, model, inputs);
  if (refused != NULL) {
    tell("infer", refused);
    return;
  }
  await(&call);
  printf("infer: %s; %d responses, %d places, %d freed, %d released\n", call.text, call.responses, call.places, call.freed, call.released);
}

/* A line of the metrics that begins so. */
static void tell_metric(Server* server, const char* begin) {
  Metrics* metrics;
  const char* page;
  size_t bytes;
  MUST(TRITONSERVER_ServerMetrics(server, &metrics));
  MUST(TRITONSERVER_MetricsFormatted(metrics, 0, &page, &bytes));
  const char* found = memmem(page, bytes, begin, strlen(begin));
  printf("metric: %.*s\n", found == NULL ? 0 : (int)strcspn(found, "\n"), found == NULL ? "" : found);
  MUST(TRITONSERVER_MetricsDelete(metrics));
}

static void tell_ready(Server* server, const char* model) {
  bool is_ready = false;
  tell("is asked", TRITONSERVER_ServerModelIsReady(server, model, -1, &is_ready));
  printf("%s is %s\n", model, is_ready ? "ready" : "not ready");
}

/* What a model's state is awaited to be: an unload does not wait for its end. */
static void await_ready(Server* server, const char* model, bool wanted) {
  for (int tries = 0; tries < 1000; tries++) {
    bool is_ready = !wanted;
    MUST(TRITONSERVER_ServerModelIsReady(server, model, -1, &is_ready));
    if (is_ready == wanted) break;
    usleep(10000);
  }
  tell_ready(server, model);
}

static void serve(void) {
  uint32_t major, minor, flags;
  Message* message;
  Allocator* allocator;
  MUST(TRITONSERVER_ApiVersion(&major, &minor));
  printf("version: %u.%u\n", major, minor);
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  Server* server = start(CONTROL_NONE, NULL);
  MUST(TRITONSERVER_ServerMetadata(server, &message));
  tell_message("metadata", message);
  MUST(TRITONSERVER_ServerModelMetadata(server, "add", 1, &message));
  tell_message("model", message);
  MUST(TRITONSERVER_ServerModelConfig(server, "add", -1, 1, &message));
  tell_message("config", message);
  tell("config 2", TRITONSERVER_ServerModelConfig(server, "add", -1, 2, &message));
  MUST(TRITONSERVER_ServerModelIndex(server, 0, &message));
  tell_message("index", message);
  MUST(TRITONSERVER_ServerModelBatchProperties(server, "add", -1, &flags, NULL));
  printf("batches: %u\n", flags);
  MUST(TRITONSERVER_ServerModelTransactionProperties(server, "add", -1, &flags, NULL));
  printf("transactions: %u\n", flags);
  tell_ready(server, "add");
  tell_ready(server, "none");
  infer(server, allocator, "add", 2);
  infer(server, allocator, "add", 2);
  infer(server, allocator, "add", 1);
  infer(server, allocator, "fail", 1);
  infer(server, allocator, "none", 1);
  MUST(TRITONSERVER_ServerModelStatistics(server, "add", -1, &message));
  tell_message("statistics", message);
  tell_metric(server, "nv_inference_request_success{model=\"add\",version=\"1\"}");
  tell("load", TRITONSERVER_ServerLoadModel(server, "add"));
  tell("poll", TRITONSERVER_ServerPollModelRepository(server));
  MUST(TRITONSERVER_ServerDelete(server));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

static void control(void) {
  static const char config[] = "{\"backend\":\"sample\",\"max_batch_size\":4,\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}],"
                               "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}]}";
  uint32_t flags = 0;
  Server* server = start(CONTROL_EXPLICIT, "add");
  tell_ready(server, "add");
  tell_ready(server, "fail");
  tell("load", TRITONSERVER_ServerLoadModel(server, "fail"));
  tell_ready(server, "fail");
  tell("load none", TRITONSERVER_ServerLoadModel(server, "none"));
  tell("unload", TRITONSERVER_ServerUnloadModel(server, "fail"));
  await_ready(server, "fail", false);
  Parameter* parameter = TRITONSERVER_ParameterNew("config", 0, config);
  const Parameter* parameters[] = {parameter};
  tell("load changed", TRITONSERVER_ServerLoadModelWithParameters(server, "fail", parameters, 1));
  TRITONSERVER_ParameterDelete(parameter);
  MUST(TRITONSERVER_ServerModelBatchProperties(server, "fail", -1, &flags, NULL));
  printf("batches: %u\n", flags);
  MUST(TRITONSERVER_ServerDelete(server));
}

static void stop(void) {
  bool is_live = true;
  Call call;
  Allocator* allocator;
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  Server* server = start(CONTROL_EXPLICIT, "slow");
  MUST(ask(server, allocator, &call, "slow", 1));
  usleep(200000);
  tell("stop", TRITONSERVER_ServerStop(server));
  printf("under way: %d responses, %d released, final %d\n", call.responses, call.released, call.is_final);
  tell("live", TRITONSERVER_ServerIsLive(server, &is_live));
  printf("is %s\n", is_live ? "live" : "not live");
  Error* refused = ask(server, allocator, &call, "slow", 1);
  printf("after that: %s\n", refused == NULL ? "taken" : "refused");
  if (refused == NULL) await(&call);
  TRITONSERVER_ErrorDelete(refused);
  tell("delete", TRITONSERVER_ServerDelete(server));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* The server's end waits for requests under way no longer than the program says. */
static void hurry(void) {
  Call call;
  Allocator* allocator;
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  Server* server = start(CONTROL_EXPLICIT, "slower");
  MUST(ask(server, allocator, &call, "slower", 1));
  tell("timeout", TRITONSERVER_ServerSetExitTimeout(server, 0));
  tell("stop", TRITONSERVER_ServerStop(server));
  printf("under way: %d responses, final %d\n", call.responses, call.is_final);
  await(&call);
  printf("at last: %d responses, final %d\n", call.responses, call.is_final);
  tell("delete", TRITONSERVER_ServerDelete(server));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  fflush(stdout);
  /* Triton 2.51 has threads left, which crash when the process ends in order. */
  _exit(0);
}

static int count_in(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

static long resident_kib(void) {
  long pages = 0, all = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (fscanf(file, "%ld %ld", &all, &pages) != 2) pages = 0;
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Servers one after the other leave nothing behind. */
static void again(void) {
  int threads = 0, descriptors = 0;
  long kib = 0;
  Call call;
  for (int round = 0; round < 30; round++) {
    Allocator* allocator;
    MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
    Server* server = start(CONTROL_NONE, NULL);
    MUST(ask(server, allocator, &call, "add", 2));
    await(&call);
    MUST(TRITONSERVER_ServerDelete(server));
    MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
    if (round == 9) {
      threads = count_in("/proc/self/task");
      descriptors = count_in("/proc/self/fd");
      kib = resident_kib();
    }
  }
  printf("left: %d threads, %d descriptors, %ld KiB\n", count_in("/proc/self/task") - threads, count_in("/proc/self/fd") - descriptors,
         resident_kib() - kib);
}

static void two(void) {
  Allocator* allocator;
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  Server *one = start(CONTROL_EXPLICIT, "add"), *other = start(CONTROL_EXPLICIT, NULL);
  tell_ready(one, "add");
  tell_ready(other, "add");
  tell("load", TRITONSERVER_ServerLoadModel(other, "other"));
  infer(one, allocator, "add", 2);
  MUST(TRITONSERVER_ServerDelete(one));
  infer(other, allocator, "other", 2);
  MUST(TRITONSERVER_ServerDelete(other));
}

/* What breaks the rules is refused where it can be told. */
static void misuse(void) {
  Server* none = NULL;
  Options* given = options(CONTROL_EXPLICIT, "add");
  bool is_live;
  Message* message;
  tell("no place", TRITONSERVER_ServerNew(NULL, given));
  tell("no options", TRITONSERVER_ServerNew(&none, NULL));
  tell("a server that is options", TRITONSERVER_ServerIsLive((Server*)given, &is_live));
  tell("control mode 9", TRITONSERVER_ServerOptionsSetModelControlMode(given, 9));
  tell("no text", TRITONSERVER_ServerOptionsSetServerId(given, NULL));
  tell("host policy", TRITONSERVER_ServerOptionsSetHostPolicy(given, "p", "bogus", "0"));
  Server* server = start(CONTROL_EXPLICIT, "add");
  tell("no place for metadata", TRITONSERVER_ServerMetadata(server, NULL));
  tell("no name", TRITONSERVER_ServerLoadModel(server, NULL));
  tell("options that are a server", TRITONSERVER_ServerOptionsDelete((Options*)server));
  tell("stop", TRITONSERVER_ServerStop(server));
  tell("stop", TRITONSERVER_ServerStop(server));
  tell("delete", TRITONSERVER_ServerDelete(server));
  tell("delete", TRITONSERVER_ServerDelete(server));
  tell("metadata", TRITONSERVER_ServerMetadata(server, &message));
  tell("delete options", TRITONSERVER_ServerOptionsDelete(given));
  tell("delete options", TRITONSERVER_ServerOptionsDelete(given));
}

static Options* bare(void) {
  Options* made;
  MUST(TRITONSERVER_ServerOptionsNew(&made));
  MUST(TRITONSERVER_ServerOptionsSetLogInfo(made, false));
  MUST(TRITONSERVER_ServerOptionsSetLogError(made, false));
  MUST(TRITONSERVER_ServerOptionsSetGpuMetrics(made, false));
  MUST(TRITONSERVER_ServerOptionsSetBackendDirectory(made, backends));
  return made;
}

/* The repository has a model that cannot be loaded. */
static void refuse(void) {
  Server* none = NULL;
  Options* given = bare();
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(given, repository));
  tell("a model that fails", TRITONSERVER_ServerNew(&none, given));
  MUST(TRITONSERVER_ServerOptionsDelete(given));
  given = bare();
  tell("no repository", TRITONSERVER_ServerNew(&none, given));
  MUST(TRITONSERVER_ServerOptionsDelete(given));
}

/* What holds where nothing is said: the repositories are looked at when the program asks for it. */
static void look_again(void) {
  char from[512], to[512];
  Server* server = NULL;
  Options* given = bare();
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(given, repository));
  MUST(TRITONSERVER_ServerNew(&server, given));
  MUST(TRITONSERVER_ServerOptionsDelete(given));
  await_ready(server, "add", true);
  snprintf(from, sizeof from, "%s/add", repository);
  snprintf(to, sizeof to, "%s/../gone", repository);
  if (rename(from, to) != 0) perror(from);
  tell("poll", TRITONSERVER_ServerPollModelRepository(server));
  await_ready(server, "add", false);
  if (rename(to, from) != 0) perror(to);
  tell("poll", TRITONSERVER_ServerPollModelRepository(server));
  await_ready(server, "add", true);
  tell("load", TRITONSERVER_ServerLoadModel(server, "add"));
  MUST(TRITONSERVER_ServerDelete(server));
}

/* A repository comes beside the first, whose path ends with "_more" and which has one model, "later". */
static void register_more(void) {
  char path[1024], nowhere[1024];
  snprintf(path, sizeof path, "%s_more", repository);
  snprintf(nowhere, sizeof nowhere, "%s_nowhere", repository);
  Server* server = start(CONTROL_EXPLICIT, "add");
  tell("load before", TRITONSERVER_ServerLoadModel(server, "later"));
  tell("register", TRITONSERVER_ServerRegisterModelRepository(server, path, NULL, 0));
  tell("load", TRITONSERVER_ServerLoadModel(server, "later"));
  tell_ready(server, "later");
  tell("register again", TRITONSERVER_ServerRegisterModelRepository(server, path, NULL, 0));
  tell("register nowhere", TRITONSERVER_ServerRegisterModelRepository(server, nowhere, NULL, 0));
  tell("unload", TRITONSERVER_ServerUnloadModel(server, "later"));
  await_ready(server, "later", false);
  tell("unregister", TRITONSERVER_ServerUnregisterModelRepository(server, path));
  tell("unregister again", TRITONSERVER_ServerUnregisterModelRepository(server, path));
  tell("load after", TRITONSERVER_ServerLoadModel(server, "later"));
  Parameter* name = TRITONSERVER_ParameterNew("later", 0, "renamed");
  const Parameter* names[] = {name};
  tell("register renamed", TRITONSERVER_ServerRegisterModelRepository(server, path, names, 1));
  TRITONSERVER_ParameterDelete(name);
  tell("load by its directory", TRITONSERVER_ServerLoadModel(server, "later"));
  tell("load by its name", TRITONSERVER_ServerLoadModel(server, "renamed"));
  tell_ready(server, "renamed");
  MUST(TRITONSERVER_ServerDelete(server));
  server = start(CONTROL_NONE, NULL);
  tell("register in mode none", TRITONSERVER_ServerRegisterModelRepository(server, path, NULL, 0));
  tell("unregister in mode none", TRITONSERVER_ServerUnregisterModelRepository(server, repository));
  MUST(TRITONSERVER_ServerDelete(server));
}

int main(int count, char** words) {
  if (count != 4) return 2;
  repository = words[2];
  backends = words[3];
  setvbuf(stdout, NULL, _IOLBF, 0);
  void (*what)(void) = strcmp(words[1], "serve") == 0     ? serve
                       : strcmp(words[1], "control") == 0 ? control
                       : strcmp(words[1], "stop") == 0    ? stop
                       : strcmp(words[1], "again") == 0   ? again
                       : strcmp(words[1], "hurry") == 0   ? hurry
                       : strcmp(words[1], "two") == 0     ? two
                       : strcmp(words[1], "register") == 0 ? register_more
                       : strcmp(words[1], "refuse") == 0  ? refuse
                       : strcmp(words[1], "poll") == 0    ? look_again
                                                          : misuse;
  what();
  return 0;
}

/* What does each option do that a program sets for its server, and is its misuse refused?
 *
 *   options names                              the functions that this program calls, one to a line
 *   options serve <model> <metric> <call>...   makes a server with the options that these calls set, and prints what can be seen of them
 *   options misuse                             calls each function with NULL, with options that were deleted, and with another object
 *
 * A call is the end of a function's name and its arguments, such as "SetHostPolicy|p|numa-node|0". Each text is freed after its call: the library must
 * have copied it. Some metrics are taken after the start: the page is printed once it has the metric, or after 10 s.
 *
 * tests/conformance/test_program_options.py runs it with this server's library and with that of Triton 2.51.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

/* What a function takes beside the options: T a text, B a bool, U uint32_t, I int, L uint64_t, Z size_t,
 * D double. */
typedef enum { T, B, U, I, L, D, TT, TTT, IL, IZ, UID, TZI } Takes;

typedef struct {
  const char* name;
  Takes takes;
  void (*function)(void);
} Row;

#define ROW(function, takes) {&#function[sizeof "TRITONSERVER_ServerOptions" - 1], takes, (void (*)(void))function}

static const Row ROWS[] = {
    ROW(TRITONSERVER_ServerOptionsSetServerId, T),
    ROW(TRITONSERVER_ServerOptionsSetModelRepositoryPath, T),
    ROW(TRITONSERVER_ServerOptionsSetModelControlMode, U),
    ROW(TRITONSERVER_ServerOptionsSetStartupModel, T),
    ROW(TRITONSERVER_ServerOptionsSetStrictModelConfig, B),
    ROW(TRITONSERVER_ServerOptionsSetModelConfigName, T),
    ROW(TRITONSERVER_ServerOptionsSetRateLimiterMode, U),
    ROW(TRITONSERVER_ServerOptionsAddRateLimiterResource, TZI),
    ROW(TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize, L),
    ROW(TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize, IL),
    ROW(TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize, IZ),
    ROW(TRITONSERVER_ServerOptionsSetResponseCacheByteSize, L),
    ROW(TRITONSERVER_ServerOptionsSetCacheConfig, TT),
    ROW(TRITONSERVER_ServerOptionsSetCacheDirectory, T),
    ROW(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability, D),
    ROW(TRITONSERVER_ServerOptionsSetExitOnError, B),
    ROW(TRITONSERVER_ServerOptionsSetStrictReadiness, B),
    ROW(TRITONSERVER_ServerOptionsSetExitTimeout, U),
    ROW(TRITONSERVER_ServerOptionsSetBufferManagerThreadCount, U),
    ROW(TRITONSERVER_ServerOptionsSetModelLoadThreadCount, U),
    ROW(TRITONSERVER_ServerOptionsSetModelLoadRetryCount, U),
    ROW(TRITONSERVER_ServerOptionsSetModelNamespacing, B),
    ROW(TRITONSERVER_ServerOptionsSetEnablePeerAccess, B),
    ROW(TRITONSERVER_ServerOptionsSetLogFile, T),
    ROW(TRITONSERVER_ServerOptionsSetLogInfo, B),
    ROW(TRITONSERVER_ServerOptionsSetLogWarn, B),
    ROW(TRITONSERVER_ServerOptionsSetLogError, B),
    ROW(TRITONSERVER_ServerOptionsSetLogFormat, U),
    ROW(TRITONSERVER_ServerOptionsSetLogVerbose, I),
    ROW(TRITONSERVER_ServerOptionsSetMetrics, B),
    ROW(TRITONSERVER_ServerOptionsSetGpuMetrics, B),
    ROW(TRITONSERVER_ServerOptionsSetCpuMetrics, B),
    ROW(TRITONSERVER_ServerOptionsSetMetricsInterval, L),
    ROW(TRITONSERVER_ServerOptionsSetBackendDirectory, T),
    ROW(TRITONSERVER_ServerOptionsSetRepoAgentDirectory, T),
    ROW(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit, UID),
    ROW(TRITONSERVER_ServerOptionsSetBackendConfig, TTT),
    ROW(TRITONSERVER_ServerOptionsSetHostPolicy, TTT),
    ROW(TRITONSERVER_ServerOptionsSetMetricsConfig, TTT),
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS, ARGUMENTS_MAX = 3 };

#define CALL(...) ((Error * (*)(Options*, __VA_ARGS__)) row->function)

static Error* call(const Row* row, Options* options, char** words) {
  const char *first = words[0], *second = words[1], *third = words[2];
  switch (row->takes) {
    case T: return CALL(const char*)(options, first);
    case TT: return CALL(const char*, const char*)(options, first, second);
    case TTT: return CALL(const char*, const char*, const char*)(options, first, second, third);
    case B: return CALL(bool)(options, atoi(first) != 0);
    case U: return CALL(uint32_t)(options, (uint32_t)strtoul(first, NULL, 10));
    case I: return CALL(int)(options, atoi(first));
    case L: return CALL(uint64_t)(options, strtoull(first, NULL, 10));
    case D: return CALL(double)(options, atof(first));
    case IL: return CALL(int, uint64_t)(options, atoi(first), strtoull(second, NULL, 10));
    case IZ: return CALL(int, size_t)(options, atoi(first), strtoull(second, NULL, 10));
    case UID: return CALL(uint32_t, int, double)(options, (uint32_t)strtoul(first, NULL, 10), atoi(second), atof(third));
    case TZI: return CALL(const char*, size_t, int)(options, first, strtoull(second, NULL, 10), atoi(third));
  }
  return NULL;
}

/* How many of the arguments are texts. They come first. */
static int texts_of(Takes takes) {
  switch (takes) {
    case T: case TZI: return 1;
    case TT: return 2;
    case TTT: return 3;
    default: return 0;
  }
}

/* What came of a call that may fail, and whether it did not. */
static bool print_outcome(const char* what, const char* name, Error* error) {
  if (error == NULL) {
    printf("%s%s: well\n", what, name);
    return true;
  }
  printf("%s%s: %s: ", what, name, TRITONSERVER_ErrorCodeString(error));
  /* A message may have several lines. */
  for (const char* next = TRITONSERVER_ErrorMessage(error); *next != 0; next++) putchar(*next == '\n' ? ' ' : *next);
  putchar('\n');
  TRITONSERVER_ErrorDelete(error);
  return false;
}

static void set(Options* options, const char* wanted) {
  char *copy = strdup(wanted), *rest = copy, *name = strsep(&rest, "|"), *words[ARGUMENTS_MAX] = {NULL, NULL, NULL};
  for (int at = 0; at < ARGUMENTS_MAX && rest != NULL; at++) words[at] = strdup(strsep(&rest, "|"));
  for (int at = 0; at < ROW_COUNT; at++)
    if (strcmp(ROWS[at].name, name) == 0) {
      print_outcome("", name, call(&ROWS[at], options, words));
      name = NULL;
      break;
    }
  if (name != NULL) printf("%s: no function of this name\n", name);
  for (int at = 0; at < ARGUMENTS_MAX; at++) free(words[at]);
  free(copy);
}

static void print_message(const char* what, Error* error, Message** message) {
  const char* json;
  size_t bytes;
  if (error != NULL) {
    print_outcome(what, "", error);
    return;
  }
  MUST(TRITONSERVER_MessageSerializeToJson(*message, &json, &bytes));
  printf("%s: %.*s\n", what, (int)bytes, json);
  MUST(TRITONSERVER_MessageDelete(*message));
}

static char* copy_metrics(Server* server) {
  Metrics* metrics;
  const char* page;
  size_t bytes;
  MUST(TRITONSERVER_ServerMetrics(server, &metrics));
  MUST(TRITONSERVER_MetricsFormatted(metrics, 0, &page, &bytes));
  char* copy = strndup(page, bytes);
  MUST(TRITONSERVER_MetricsDelete(metrics));
  return copy;
}

static void print_metrics(Server* server, const char* metric) {
  char* copy = copy_metrics(server);
  for (int tries = 0; tries < 1000 && strstr(copy, metric) == NULL; tries++) {
    usleep(10000);
    free(copy);
    copy = copy_metrics(server);
  }
  char* rest = copy;
  for (const char* line; (line = strsep(&rest, "\n")) != NULL;)
    if (*line != '#' && *line != 0) printf("metric: %s\n", line);
  free(copy);
}

static void print_server(Server* server, const char* model, const char* metric) {
  bool is_ready = false;
  Message* message = NULL;
  print_message("metadata", TRITONSERVER_ServerMetadata(server, &message), &message);
  print_message("index", TRITONSERVER_ServerModelIndex(server, 0, &message), &message);
  print_message("config", TRITONSERVER_ServerModelConfig(server, model, -1, 1, &message), &message);
  if (print_outcome("is ready", "", TRITONSERVER_ServerIsReady(server, &is_ready))) printf("is ready: %d\n", is_ready);
  print_outcome("load", "", TRITONSERVER_ServerLoadModel(server, model));
  print_metrics(server, metric);
}

static void serve(const char* model, const char* metric, char** calls) {
  Options* options;
  Server* server = NULL;
  MUST(TRITONSERVER_ServerOptionsNew(&options));
  for (; *calls != NULL; calls++) set(options, *calls);
  bool is_made = print_outcome("start", "", TRITONSERVER_ServerNew(&server, options));
  /* The server does not need them any longer. */
  MUST(TRITONSERVER_ServerOptionsDelete(options));
  if (!is_made) return;
  print_server(server, model, metric);
  print_outcome("delete", "", TRITONSERVER_ServerDelete(server));
}

static Error* allocate(Allocator* allocator, const char* output, size_t bytes, uint32_t kind, int64_t id, void* userp, void** buffer,
                       void** buffer_userp, uint32_t* actual_kind, int64_t* actual_id) {
  (void)allocator, (void)output, (void)bytes, (void)kind, (void)id, (void)userp, (void)buffer, (void)buffer_userp, (void)actual_kind;
  (void)actual_id;
  return NULL;
}

static Error* release(Allocator* allocator, void* buffer, void* buffer_userp, size_t bytes, uint32_t kind, int64_t id) {
  (void)allocator, (void)buffer, (void)buffer_userp, (void)bytes, (void)kind, (void)id;
  return NULL;
}

static void misuse(void) {
  Options *deleted, *options;
  Allocator* other;
  MUST(TRITONSERVER_ServerOptionsNew(&deleted));
  MUST(TRITONSERVER_ServerOptionsDelete(deleted));
  MUST(TRITONSERVER_ServerOptionsNew(&options));
  MUST(TRITONSERVER_ResponseAllocatorNew(&other, allocate, release, NULL));
  for (const Row* row = ROWS; row < ROWS + ROW_COUNT; row++) {
    char one[] = "1", two[] = "numa-node", *words[ARGUMENTS_MAX] = {one, two, one};
    print_outcome("null ", row->name, call(row, NULL, words));
    print_outcome("deleted ", row->name, call(row, deleted, words));
    print_outcome("other ", row->name, call(row, (Options*)other, words));
    for (int at = 0; at < texts_of(row->takes); at++) {
      char what[16], *kept = words[at];
      words[at] = NULL;
      snprintf(what, sizeof what, "no text %d ", at);
      print_outcome(what, row->name, call(row, options, words));
      words[at] = kept;
    }
  }
  print_outcome("null ", "New", TRITONSERVER_ServerOptionsNew(NULL));
  print_outcome("null ", "Delete", TRITONSERVER_ServerOptionsDelete(NULL));
  print_outcome("deleted ", "Delete", TRITONSERVER_ServerOptionsDelete(deleted));
  print_outcome("other ", "Delete", TRITONSERVER_ServerOptionsDelete((Options*)other));
  MUST(TRITONSERVER_ServerOptionsDelete(options));
  MUST(TRITONSERVER_ResponseAllocatorDelete(other));
}

int main(int count, char** words) {
  if (count < 2) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (strcmp(words[1], "names") == 0)
    for (int at = 0; at < ROW_COUNT; at++) printf("%s\n", ROWS[at].name);
  else if (strcmp(words[1], "serve") == 0 && count > 3) serve(words[2], words[3], words + 4);
  else misuse();
  return 0;
}

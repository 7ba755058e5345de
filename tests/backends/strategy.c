/* Which requests share a batch, by a strategy of a model's own?
 *
 * A library of TRITONBACKEND_ModelBatch… functions. What it does is said by parameters of the model:
 *   strategy  volume: at most `volume_bytes` bytes of inputs in one batch (the default)
 *             never: nothing joins
 *             fail_include, fail_begin, fail_start: the function of that name returns an error
 *             sleeps: it takes `sleep_ms` for each request that it is asked about, and then is as volume
 *             forbidden: it tries what a strategy must not do, and then is as volume
 * Its last function logs what was called how often.
 */
#include "backend.h"

typedef void Batcher;

/* The strategy of one model, which all its batches read. The counts are the test's: functions of one model are called one at a time. */
typedef struct {
  char strategy[32];
  uint64_t bytes_max, sleep_ms;
  unsigned begun, asked, ended;
} Strategy;

/* What is in a batch. */
typedef struct {
  Strategy* strategy;
  uint64_t bytes;
} Volume;

Error* TRITONBACKEND_ModelBatcherInitialize(Batcher** batcher, Model* model) {
  Message* config;
  const char* json;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
  char* text = strndup(json, size);
  TRY(TRITONSERVER_MessageDelete(config));
  Strategy* strategy = calloc(1, sizeof *strategy);
  char bytes[32];
  parameter(text, "strategy", strategy->strategy, sizeof strategy->strategy);
  parameter(text, "volume_bytes", bytes, sizeof bytes);
  strategy->bytes_max = strtoull(bytes, NULL, 10);
  parameter(text, "sleep_ms", bytes, sizeof bytes);
  strategy->sleep_ms = strtoull(bytes, NULL, 10);
  free(text);
  *batcher = strategy;
  if (strcmp(strategy->strategy, "fail_start") == 0) return TRITONSERVER_ErrorNew(INTERNAL, "start fails on purpose");
  return NULL;
}

Error* TRITONBACKEND_ModelBatcherFinalize(Batcher* batcher) {
  Strategy* strategy = batcher;
  if (strategy == NULL) return NULL;
  char text[128];
  snprintf(text, sizeof text, "strategy ends: %u begun, %u asked, %u ended", strategy->begun, strategy->asked, strategy->ended);
  free(strategy);
  return TRITONSERVER_LogMessage(WARN, __FILE__, __LINE__, text);
}

Error* TRITONBACKEND_ModelBatchInitialize(const Batcher* batcher, void** userp) {
  Strategy* strategy = (Strategy*)batcher;
  strategy->begun++;
  if (strcmp(strategy->strategy, "fail_begin") == 0) return TRITONSERVER_ErrorNew(INTERNAL, "begin fails on purpose");
  Volume* volume = calloc(1, sizeof *volume);
  volume->strategy = strategy;
  *userp = volume;
  return NULL;
}

Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  Volume* volume = userp;
  volume->strategy->ended++;
  free(volume);
  return NULL;
}

/* What must be refused while the queue of a model is locked. */
static Error* try_what_is_forbidden(Request* request) {
  static const char* words[] = {"ResponseNew", "ResponseFactoryNew", "RequestRelease"};
  for (int each = 0; each < 3; each++) {
    void* made = NULL;
    Error* error = each == 0   ? TRITONBACKEND_ResponseNew(&made, request)
                   : each == 1 ? TRITONBACKEND_ResponseFactoryNew(&made, request)
                               : TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
    char text[256];
    snprintf(text, sizeof text, "%s: %s", words[each], error == NULL ? "allowed" : TRITONSERVER_ErrorCodeString(error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    TRY(TRITONSERVER_LogMessage(WARN, __FILE__, __LINE__, text));
  }
  return NULL;
}

Error* TRITONBACKEND_ModelBatchIncludeRequest(Request* request, void* userp, bool* should_include) {
  Volume* volume = userp;
  *should_include = false;
  /* Triton 2.51 asks about a batch that it has finalized. */
  if (volume == NULL) return NULL;
  Strategy* strategy = volume->strategy;
  strategy->asked++;
  if (strcmp(strategy->strategy, "never") == 0) return NULL;
  if (strcmp(strategy->strategy, "fail_include") == 0) return TRITONSERVER_ErrorNew(INTERNAL, "include fails on purpose");
  if (strcmp(strategy->strategy, "sleeps") == 0) {
    struct timespec time = {(time_t)(strategy->sleep_ms / 1000), (long)(strategy->sleep_ms % 1000) * 1000000};
    nanosleep(&time, NULL);
  }
  if (strcmp(strategy->strategy, "forbidden") == 0) TRY(try_what_is_forbidden(request));
  uint32_t count;
  uint64_t bytes = 0;
  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; index++) {
    Input* input;
    uint64_t of_input;
    TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &of_input, NULL));
    bytes += of_input;
  }
  *should_include = volume->bytes + bytes <= strategy->bytes_max;
  if (*should_include) volume->bytes += bytes;
  return NULL;
}

/* How do the calls of `every.c` become lines of a report, and how is the misuse of a function tried? */
#ifndef FINDINGS_H
#define FINDINGS_H

#include "backend.h"

#include <dlfcn.h>

static char report[1 << 17];
static size_t length;

static void find(const char* line) {
  if (strstr(report, line) == NULL && length + strlen(line) < sizeof report) length += (size_t)sprintf(report + length, "%s", line);
}

static void good(const char* name, Error* error) {
  char line[512];
  if (error == NULL) snprintf(line, sizeof line, "good %s\n", name);
  else snprintf(line, sizeof line, "wrong %s: %s\n", name, TRITONSERVER_ErrorMessage(error));
  find(line);
  TRITONSERVER_ErrorDelete(error);
}

static void bad(const char* name, uint32_t code, Error* error) {
  char line[512];
  if (error == NULL) snprintf(line, sizeof line, "wrong %s: no error where %u is due\n", name, code);
  else if (TRITONSERVER_ErrorCode(error) != code || *TRITONSERVER_ErrorMessage(error) == 0)
    snprintf(line, sizeof line, "wrong %s: %s '%s'\n", name, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  else snprintf(line, sizeof line, "bad %s %u\n", name, code);
  find(line);
  TRITONSERVER_ErrorDelete(error);
}

static void holds(const char* name, bool is_so, const char* what) {
  char line[512];
  if (is_so) snprintf(line, sizeof line, "good %s\n", name);
  else snprintf(line, sizeof line, "wrong %s: not so: %s\n", name, what);
  find(line);
}

#define GOOD(function, ...) good(#function, function(__VA_ARGS__))
#define BAD(code, function, ...) bad(#function, code, function(__VA_ARGS__))
#define HOLDS(function, claim) holds(#function, (claim), #claim)

/* The last object of each kind. All but the first four are gone after a request. */
static struct {
  Server* server;
  Backend* backend;
  Model* model;
  Instance* instance;
  Attributes* attributes;
  Request* request;
  Input* input;
  Output* output;
  Response* response;
  Factory* factory;
  State* state;
  Message* message;
  BufferAttributes* buffer;
  Family* family;
  MetricArgs* args;
  Metric* metric;
  Trace* trace;
  Allocator* allocator;
  Asked* asked;
  Answer* answer;
} last;


/* The object that a function gets, and at which place of its arguments. The first row fits whose beginning the name has. */
typedef struct {
  const char* begins;
  void** object;
  int place;
} Row;

static const Row ROWS[] = {
    {"TRITONBACKEND_BackendAttribute", &last.attributes, 0},
    {"TRITONBACKEND_Backend", &last.message, 0},
    {"TRITONBACKEND_MemoryManager", &last.message, 0},
    {"TRITONBACKEND_Model", &last.message, 0},
    {"TRITONBACKEND_ResponseNewFromFactory", &last.factory, 1},
    {"TRITONBACKEND_ResponseNew", &last.request, 1},
    {"TRITONBACKEND_ResponseFactoryNew", &last.request, 1},
    {"TRITONBACKEND_ResponseFactory", &last.factory, 0},
    {"TRITONBACKEND_Response", &last.response, 0},
    {"TRITONBACKEND_Request", &last.request, 0},
    {"TRITONBACKEND_InferenceRequest", &last.request, 0},
    {"TRITONBACKEND_Input", &last.input, 0},
    {"TRITONBACKEND_Output", &last.output, 0},
    {"TRITONBACKEND_StateNew", &last.request, 1},
    {"TRITONBACKEND_State", &last.state, 0},
    {"TRITONSERVER_MessageNew", NULL, 0},
    {"TRITONSERVER_Message", &last.message, 0},
    {"TRITONSERVER_BufferAttributesNew", NULL, 0},
    {"TRITONSERVER_BufferAttributes", &last.buffer, 0},
    {"TRITONSERVER_MetricFamilyNew", NULL, 0},
    {"TRITONSERVER_MetricFamily", &last.family, 0},
    {"TRITONSERVER_GetMetricFamily", &last.family, 0},
    {"TRITONSERVER_GetMetricKind", &last.metric, 0},
    {"TRITONSERVER_MetricArgsNew", NULL, 0},
    {"TRITONSERVER_MetricArgs", &last.args, 0},
    {"TRITONSERVER_MetricNew", &last.family, 1},
    {"TRITONSERVER_Metric", &last.metric, 0},
    {"TRITONSERVER_InferenceTrace", &last.trace, 0},
    {"TRITONSERVER_ResponseAllocatorNew", NULL, 0},
    {"TRITONSERVER_ResponseAllocator", &last.allocator, 0},
    {"TRITONSERVER_InferenceRequestNew", &last.message, 1},
    {"TRITONSERVER_InferenceRequest", &last.asked, 0},
    {"TRITONSERVER_InferenceResponse", &last.answer, 0},
    {"TRITONSERVER_Server", &last.message, 0},
};

/* Any function of the interface that returns an error: what it does not expect among the registers and on the stack it ignores. */
typedef Error* (*AnyFn)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*);

static void refused(const char* how, const char* name, Error* error) {
  char line[256];
  if (error == NULL) snprintf(line, sizeof line, "%s %s succeeds\n", how, name);
  else snprintf(line, sizeof line, "%s %s %u\n", how, name, TRITONSERVER_ErrorCode(error));
  find(line);
  TRITONSERVER_ErrorDelete(error);
}

/* Calls a function with nothing but NULL, with an object that is not there any more, and with one of another kind. */
static void misuse(const char* name) {
  static char scratch[4096];
  AnyFn function = (AnyFn)dlsym(RTLD_DEFAULT, name);
  if (function == NULL) {
    refused("missing", name, NULL);
    return;
  }
  refused("null", name, function(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL));
  for (size_t at = 0; at < sizeof ROWS / sizeof *ROWS; at++) {
    if (strncmp(name, ROWS[at].begins, strlen(ROWS[at].begins)) != 0) continue;
    if (ROWS[at].object == NULL) return;
    for (int is_other = 0; is_other < 2; is_other++) {
      void* given[11];
      for (int argument = 0; argument < 11; argument++) given[argument] = scratch;
      given[ROWS[at].place] = is_other ? last.backend : *ROWS[at].object;
      if (is_other && strstr(name, "Backend") == name + strlen("TRITONBACKEND_")) given[0] = last.model;
      if (is_other && strstr(name, "MemoryManager") != NULL) given[0] = last.model;
      memset(scratch, 0, sizeof scratch);
      refused(is_other ? "other" : "gone", name,
              function(given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], given[8], given[9], given[10]));
    }
    return;
  }
}

#endif

/* What does a compiled backend do that reports its responses one by one?
 *
 * Each element of IN is one response, which says of itself: how it ends (below), and in the tens, where its times begin. Its times are made up, so
 * that what a server counts is known to the nanosecond. A response of an odd position is reported by another factory of the same request. OUT has the
 * code of the error of each report, 0 for none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

#define TRY(call)                      \
  do {                                 \
    Error* error_ = (call);            \
    if (error_ != NULL) return error_; \
  } while (0)

static void log_and_delete(Error* error, int line) {
  if (error == NULL) return;
  TRITONSERVER_LogMessage(ERROR, __FILE__, line, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}
#define LOG_IF_ERROR(call) log_and_delete((call), __LINE__)

/* How a response ends. MIXED_UP has times that are in no order, NOBODYS is of an instance that there is not. */
enum { UNREPORTED, SUCCEEDS, FAILS, FAILS_WITH_OUTPUTS, IS_EMPTY, IS_CANCELLED, MIXED_UP, MIXED_UP_AND_FAILS, LATE_START, NOBODYS };

static Error* set_times(ResponseStatistics* statistics, uint64_t start, uint64_t output_start, uint64_t end) {
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, output_start));
  return TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, end);
}

/* Reports one response. The server has none of the objects afterwards. */
static Error* report(Instance* instance, Factory* factory, int32_t element) {
  int32_t how = element % 10;
  if (how == UNREPORTED) return NULL;
  uint64_t start = 1000 + (uint64_t)(element / 10) * 10, since = start + 700, end = start + 900;
  if (how == FAILS || how == IS_EMPTY || how == IS_CANCELLED || how == LATE_START) since = 0;
  if (how == MIXED_UP || how == MIXED_UP_AND_FAILS) since = end + 1;
  if (how == LATE_START) start = end + 1;
  bool fails = how == FAILS || how == FAILS_WITH_OUTPUTS || how == MIXED_UP_AND_FAILS || how == LATE_START;
  Error* error = how == IS_CANCELLED ? TRITONSERVER_ErrorNew(CANCELLED, "cancelled")
                 : fails             ? TRITONSERVER_ErrorNew(INTERNAL, "fails on purpose")
                                     : NULL;
  ResponseStatistics* statistics;
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, how == NOBODYS ? NULL : instance));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
  TRY(set_times(statistics, start, since, end));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error));
  Error* refused = TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics);
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(NULL));
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  return refused;
}

static Error* send(Factory* factory, int32_t code, Error* refused) {
  static const int64_t one = 1;
  Response* response;
  Output* output;
  void* buffer;
  uint32_t kind = CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_INT32, &one, 1));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof code, &kind, &id));
  memcpy(buffer, &code, sizeof code);
  if (refused != NULL)
    TRY(TRITONBACKEND_ResponseSetStringParameter(response, "refused", TRITONSERVER_ErrorMessage(refused)));
  return TRITONBACKEND_ResponseSend(response, 0, NULL);
}

static Error* answer(Instance* instance, Request* request) {
  Input* input;
  const void* base;
  uint64_t bytes;
  uint32_t kind = CPU;
  int64_t id = 0;
  Factory* factories[2];
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &base, &bytes, &kind, &id));
  for (int at = 0; at < 2; at++) TRY(TRITONBACKEND_ResponseFactoryNew(&factories[at], request));
  for (uint64_t at = 0; at < bytes / sizeof(int32_t); at++) {
    int32_t element;
    memcpy(&element, (const char*)base + at * sizeof element, sizeof element);
    Error* refused = report(instance, factories[at % 2], element);
    TRY(send(factories[at % 2], refused == NULL ? 0 : (int32_t)TRITONSERVER_ErrorCode(refused), refused));
    if (refused != NULL) TRITONSERVER_ErrorDelete(refused);
  }
  TRY(TRITONBACKEND_ResponseFactorySendFlags(factories[1], FINAL));
  for (int at = 0; at < 2; at++) TRY(TRITONBACKEND_ResponseFactoryDelete(factories[at]));
  return TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
}

Error* TRITONBACKEND_ModelInstanceExecute(Instance* instance, Request** requests, const uint32_t count) {
  for (uint32_t at = 0; at < count; at++) LOG_IF_ERROR(answer(instance, requests[at]));
  return NULL;
}

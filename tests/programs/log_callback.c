/* Does a program get the lines of the log that it asks for?
 *
 *   log_callback <repository>      prints each line that the callback gets, and what the calls between them give
 *
 * tests/conformance/test_log_callback.py runs it with this server's library. Triton 2.51 does not have the function.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "library.h"

enum { LOG_INFO, LOG_WARN, LOG_ERROR, LOG_VERBOSE };

static int calls;

static void print(uint32_t level, const char* file, int32_t line, uint64_t time_us, const char* message, void* userp) {
  int64_t late_s = (int64_t)time(NULL) - (int64_t)(time_us / 1000000);
  printf("%s: %u %s:%d %s %s\n", (const char*)userp, level, file, line, late_s >= -5 && late_s <= 600 ? "now" : "then", message);
  calls++;
  /* This must not come back here. */
  TRITONSERVER_LogMessage(LOG_ERROR, "inside.c", 1, "logged by the callback");
}

static void remove_itself(uint32_t level, const char* file, int32_t line, uint64_t time_us, const char* message, void* userp) {
  (void)level, (void)file, (void)line, (void)time_us;
  printf("once: %s\n", message);
  MUST(TRITONSERVER_ServerOptionsSetLogCallback((Options*)userp, NULL, NULL));
}

static void say(uint32_t level, const char* message) {
  MUST(TRITONSERVER_LogMessage(level, "/some/where/program.c", 42, message));
}

int main(int count, char** words) {
  if (count < 2) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  Options* options;
  Server* server;
  MUST(TRITONSERVER_ServerOptionsNew(&options));
  Error* error = TRITONSERVER_ServerOptionsSetLogCallback(NULL, print, NULL);
  printf("without options: %s\n", TRITONSERVER_ErrorCodeString(error));
  TRITONSERVER_ErrorDelete(error);

  say(LOG_ERROR, "nobody listens");
  MUST(TRITONSERVER_ServerOptionsSetLogCallback(options, print, "early"));
  printf("enabled: %d %d\n", TRITONSERVER_LogIsEnabled(LOG_INFO), TRITONSERVER_LogIsEnabled(LOG_VERBOSE));
  say(LOG_VERBOSE, "too verbose");
  for (uint32_t level = LOG_INFO; level <= LOG_ERROR; level++) say(level, "before the server");
  MUST(TRITONSERVER_ServerOptionsSetLogCallback(options, NULL, NULL));
  say(LOG_ERROR, "nobody listens");

  MUST(TRITONSERVER_ServerOptionsSetLogCallback(options, print, "served"));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, words[1]));
  MUST(TRITONSERVER_ServerOptionsSetModelControlMode(options, CONTROL_EXPLICIT));
  MUST(TRITONSERVER_ServerOptionsSetLogVerbose(options, 1));
  MUST(TRITONSERVER_ServerNew(&server, options));
  error = TRITONSERVER_ServerLoadModel(server, "none");
  printf("load: %s\n", TRITONSERVER_ErrorCodeString(error));
  TRITONSERVER_ErrorDelete(error);
  say(LOG_VERBOSE, "verbose \"as it is\"\nin two lines");
  for (int at = 0; at < 20; at++) say(LOG_WARN, "repeated");
  printf("calls: %s\n", calls > 20 ? "many" : "few");

  MUST(TRITONSERVER_ServerOptionsSetLogCallback(options, remove_itself, options));
  say(LOG_ERROR, "the last one");
  say(LOG_ERROR, "after the last one");
  MUST(TRITONSERVER_ServerDelete(server));
  MUST(TRITONSERVER_ServerOptionsDelete(options));
  return 0;
}

/* What do all backends of the tests need, beside the interface? */
#ifndef BACKEND_H
#define BACKEND_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interface.h"

/* Returns the error of a call, if it has one. */
#define TRY(call)                      \
  do {                                 \
    Error* error_ = (call);            \
    if (error_ != NULL) return error_; \
  } while (0)

/* A failure where nobody is to be told. */
#define LOG_IF_ERROR(call) log_and_delete((call), __FILE__, __LINE__)

static inline void log_and_delete(Error* error, const char* file, int line) {
  if (error == NULL) return;
  TRITONSERVER_LogMessage(ERROR, file, line, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

static inline uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The string_value of a parameter, out of the configuration's JSON. */
static inline void parameter(const char* json, const char* key, char* into, size_t size) {
  char wanted[64];
  into[0] = 0;
  snprintf(wanted, sizeof wanted, "\"%s\":{\"string_value\":\"", key);
  const char* found = strstr(json, wanted);
  if (found == NULL) return;
  found += strlen(wanted);
  size_t length = strcspn(found, "\"");
  if (length >= size) length = size - 1;
  memcpy(into, found, length);
  into[length] = 0;
}

#endif

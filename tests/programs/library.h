/* What do the programs of these tests know of Triton's library?
 *
 * The functions that they call, written down from ../shared/spec/backend_api.md, beside those that backends call as well. Every object is an opaque
 * pointer, and every function returns an error or NULL unless its declaration says otherwise.
 */
#ifndef NERITE_TESTS_LIBRARY_H
#define NERITE_TESTS_LIBRARY_H

#include <stdio.h>
#include <unistd.h>

#include "../backends/interface.h"

typedef void Options, Metrics;

enum { CONTROL_NONE, CONTROL_POLL, CONTROL_EXPLICIT };

Error* TRITONSERVER_ApiVersion(uint32_t* major, uint32_t* minor);
Error* TRITONSERVER_ServerOptionsNew(Options**);
Error* TRITONSERVER_ServerOptionsDelete(Options*);
Error* TRITONSERVER_ServerOptionsSetServerId(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetModelRepositoryPath(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetModelControlMode(Options*, uint32_t);
Error* TRITONSERVER_ServerOptionsSetStartupModel(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetStrictModelConfig(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetModelConfigName(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetRateLimiterMode(Options*, uint32_t);
Error* TRITONSERVER_ServerOptionsAddRateLimiterResource(Options*, const char* name, size_t count, int device);
Error* TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(Options*, uint64_t);
Error* TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(Options*, int device, uint64_t);
Error* TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(Options*, int device, size_t);
Error* TRITONSERVER_ServerOptionsSetResponseCacheByteSize(Options*, uint64_t);
Error* TRITONSERVER_ServerOptionsSetCacheConfig(Options*, const char* name, const char* json);
Error* TRITONSERVER_ServerOptionsSetCacheDirectory(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(Options*, double);
Error* TRITONSERVER_ServerOptionsSetExitOnError(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetStrictReadiness(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetExitTimeout(Options*, unsigned);
Error* TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(Options*, unsigned);
Error* TRITONSERVER_ServerOptionsSetModelLoadThreadCount(Options*, unsigned);
Error* TRITONSERVER_ServerOptionsSetModelLoadRetryCount(Options*, unsigned);
Error* TRITONSERVER_ServerOptionsSetModelNamespacing(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetEnablePeerAccess(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetLogFile(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetLogInfo(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetLogWarn(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetLogError(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetLogFormat(Options*, uint32_t);
Error* TRITONSERVER_ServerOptionsSetLogVerbose(Options*, int);
/* Newer than Triton 2.51. */
Error* TRITONSERVER_ServerOptionsSetLogCallback(
    Options*, void (*)(uint32_t level, const char* file, int32_t line, uint64_t time_us, const char* message, void* userp), void* userp);
Error* TRITONSERVER_ServerOptionsSetMetrics(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetGpuMetrics(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetCpuMetrics(Options*, bool);
Error* TRITONSERVER_ServerOptionsSetMetricsInterval(Options*, uint64_t);
Error* TRITONSERVER_ServerOptionsSetBackendDirectory(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetRepoAgentDirectory(Options*, const char*);
Error* TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(Options*, uint32_t kind, int device, double fraction);
Error* TRITONSERVER_ServerOptionsSetBackendConfig(Options*, const char* backend, const char* setting, const char* value);
Error* TRITONSERVER_ServerOptionsSetHostPolicy(Options*, const char* policy, const char* setting, const char* value);
Error* TRITONSERVER_ServerOptionsSetMetricsConfig(Options*, const char* name, const char* setting, const char* value);
Error* TRITONSERVER_ServerNew(Server**, Options*);
Error* TRITONSERVER_ServerDelete(Server*);
Error* TRITONSERVER_ServerSetExitTimeout(Server*, uint32_t seconds);
Error* TRITONSERVER_ServerStop(Server*);
Error* TRITONSERVER_ServerIsLive(Server*, bool*);
Error* TRITONSERVER_ServerIsReady(Server*, bool*);
Error* TRITONSERVER_ServerModelIsReady(Server*, const char*, int64_t version, bool*);
Error* TRITONSERVER_ServerModelBatchProperties(Server*, const char*, int64_t version, uint32_t* flags, void**);
Error* TRITONSERVER_ServerModelTransactionProperties(Server*, const char*, int64_t version, uint32_t* flags, void**);
Error* TRITONSERVER_ServerMetadata(Server*, Message**);
Error* TRITONSERVER_ServerModelMetadata(Server*, const char*, int64_t version, Message**);
Error* TRITONSERVER_ServerModelStatistics(Server*, const char*, int64_t version, Message**);
Error* TRITONSERVER_ServerModelConfig(Server*, const char*, int64_t version, uint32_t config_version, Message**);
Error* TRITONSERVER_ServerModelIndex(Server*, uint32_t flags, Message**);
Error* TRITONSERVER_ServerLoadModel(Server*, const char*);
Error* TRITONSERVER_ServerLoadModelWithParameters(Server*, const char*, const Parameter**, uint64_t);
Error* TRITONSERVER_ServerUnloadModel(Server*, const char*);
Error* TRITONSERVER_ServerPollModelRepository(Server*);
Error* TRITONSERVER_ServerRegisterModelRepository(Server*, const char* path, const Parameter** names, const uint32_t count);
Error* TRITONSERVER_ServerUnregisterModelRepository(Server*, const char* path);
Error* TRITONSERVER_ServerMetrics(Server*, Metrics**);
Error* TRITONSERVER_MetricsFormatted(Metrics*, uint32_t format, const char**, size_t*);
Error* TRITONSERVER_MetricsDelete(Metrics*);

Error* TRITONSERVER_InferenceRequestAddRawInput(Asked*, const char* name);
Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(Asked*, const char* name, const void*, size_t bytes, uint32_t kind, int64_t id,
                                                                  const char* policy);
Error* TRITONSERVER_InferenceRequestRemoveAllInputData(Asked*, const char* name);
Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(Asked*, const char* name, const void*, BufferAttributes*);
Error* TRITONSERVER_InferenceRequestRemoveAllInputs(Asked*);
Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(Asked*, const char* name);
Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(Asked*);
Error* TRITONSERVER_InferenceRequestCorrelationIdString(Asked*, const char**);
Error* TRITONSERVER_InferenceRequestTimeoutMicroseconds(Asked*, uint64_t*);
Error* TRITONSERVER_InferenceRequestSetPriority(Asked*, uint32_t);
Error* TRITONSERVER_InferenceRequestPriorityUInt64(Asked*, uint64_t*);
Error* TRITONSERVER_InferenceRequestSetDoubleParameter(Asked*, const char* key, double value);
Error* TRITONSERVER_InferenceResponseOutputClassificationLabel(Answer*, uint32_t index, size_t number, const char** label);

typedef void (*ActivityFn)(Trace*, uint32_t activity, uint64_t ns, void* userp);
typedef void (*TensorActivityFn)(Trace*, uint32_t activity, const char* name, uint32_t type, const void*, size_t bytes, const int64_t* shape,
                                 uint64_t dims, uint32_t kind, int64_t id, void* userp);
typedef void (*TraceReleaseFn)(Trace*, void* userp);

Error* TRITONSERVER_InferenceTraceNew(Trace**, uint32_t level, uint64_t parent, ActivityFn, TraceReleaseFn, void* userp);
Error* TRITONSERVER_InferenceTraceTensorNew(Trace**, uint32_t level, uint64_t parent, ActivityFn, TensorActivityFn, TraceReleaseFn, void* userp);
Error* TRITONSERVER_InferenceTraceDelete(Trace*);
Error* TRITONSERVER_InferenceTraceSetContext(Trace*, const char*);
const char* TRITONSERVER_InferenceTraceActivityString(uint32_t);
const char* TRITONSERVER_InferenceTraceLevelString(uint32_t);
const char* TRITONSERVER_ParameterTypeString(uint32_t);

typedef Error* (*DescribeFn)(Allocator*, const char* output, BufferAttributes*, void* userp, void* buffer_userp);

Error* TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(Allocator*, DescribeFn);

/* Ends the program where a call fails that must not. */
#define MUST(call) must_((call), #call, __LINE__)

static inline void must_(Error* error, const char* call, int line) {
  if (error == NULL) return;
  printf("line %d: %s: %s: %s\n", line, call, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  fflush(stdout);
  _exit(1);
}

#endif

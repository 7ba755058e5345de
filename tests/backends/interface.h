/* What do the backends of these tests know of Triton's C interface?
 *
 * The functions that they call, written down from ../shared/spec/backend_api.md. Every object is an opaque pointer, and every function returns an
 * error or NULL unless its declaration says otherwise.
 */
#ifndef NERITE_TESTS_INTERFACE_H
#define NERITE_TESTS_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void Error, Message, Backend, Attributes, Model, Instance, Request, Input, Output, Response, Factory, BufferAttributes, MemoryManager,
    Parameter, Family, MetricArgs, Metric, State, Server, Allocator, Asked, Answer, Trace, ResponseStatistics, Metrics;

enum { UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED };
enum { INFO, WARN, ERROR };
enum { TYPE_INT32 = 8, TYPE_FP32 = 11, TYPE_BYTES = 13 };
enum { CPU, CPU_PINNED, GPU };
enum { KIND_AUTO, KIND_CPU, KIND_GPU, KIND_MODEL };
enum { BLOCKING, DEVICE_BLOCKING };
enum { RELEASE_ALL = 1, RESCHEDULE = 2, FINAL = 1 };
enum { TXN_ONE_TO_ONE = 1, TXN_DECOUPLED = 2 };

Error* TRITONSERVER_ErrorNew(uint32_t code, const char* text);
void TRITONSERVER_ErrorDelete(Error*);
uint32_t TRITONSERVER_ErrorCode(Error*);
const char* TRITONSERVER_ErrorCodeString(Error*);
const char* TRITONSERVER_ErrorMessage(Error*);
Error* TRITONSERVER_LogMessage(uint32_t level, const char* file, int line, const char* text);
const char* TRITONSERVER_DataTypeString(uint32_t);
uint32_t TRITONSERVER_DataTypeByteSize(uint32_t);
uint32_t TRITONSERVER_StringToDataType(const char*);
const char* TRITONSERVER_MemoryTypeString(uint32_t);
const char* TRITONSERVER_InstanceGroupKindString(uint32_t);
bool TRITONSERVER_LogIsEnabled(uint32_t level);
Error* TRITONSERVER_MessageSerializeToJson(Message*, const char** base, size_t* bytes);
Error* TRITONSERVER_MessageNewFromSerializedJson(Message**, const char* base, size_t bytes);
Error* TRITONSERVER_MessageDelete(Message*);

Parameter* TRITONSERVER_ParameterNew(const char* name, uint32_t type, const void* value);
Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void*, uint64_t bytes);
void TRITONSERVER_ParameterDelete(Parameter*);
Error* TRITONSERVER_MetricFamilyNew(Family**, uint32_t kind, const char* name, const char* description);
Error* TRITONSERVER_MetricFamilyDelete(Family*);
Error* TRITONSERVER_GetMetricFamilyKind(Family*, uint32_t*);
Error* TRITONSERVER_GetMetricKind(Metric*, uint32_t*);
Error* TRITONSERVER_MetricArgsNew(MetricArgs**);
Error* TRITONSERVER_MetricArgsSetHistogram(MetricArgs*, const double* bounds, uint64_t count);
Error* TRITONSERVER_MetricArgsDelete(MetricArgs*);
Error* TRITONSERVER_MetricNewWithArgs(Metric**, Family*, const Parameter** labels, uint64_t count, const MetricArgs*);
Error* TRITONSERVER_MetricObserve(Metric*, double);
Error* TRITONSERVER_MetricNew(Metric**, Family*, const Parameter** labels, uint64_t count);
Error* TRITONSERVER_MetricDelete(Metric*);
Error* TRITONSERVER_MetricIncrement(Metric*, double);
Error* TRITONSERVER_MetricSet(Metric*, double);
Error* TRITONSERVER_MetricValue(Metric*, double*);

Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor);
Error* TRITONBACKEND_BackendName(Backend*, const char**);
Error* TRITONBACKEND_BackendConfig(Backend*, Message**);
Error* TRITONBACKEND_BackendSetExecutionPolicy(Backend*, uint32_t);
Error* TRITONBACKEND_BackendExecutionPolicy(Backend*, uint32_t*);
Error* TRITONBACKEND_BackendSetState(Backend*, void*);
Error* TRITONBACKEND_BackendState(Backend*, void**);
Error* TRITONBACKEND_BackendArtifacts(Backend*, uint32_t* kind, const char** folder);
Error* TRITONBACKEND_BackendMemoryManager(Backend*, MemoryManager**);
Error* TRITONBACKEND_MemoryManagerAllocate(MemoryManager*, void**, uint32_t kind, int64_t id, uint64_t bytes);
Error* TRITONBACKEND_MemoryManagerFree(MemoryManager*, void*, uint32_t kind, int64_t id);
Error* TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(Attributes*, bool);
Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(Attributes*, uint32_t kind, uint64_t count, const uint64_t* ids, uint64_t id_count);

Error* TRITONBACKEND_ModelName(Model*, const char**);
Error* TRITONBACKEND_ModelVersion(Model*, uint64_t*);
Error* TRITONBACKEND_ModelRepository(Model*, uint32_t* kind, const char**);
Error* TRITONBACKEND_ModelConfig(Model*, uint32_t version, Message**);
Error* TRITONBACKEND_ModelAutoCompleteConfig(Model*, bool*);
Error* TRITONBACKEND_ModelSetConfig(Model*, uint32_t version, Message*);
Error* TRITONBACKEND_ModelBackend(Model*, Backend**);
Error* TRITONBACKEND_ModelSetState(Model*, void*);
Error* TRITONBACKEND_ModelState(Model*, void**);

Error* TRITONBACKEND_ModelInstanceName(Instance*, const char**);
Error* TRITONBACKEND_ModelInstanceKind(Instance*, uint32_t*);
Error* TRITONBACKEND_ModelInstanceDeviceId(Instance*, int32_t*);
Error* TRITONBACKEND_ModelInstanceHostPolicy(Instance*, Message**);
Error* TRITONBACKEND_ModelInstanceIsPassive(Instance*, bool*);
Error* TRITONBACKEND_ModelInstanceProfileCount(Instance*, uint32_t*);
Error* TRITONBACKEND_ModelInstanceProfileName(Instance*, uint32_t, const char**);
Error* TRITONBACKEND_ModelInstanceSecondaryDeviceCount(Instance*, uint32_t*);
Error* TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(Instance*, uint32_t, const char** kind, int64_t* id);
Error* TRITONBACKEND_ModelInstanceModel(Instance*, Model**);
Error* TRITONBACKEND_ModelInstanceSetState(Instance*, void*);
Error* TRITONBACKEND_ModelInstanceState(Instance*, void**);
Error* TRITONBACKEND_ModelInstanceReportStatistics(
    Instance*, Request*, bool success, uint64_t start, uint64_t input_end, uint64_t infer_end, uint64_t end);
Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    Instance*, uint64_t rows, uint64_t start, uint64_t input_end, uint64_t infer_end, uint64_t end);

Error* TRITONBACKEND_ModelInstanceResponseStatisticsNew(ResponseStatistics**);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsDelete(ResponseStatistics*);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(ResponseStatistics*, Instance*);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(ResponseStatistics*, Factory*);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(ResponseStatistics*, uint64_t);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(ResponseStatistics*, uint64_t);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(ResponseStatistics*, uint64_t);
Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetError(ResponseStatistics*, Error*);
Error* TRITONBACKEND_ModelInstanceReportResponseStatistics(ResponseStatistics*);

Error* TRITONBACKEND_RequestId(Request*, const char**);
Error* TRITONBACKEND_RequestCorrelationId(Request*, uint64_t*);
Error* TRITONBACKEND_RequestCorrelationIdString(Request*, const char**);
Error* TRITONBACKEND_RequestFlags(Request*, uint32_t*);
Error* TRITONBACKEND_RequestIsCancelled(Request*, bool*);
Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(Request*, uint64_t*);
Error* TRITONBACKEND_RequestParameterCount(Request*, uint32_t*);
Error* TRITONBACKEND_RequestParameter(Request*, uint32_t, const char** key, uint32_t* type, const void** value);
Error* TRITONBACKEND_RequestInputCount(Request*, uint32_t*);
Error* TRITONBACKEND_RequestInputName(Request*, uint32_t, const char**);
Error* TRITONBACKEND_RequestInput(Request*, const char*, Input**);
Error* TRITONBACKEND_RequestInputByIndex(Request*, uint32_t, Input**);
Error* TRITONBACKEND_RequestOutputCount(Request*, uint32_t*);
Error* TRITONBACKEND_RequestOutputName(Request*, uint32_t, const char**);
Error* TRITONBACKEND_RequestRelease(Request*, uint32_t flags);
Error* TRITONBACKEND_InputProperties(
    Input*, const char** name, uint32_t* type, const int64_t** shape, uint32_t* dims, uint64_t* bytes, uint32_t* buffers);
Error* TRITONBACKEND_InputBuffer(Input*, uint32_t, const void**, uint64_t* bytes, uint32_t* kind, int64_t* id);
Error* TRITONBACKEND_InputPropertiesForHostPolicy(Input*, const char* policy, const char** name, uint32_t* type, const int64_t** shape,
                                                  uint32_t* dims, uint64_t* bytes, uint32_t* buffers);
Error* TRITONBACKEND_InputBufferForHostPolicy(
    Input*, const char* policy, uint32_t, const void**, uint64_t* bytes, uint32_t* kind, int64_t* id);
Error* TRITONBACKEND_InputBufferAttributes(Input*, uint32_t, const void**, BufferAttributes**);
Error* TRITONSERVER_BufferAttributesMemoryType(BufferAttributes*, uint32_t*);
Error* TRITONSERVER_BufferAttributesMemoryTypeId(BufferAttributes*, int64_t*);
Error* TRITONSERVER_BufferAttributesByteSize(BufferAttributes*, size_t*);
Error* TRITONSERVER_BufferAttributesCudaIpcHandle(BufferAttributes*, void**);
Error* TRITONSERVER_BufferAttributesSetCudaIpcHandle(BufferAttributes*, const void*);
Error* TRITONSERVER_BufferAttributesNew(BufferAttributes**);
Error* TRITONSERVER_BufferAttributesDelete(BufferAttributes*);
Error* TRITONSERVER_BufferAttributesSetMemoryType(BufferAttributes*, uint32_t);
Error* TRITONSERVER_BufferAttributesSetMemoryTypeId(BufferAttributes*, int64_t);
Error* TRITONSERVER_BufferAttributesSetByteSize(BufferAttributes*, size_t);
Error* TRITONBACKEND_ModelReportMemoryUsage(Model*, BufferAttributes**, uint32_t);
Error* TRITONBACKEND_ModelInstanceReportMemoryUsage(Instance*, BufferAttributes**, uint32_t);

Error* TRITONBACKEND_ResponseNew(Response**, Request*);
Error* TRITONBACKEND_ResponseNewFromFactory(Response**, Factory*);
Error* TRITONBACKEND_ResponseDelete(Response*);
Error* TRITONBACKEND_ResponseOutput(Response*, Output**, const char* name, uint32_t type, const int64_t* shape, uint32_t dims);
Error* TRITONBACKEND_InferenceResponseOutput(Response*, uint32_t, const char**, uint32_t* type, const int64_t** shape, uint64_t* dims);
Error* TRITONBACKEND_InferenceResponseOutputByName(Response*, const char*, uint32_t* type, const int64_t** shape, uint64_t* dims);
Error* TRITONBACKEND_OutputBuffer(Output*, void**, uint64_t bytes, uint32_t* kind, int64_t* id);
Error* TRITONBACKEND_OutputBufferAttributes(Output*, BufferAttributes**);
Error* TRITONBACKEND_ResponseSend(Response*, uint32_t flags, Error*);
Error* TRITONBACKEND_ResponseSetStringParameter(Response*, const char*, const char*);
Error* TRITONBACKEND_ResponseSetIntParameter(Response*, const char*, int64_t);
Error* TRITONBACKEND_ResponseSetBoolParameter(Response*, const char*, bool);
Error* TRITONBACKEND_ResponseSetDoubleParameter(Response*, const char*, double);
Error* TRITONBACKEND_ResponseFactoryNew(Factory**, Request*);
Error* TRITONBACKEND_ResponseFactoryDelete(Factory*);
Error* TRITONBACKEND_ResponseFactorySendFlags(Factory*, uint32_t);
Error* TRITONBACKEND_ResponseFactoryIsCancelled(Factory*, bool*);

/* Requests to other models. */
typedef Error* (*AllocateFn)(Allocator*, const char* output, size_t bytes, uint32_t kind, int64_t id, void* userp, void** buffer,
                             void** buffer_userp, uint32_t* actual_kind, int64_t* actual_id);
typedef Error* (*ReleaseFn)(Allocator*, void* buffer, void* buffer_userp, size_t bytes, uint32_t kind, int64_t id);
typedef Error* (*StartFn)(Allocator*, void* userp);
typedef Error* (*QueryFn)(Allocator*, void* userp, const char* output, size_t* bytes, uint32_t* kind, int64_t* id);
typedef void (*RespondFn)(Answer*, uint32_t flags, void* userp);
typedef void (*RequestReleaseFn)(Asked*, uint32_t flags, void* userp);

Error* TRITONBACKEND_ModelServer(Model*, Server**);
Error* TRITONBACKEND_RequestTrace(Request*, Trace**);
Error* TRITONBACKEND_RequestOutputBufferProperties(Request*, const char*, size_t* bytes, uint32_t* kind, int64_t* id);
Error* TRITONSERVER_ResponseAllocatorNew(Allocator**, AllocateFn, ReleaseFn, StartFn);
Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(Allocator*, QueryFn);
Error* TRITONSERVER_ResponseAllocatorDelete(Allocator*);
Error* TRITONSERVER_InferenceRequestNew(Asked**, Server*, const char* model, int64_t version);
Error* TRITONSERVER_InferenceRequestDelete(Asked*);
Error* TRITONSERVER_InferenceRequestId(Asked*, const char**);
Error* TRITONSERVER_InferenceRequestSetId(Asked*, const char*);
Error* TRITONSERVER_InferenceRequestFlags(Asked*, uint32_t*);
Error* TRITONSERVER_InferenceRequestSetFlags(Asked*, uint32_t);
Error* TRITONSERVER_InferenceRequestCorrelationId(Asked*, uint64_t*);
Error* TRITONSERVER_InferenceRequestSetCorrelationId(Asked*, uint64_t);
Error* TRITONSERVER_InferenceRequestSetCorrelationIdString(Asked*, const char*);
Error* TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(Asked*, uint64_t);
Error* TRITONSERVER_InferenceRequestSetPriorityUInt64(Asked*, uint64_t);
Error* TRITONSERVER_InferenceRequestPriority(Asked*, uint32_t*);
Error* TRITONSERVER_InferenceRequestAddInput(Asked*, const char* name, uint32_t type, const int64_t* shape, uint64_t dims);
Error* TRITONSERVER_InferenceRequestRemoveInput(Asked*, const char* name);
Error* TRITONSERVER_InferenceRequestAppendInputData(Asked*, const char* name, const void*, size_t bytes, uint32_t kind, int64_t id);
Error* TRITONSERVER_InferenceRequestAddRequestedOutput(Asked*, const char* name);
Error* TRITONSERVER_InferenceRequestSetStringParameter(Asked*, const char* key, const char* value);
Error* TRITONSERVER_InferenceRequestSetIntParameter(Asked*, const char* key, int64_t value);
Error* TRITONSERVER_InferenceRequestSetBoolParameter(Asked*, const char* key, bool value);
Error* TRITONSERVER_InferenceRequestSetReleaseCallback(Asked*, RequestReleaseFn, void* userp);
Error* TRITONSERVER_InferenceRequestSetResponseCallback(Asked*, Allocator*, void* allocator_userp, RespondFn, void* userp);
Error* TRITONSERVER_InferenceRequestCancel(Asked*);
Error* TRITONSERVER_InferenceRequestIsCancelled(Asked*, bool*);
Error* TRITONSERVER_ServerInferAsync(Server*, Asked*, Trace*);
Error* TRITONSERVER_InferenceResponseDelete(Answer*);
Error* TRITONSERVER_InferenceResponseError(Answer*);
Error* TRITONSERVER_InferenceResponseModel(Answer*, const char** model, int64_t* version);
Error* TRITONSERVER_InferenceResponseId(Answer*, const char**);
Error* TRITONSERVER_InferenceResponseParameterCount(Answer*, uint32_t*);
Error* TRITONSERVER_InferenceResponseParameter(Answer*, uint32_t, const char** key, uint32_t* type, const void** value);
Error* TRITONSERVER_InferenceResponseOutputCount(Answer*, uint32_t*);
Error* TRITONSERVER_InferenceResponseOutput(Answer*, uint32_t, const char** name, uint32_t* type, const int64_t** shape, uint64_t* dims,
                                            const void** base, size_t* bytes, uint32_t* kind, int64_t* id, void** userp);
Error* TRITONSERVER_InferenceTraceSpawnChildTrace(Trace*, Trace**);
Error* TRITONSERVER_InferenceTraceReportActivity(Trace*, uint64_t ns, const char* name);
Error* TRITONSERVER_InferenceTraceModelName(Trace*, const char**);
Error* TRITONSERVER_InferenceTraceModelVersion(Trace*, int64_t*);
Error* TRITONSERVER_InferenceTraceRequestId(Trace*, const char**);
Error* TRITONSERVER_InferenceTraceId(Trace*, uint64_t*);
Error* TRITONSERVER_InferenceTraceParentId(Trace*, uint64_t*);
Error* TRITONSERVER_InferenceTraceContext(Trace*, const char**);
Error* TRITONSERVER_ServerModelIsReady(Server*, const char* model, int64_t version, bool*);
Error* TRITONSERVER_ServerModelTransactionProperties(Server*, const char* model, int64_t version, uint32_t* flags, void**);
Error* TRITONSERVER_ServerModelBatchProperties(Server*, const char* model, int64_t version, uint32_t* flags, void**);
Error* TRITONSERVER_ServerIsReady(Server*, bool*);
Error* TRITONSERVER_ServerMetadata(Server*, Message**);
Error* TRITONSERVER_ServerModelMetadata(Server*, const char* model, int64_t version, Message**);
Error* TRITONSERVER_ServerModelStatistics(Server*, const char* model, int64_t version, Message**);
Error* TRITONSERVER_ServerModelConfig(Server*, const char* model, int64_t version, uint32_t config_version, Message**);
Error* TRITONSERVER_ServerModelIndex(Server*, uint32_t flags, Message**);
Error* TRITONSERVER_ServerMetrics(Server*, Metrics**);
Error* TRITONSERVER_MetricsFormatted(Metrics*, uint32_t format, const char**, size_t*);
Error* TRITONSERVER_MetricsDelete(Metrics*);
Error* TRITONSERVER_ServerLoadModel(Server*, const char* model);
Error* TRITONSERVER_ServerLoadModelWithParameters(Server*, const char* model, const Parameter** parameters, uint64_t count);
Error* TRITONSERVER_ServerUnloadModel(Server*, const char* model);
Error* TRITONSERVER_ServerUnloadModelAndDependents(Server*, const char* model);

/* States of sequences. */
Error* TRITONBACKEND_StateNew(State**, Request*, const char* name, uint32_t type, const int64_t* shape, uint32_t dims);
Error* TRITONBACKEND_StateBuffer(State*, void**, uint64_t bytes, uint32_t* kind, int64_t* id);
Error* TRITONBACKEND_StateBufferAttributes(State*, BufferAttributes**);
Error* TRITONBACKEND_StateUpdate(State*);

#endif

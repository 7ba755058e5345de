// Which part of Triton's client library does examples/cpp use?
//
// The names, parameters and defaults are those of its http_client.h and common.h, which later versions kept. What the example does not use is left out, so
// a program that compiles with this compiles with the library, and not the other way round. http_client.cc speaks to a server in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace triton { namespace client {

using Headers = std::map<std::string, std::string>;
using Parameters = std::map<std::string, std::string>;

class Error {
 public:
  explicit Error(const std::string& msg = "") : msg_(msg) {}
  const std::string& Message() const { return msg_; }
  bool IsOk() const { return msg_.empty(); }
  static const Error Success;

 private:
  std::string msg_;
};

struct InferOptions {
  explicit InferOptions(const std::string& model_name) : model_name_(model_name) {}
  std::string model_name_;
};

// What an input and an output have in common: their place in a region.
struct Place {
  std::string region;
  size_t byte_size = 0;
  size_t offset = 0;
};

class InferInput {
 public:
  static Error Create(
      InferInput** infer_input, const std::string& name, const std::vector<int64_t>& dims, const std::string& datatype);
  Error SetSharedMemory(const std::string& name, size_t byte_size, size_t offset = 0);

 private:
  friend class InferenceServerHttpClient;
  std::string name_, datatype_;
  std::vector<int64_t> shape_;
  Place place_;
};

class InferRequestedOutput {
 public:
  static Error Create(InferRequestedOutput** infer_output, const std::string& name, const size_t class_count = 0);
  Error SetSharedMemory(const std::string& region_name, const size_t byte_size, const size_t offset = 0);

 private:
  friend class InferenceServerHttpClient;
  std::string name_;
  Place place_;
};

class InferResult {
 public:
  virtual ~InferResult() = default;
  virtual Error RequestStatus() const = 0;
};

struct HttpSslOptions {};

class InferenceServerHttpClient {
 public:
  enum class CompressionType { NONE, DEFLATE, GZIP };

  static Error Create(
      std::unique_ptr<InferenceServerHttpClient>* client, const std::string& server_url, bool verbose = false,
      const HttpSslOptions& ssl_options = HttpSslOptions());
  Error RegisterSystemSharedMemory(
      const std::string& name, const std::string& key, const size_t byte_size, const size_t offset = 0,
      const Headers& headers = Headers(), const Parameters& query_params = Parameters());
  Error UnregisterSystemSharedMemory(
      const std::string& name = "", const Headers& headers = Headers(), const Parameters& query_params = Parameters());
  Error Infer(
      InferResult** result, const InferOptions& options, const std::vector<InferInput*>& inputs,
      const std::vector<const InferRequestedOutput*>& outputs = std::vector<const InferRequestedOutput*>(),
      const Headers& headers = Headers(), const Parameters& query_params = Parameters(),
      const CompressionType request_compression_algorithm = CompressionType::NONE,
      const CompressionType response_compression_algorithm = CompressionType::NONE);

 private:
  Error Post(const std::string& path, const std::string& body) const;
  std::string host_, port_;
};

}}  // namespace triton::client

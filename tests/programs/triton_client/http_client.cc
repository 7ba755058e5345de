// How does the example in C++ reach a server where Triton's client library cannot be had?
//
// Each call is one POST on a connection of its own, with JSON as the protocol has it. Answers are read for their status and error only: the example's
// tensors lie in its region.
#include "http_client.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>

namespace triton { namespace client {

const Error Error::Success;

namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char one : text) {
    if (one == '"' || one == '\\') quoted += '\\';
    quoted += one;
  }
  return quoted + '"';
}

std::string PlaceJson(const Place& place) {
  std::ostringstream json;
  json << "{\"shared_memory_region\":" << Quoted(place.region) << ",\"shared_memory_byte_size\":" << place.byte_size;
  // 0 is the default.
  if (place.offset != 0) json << ",\"shared_memory_offset\":" << place.offset;
  return json.str() + "}";
}

int Connect(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return -1;
  int descriptor = -1;
  for (const addrinfo* one = found; one != nullptr && descriptor < 0; one = one->ai_next) {
    descriptor = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
    if (descriptor >= 0 && connect(descriptor, one->ai_addr, one->ai_addrlen) != 0) {
      close(descriptor);
      descriptor = -1;
    }
  }
  freeaddrinfo(found);
  return descriptor;
}

class Result : public InferResult {
 public:
  Error RequestStatus() const override { return Error::Success; }
};

}  // namespace

Error InferInput::Create(
    InferInput** infer_input, const std::string& name, const std::vector<int64_t>& dims, const std::string& datatype) {
  *infer_input = new InferInput();
  (*infer_input)->name_ = name;
  (*infer_input)->shape_ = dims;
  (*infer_input)->datatype_ = datatype;
  return Error::Success;
}

Error InferInput::SetSharedMemory(const std::string& name, size_t byte_size, size_t offset) {
  place_ = {name, byte_size, offset};
  return Error::Success;
}

Error InferRequestedOutput::Create(InferRequestedOutput** infer_output, const std::string& name, const size_t) {
  *infer_output = new InferRequestedOutput();
  (*infer_output)->name_ = name;
  return Error::Success;
}

Error InferRequestedOutput::SetSharedMemory(const std::string& region_name, const size_t byte_size, const size_t offset) {
  place_ = {region_name, byte_size, offset};
  return Error::Success;
}

Error InferenceServerHttpClient::Create(
    std::unique_ptr<InferenceServerHttpClient>* client, const std::string& server_url, bool, const HttpSslOptions&) {
  const size_t colon = server_url.rfind(':');
  if (colon == std::string::npos) return Error(server_url + " has no port");
  client->reset(new InferenceServerHttpClient());
  (*client)->host_ = server_url.substr(0, colon);
  (*client)->port_ = server_url.substr(colon + 1);
  return Error::Success;
}

Error InferenceServerHttpClient::Post(const std::string& path, const std::string& body) const {
  const int descriptor = Connect(host_, port_);
  if (descriptor < 0) return Error("cannot connect to " + host_ + ":" + port_);
  std::ostringstream request;
  request << "POST " << path << " HTTP/1.1\r\nHost: " << host_ << "\r\nConnection: close\r\nContent-Type: application/json\r\n"
          << "Content-Length: " << body.size() << "\r\n\r\n" << body;
  const std::string sent = request.str();
  bool is_sent = true;
  for (size_t at = 0; is_sent && at < sent.size();) {
    const ssize_t count = send(descriptor, sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
    is_sent = count > 0;
    at += is_sent ? static_cast<size_t>(count) : 0;
  }
  std::string answer;
  char piece[4096];
  for (ssize_t count; is_sent && (count = recv(descriptor, piece, sizeof piece, 0)) > 0;) answer.append(piece, static_cast<size_t>(count));
  close(descriptor);
  if (answer.compare(0, 13, "HTTP/1.1 200 ") == 0) return Error::Success;
  const size_t end = answer.find("\r\n\r\n");
  return Error(end == std::string::npos ? "the connection ended" : answer.substr(end + 4));
}

Error InferenceServerHttpClient::RegisterSystemSharedMemory(
    const std::string& name, const std::string& key, const size_t byte_size, const size_t offset, const Headers&,
    const Parameters&) {
  std::ostringstream body;
  body << "{\"key\":" << Quoted(key) << ",\"offset\":" << offset << ",\"byte_size\":" << byte_size << "}";
  return Post("/v2/systemsharedmemory/region/" + name + "/register", body.str());
}

Error InferenceServerHttpClient::UnregisterSystemSharedMemory(
    const std::string& name, const Headers&, const Parameters&) {
  return Post("/v2/systemsharedmemory" + (name.empty() ? name : "/region/" + name) + "/unregister", "");
}

Error InferenceServerHttpClient::Infer(
    InferResult** result, const InferOptions& options, const std::vector<InferInput*>& inputs,
    const std::vector<const InferRequestedOutput*>& outputs, const Headers&, const Parameters&, const CompressionType,
    const CompressionType) {
  std::ostringstream body;
  const char* before = "{\"inputs\":[";
  for (const InferInput* input : inputs) {
    body << before << "{\"name\":" << Quoted(input->name_) << ",\"datatype\":" << Quoted(input->datatype_) << ",\"shape\":";
    const char* comma = "[";
    for (const int64_t dimension : input->shape_) {
      body << comma << dimension;
      comma = ",";
    }
    body << "],\"parameters\":" << PlaceJson(input->place_) << "}";
    before = ",";
  }
  before = "],\"outputs\":[";
  for (const InferRequestedOutput* output : outputs) {
    body << before << "{\"name\":" << Quoted(output->name_) << ",\"parameters\":" << PlaceJson(output->place_) << "}";
    before = ",";
  }
  body << "]}";
  const Error error = Post("/v2/models/" + options.model_name_ + "/infer", body.str());
  if (error.IsOk()) *result = new Result();
  return error;
}

}}  // namespace triton::client

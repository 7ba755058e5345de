// How does a C++ program have digits read, by Triton's client library and through shared memory?
//
//   g++ -std=c++17 digits.cc -I$TRITON_CLIENT/include -L$TRITON_CLIENT/lib -lhttpclient -lrt -o digits
//   nerite serve --model-repository ../models &
//   ./digits ../digits/samples.bin [host:port]
//
// The images lie in a region that this program makes and the model reads; the model writes its answers into the same region.

#include <fcntl.h>
#include <http_client.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tc = triton::client;

namespace {

constexpr size_t kPixels = 64, kClasses = 10, kRowsMax = 64;

void Check(const tc::Error& error, const std::string& what) {
  if (!error.IsOk()) throw std::runtime_error(what + ": " + error.Message());
}

// One sample of samples.bin: pixels from 0 to 16, and the digit.
struct Sample {
  uint8_t pixels[kPixels];
  uint8_t digit;
};

std::vector<Sample> Read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  uint32_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  std::vector<Sample> samples(std::min<size_t>(count, kRowsMax));
  file.read(reinterpret_cast<char*>(samples.data()), samples.size() * sizeof(Sample));
  if (!file) throw std::runtime_error(std::string(path) + " is no file of samples");
  return samples;
}

// A POSIX object that goes with this value.
class Region {
 public:
  Region(std::string key, size_t byte_size) : key_(std::move(key)), byte_size_(byte_size) {
    const int descriptor = shm_open(key_.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    if (descriptor < 0) throw std::runtime_error("cannot make " + key_);
    const bool is_sized = ftruncate(descriptor, static_cast<off_t>(byte_size_)) == 0;
    if (is_sized) at_ = mmap(nullptr, byte_size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (at_ == MAP_FAILED) {
      shm_unlink(key_.c_str());
      throw std::runtime_error("cannot map " + key_);
    }
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    munmap(at_, byte_size_);
    shm_unlink(key_.c_str());
  }

  const std::string& key() const { return key_; }
  float* floats() const { return static_cast<float*>(at_); }

 private:
  std::string key_;
  size_t byte_size_;
  void* at_ = MAP_FAILED;
};

size_t Classify(tc::InferenceServerHttpClient& client, const std::vector<Sample>& samples) {
  const size_t in_bytes = samples.size() * kPixels * sizeof(float), out_bytes = samples.size() * kClasses * sizeof(float);
  const std::string name = "cpp_digits_" + std::to_string(getpid());
  Region region("/" + name, in_bytes + out_bytes);
  float* image = region.floats();
  for (const Sample& sample : samples) image = std::copy(sample.pixels, sample.pixels + kPixels, image);
  Check(client.RegisterSystemSharedMemory(name, region.key(), in_bytes + out_bytes), "register");

  tc::InferInput* made_input = nullptr;
  Check(tc::InferInput::Create(&made_input, "image", {static_cast<int64_t>(samples.size()), kPixels}, "FP32"), "input");
  const std::unique_ptr<tc::InferInput> input(made_input);
  Check(input->SetSharedMemory(name, in_bytes, 0), "input");
  tc::InferRequestedOutput* made_output = nullptr;
  Check(tc::InferRequestedOutput::Create(&made_output, "probabilities"), "output");
  const std::unique_ptr<tc::InferRequestedOutput> output(made_output);
  Check(output->SetSharedMemory(name, out_bytes, in_bytes), "output");

  tc::InferResult* made_result = nullptr;
  Check(client.Infer(&made_result, tc::InferOptions("digits"), {input.get()}, {output.get()}), "infer");
  const std::unique_ptr<tc::InferResult> result(made_result);
  Check(result->RequestStatus(), "infer");

  const float* row = region.floats() + samples.size() * kPixels;
  size_t right = 0;
  for (const Sample& sample : samples) {
    right += std::max_element(row, row + kClasses) - row == sample.digit;
    row += kClasses;
  }
  Check(client.UnregisterSystemSharedMemory(name), "unregister");
  return right;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: digits samples.bin [host:port]");
  std::unique_ptr<tc::InferenceServerHttpClient> client;
  Check(tc::InferenceServerHttpClient::Create(&client, argc > 2 ? argv[2] : "localhost:8000"), "client");
  const std::vector<Sample> samples = Read(argv[1]);
  std::cout << Classify(*client, samples) << " of " << samples.size() << " digits are right" << std::endl;
  return 0;
} catch (const std::exception& fault) {
  std::cerr << fault.what() << std::endl;
  return 1;
}

// Any file as a sequence of bytes, for models that tell the next byte from those before. Sample i
// is bytes [i T, i T + T] of the file, T being `length`: the first T are the input, the last T, one
// byte further, the target. A rest shorter than a sample is left out. The last samples of the file
// are for testing.
//
// The default file is a licence that the package base-files puts on every Debian: 35,149 bytes of
// English, enough to see a loss fall and no more.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "millrace/base/file.h"
#include "millrace/data/dataset.h"

namespace millrace {
namespace {

constexpr int64_t kNumBytes = 256;
constexpr const char* kDefaultPath = "/usr/share/common-licenses/GPL-3";
constexpr uint64_t kLargestFile = uint64_t{1} << 32;

class Windows final : public Dataset {
 public:
  // Samples [first, first + size) of the text.
  Windows(std::shared_ptr<const std::string> text, int64_t length, int64_t first, int64_t size)
      : text_(std::move(text)), length_(length), first_(first), size_(size) {}

  int64_t size() const override { return size_; }
  TensorSpec input() const override { return {{length_}, at::kLong}; }
  TensorSpec target() const override { return {{length_}, at::kLong}; }
  int64_t num_classes() const override { return kNumBytes; }

  Batch get(const int64_t* indices, int64_t count, at::ScalarType /*dtype*/) const override {
    Batch batch;
    batch.input = at::empty({count, length_}, at::TensorOptions().dtype(at::kLong));
    batch.target = at::empty({count, length_}, at::TensorOptions().dtype(at::kLong));
    int64_t* input = batch.input.data_ptr<int64_t>();
    int64_t* target = batch.target.data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      MILLRACE_CHECK(indices[i] >= 0 && indices[i] < size_, fmt::format("sample {}", indices[i]));
      const char* bytes = text_->data() + (first_ + indices[i]) * length_;
      for (int64_t t = 0; t < length_; ++t) {
        *input++ = static_cast<unsigned char>(bytes[t]);
        *target++ = static_cast<unsigned char>(bytes[t + 1]);
      }
    }
    return batch;
  }

 private:
  std::shared_ptr<const std::string> text_;  // shared by the two splits
  int64_t length_;
  int64_t first_;
  int64_t size_;
};

std::string read_text(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("text: there is no file \"{}\"; set data.path to a text of your own, "
                            "or install Debian's package base-files for {}",
                            path, kDefaultPath))
        .at_key("data.path");
  }
  return read_file(path, kLargestFile);
}

}  // namespace

DataSplits text(Reader& options, uint64_t /*seed*/) {
  const std::string path = options.text("path", kDefaultPath);
  const int64_t length = options.count("length", 1, 128);
  const double test_share = options.quantity("test_share", 0.1);
  if (!(test_share > 0 && test_share < 1)) {
    throw options.error("test_share",
                        fmt::format("expected a share between 0 and 1, found {}", test_share));
  }
  auto bytes = std::make_shared<const std::string>(read_text(path));
  const auto size = static_cast<int64_t>(bytes->size());
  const int64_t samples = size == 0 ? 0 : (size - 1) / length;
  if (samples < 2) {
    throw std::move(
        Error(ErrorCode::kBadFile,
              fmt::format("found {} bytes; samples of data.length = {} need at least {}, one "
                          "sample to train and one to test",
                          size, length, 2 * length + 1))
            .in_file(path));
  }
  const auto share = static_cast<int64_t>(std::llround(test_share * static_cast<double>(samples)));
  const int64_t test = std::clamp<int64_t>(share, 1, samples - 1);
  DataSplits splits;
  splits.train = std::make_unique<Windows>(bytes, length, 0, samples - test);
  splits.test = std::make_unique<Windows>(bytes, length, samples - test, test);
  return splits;
}

}  // namespace millrace

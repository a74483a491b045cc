// Fashion-MNIST: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
// Machine Learning Algorithms", arXiv 1708.07747. Read from the four IDX files of Debian's package;
// any other data set of the same form (MNIST, KMNIST) works by its folder.
//
// Pixels stay bytes in memory. A sample's value is (pixel / 255 - 0.2860) / 0.3530: mean and
// standard deviation over all pixels of the 60,000 training images.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "millrace/data/dataset.h"
#include "millrace/data/internal/crop_mirror.h"
#include "millrace/data/internal/idx.h"

namespace millrace {
namespace {

constexpr int kNumClasses = 10;
constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;
constexpr double kBlack = -kMean / kDeviation;

// The value of each of the 256 pixels, rounded once: float32 batches are float64 batches rounded.
template <typename T>
std::array<T, 256> pixel_values() {
  std::array<T, 256> values{};
  for (std::size_t p = 0; p < values.size(); ++p) {
    values[p] = static_cast<T>((static_cast<double>(p) / 255.0 - kMean) / kDeviation);
  }
  return values;
}

template <typename T>
void convert(const uint8_t* __restrict pixels, int64_t n, T* __restrict out) {
  static const std::array<T, 256> values = pixel_values<T>();
  for (int64_t i = 0; i < n; ++i) {
    out[i] = values[pixels[i]];
  }
}

class Images final : public Dataset {
 public:
  Images(internal::IdxImages images, std::vector<uint8_t> labels)
      : images_(std::move(images)), labels_(std::move(labels)) {}

  int64_t size() const override { return images_.count; }
  TensorSpec input() const override { return {{1, images_.rows, images_.columns}, at::kFloat}; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return kNumClasses; }

  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    MILLRACE_CHECK(dtype == at::kFloat || dtype == at::kDouble);
    Batch batch;
    batch.input =
        at::empty({count, 1, images_.rows, images_.columns}, at::TensorOptions().dtype(dtype));
    batch.target = at::empty({count}, at::TensorOptions().dtype(at::kLong));
    int64_t* target = batch.target.data_ptr<int64_t>();
    const int64_t pixels = images_.rows * images_.columns;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = indices[i];
      MILLRACE_CHECK(index >= 0 && index < size(), fmt::format("sample {}", index));
      const uint8_t* image = images_.pixels.data() + index * pixels;
      if (dtype == at::kFloat) {
        convert(image, pixels, batch.input.data_ptr<float>() + i * pixels);
      } else {
        convert(image, pixels, batch.input.data_ptr<double>() + i * pixels);
      }
      target[i] = labels_[static_cast<std::size_t>(index)];
    }
    return batch;
  }

 private:
  internal::IdxImages images_;
  std::vector<uint8_t> labels_;
};

// `stem` with the ending of the package, or uncompressed.
std::string find_file(const std::string& folder, const std::string& stem) {
  const std::string plain = (std::filesystem::path(folder) / stem).string();
  std::error_code ignored;
  for (const std::string& path : {plain + ".gz", plain}) {
    if (std::filesystem::exists(path, ignored)) {
      return path;
    }
  }
  throw Error(ErrorCode::kBadFile,
              fmt::format("fashion-mnist: expected {0}.gz or {0} in the folder \"{1}\", found "
                          "neither; install Debian's package dataset-fashion-mnist, or set "
                          "data.path to a folder with the four IDX files",
                          stem, folder));
}

std::unique_ptr<Images> read_split(const std::string& folder, const std::string& split) {
  const std::string images_path = find_file(folder, split + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folder, split + "-labels-idx1-ubyte");
  internal::IdxImages images = internal::read_idx_images(images_path);
  std::vector<uint8_t> labels = internal::read_idx_labels(labels_path, kNumClasses);
  if (images.count != static_cast<int64_t>(labels.size())) {
    throw std::move(Error(ErrorCode::kBadFile,
                          fmt::format("expected {} labels, one for each image of {}, found {}",
                                      images.count, images_path, labels.size()))
                        .in_file(labels_path));
  }
  return std::make_unique<Images>(std::move(images), std::move(labels));
}

}  // namespace

DataSplits fashion_mnist(Reader& options, uint64_t /*seed*/) {
  const std::string folder = options.text("path", "/usr/share/datasets/fashion-mnist");
  const bool changes = internal::reads_crop_mirror(options);
  DataSplits splits;
  splits.train = read_split(folder, "train");
  splits.test = read_split(folder, "t10k");
  if (splits.train->input() != splits.test->input()) {
    throw Error(
        ErrorCode::kBadFile,
        fmt::format("{}: expected test images of the training images' shape, {}, found {}", folder,
                    to_string(splits.train->input()), to_string(splits.test->input())));
  }
  if (changes) {
    splits.train = internal::with_crop_mirror(std::move(splits.train), kBlack);
  }
  return splits;
}

}  // namespace millrace

// Random images around one random pattern a class. Nothing here is real: it serves to try out
// shapes, speeds and correctness without any file. A model that fits it has learned nothing of use.
//
// Sample i of class i mod classes is that class's pattern plus `noise` times a piece of one long
// row of normal draws that starts at a place of the sample's own. So memory does not grow with the
// number of samples, a batch is made about as fast as it is copied, and no two samples are alike
// (up to a million of them).
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/random.h"
#include "millrace/data/dataset.h"

namespace millrace {
namespace {

constexpr int64_t kRow = 1 << 20;  // places where a sample's noise may start

// What the two splits share.
struct Source {
  TensorSpec spec;
  int64_t classes = 0;
  float noise = 0;
  std::vector<float> patterns;  // [classes, elements]
  std::vector<float> row;       // kRow + elements draws
};

std::vector<float> normals(const RandomKey& key, int64_t count) {
  std::vector<float> draws(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < draws.size(); ++i) {
    draws[i] = static_cast<float>(key.normal(i));
  }
  return draws;
}

template <typename T>
void make_sample(const float* __restrict pattern, const float* __restrict row, float noise,
                 int64_t n, T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<T>(pattern[i] + noise * row[i]);
  }
}

class Synthetic final : public Dataset {
 public:
  // Samples [first, first + size) of the source.
  Synthetic(std::shared_ptr<const Source> source, int64_t first, int64_t size)
      : source_(std::move(source)), first_(first), size_(size) {}

  int64_t size() const override { return size_; }
  TensorSpec input() const override { return source_->spec; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return source_->classes; }

  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    MILLRACE_CHECK(dtype == at::kFloat || dtype == at::kDouble);
    std::vector<int64_t> shape = source_->spec.sample_shape;
    shape.insert(shape.begin(), count);
    Batch batch;
    batch.input = at::empty(shape, at::TensorOptions().dtype(dtype));
    batch.target = at::empty({count}, at::TensorOptions().dtype(at::kLong));
    int64_t* target = batch.target.data_ptr<int64_t>();
    const int64_t elements = source_->spec.sample_elements();
    for (int64_t i = 0; i < count; ++i) {
      MILLRACE_CHECK(indices[i] >= 0 && indices[i] < size_, fmt::format("sample {}", indices[i]));
      const int64_t sample = first_ + indices[i];
      target[i] = sample % source_->classes;
      const float* pattern = source_->patterns.data() + target[i] * elements;
      // An odd multiplier visits every place once before it repeats one.
      const auto place = static_cast<int64_t>(static_cast<uint64_t>(sample) * 0x9E3779B1U % kRow);
      const float* row = source_->row.data() + place;
      if (dtype == at::kFloat) {
        make_sample(pattern, row, source_->noise, elements,
                    batch.input.data_ptr<float>() + i * elements);
      } else {
        make_sample(pattern, row, source_->noise, elements,
                    batch.input.data_ptr<double>() + i * elements);
      }
    }
    return batch;
  }

 private:
  std::shared_ptr<const Source> source_;  // shared by the two splits
  int64_t first_;
  int64_t size_;
};

}  // namespace

DataSplits synthetic(Reader& options, uint64_t seed) {
  const int64_t samples = options.count("samples", 1, 2048);
  const int64_t test_samples = options.count("test_samples", 1, 512);
  const int64_t classes = options.count("classes", 1, 10);
  const int64_t channels = options.count("channels", 1, 1);
  const int64_t height = options.count("height", 1, 28);
  const int64_t width = options.count("width", 1, 28);
  const double noise = options.quantity("noise", 1.0);

  // Each factor is checked before it is multiplied in, so that nothing overflows.
  constexpr int64_t kMostElements = 1 << 28;
  int64_t total = 1;
  for (const int64_t factor : {classes, channels, height, width}) {
    if (factor > kMostElements / total) {
      throw options.error("classes",
                          fmt::format("classes x channels x height x width: expected at most {}, "
                                      "found {} x {} x {} x {}",
                                      kMostElements, classes, channels, height, width));
    }
    total *= factor;
  }

  auto source = std::make_shared<Source>();
  source->spec = {{channels, height, width}, at::kFloat};
  source->classes = classes;
  source->noise = static_cast<float>(noise);
  const RandomKey key = RandomKey(seed).with("synthetic");
  source->patterns = normals(key.with("patterns"), total);
  source->row = normals(key.with("noise"), kRow + total / classes);
  DataSplits splits;
  splits.train = std::make_unique<Synthetic>(source, 0, samples);
  splits.test = std::make_unique<Synthetic>(source, samples, test_samples);
  return splits;
}

}  // namespace millrace

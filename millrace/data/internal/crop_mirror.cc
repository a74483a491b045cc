#include "millrace/data/internal/crop_mirror.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <utility>

#include "millrace/base/random.h"

namespace millrace::internal {
namespace {

// Where a pixel of a result comes from: the place it has in the source, `down` and `right` of its
// own, from the other side if mirrored.
struct Change {
  int64_t down = 0;
  int64_t right = 0;
  bool mirrors = false;
};

Change draw(const RandomKey& key, int64_t padding) {
  const auto places = static_cast<uint64_t>(2 * padding + 1);
  return {static_cast<int64_t>(key.below(0, places)) - padding,
          static_cast<int64_t>(key.below(1, places)) - padding, key.below(2, 2) == 1};
}

template <typename T>
void apply(const Change& change, int64_t rows, int64_t columns, T black, const T* source, T* out) {
  for (int64_t y = 0; y < rows; ++y) {
    const int64_t from_y = y + change.down;
    for (int64_t x = 0; x < columns; ++x) {
      const int64_t from_x = (change.mirrors ? columns - 1 - x : x) + change.right;
      const bool inside = from_y >= 0 && from_y < rows && from_x >= 0 && from_x < columns;
      *out++ = inside ? source[from_y * columns + from_x] : black;
    }
  }
}

// One epoch of images that outlive it.
class CropMirror final : public Dataset {
 public:
  CropMirror(const Dataset& images, const RandomKey& key, double black)
      : images_(images), key_(key), black_(black) {
    const std::vector<int64_t> shape = images.input().sample_shape;
    MILLRACE_CHECK(shape.size() == 3, "images have channels, rows and columns");
    padding_ = shape[1] <= kSmall && shape[2] <= kSmall ? 2 : 4;
  }

  int64_t size() const override { return images_.size(); }
  TensorSpec input() const override { return images_.input(); }
  TensorSpec target() const override { return images_.target(); }
  int64_t num_classes() const override { return images_.num_classes(); }

  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    Batch batch = images_.get(indices, count, dtype);
    const at::Tensor source = batch.input;
    batch.input = at::empty_like(source);
    const int64_t rows = source.size(2);
    const int64_t columns = source.size(3);
    const int64_t planes = source.size(1);
    for (int64_t i = 0; i < count; ++i) {
      const Change change = draw(key_.with(static_cast<uint64_t>(indices[i])), padding_);
      for (int64_t plane = i * planes; plane < (i + 1) * planes; ++plane) {
        const int64_t begin = plane * rows * columns;
        if (dtype == at::kFloat) {
          apply(change, rows, columns, static_cast<float>(black_), source.data_ptr<float>() + begin,
                batch.input.data_ptr<float>() + begin);
        } else {
          apply(change, rows, columns, black_, source.data_ptr<double>() + begin,
                batch.input.data_ptr<double>() + begin);
        }
      }
    }
    return batch;
  }

 private:
  static constexpr int64_t kSmall = 28;

  const Dataset& images_;
  RandomKey key_;
  double black_;
  int64_t padding_ = 0;  // pixels at each edge
};

class Changing final : public Dataset {
 public:
  Changing(std::unique_ptr<Dataset> images, double black)
      : images_(std::move(images)), black_(black) {}

  int64_t size() const override { return images_->size(); }
  TensorSpec input() const override { return images_->input(); }
  TensorSpec target() const override { return images_->target(); }
  int64_t num_classes() const override { return images_->num_classes(); }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    return images_->get(indices, count, dtype);
  }
  std::unique_ptr<Dataset> in_epoch(uint64_t seed, int64_t epoch) const override {
    const RandomKey key = RandomKey(seed).with("crop-mirror").with(static_cast<uint64_t>(epoch));
    return std::make_unique<CropMirror>(*images_, key, black_);
  }

 private:
  std::unique_ptr<Dataset> images_;
  double black_;
};

}  // namespace

bool reads_crop_mirror(Reader& options) {
  const std::string name = options.text("augment", "none");
  if (name != "none" && name != "crop-mirror") {
    throw options.error("augment",
                        fmt::format("expected \"none\" or \"crop-mirror\", found \"{}\"", name));
  }
  return name == "crop-mirror";
}

std::unique_ptr<Dataset> with_crop_mirror(std::unique_ptr<Dataset> images, double black) {
  return std::make_unique<Changing>(std::move(images), black);
}

}  // namespace millrace::internal

#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class Embedding final : public Layer {
 public:
  Embedding(std::string name, int64_t rows, int64_t width, at::ScalarType dtype, double deviation)
      : Layer(std::move(name)), rows_(rows), width_(width), dtype_(dtype), deviation_(deviation) {
    if (rows < 1 || width < 1 || (dtype != at::kFloat && dtype != at::kDouble)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (embedding): rows and width must be at least 1 and the "
                              "dtype float32 or float64, found {}, {} and {}",
                              this->name(), rows, width, dtype_name(dtype)));
    }
  }

  const char* kind() const override { return "embedding"; }
  bool joins_kept() const override { return true; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    if (input.dtype != at::kLong) {
      internal::refuse_input(*this, "int64", input);
    }
    TensorSpec output{input.sample_shape, dtype_};
    output.sample_shape.push_back(width_);
    return output;
  }

  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {rows_, width_}, std::sqrt(3.0) * deviation_}};
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor places = inputs[0].contiguous();
    check_places(places);
    std::vector<int64_t> sizes = places.sizes().vec();
    sizes.push_back(width_);
    if (context.training) {
      saved = {places};
    }
    return at::index_select(weights[0], 0, places.flatten()).view(sizes);
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    kept = {std::move(saved[0]), grad.contiguous()};
    saved.clear();
    return Tensors(need_input_gradient ? 1 : 0);  // integers have no gradient
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    const at::Tensor& places = kept[0];
    const at::Tensor& grad = kept[1];
    internal::with_float_type(grad.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const int64_t* place = places.data_ptr<int64_t>();
      const T* from = grad.data_ptr<T>();
      T* table = sums[0].data_ptr<T>();
      // In the order of the input: a row used twice always adds alike.
      for (int64_t i = 0; i < places.numel(); ++i, from += width_) {
        T* to = table + place[i] * width_;
        for (int64_t k = 0; k < width_; ++k) {
          to[k] += from[k];
        }
      }
    });
  }

 private:
  void check_places(const at::Tensor& places) const {
    const int64_t* place = places.data_ptr<int64_t>();
    for (int64_t i = 0; i < places.numel(); ++i) {
      if (place[i] < 0 || place[i] >= rows_) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("layer \"{}\" (embedding) expects values in [0, {}), found {}; it "
                                "needs as many rows as the data has different values",
                                name(), rows_, place[i]));
      }
    }
  }

  int64_t rows_;
  int64_t width_;
  at::ScalarType dtype_;
  double deviation_;
};

}  // namespace

LayerPtr embedding(std::string name, int64_t rows, int64_t width, at::ScalarType dtype,
                   double deviation) {
  return std::make_unique<Embedding>(std::move(name), rows, width, dtype, deviation);
}

}  // namespace millrace

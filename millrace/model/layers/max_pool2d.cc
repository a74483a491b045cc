#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "millrace/model/internal/native.h"
#include "millrace/model/internal/pool_kernels.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;
using internal::PoolShape;

class MaxPool2d final : public Layer {
 public:
  MaxPool2d(std::string name, int64_t size) : Layer(std::move(name)), size_(size) {
    if (size < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (max_pool2d): the window must be at least 1, found {}",
                              this->name(), size));
    }
  }

  const char* kind() const override { return "max_pool2d"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    const std::vector<int64_t>& shape = input.sample_shape;
    if (shape.size() != 3 || shape[1] < size_ || shape[2] < size_) {
      internal::refuse_input(
          *this,
          fmt::format("[channels, height, width] with height and width of at least {}", size_),
          input);
    }
    return {{shape[0], shape[1] / size_, shape[2] / size_}, input.dtype};
  }

  // A comparison an element of the window.
  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(output(inputs).sample_elements() * size_ * size_);
  }
  std::vector<ParameterSpec> parameters() const override { return {}; }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor source = inputs[0].contiguous();
    const PoolShape shape = shape_of(source);
    const std::vector<int64_t> sizes = {source.size(0), source.size(1), shape.out_height(),
                                        shape.out_width()};
    at::Tensor out = at::empty(sizes, source.options());
    at::Tensor where = at::empty(sizes, source.options().dtype(small() ? at::kByte : at::kInt));
    internal::with_float_type(source.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      if (small()) {
        internal::max_pool_forward(shape, source.data_ptr<T>(), out.data_ptr<T>(),
                                   where.data_ptr<uint8_t>());
      } else {
        internal::max_pool_forward(shape, source.data_ptr<T>(), out.data_ptr<T>(),
                                   where.data_ptr<int32_t>());
      }
    });
    if (context.training) {
      saved = {std::move(where), internal::shape_only(source)};
    }
    return out;
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    const NativeGuard guard;
    Tensors results;
    if (need_input_gradient) {
      const at::Tensor source = grad.contiguous();
      const at::Tensor& where = saved[0];
      at::Tensor result =
          at::empty(internal::with_batch(source.size(0), saved[1]), source.options());
      const PoolShape shape = shape_of(result);
      internal::with_float_type(source.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        if (small()) {
          internal::max_pool_backward(shape, source.data_ptr<T>(), where.data_ptr<uint8_t>(),
                                      result.data_ptr<T>());
        } else {
          internal::max_pool_backward(shape, source.data_ptr<T>(), where.data_ptr<int32_t>(),
                                      result.data_ptr<T>());
        }
      });
      results.push_back(std::move(result));
    }
    saved.clear();
    return results;
  }

  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}

 private:
  bool small() const { return size_ <= internal::kMaxSmallPool; }
  PoolShape shape_of(const at::Tensor& image) const {
    return {image.size(0) * image.size(1), image.size(2), image.size(3), size_};
  }

  int64_t size_;
};

}  // namespace

LayerPtr max_pool2d(std::string name, int64_t size) {
  return std::make_unique<MaxPool2d>(std::move(name), size);
}

}  // namespace millrace

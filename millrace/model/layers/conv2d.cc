#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class Conv2d final : public Layer {
 public:
  Conv2d(std::string name, int64_t in, int64_t out, int64_t kernel, int64_t padding, int64_t stride,
         bool bias)
      : Layer(std::move(name)),
        in_(in),
        out_(out),
        kernel_(kernel),
        padding_{padding, padding},
        stride_{stride, stride},
        bias_(bias),
        own_{0, out} {
    if (in < 1 || out < 1 || kernel < 1 || padding < 0 || stride < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (conv2d): channels, kernel and stride must be at least "
                              "1 and padding at least 0, found channels {} to {}, kernel {}, "
                              "padding {}, stride {}",
                              this->name(), in, out, kernel, padding, stride));
    }
  }

  // Output channels `own` of it.
  Conv2d(const Conv2d& whole, RowRange own)
      : Layer(whole.name()),
        in_(whole.in_),
        out_(whole.out_),
        kernel_(whole.kernel_),
        padding_(whole.padding_),
        stride_(whole.stride_),
        bias_(whole.bias_),
        own_(own) {}

  const char* kind() const override { return "conv2d"; }
  std::unique_ptr<Layer> split(int part, int parts) const override {
    return out_ >= parts ? std::make_unique<Conv2d>(*this, rows_of_part(out_, part, parts))
                         : nullptr;
  }
  bool joins_kept() const override { return true; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    const std::vector<int64_t>& shape = input.sample_shape;
    const int64_t least = std::max<int64_t>(1, kernel_ - 2 * padding_[0]);
    if (shape.size() != 3 || shape[0] != in_ || shape[1] < least || shape[2] < least) {
      internal::refuse_input(
          *this,
          fmt::format("{} [{}, height, width] with height and width of at least {}",
                      dtype_name(input.dtype), in_, least),
          input);
    }
    return {{out_, extent(shape[1]), extent(shape[2])}, input.dtype};
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    const TensorSpec out = output(inputs);
    return 2 * static_cast<double>(own_channels() * in_ * kernel_ * kernel_) *
           static_cast<double>(out.sample_shape[1] * out.sample_shape[2]);
  }
  std::vector<ParameterSpec> parameters() const override {
    const double bound = 1.0 / std::sqrt(static_cast<double>(in_ * kernel_ * kernel_));
    std::vector<ParameterSpec> specs = {{"weight", {own_channels(), in_, kernel_, kernel_}, bound}};
    if (bias_) {
      specs.push_back({"bias", {own_channels()}, bound});
    }
    for (ParameterSpec& spec : specs) {
      if (is_part()) {
        spec.rows = {own_};
      }
    }
    return specs;
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    if (context.training) {
      saved = {inputs[0]};
    }
    at::Tensor result = at::convolution(inputs[0], weights[0], bias_ ? weights[1] : at::Tensor(),
                                        stride_, padding_, kDilation,
                                        /*transposed=*/false, kOutputPadding, /*groups=*/1);
    return is_part() ? internal::peers(*this, context).gather(result, 1) : result;
  }

  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const NativeGuard guard;
    kept = {std::move(saved[0]),
            is_part() ? grad.narrow(1, own_.begin, own_channels()).contiguous() : grad};
    saved.clear();
    if (!need_input_gradient) {
      return {};
    }
    at::Tensor result =
        std::get<0>(differentiate(kept[1], kept[0], weights[0], {true, false, false}));
    if (is_part()) {
      result = internal::peers(*this, context).sum(result.contiguous());
    }
    return {std::move(result)};
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    // The gradient of the weight needs only the weight's shape: its sum will do.
    const auto [unused, weight, bias] =
        differentiate(kept[1], kept[0], sums[0], {false, true, bias_});
    at::Tensor weight_sum = sums[0];
    weight_sum.add_(weight);
    if (bias_) {
      at::Tensor bias_sum = sums[1];
      bias_sum.add_(bias);
    }
  }

 private:
  static constexpr std::array<int64_t, 2> kDilation = {1, 1};
  static constexpr std::array<int64_t, 2> kOutputPadding = {0, 0};

  int64_t extent(int64_t size) const { return (size + 2 * padding_[0] - kernel_) / stride_[0] + 1; }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiate(const at::Tensor& grad,
                                                               const at::Tensor& input,
                                                               const at::Tensor& weight,
                                                               std::array<bool, 3> wanted) const {
    const std::array<int64_t, 1> bias_sizes = {own_channels()};
    return at::convolution_backward(grad, input, weight, at::IntArrayRef(bias_sizes), stride_,
                                    padding_, kDilation, /*transposed=*/false, kOutputPadding,
                                    /*groups=*/1, wanted);
  }

  int64_t own_channels() const { return own_.end - own_.begin; }
  bool is_part() const { return own_channels() < out_; }

  int64_t in_;
  int64_t out_;  // of the whole
  int64_t kernel_;
  std::array<int64_t, 2> padding_;
  std::array<int64_t, 2> stride_;
  bool bias_;
  RowRange own_;  // output channels of the whole that are here
};

}  // namespace

LayerPtr conv2d(std::string name, int64_t in, int64_t out, int64_t kernel, int64_t padding,
                int64_t stride, bool bias) {
  return std::make_unique<Conv2d>(std::move(name), in, out, kernel, padding, stride, bias);
}

}  // namespace millrace

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "millrace/model/internal/native.h"
#include "millrace/model/internal/norm_kernels.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;
using internal::NormShape;

constexpr double kEpsilon = 1e-5;
constexpr double kMomentum = 0.1;

// Per channel, in double whatever the layer's dtype.
using Channels = std::vector<double>;

template <typename T>
Channels to_channels(const at::Tensor& tensor) {
  const T* values = tensor.data_ptr<T>();
  return {values, values + tensor.numel()};
}

// A row of a [rows, channels] tensor of float64.
double* row(const at::Tensor& table, int64_t index) {
  return table.data_ptr<double>() + index * table.size(1);
}

class BatchNorm2d final : public Layer {
 public:
  BatchNorm2d(std::string name, int64_t channels) : Layer(std::move(name)), channels_(channels) {
    if (channels < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (batch_norm2d): channels must be at least 1, found {}",
                              this->name(), channels));
    }
  }

  const char* kind() const override { return "batch_norm2d"; }
  bool mixes_samples() const override { return true; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    if (input.sample_shape.size() != 3 || input.sample_shape[0] != channels_) {
      internal::refuse_input(*this, fmt::format("[{}, height, width]", channels_), input);
    }
    return input;
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {channels_}, 0, 1}, {"bias", {channels_}, 0, 0}};
  }

  std::vector<BufferSpec> buffers() const override {
    return {{"running_mean", {channels_}, 0}, {"running_var", {channels_}, 1}};
  }

  std::vector<BufferSpec> accumulators() const override {
    return {{"sum", {channels_}}, {"squares", {channels_}}, {"count", {1}}};
  }

  void commit(at::TensorList accumulators, at::TensorList buffers) const override {
    const double count = *accumulators[2].data_ptr<double>();
    if (count < 2) {
      return;  // no sample came here in this step
    }
    const double* sum = accumulators[0].data_ptr<double>();
    const double* squares = accumulators[1].data_ptr<double>();
    Channels mean(static_cast<std::size_t>(channels_));
    Channels variance(mean.size());
    for (std::size_t c = 0; c < mean.size(); ++c) {
      mean[c] = sum[c] / count;
      variance[c] = std::max(0.0, squares[c] / count - mean[c] * mean[c]);
    }
    internal::with_float_type(buffers[0].scalar_type(), [&](auto zero) {
      move_buffers<decltype(zero)>(buffers, count, mean.data(), variance);
    });
    for (const at::Tensor& each : accumulators) {
      each.zero_();
    }
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor input = inputs[0].contiguous();
    const NormShape shape = shape_of(input);
    at::Tensor out = at::empty(input.sizes(), input.options());
    // Mean and one over the deviation, by channel.
    at::Tensor statistics = at::empty({2, channels_}, input.options().dtype(at::kDouble));
    double* mean = row(statistics, 0);
    double* inverse = row(statistics, 1);
    internal::with_float_type(input.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      if (context.training && shape.values() > 0) {
        Channels variance(static_cast<std::size_t>(channels_));
        check_values(shape);
        internal::channel_moments(shape, input.data_ptr<T>(), mean, variance.data());
        const auto count = static_cast<double>(shape.values());
        if (context.accumulators.empty()) {
          move_buffers<T>(context.buffers, count, mean, variance);
        } else {
          accumulate(context.accumulators, count, mean, variance);
        }
        invert(variance, inverse);
      } else {
        const Channels running_mean = to_channels<T>(context.buffers[0]);
        std::copy(running_mean.begin(), running_mean.end(), mean);
        invert(to_channels<T>(context.buffers[1]), inverse);
      }
      Channels scale = to_channels<T>(weights[0]);
      for (std::size_t c = 0; c < scale.size(); ++c) {
        scale[c] *= inverse[c];
      }
      const Channels shift = to_channels<T>(weights[1]);
      internal::scale_channels(shape, input.data_ptr<T>(), mean, scale.data(), shift.data(),
                               out.data_ptr<T>());
    });
    if (context.training) {
      saved = {input, std::move(statistics)};
    }
    return out;
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const NativeGuard guard;
    const at::Tensor input = std::move(saved[0]);
    const at::Tensor statistics = std::move(saved[1]);
    saved.clear();
    const at::Tensor source = grad.contiguous();
    const NormShape shape = shape_of(input);
    // The sums that the input gradient needs are the weight gradient too: only they are kept.
    at::Tensor sums = at::empty({2, channels_}, statistics.options());
    const double* mean = row(statistics, 0);
    const double* inverse = row(statistics, 1);
    double* sum = row(sums, 0);
    double* product = row(sums, 1);
    Tensors result;
    internal::with_float_type(input.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      internal::channel_products(shape, source.data_ptr<T>(), input.data_ptr<T>(), mean, sum,
                                 product);
      for (int64_t c = 0; c < channels_; ++c) {
        product[c] *= inverse[c];  // now the sum of grad times the normalized input
      }
      if (!need_input_gradient) {
        return;
      }
      // dx = w / s * (g - mean(g) - xhat * mean(g xhat)), xhat = (x - mean) / s
      const auto count = static_cast<double>(std::max<int64_t>(1, shape.values()));
      Channels of_grad = to_channels<T>(weights[0]);
      Channels of_in(of_grad.size());
      Channels rest(of_grad.size());
      for (std::size_t c = 0; c < of_grad.size(); ++c) {
        of_grad[c] *= inverse[c];
        of_in[c] = -of_grad[c] * inverse[c] * product[c] / count;
        rest[c] = -of_grad[c] * sum[c] / count;
      }
      at::Tensor back = at::empty(input.sizes(), input.options());
      internal::combine_channels(shape, source.data_ptr<T>(), input.data_ptr<T>(),
                                 {mean, of_grad.data(), of_in.data(), rest.data()},
                                 back.data_ptr<T>());
      result.push_back(std::move(back));
    });
    kept = {std::move(sums)};
    return result;
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    at::Tensor weight_sum = sums[0];
    weight_sum.add_(kept[0].select(0, 1).to(weight_sum.scalar_type()));
    at::Tensor bias_sum = sums[1];
    bias_sum.add_(kept[0].select(0, 0).to(bias_sum.scalar_type()));
  }

 private:
  NormShape shape_of(const at::Tensor& image) const {
    return {image.size(0), channels_, image.size(2) * image.size(3)};
  }

  void check_values(const NormShape& shape) const {
    if (shape.values() == 1) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("layer \"{}\" (batch_norm2d) expects more than one value a channel to "
                      "train on, found one sample of one pixel; use fewer microbatches or "
                      "a larger batch",
                      name()));
    }
  }

  static void invert(const Channels& variance, double* inverse) {
    for (std::size_t c = 0; c < variance.size(); ++c) {
      inverse[c] = 1.0 / std::sqrt(variance[c] + kEpsilon);
    }
  }

  void accumulate(at::TensorList accumulators, double count, const double* mean,
                  const Channels& variance) const {
    double* sum = accumulators[0].data_ptr<double>();
    double* squares = accumulators[1].data_ptr<double>();
    for (int64_t c = 0; c < channels_; ++c) {
      sum[c] += count * mean[c];
      squares[c] += count * (variance[static_cast<std::size_t>(c)] + mean[c] * mean[c]);
    }
    *accumulators[2].data_ptr<double>() += count;
  }

  template <typename T>
  void move_buffers(at::TensorList buffers, double count, const double* mean,
                    const Channels& variance) const {
    T* running_mean = buffers[0].data_ptr<T>();
    T* running_var = buffers[1].data_ptr<T>();
    for (int64_t c = 0; c < channels_; ++c) {
      const double unbiased = variance[static_cast<std::size_t>(c)] * count / (count - 1);
      running_mean[c] = static_cast<T>((1 - kMomentum) * static_cast<double>(running_mean[c]) +
                                       kMomentum * mean[c]);
      running_var[c] = static_cast<T>((1 - kMomentum) * static_cast<double>(running_var[c]) +
                                      kMomentum * unbiased);
    }
  }

  int64_t channels_;
};

}  // namespace

LayerPtr batch_norm2d(std::string name, int64_t channels) {
  return std::make_unique<BatchNorm2d>(std::move(name), channels);
}

}  // namespace millrace

#include "millrace/profiler/measure_layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/random.h"
#include "millrace/profiler/profile_model.h"

namespace millrace {
namespace {

// Hands its input on. Last of the model, so that the loss is not in the measured layer's time.
class Relay : public Layer {
 public:
  explicit Relay(std::string name) : Layer(std::move(name)) {}
  const char* kind() const override { return "relay"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {}; }
  at::Tensor forward(const LayerContext& /*context*/, at::TensorList inputs,
                     const Tensors& /*weights*/, Tensors& /*saved*/) const override {
    return inputs[0];
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& /*saved*/,
                         const Tensors& /*weights*/, const at::Tensor& grad,
                         bool need_input_gradient, Tensors& /*kept*/) const override {
    return need_input_gradient ? Tensors{grad} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& /*kept*/,
                       const Tensors& /*sums*/) const override {}
};

// Has a parameter, so that the layer behind it has an input gradient to make.
class Source final : public Relay {
 public:
  using Relay::Relay;
  const char* kind() const override { return "source"; }
  std::vector<ParameterSpec> parameters() const override { return {{"w", {1}, 0.0, 0.0}}; }
};

// Takes the output for its own gradient.
class OwnGradient final : public Loss {
 public:
  const char* kind() const override { return "own_gradient"; }
  void check(const TensorSpec& /*output*/, const TensorSpec& /*target*/) const override {}
  LossSums evaluate(const at::Tensor& output, const at::Tensor& /*target*/,
                    at::Tensor* gradient) const override {
    if (gradient != nullptr) {
      *gradient = output;
    }
    return {.loss = 0, .correct = 0, .samples = output.size(0)};
  }
};

// A layer on a slowed device. One thread at a time runs such layers.
class Throttled final : public Layer {
 public:
  Throttled(LayerPtr layer, const Throttle& throttle)
      : Layer(layer->name()), layer_(std::move(layer)), throttle_(throttle) {}
  const char* kind() const override { return layer_->kind(); }
  TensorSpec output(const TensorSpecs& inputs) const override { return layer_->output(inputs); }
  std::vector<ParameterSpec> parameters() const override { return layer_->parameters(); }
  std::vector<BufferSpec> buffers() const override { return layer_->buffers(); }
  double forward_flops(const TensorSpecs& inputs) const override {
    return layer_->forward_flops(inputs);
  }
  bool mixes_samples() const override { return layer_->mixes_samples(); }
  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const double start_s = monotonic_s();
    at::Tensor output = layer_->forward(context, inputs, weights, saved);
    slow_down(start_s);
    return output;
  }
  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const double start_s = monotonic_s();
    Tensors back = layer_->backward_input(context, saved, weights, grad, need_input_gradient, kept);
    slow_down(start_s);
    return back;
  }
  void backward_weight(const LayerContext& context, const Tensors& kept,
                       const Tensors& sums) const override {
    const double start_s = monotonic_s();
    layer_->backward_weight(context, kept, sums);
    if (!sums.empty()) {
      slow_down(start_s);
    }
  }

 private:
  static constexpr std::size_t kStream = 16U << 20;  // floats: more than caches hold

  void slow_down(double start_s) const {
    const double took_s = monotonic_s() - start_s;
    if (throttle_.sleep > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(throttle_.sleep * took_s));
    }
    if (throttle_.flops > 0) {
      constexpr std::size_t kLanes = 8;
      std::array<float, kLanes> sums{};
      const auto rounds = static_cast<int64_t>(throttle_.flops / (2 * kLanes));
      for (int64_t i = 0; i < rounds; ++i) {
        for (float& sum : sums) {
          sum = sum * 0.999F + 1.0F;
        }
      }
      for (const float sum : sums) {
        result_ = sum;  // volatile: so that it is computed
      }
    }
    if (throttle_.bytes > 0) {
      static const std::vector<float> from(kStream, 1.0F);
      static std::vector<float> to(kStream);
      static std::size_t at = 0;  // goes round, so that nothing is found in a cache
      auto left = static_cast<std::size_t>(throttle_.bytes / (2 * sizeof(float)));
      while (left > 0) {
        const std::size_t count = std::min(left, kStream - at);
        const auto offset = static_cast<std::ptrdiff_t>(at);
        std::copy_n(from.begin() + offset, count, to.begin() + offset);
        at = (at + count) % kStream;
        left -= count;
      }
    }
  }

  LayerPtr layer_;
  Throttle throttle_;
  mutable volatile float result_ = 0;
};

// The same samples again and again, made once.
class OneBatch final : public Dataset {
 public:
  OneBatch(TensorSpec spec, int64_t values, int64_t samples)
      : spec_(std::move(spec)), samples_(samples) {
    std::vector<int64_t> shape = {samples};
    shape.insert(shape.end(), spec_.sample_shape.begin(), spec_.sample_shape.end());
    input_ = at::empty(shape, spec_.dtype);
    const RandomKey key = RandomKey(1).with("one batch");
    if (spec_.dtype == at::kLong) {
      auto* data = input_.data_ptr<int64_t>();
      for (int64_t i = 0; i < input_.numel(); ++i) {
        data[i] = static_cast<int64_t>(
            key.below(static_cast<uint64_t>(i), static_cast<uint64_t>(values)));
      }
    } else {
      auto* data = input_.data_ptr<float>();
      for (int64_t i = 0; i < input_.numel(); ++i) {
        data[i] = static_cast<float>(2 * key.uniform(static_cast<uint64_t>(i)) - 1);
      }
    }
    target_ = at::zeros({samples}, at::kLong);
  }
  int64_t size() const override { return samples_; }
  TensorSpec input() const override { return spec_; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return 1; }
  Batch get(const int64_t* /*indices*/, int64_t /*count*/,
            at::ScalarType /*dtype*/) const override {
    return {input_, target_};
  }

 private:
  TensorSpec spec_;
  int64_t samples_;
  at::Tensor input_;
  at::Tensor target_;
};

}  // namespace

LayerProfile measure_layer(LayerAlone alone, double seconds, const Throttle& throttle) {
  const OneBatch data(alone.input, alone.values, alone.samples);
  if (throttle.sleep > 0 || throttle.flops > 0 || throttle.bytes > 0) {
    alone.layer = std::make_unique<Throttled>(std::move(alone.layer), throttle);
  }
  Model model;
  model.name = "alone";
  model.input = alone.input;
  model.target = {{}, at::kLong};
  std::vector<int> from;
  if (alone.input.dtype == at::kLong) {
    from.push_back(kModelInput);
  } else {
    for (int i = 0; i < alone.num_inputs; ++i) {
      from.push_back(
          model.append(std::make_unique<Source>(i == 0 ? "source" : "second"), {kModelInput}));
    }
  }
  const int measured = model.append(std::move(alone.layer), from);
  model.append(std::make_unique<Relay>("sink"));
  model.loss = std::make_unique<OwnGradient>();
  ProfileRequest request;
  request.model = &model;
  request.dataset = &data;
  request.samples = alone.samples;
  request.train.momentum = 0.9;
  request.seconds = seconds;
  request.peak = false;
  return profile_model(request).layers[static_cast<std::size_t>(measured)];
}

}  // namespace millrace

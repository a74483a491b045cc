#include "millrace/model/stage.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/random.h"
#include "millrace/model/internal/native.h"

namespace millrace {
namespace {

using internal::NativeGuard;

// 64 bytes of float32: a parameter starts on a cache line and on every vector register's boundary.
constexpr int64_t kAlignElements = 16;

int64_t aligned(int64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

template <typename T>
void fill(T* out, const ParameterSpec& parameter, const RandomKey& key) {
  const int64_t elements = parameter.elements();
  for (int64_t i = 0; i < elements; ++i) {
    const double draw = 2.0 * key.uniform(static_cast<uint64_t>(i)) - 1.0;
    out[i] = static_cast<T>(parameter.constant + parameter.bound * draw);
  }
}

// A tensor at a border of the stage must be [B, sample shape...] of the contract's dtype.
void check_border(const at::Tensor& tensor, const TensorSpec& expected, const Layer& layer,
                  const char* what) {
  MILLRACE_CHECK(tensor.defined(), fmt::format("no {} for layer {}", what, layer.name()));
  if (tensor.scalar_type() == expected.dtype && tensor.dim() >= 1 &&
      tensor.sizes().slice(1) == at::IntArrayRef(expected.sample_shape)) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} of layer \"{}\": expected a batch of {}, found a tensor {} {} (batch "
                          "first); the neighbouring stage or the dataset does not meet the model's "
                          "contract",
                          what, layer.name(), to_string(expected), dtype_name(tensor.scalar_type()),
                          internal::shape_text(tensor.sizes())));
}

}  // namespace

Stage::Stage(const Model& model, int first, int last) : model_(&model), first_(first), last_(last) {
  const int num_layers = static_cast<int>(model.layers.size());
  if (first < 0 || first >= last || last > num_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a stage needs layers [first, last) of the model's {}, at least one; "
                            "found [{}, {})",
                            num_layers, first, last));
  }
  const std::vector<TensorSpec> outputs = check_model(model);
  specs_.push_back(first == 0 ? model.input : outputs[static_cast<std::size_t>(first - 1)]);
  specs_.insert(specs_.end(), outputs.begin() + first, outputs.begin() + last);
  // On the first stage nobody wants the gradient of the data, so nothing is propagated below the
  // first layer that has parameters.
  lowest_ = last - first;
  for (int i = 0; i < this->num_layers(); ++i) {
    const std::vector<ParameterSpec> parameters = layer(i).parameters();
    if (!parameters.empty() || !is_first()) {
      lowest_ = std::min(lowest_, i);
    }
    for (const ParameterSpec& parameter : parameters) {
      slots_.push_back(
          {layer(i).name(), parameter.name, parameter.shape, flat_elements_, parameter.elements()});
      flat_elements_ += aligned(parameter.elements());
    }
  }
}

bool Stage::is_first() const { return first_ == 0; }
bool Stage::is_last() const { return last_ == static_cast<int>(model_->layers.size()); }
const TensorSpec& Stage::input() const { return specs_.front(); }
const TensorSpec& Stage::output() const { return specs_.back(); }
int Stage::num_layers() const { return last_ - first_; }
const Layer& Stage::layer(int index) const {
  return *model_->layers[static_cast<std::size_t>(first_ + index)];
}
const std::vector<ParameterSlot>& Stage::slots() const { return slots_; }
int64_t Stage::flat_elements() const { return flat_elements_; }

at::Tensor Stage::new_flat() const {
  return at::zeros({flat_elements_}, at::TensorOptions().dtype(model_->input.dtype));
}

void Stage::initialize(at::Tensor& flat, uint64_t seed) const {
  const WeightViews weights = views(flat);
  const RandomKey key = RandomKey(seed).with("init");
  for (int i = 0; i < num_layers(); ++i) {
    const std::vector<ParameterSpec> parameters = layer(i).parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor& view = weights[static_cast<std::size_t>(i)][p];
      const RandomKey own = key.with(layer(i).name()).with(parameters[p].name);
      internal::with_float_type(view.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        fill(view.data_ptr<T>(), parameters[p], own);
      });
    }
  }
}

WeightViews Stage::views(const at::Tensor& flat) const {
  MILLRACE_CHECK(flat.dim() == 1 && flat.numel() == flat_elements_ && flat.is_contiguous(),
                 "not a flat buffer of this stage");
  const NativeGuard guard;
  WeightViews result(static_cast<std::size_t>(num_layers()));
  auto slot = slots_.begin();
  for (int i = 0; i < num_layers(); ++i) {
    for (; slot != slots_.end() && slot->layer == layer(i).name(); ++slot) {
      result[static_cast<std::size_t>(i)].push_back(
          flat.narrow(0, slot->offset, slot->elements).view(slot->shape));
    }
  }
  return result;
}

at::Tensor Stage::forward(const LayerContext& context, const at::Tensor& input,
                          const WeightViews& weights, const at::Tensor& target, Stash& stash,
                          LossSums& sums) const {
  const NativeGuard guard;
  const auto count = static_cast<std::size_t>(num_layers());
  check_border(input, specs_.front(), layer(0), "input");
  MILLRACE_CHECK(weights.size() == count);
  stash.saved.assign(count, {});
  stash.kept.assign(count, {});
  stash.loss_gradient.reset();

  at::Tensor x = input.contiguous();
  for (std::size_t i = 0; i < count; ++i) {
    // Assigning drops what only this layer's input held: a ReLU's input dies here.
    x = layer(static_cast<int>(i)).forward(context, x, weights[i], stash.saved[i]);
  }
  if (is_last()) {
    MILLRACE_CHECK(target.defined(), "the last stage needs the target");
    const LossSums own =
        model_->loss->evaluate(x, target, context.training ? &stash.loss_gradient : nullptr);
    sums.loss += own.loss;
    sums.correct += own.correct;
    sums.samples += own.samples;
  }
  return x;
}

at::Tensor Stage::walk_back(const LayerContext& context, Stash& stash, const WeightViews& weights,
                            const at::Tensor& grad, const WeightViews* sums) const {
  const NativeGuard guard;
  const auto count = static_cast<std::size_t>(num_layers());
  MILLRACE_CHECK(stash.saved.size() == count && stash.kept.size() == count,
                 "backward without its training forward");
  at::Tensor g;
  if (is_last()) {
    MILLRACE_CHECK(stash.loss_gradient.defined(), "backward without its training forward");
    g = std::move(stash.loss_gradient);
    stash.loss_gradient.reset();
  } else {
    check_border(grad, specs_.back(), layer(num_layers() - 1), "gradient of the output");
    g = grad.contiguous();
  }
  for (int i = num_layers() - 1; i >= lowest_; --i) {
    const auto at = static_cast<std::size_t>(i);
    const bool need = i > lowest_ || !is_first();
    g = layer(i).backward_input(context, stash.saved[at], weights[at], g, need, stash.kept[at]);
    if (sums != nullptr) {
      layer(i).backward_weight(context, stash.kept[at], (*sums)[at]);
      stash.kept[at].clear();
    }
  }
  stash.saved.clear();
  return is_first() ? at::Tensor() : g;
}

at::Tensor Stage::backward(const LayerContext& context, Stash& stash, const WeightViews& weights,
                           const at::Tensor& grad, const WeightViews& sums) const {
  at::Tensor result = walk_back(context, stash, weights, grad, &sums);
  stash.kept.clear();
  return result;
}

at::Tensor Stage::backward_input(const LayerContext& context, Stash& stash,
                                 const WeightViews& weights, const at::Tensor& grad) const {
  return walk_back(context, stash, weights, grad, nullptr);
}

void Stage::backward_weight(const LayerContext& context, Stash& stash,
                            const WeightViews& sums) const {
  const NativeGuard guard;
  MILLRACE_CHECK(stash.kept.size() == static_cast<std::size_t>(num_layers()),
                 "weight half without its input half");
  // The same order as in backward, so that both sum alike to the last bit.
  for (int i = num_layers() - 1; i >= lowest_; --i) {
    const auto at = static_cast<std::size_t>(i);
    layer(i).backward_weight(context, stash.kept[at], sums[at]);
    stash.kept[at].clear();
  }
  stash.kept.clear();
}

}  // namespace millrace

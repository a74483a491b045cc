#include "millrace/model/stage.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "millrace/base/random.h"
#include "millrace/model/internal/native.h"
#include "millrace/model/split.h"

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
  std::vector<RowRange> rows = parameter.rows;
  int64_t row_elements = 1;
  if (rows.empty()) {
    rows.push_back({0, elements});
  } else {
    row_elements = elements / parameter.shape.front();
  }
  // A draw is an element's of the whole parameter.
  for (const RowRange& range : rows) {
    for (int64_t i = range.begin * row_elements; i < range.end * row_elements; ++i) {
      const double draw = 2.0 * key.uniform(static_cast<uint64_t>(i)) - 1.0;
      *out++ = static_cast<T>(parameter.constant + parameter.bound * draw);
    }
  }
}

// A tensor at a border of the stage must be [B, sample shape...] of the contract's dtype.
void check_border(const at::Tensor& tensor, const TensorSpec& expected, const char* what,
                  const Layer& layer) {
  MILLRACE_CHECK(tensor.defined(), fmt::format("no {} of layer {}", what, layer.name()));
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

// Adds `part` to a sum that nobody else holds, once there are two parts; before that the sum is the
// first part itself, which belongs to whoever made it.
void accumulate(at::Tensor& sum, bool& owned, at::Tensor part) {
  if (!part.defined()) {
    return;
  }
  if (!sum.defined()) {
    sum = std::move(part);
  } else if (owned) {
    sum.add_(part);
  } else {
    sum = at::add(sum, part);
    owned = true;
  }
}

// Layers [first, last) by index.
std::vector<int> range(const Model& model, int first, int last) {
  const auto num_layers = static_cast<int>(model.layers.size());
  if (first < 0 || first >= last || last > num_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a stage needs layers [first, last) of the model's {}, at least one; "
                            "found [{}, {})",
                            num_layers, first, last));
  }
  std::vector<int> layers(static_cast<std::size_t>(last - first));
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

void check_layers(const Model& model, const std::vector<int>& layers) {
  const auto num_layers = static_cast<int>(model.layers.size());
  if (layers.empty() || layers.front() < 0 || layers.back() >= num_layers ||
      std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a stage needs ascending indices of the model's {} layers, at least one",
                    num_layers));
  }
}

// Per layer of the model: whether a parameter stands at or before it.
std::vector<bool> layers_with_gradient(const Model& model) {
  std::vector<bool> has(model.layers.size());
  for (std::size_t l = 0; l < has.size(); ++l) {
    const std::vector<int> inputs = model.inputs_of(static_cast<int>(l));
    has[l] = !model.layers[l]->parameters().empty() || !model.layers[l]->borrowed().empty() ||
             std::any_of(inputs.begin(), inputs.end(), [&](int from) {
               return from != kModelInput && has[static_cast<std::size_t>(from)];
             });
  }
  return has;
}

}  // namespace

Stage::Stage(const Model& model, int first, int last) : Stage(model, range(model, first, last)) {}

Stage::Stage(const Model& model, std::vector<int> layers, Ties ties, StagePart part)
    : model_(&model), layers_(std::move(layers)) {
  check_layers(model, layers_);
  const std::vector<TensorSpec> specs = check_model(model);
  if (ties == Ties::kRefused) {
    check_ties(model, layers_);
  }
  take_part(part);
  compile(specs, layers_with_gradient(model));
  find_borrowed();
  lay_out();
}

void Stage::take_part(StagePart part) {
  const std::set<std::string> split = split_layers(*model_, part.parts);
  for (const int l : layers_) {
    const Layer& whole = *model_->layers[static_cast<std::size_t>(l)];
    if (split.contains(whole.name())) {
      parts_.emplace(l, whole.split(part.part, part.parts));
    }
  }
}

// Finds the borders, numbers the values, and notes for every layer what it takes and frees.
void Stage::compile(const std::vector<TensorSpec>& specs, const std::vector<bool>& needs_gradient) {
  const auto num_layers = static_cast<int>(model_->layers.size());
  const auto inside = [&](int layer) {
    return std::binary_search(layers_.begin(), layers_.end(), layer);
  };
  is_last_ = inside(num_layers - 1);
  std::vector<bool> is_input(model_->layers.size() + 1);   // by producer + 1
  std::vector<bool> is_output(model_->layers.size() + 1);  // likewise
  for (int l = 0; l < num_layers; ++l) {
    for (const int from : model_->inputs_of(l)) {
      if (inside(l) && !inside(from)) {
        is_input[static_cast<std::size_t>(from + 1)] = true;
      } else if (!inside(l) && inside(from)) {
        is_output[static_cast<std::size_t>(from + 1)] = true;
      }
    }
  }
  std::vector<int> value_of(model_->layers.size() + 1, -1);  // by producer + 1
  for (int from = kModelInput; from < num_layers; ++from) {
    if (is_input[static_cast<std::size_t>(from + 1)]) {
      value_of[static_cast<std::size_t>(from + 1)] = static_cast<int>(inputs_.size());
      const auto l = static_cast<std::size_t>(from);
      inputs_.push_back(from == kModelInput ? Border{from, model_->input, false}
                                            : Border{from, specs[l], needs_gradient[l]});
    }
  }
  border_of_.assign(inputs_.size(), -1);
  first_user_.assign(inputs_.size(), nullptr);
  for (const int l : layers_) {
    const auto at = static_cast<std::size_t>(l);
    const bool leaves = is_output[at + 1] || l == num_layers - 1;
    value_of[at + 1] = static_cast<int>(border_of_.size());
    border_of_.push_back(leaves ? static_cast<int>(outputs_.size()) : -1);
    if (leaves) {
      outputs_.push_back({l, specs[at], is_output[at + 1] && needs_gradient[at]});
    }
  }
  std::vector<std::size_t> num_uses(border_of_.size());
  std::vector<int> last_user(border_of_.size(), -1);
  for (const int l : layers_) {
    Step step;
    const auto split = parts_.find(l);
    step.layer = split == parts_.end() ? model_->layers[static_cast<std::size_t>(l)].get()
                                       : split->second.get();
    step.has_backward = needs_gradient[static_cast<std::size_t>(l)];
    for (const int from : model_->inputs_of(l)) {
      const int value = value_of[static_cast<std::size_t>(from + 1)];
      step.sources.push_back(value);
      step.uses.push_back(static_cast<int>(num_uses[static_cast<std::size_t>(value)]++));
      last_user[static_cast<std::size_t>(value)] = static_cast<int>(steps_.size());
      if (static_cast<std::size_t>(value) < inputs_.size() &&
          first_user_[static_cast<std::size_t>(value)] == nullptr) {
        first_user_[static_cast<std::size_t>(value)] = step.layer;
      }
      step.need_input_gradient =
          step.need_input_gradient ||
          (from != kModelInput && needs_gradient[static_cast<std::size_t>(from)]);
    }
    steps_.push_back(std::move(step));
  }
  first_use_.push_back(0);
  for (const std::size_t uses : num_uses) {
    first_use_.push_back(first_use_.back() + uses);
  }
  for (Step& step : steps_) {
    for (std::size_t k = 0; k < step.sources.size(); ++k) {
      step.uses[k] += static_cast<int>(first_use_[static_cast<std::size_t>(step.sources[k])]);
    }
  }
  for (std::size_t value = 0; value < border_of_.size(); ++value) {
    if (last_user[value] >= 0 && border_of_[value] < 0) {
      steps_[static_cast<std::size_t>(last_user[value])].last_uses.push_back(
          static_cast<int>(value));
    }
  }
}

// Places of parameters in the flat buffer, and of buffers in their list.
void Stage::lay_out() {
  std::size_t num_accumulators = 0;
  for (Step& step : steps_) {
    std::vector<ParameterSpec> parameters = step.layer->parameters();
    if (step.borrowed.empty()) {
      for (const BorrowedParameter& copied : step.layer->borrowed()) {
        parameters.push_back({copied.name, copied.shape});
      }
    }
    step.flat_begin = flat_elements_;
    for (const ParameterSpec& parameter : parameters) {
      slots_.push_back({step.layer->name(), parameter.name, parameter.shape, flat_elements_,
                        parameter.elements(), parameter.rows});
      flat_elements_ += aligned(parameter.elements());
    }
    step.flat_end = flat_elements_;
    step.first_buffer = buffer_slots_.size();
    for (const BufferSpec& buffer : step.layer->buffers()) {
      buffer_slots_.push_back({step.layer->name(), buffer.name});
      ++step.num_buffers;
    }
    step.first_accumulator = num_accumulators;
    step.num_accumulators = step.layer->accumulators().size();
    num_accumulators += step.num_accumulators;
  }
}

void Stage::find_borrowed() {
  for (Step& step : steps_) {
    for (const BorrowedParameter& borrowed : step.layer->borrowed()) {
      const auto owner = std::find_if(steps_.begin(), steps_.end(), [&](const Step& other) {
        return other.layer->name() == borrowed.layer;
      });
      if (owner == steps_.end()) {
        continue;
      }
      const std::vector<ParameterSpec> own = owner->layer->parameters();
      const auto parameter = std::find_if(own.begin(), own.end(), [&](const ParameterSpec& spec) {
        return spec.name == borrowed.name;
      });
      step.borrowed.emplace_back(owner - steps_.begin(), parameter - own.begin());
    }
  }
}

const Tensors& Stage::given(std::size_t step, const WeightViews& views, Tensors& own) const {
  if (steps_[step].borrowed.empty()) {
    return views[step];
  }
  own = views[step];
  for (const auto& [owner, parameter] : steps_[step].borrowed) {
    own.push_back(views[owner][parameter]);
  }
  return own;
}

bool Stage::takes_data() const {
  return !inputs_.empty() && inputs_.front().producer == kModelInput;
}
const Layer& Stage::layer(int index) const {
  return *steps_.at(static_cast<std::size_t>(index)).layer;
}

at::Tensor Stage::new_flat() const {
  return at::zeros({flat_elements_}, at::TensorOptions().dtype(model_->dtype()));
}

Tensors Stage::new_buffers() const {
  Tensors buffers;
  for (const Step& step : steps_) {
    for (const BufferSpec& buffer : step.layer->buffers()) {
      buffers.push_back(
          at::full(buffer.shape, buffer.constant, at::TensorOptions().dtype(model_->dtype())));
    }
  }
  return buffers;
}

Tensors Stage::new_accumulators() const {
  Tensors accumulators;
  for (const Step& step : steps_) {
    for (const BufferSpec& each : step.layer->accumulators()) {
      accumulators.push_back(at::zeros(each.shape, at::TensorOptions().dtype(at::kDouble)));
    }
  }
  return accumulators;
}

void Stage::commit(const Tensors& accumulators, const Tensors& buffers) const {
  for (const Step& step : steps_) {
    step.layer->commit(
        at::TensorList(accumulators).slice(step.first_accumulator, step.num_accumulators),
        at::TensorList(buffers).slice(step.first_buffer, step.num_buffers));
  }
}

void Stage::initialize(at::Tensor& flat, uint64_t seed) const {
  const WeightViews weights = views(flat);
  const RandomKey key = RandomKey(seed).with("init");
  for (int i = 0; i < num_layers(); ++i) {
    const std::vector<ParameterSpec> parameters = layer(i).parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor& view = weights[static_cast<std::size_t>(i)][p];
      if (parameters[p].initial.defined()) {
        view.copy_(rows_of(parameters[p].initial, parameters[p].rows));
        continue;
      }
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

Tensors Stage::forward(const LayerContext& context, at::TensorList inputs,
                       const WeightViews& weights, const at::Tensor& target, Stash& stash,
                       LossSums& sums) const {
  const NativeGuard guard;
  MILLRACE_CHECK(weights.size() == steps_.size() && inputs.size() == inputs_.size() &&
                 context.buffers.size() == buffer_slots_.size());
  stash.saved.assign(steps_.size(), {});
  stash.kept.assign(steps_.size(), {});
  stash.loss_gradient.reset();
  stash.context = context;
  stash.context.buffers = {};
  stash.context.accumulators = {};

  Tensors values(border_of_.size());
  for (std::size_t v = 0; v < inputs_.size(); ++v) {
    check_border(inputs[v], inputs_[v].spec, "input", *first_user_[v]);
    values[v] = inputs[v].contiguous();
  }
  LayerContext own = context;
  Tensors gathered;
  Tensors shared;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    own.buffers = context.buffers.slice(step.first_buffer, step.num_buffers);
    if (!context.accumulators.empty()) {
      own.accumulators = context.accumulators.slice(step.first_accumulator, step.num_accumulators);
    }
    at::TensorList taken = values[static_cast<std::size_t>(step.sources.front())];
    if (step.sources.size() > 1) {
      for (const int value : step.sources) {
        gathered.push_back(values[static_cast<std::size_t>(value)]);
      }
      taken = gathered;
    }
    values[inputs_.size() + i] =
        step.layer->forward(own, taken, given(i, weights, shared), stash.saved[i]);
    if (stash.keeps_inputs_only) {
      stash.saved[i] = context.training ? taken.vec() : Tensors();
    }
    gathered.clear();
    // Drops what nobody saved and nobody is still to take: a ReLU's input dies here.
    for (const int value : step.last_uses) {
      values[static_cast<std::size_t>(value)].reset();
    }
  }
  if (is_last_) {
    MILLRACE_CHECK(target.defined(), "the last stage needs the target");
    const LossSums batch = model_->loss->evaluate(
        values.back(), target, context.training ? &stash.loss_gradient : nullptr);
    sums.loss += batch.loss;
    sums.correct += batch.correct;
    sums.samples += batch.samples;
  }
  Tensors result(outputs_.size());
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (border_of_[v] >= 0) {
      result[static_cast<std::size_t>(border_of_[v])] = std::move(values[v]);
    }
  }
  return result;
}

// The gradient of a value: what its consumers in this stage left in `pending`, then what came from
// outside, added in this order.
at::Tensor Stage::take_gradient(std::size_t value, Tensors& pending,
                                c10::ArrayRef<BorderGradient> gradients) const {
  at::Tensor sum;
  bool owned = false;
  for (std::size_t use = first_use_[value]; use < first_use_[value + 1]; ++use) {
    accumulate(sum, owned, std::move(pending[use]));
  }
  if (border_of_[value] >= 0) {
    for (const BorderGradient& gradient : gradients) {
      if (gradient.border == border_of_[value] && gradient.tensor.defined()) {
        accumulate(sum, owned, gradient.tensor.contiguous());
      }
    }
  }
  return sum;
}

Tensors Stage::walk_back(Stash& stash, const WeightViews& weights,
                         c10::ArrayRef<BorderGradient> gradients, const WeightViews* sums,
                         const LayerDone& done) const {
  const NativeGuard guard;
  MILLRACE_CHECK(stash.saved.size() == steps_.size() && stash.kept.size() == steps_.size() &&
                     (!is_last_ || stash.loss_gradient.defined()),
                 "backward without its training forward");
  for (const BorderGradient& gradient : gradients) {
    const Border& border = outputs_.at(static_cast<std::size_t>(gradient.border));
    if (border.needs_gradient) {
      check_border(gradient.tensor, border.spec, "gradient of the output",
                   *model_->layers[static_cast<std::size_t>(border.producer)]);
    }
  }
  Tensors pending(first_use_.back());
  Tensors shared;
  for (std::size_t i = steps_.size(); i-- > 0;) {
    const Step& step = steps_[i];
    const bool makes_loss = is_last_ && i + 1 == steps_.size();
    at::Tensor grad = makes_loss ? std::move(stash.loss_gradient)
                                 : take_gradient(inputs_.size() + i, pending, gradients);
    if (!step.has_backward) {
      stash.saved[i].clear();
      continue;
    }
    MILLRACE_CHECK(grad.defined(), "no gradient for layer " + step.layer->name());
    const Tensors& own = given(i, weights, shared);
    if (stash.keeps_inputs_only) {
      recompute(i, stash, own);
    }
    Tensors back = step.layer->backward_input(stash.context, stash.saved[i], own, grad,
                                              step.need_input_gradient, stash.kept[i]);
    MILLRACE_CHECK(back.size() == (step.need_input_gradient ? step.sources.size() : 0),
                   "layer " + step.layer->name() + " must return one gradient an input");
    if (sums != nullptr) {
      step.layer->backward_weight(stash.context, stash.kept[i], given(i, *sums, shared));
      stash.kept[i].clear();
      tell(step, done);
    }
    for (std::size_t k = 0; k < back.size(); ++k) {
      pending[static_cast<std::size_t>(step.uses[k])] = std::move(back[k]);
    }
  }
  stash.loss_gradient.reset();
  stash.saved.clear();
  Tensors result(inputs_.size());
  for (std::size_t v = 0; v < inputs_.size(); ++v) {
    if (inputs_[v].needs_gradient) {
      result[v] = take_gradient(v, pending, {});
    }
  }
  return result;
}

Tensors Stage::backward(Stash& stash, const WeightViews& weights,
                        c10::ArrayRef<BorderGradient> gradients, const WeightViews& sums,
                        const LayerDone& done) const {
  Tensors result = walk_back(stash, weights, gradients, &sums, done);
  stash.kept.clear();
  return result;
}

Tensors Stage::backward_input(Stash& stash, const WeightViews& weights,
                              c10::ArrayRef<BorderGradient> gradients) const {
  return walk_back(stash, weights, gradients, nullptr, {});
}

void Stage::tell_all(const LayerDone& done) const {
  for (std::size_t i = steps_.size(); i-- > 0;) {
    tell(steps_[i], done);
  }
}

void Stage::tell(const Step& step, const LayerDone& done) {
  if (done && step.flat_begin < step.flat_end) {
    done(step.flat_begin, step.flat_end);
  }
}

// The layer's forward once more, for what its backward needs.
void Stage::recompute(std::size_t index, Stash& stash, const Tensors& weights) const {
  const Step& step = steps_[index];
  LayerContext own = stash.context;
  own.buffers = stash.context.buffers.slice(step.first_buffer, step.num_buffers);
  const Tensors inputs = std::move(stash.saved[index]);
  stash.saved[index] = {};
  step.layer->forward(own, inputs, weights, stash.saved[index]);
}

void Stage::backward_weight(c10::ArrayRef<Stash*> stashes, const WeightViews& sums,
                            const LayerDone& done) const {
  const NativeGuard guard;
  for (const Stash* stash : stashes) {
    MILLRACE_CHECK(stash->kept.size() == steps_.size(), "weight half without its input half");
  }
  Tensors shared;
  // The same order as in backward, so that both sum alike to the last bit.
  for (std::size_t i = steps_.size(); i-- > 0;) {
    const Layer& layer = *steps_[i].layer;
    if (steps_[i].has_backward && stashes.size() > 1 && layer.joins_kept()) {
      Tensors joined;
      for (std::size_t k = 0; k < stashes.front()->kept[i].size(); ++k) {
        Tensors parts;
        for (const Stash* stash : stashes) {
          parts.push_back(stash->kept[i][k]);
        }
        joined.push_back(at::cat(parts));
      }
      layer.backward_weight(stashes.front()->context, joined, given(i, sums, shared));
    } else if (steps_[i].has_backward) {
      for (const Stash* stash : stashes) {
        layer.backward_weight(stash->context, stash->kept[i], given(i, sums, shared));
      }
    }
    for (Stash* stash : stashes) {
      stash->kept[i].clear();
    }
    tell(steps_[i], done);
  }
  for (Stash* stash : stashes) {
    stash->kept.clear();
  }
}

}  // namespace millrace

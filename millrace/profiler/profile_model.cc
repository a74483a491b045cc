#include "millrace/profiler/profile_model.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/model/stage.h"
#include "millrace/profiler/internal/busy_ranks.h"
#include "millrace/profiler/measure_peak.h"
#include "millrace/runtime/optimizer.h"

namespace millrace {
namespace {

constexpr int kWarmUpPasses = 2;
constexpr int kLeastPasses = 7;
constexpr int kMostPasses = 400;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Half the distance between the first and the third quarter.
double spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[values.size() * 3 / 4] - values[values.size() / 4]) / 2;
}

// What a layer is and how much it computes for `samples` samples; `inputs` are its own, `output`
// what it makes of them. The halves of the backward cost as much again, as far as there are any.
void describe_work(const Layer& of, const TensorSpecs& inputs, const TensorSpec& output,
                   bool needs_input_gradient, int64_t samples, LayerProfile& layer) {
  layer.kind = of.kind();
  layer.input_shape = inputs.front().sample_shape;
  layer.output_shape = output.sample_shape;
  const std::vector<ParameterSpec> own = of.parameters();
  const std::vector<BorrowedParameter> borrowed = of.borrowed();
  if (!own.empty()) {
    layer.weight_shape = own.front().shape;
  } else if (!borrowed.empty()) {
    layer.weight_shape = borrowed.front().shape;
  }
  layer.forward_flops = of.forward_flops(inputs) * static_cast<double>(samples);
  layer.input_gradient_flops = needs_input_gradient ? layer.forward_flops : 0;
  layer.weight_gradient_flops = own.empty() && borrowed.empty() ? 0 : layer.forward_flops;
}

// Repeated times of one layer.
struct LayerTimes {
  std::vector<double> forward;
  std::vector<double> input_gradient;
  std::vector<double> weight_gradient;
  std::vector<double> update;
};

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
}

// One thread's copy of the model, a stage a layer, and passes through it.
class Passes {
 public:
  explicit Passes(const ProfileRequest& request)
      : request_(request), dtype_(request.model->dtype()), outputs_(check_model(*request.model)) {
    const auto num_layers = static_cast<int>(request.model->layers.size());
    last_user_.assign(request.model->layers.size(), num_layers);
    for (int l = 0; l < num_layers; ++l) {
      // Weights that it shares with another layer are a copy here: times and bytes are the same.
      Part part{Stage(*request.model, std::vector<int>{l}, Ties::kCopied), {}, {}, {}, {}, {}, {}};
      for (const Border& border : part.stage.inputs()) {
        if (border.producer != kModelInput) {
          last_user_[static_cast<std::size_t>(border.producer)] = l;
        }
      }
      part.buffers = part.stage.new_buffers();
      part.weights = part.stage.new_flat();
      part.stage.initialize(part.weights, 1);
      part.sums = part.stage.new_flat();
      part.weight_views = part.stage.views(part.weights);
      part.sum_views = part.stage.views(part.sums);
      if (part.stage.flat_elements() > 0) {
        part.optimizer = make_optimizer(request.train, flat_layout(part.stage, dtype_));
      }
      parts_.push_back(std::move(part));
    }
    indices_.resize(static_cast<std::size_t>(request.samples));
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      indices_[i] = static_cast<int64_t>(i) % request.dataset->size();
    }
  }

  // One forward, backward and update through all layers. `times` null: warm up only.
  void run(std::vector<LayerTimes>* times) {
    std::vector<Stash> stashes(parts_.size());
    double mark = monotonic_s();
    const auto lap = [&mark] {
      const double now = monotonic_s();
      return now - std::exchange(mark, now);
    };
    const Batch batch = request_.dataset->get(indices_.data(), request_.samples, dtype_);
    LossSums sums;
    Tensors made(parts_.size());  // what each layer made, until its last user has taken it
    Tensors inputs;
    for (std::size_t l = 0; l < parts_.size(); ++l) {
      const Part& part = parts_[l];
      inputs.clear();
      for (const Border& border : part.stage.inputs()) {
        inputs.push_back(border.producer == kModelInput
                             ? batch.input
                             : made[static_cast<std::size_t>(border.producer)]);
      }
      const LayerContext context{.training = true, .buffers = part.buffers};
      lap();
      made[l] = std::move(
          part.stage.forward(context, inputs, part.weight_views, batch.target, stashes[l], sums)
              .front());
      const double seconds = lap();
      if (times != nullptr) {
        (*times)[l].forward.push_back(seconds);
      } else {
        note_bytes(l, made[l], stashes[l]);
      }
      inputs.clear();
      for (const Border& border : part.stage.inputs()) {
        if (border.producer != kModelInput &&
            last_user_[static_cast<std::size_t>(border.producer)] == static_cast<int>(l)) {
          made[static_cast<std::size_t>(border.producer)].reset();
        }
      }
    }
    // Per layer, the gradients that its users sent back: the last user's first.
    std::vector<std::vector<BorderGradient>> back(parts_.size());
    for (std::size_t l = parts_.size(); l-- > 0;) {
      const Part& part = parts_[l];
      std::reverse(back[l].begin(), back[l].end());
      lap();
      Tensors own = part.stage.backward_input(stashes[l], part.weight_views, back[l]);
      const double input_s = lap();
      if (times == nullptr) {
        note_kept(l, stashes[l]);
      }
      part.stage.backward_weight({&stashes[l]}, part.sum_views);
      const double weight_s = lap();
      back[l].clear();
      for (std::size_t k = 0; k < own.size(); ++k) {
        if (own[k].defined()) {
          back[static_cast<std::size_t>(part.stage.inputs()[k].producer)].push_back(
              {0, static_cast<int>(l), std::move(own[k])});
        }
      }
      if (times != nullptr) {
        (*times)[l].input_gradient.push_back(input_s);
        (*times)[l].weight_gradient.push_back(weight_s);
      }
    }
    for (std::size_t l = 0; l < parts_.size(); ++l) {
      Part& part = parts_[l];
      lap();
      if (part.optimizer != nullptr) {
        part.optimizer->update(
            part.weights, part.weights, part.sums,
            {.samples = static_cast<double>(request_.samples), .lr = request_.train.lr});
      }
      if (times != nullptr) {
        (*times)[l].update.push_back(part.optimizer == nullptr ? 0.0 : lap());
      }
    }
  }

  void describe(std::size_t l, const LayerTimes& times, LayerProfile& layer) const {
    const Part& part = parts_[l];
    layer.name = part.stage.layer(0).name();
    layer.parameter_bytes = bytes_of(part.weights);
    layer.output_bytes = part.output_bytes;
    layer.stash_bytes = part.stash_bytes;
    layer.kept_bytes = part.kept_bytes;
    layer.shared_stash_bytes = part.shared_stash_bytes;
    // Nothing at or below the first weights needs a gradient: what was measured there is no work.
    const std::vector<Border>& inputs = part.stage.inputs();
    const bool needed = std::any_of(inputs.begin(), inputs.end(),
                                    [](const Border& border) { return border.needs_gradient; });
    layer.input_gradient_s = needed ? median(times.input_gradient) : 0;
    layer.input_gradient_spread_s = needed ? spread(times.input_gradient) : 0;
    const Model& model = *request_.model;
    TensorSpecs own_inputs;
    for (const int from : model.inputs_of(static_cast<int>(l))) {
      own_inputs.push_back(from == kModelInput ? model.input
                                               : outputs_[static_cast<std::size_t>(from)]);
    }
    describe_work(part.stage.layer(0), own_inputs, outputs_[l], needed, request_.samples, layer);
  }

  std::size_t num_layers() const { return parts_.size(); }

 private:
  struct Part {
    Stage stage;
    at::Tensor weights;
    at::Tensor sums;
    WeightViews weight_views;
    WeightViews sum_views;
    Tensors buffers;
    std::unique_ptr<Optimizer> optimizer;  // null for a layer without parameters
    int64_t output_bytes = 0;
    int64_t stash_bytes = 0;
    int64_t kept_bytes = 0;
    int64_t shared_stash_bytes = 0;
  };

  // A saved tensor that a neighbour saved too is counted where it was made.
  void note_bytes(std::size_t l, const at::Tensor& output, const Stash& stash) {
    Part& part = parts_[l];
    part.output_bytes = bytes_of(output);
    part.stash_bytes = bytes_of(stash.loss_gradient);
    part.shared_stash_bytes = 0;
    for (const Tensors& tensors : stash.saved) {
      for (const at::Tensor& tensor : tensors) {
        const void* data = tensor.defined() ? tensor.data_ptr() : nullptr;
        if (data == nullptr) {
          continue;
        }
        if (std::find(seen_.begin(), seen_.end(), data) != seen_.end()) {
          part.shared_stash_bytes += bytes_of(tensor);
          continue;
        }
        seen_.push_back(data);
        part.stash_bytes += bytes_of(tensor);
      }
    }
    if (l + 1 == parts_.size()) {
      seen_.clear();
    }
  }

  // The same of what lives on to W. The tensors are held until all have been seen, so that no two
  // are at the same place.
  void note_kept(std::size_t l, const Stash& stash) {
    Part& part = parts_[l];
    part.kept_bytes = 0;
    for (const Tensors& tensors : stash.kept) {
      for (const at::Tensor& tensor : tensors) {
        const bool known = std::any_of(kept_.begin(), kept_.end(), [&](const at::Tensor& other) {
          return other.data_ptr() == tensor.data_ptr();
        });
        if (tensor.defined() && !known) {
          kept_.push_back(tensor);
          part.kept_bytes += bytes_of(tensor);
        }
      }
    }
    if (l == 0) {
      kept_.clear();
    }
  }

  const ProfileRequest& request_;
  at::ScalarType dtype_;
  TensorSpecs outputs_;  // of each layer
  std::vector<Part> parts_;
  std::vector<int> last_user_;  // per layer: the last one that takes its output
  std::vector<int64_t> indices_;
  std::vector<const void*> seen_;
  Tensors kept_;
};

}  // namespace

Profile profile_model(const ProfileRequest& request) {
  MILLRACE_CHECK(request.model != nullptr && request.dataset != nullptr && request.samples >= 1);
  check_model(*request.model);
  std::atomic<bool> done{false};
  std::vector<LayerTimes> times(request.model->layers.size());
  Profile profile;

  const auto measure = [&] {
    Passes passes(request);
    for (int i = 0; i < (request.timed ? kWarmUpPasses : 1); ++i) {
      passes.run(nullptr);
    }
    if (!request.timed) {
      std::fill(times.begin(), times.end(), LayerTimes{{0.0}, {0.0}, {0.0}, {0.0}});
      done = true;
    }
    const double begin_s = monotonic_s();
    int passed = 0;
    while (!done) {
      passes.run(&times);
      ++passed;
      const double spent_s = monotonic_s() - begin_s;
      if (request.progress) {
        request.progress(
            std::min({1.0, spent_s / request.seconds, static_cast<double>(passed) / kLeastPasses}));
      }
      if (passed >= kMostPasses || (passed >= kLeastPasses && spent_s >= request.seconds)) {
        break;
      }
    }
    for (std::size_t l = 0; l < passes.num_layers(); ++l) {
      LayerProfile layer;
      passes.describe(l, times[l], layer);
      profile.layers.push_back(std::move(layer));
    }
    done = true;
  };
  const auto keep_busy = [&] {
    Passes passes(request);
    while (!done) {
      passes.run(nullptr);
    }
  };

  internal::run_among_busy(request.busy_ranks, measure, keep_busy, [&] { done = true; });

  profile.model = request.model->name;
  profile.machine = request.machine;
  profile.dtype = request.model->dtype() == at::kDouble ? "float64" : "float32";
  profile.samples_per_microbatch = request.samples;
  profile.busy_ranks = request.busy_ranks;
  if (request.timed && request.peak) {
    constexpr double kPeakShare = 0.2;  // of the time that the layers had
    profile.peak_flops_per_s = measure_gemm_flops_per_s(request.busy_ranks, request.model->dtype(),
                                                        kPeakShare * request.seconds);
  }
  for (std::size_t l = 0; l < times.size(); ++l) {
    LayerProfile& layer = profile.layers[l];
    layer.forward_s = median(times[l].forward);
    layer.weight_gradient_s = median(times[l].weight_gradient);
    layer.update_s = median(times[l].update);
    layer.forward_spread_s = spread(times[l].forward);
    layer.weight_gradient_spread_s = spread(times[l].weight_gradient);
  }
  profile.edges = request.model->edges();
  return profile;
}

}  // namespace millrace

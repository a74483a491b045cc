#include "millrace/model/opaque.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <mutex>
#include <vector>

#include "millrace/model/internal/native.h"

namespace millrace {
namespace {

// Native layers run below autograd; what runs under this guard is recorded again.
class RecordingGuard {
 public:
  explicit RecordingGuard(bool record) : keys_(with_autograd()), grad_mode_(record) {}

 private:
  static c10::impl::LocalDispatchKeySet with_autograd() {
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }

  c10::impl::ForceDispatchKeyGuard keys_;
  c10::AutoGradMode grad_mode_;
};

// What an opaque layer calls: a copy of a module, or a function. One microbatch has it at a time.
class Callee {
 public:
  virtual ~Callee() = default;
  virtual Tensors parameters() const = 0;
  virtual at::Tensor call(at::TensorList inputs, bool training) = 0;
};

class FunctionCallee final : public Callee {
 public:
  explicit FunctionCallee(const std::function<at::Tensor(at::TensorList)>& function)
      : function_(function) {}
  Tensors parameters() const override { return {}; }
  at::Tensor call(at::TensorList inputs, bool /*training*/) override { return function_(inputs); }

 private:
  const std::function<at::Tensor(at::TensorList)>& function_;
};

class ModuleCallee final : public Callee {
 public:
  explicit ModuleCallee(torch::nn::AnyModule module) : module_(std::move(module)) {}
  Tensors parameters() const override { return module_.ptr()->parameters(); }
  at::Tensor call(at::TensorList inputs, bool training) override {
    module_.ptr()->train(training);
    switch (inputs.size()) {
      case 1:
        return module_.forward(inputs[0]);
      case 2:
        return module_.forward(inputs[0], inputs[1]);
      case 3:
        return module_.forward(inputs[0], inputs[1], inputs[2]);
      default:
        return module_.forward(inputs[0], inputs[1], inputs[2], inputs[3]);
    }
  }

 private:
  torch::nn::AnyModule module_;
};

// Callees that no microbatch has. Taken and given back by any thread.
class Pool {
 public:
  explicit Pool(std::function<std::unique_ptr<Callee>()> make) : make_(std::move(make)) {}

  std::unique_ptr<Callee> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      return make_();
    }
    std::unique_ptr<Callee> callee = std::move(free_.back());
    free_.pop_back();
    return callee;
  }
  void give_back(std::unique_ptr<Callee> callee) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(callee));
  }

 private:
  std::mutex mutex_;
  std::function<std::unique_ptr<Callee>()> make_;
  std::vector<std::unique_ptr<Callee>> free_;
};

// A tensor without elements that has the callee until it is freed: what is saved is tensors, and
// the copy of the module must not be given other weights before the backward is over.
at::Tensor lease(const std::shared_ptr<Pool>& pool, std::unique_ptr<Callee> callee) {
  Callee* held = callee.release();
  return at::from_blob(
      held, {0}, [pool, held](void*) { pool->give_back(std::unique_ptr<Callee>(held)); },
      at::TensorOptions().dtype(at::kByte));
}

const Callee& callee_of(const at::Tensor& lease) {
  return *static_cast<const Callee*>(lease.storage().data());
}

class Opaque final : public Layer {
 public:
  Opaque(std::string name, std::vector<ParameterSpec> parameters,
         std::function<std::unique_ptr<Callee>()> make)
      : Layer(std::move(name)),
        parameters_(std::move(parameters)),
        pool_(std::make_shared<Pool>(std::move(make))) {}

  const char* kind() const override { return "opaque"; }
  bool needs_forward_weights() const override { return !parameters_.empty(); }
  std::vector<ParameterSpec> parameters() const override { return parameters_; }

  // Asks the module itself, on two samples of zeros.
  TensorSpec output(const TensorSpecs& inputs) const override {
    if (inputs.empty() || inputs.size() > 4) {
      refuse(fmt::format("takes one to four inputs, found {}", inputs.size()));
    }
    constexpr int64_t kSamples = 2;
    at::ScalarType dtype = at::kFloat;
    Tensors samples;
    std::string found;
    for (const TensorSpec& input : inputs) {
      std::vector<int64_t> sizes = input.sample_shape;
      sizes.insert(sizes.begin(), kSamples);
      samples.push_back(at::zeros(sizes, at::TensorOptions().dtype(input.dtype)));
      dtype = at::isFloatingType(input.dtype) ? input.dtype : dtype;
      found += (found.empty() ? "" : " and ") + to_string(input);
    }
    const RecordingGuard guard(false);
    Tensors weights;
    for (const ParameterSpec& parameter : parameters_) {
      weights.push_back(parameter.initial.to(dtype));
    }
    std::unique_ptr<Callee> callee = pool_->take();
    bind(*callee, weights);
    at::Tensor result;
    try {
      result = callee->call(samples, false);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      refuse(fmt::format("failed on inputs {}: {}", found, text.substr(0, text.find('\n'))));
    }
    pool_->give_back(std::move(callee));
    if (!result.defined() || result.dim() < 1 || result.size(0) != kSamples) {
      refuse(fmt::format("made {} of {} samples {}; its first dimension must be the samples'",
                         result.defined() ? internal::shape_text(result.sizes()) : "nothing",
                         kSamples, found));
    }
    return {result.sizes().slice(1).vec(), result.scalar_type()};
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const RecordingGuard guard(context.training);
    std::unique_ptr<Callee> callee = pool_->take();
    bind(*callee, weights);
    Tensors leaves;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.detach());
      leaves.back().set_requires_grad(context.training && input.is_floating_point());
    }
    const at::Tensor result = callee->call(leaves, context.training);
    if (!context.training) {
      pool_->give_back(std::move(callee));
      return result.detach().contiguous();
    }
    // Inputs, result with its graph, and the lease.
    leaves.push_back(result);
    leaves.push_back(lease(pool_, std::move(callee)));
    saved = std::move(leaves);
    return result.detach().contiguous();
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const RecordingGuard guard(true);
    const std::size_t num_inputs = saved.size() - 2;
    const at::Tensor& result = saved[num_inputs];
    Tensors leaves(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(num_inputs));
    const Tensors parameters = callee_of(saved.back()).parameters();
    leaves.insert(leaves.end(), parameters.begin(), parameters.end());
    Tensors gradients(leaves.size());
    Tensors wanted;
    std::vector<std::size_t> places;
    for (std::size_t i = need_input_gradient ? 0 : num_inputs; i < leaves.size(); ++i) {
      if (leaves[i].requires_grad()) {
        wanted.push_back(leaves[i]);
        places.push_back(i);
      }
    }
    if (!wanted.empty() && result.requires_grad()) {
      const Tensors found = torch::autograd::grad({result}, wanted, {grad}, c10::nullopt,
                                                  /*create_graph=*/false, /*allow_unused=*/true);
      for (std::size_t k = 0; k < found.size(); ++k) {
        gradients[places[k]] = found[k];
      }
    }
    Tensors back;
    for (std::size_t i = 0; need_input_gradient && i < num_inputs; ++i) {
      const bool is_float = saved[i].is_floating_point();
      back.push_back(gradients[i].defined() || !is_float ? gradients[i]
                                                         : at::zeros_like(saved[i].detach()));
    }
    kept.assign(gradients.begin() + static_cast<std::ptrdiff_t>(num_inputs), gradients.end());
    saved.clear();
    return back;
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const internal::NativeGuard guard;
    for (std::size_t p = 0; p < kept.size(); ++p) {
      if (kept[p].defined()) {
        at::Tensor sum = sums[p];
        sum.add_(kept[p]);
      }
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer \"{}\" (opaque): the module {}. An opaque layer takes one to "
                            "four tensors [samples, ...] and returns one; for anything else derive "
                            "a class from millrace::Layer (millrace/model/layer.h) with output, "
                            "parameters, forward, backward_input and backward_weight",
                            name(), what));
  }

  // Makes the callee's parameters views of the given weights.
  static void bind(const Callee& callee, const Tensors& weights) {
    Tensors parameters = callee.parameters();
    MILLRACE_CHECK(parameters.size() == weights.size());
    for (std::size_t p = 0; p < weights.size(); ++p) {
      parameters[p].set_data(weights[p].detach());
    }
  }

  std::vector<ParameterSpec> parameters_;
  std::shared_ptr<Pool> pool_;  // shared with leases that outlive a failed run's layer
};

// Copies of parameters that begin as the module's. Refuses modules that an opaque layer cannot
// hold.
std::vector<ParameterSpec> parameters_of(const std::string& layer, torch::nn::Module& module) {
  if (!module.buffers().empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("layer \"{}\" (opaque): the module keeps a buffer, {}, whose updates an "
                    "opaque layer cannot follow; use a native layer (batch_norm2d), or "
                    "derive a class from millrace::Layer with buffers()",
                    layer, module.named_buffers().front().key()));
  }
  std::vector<ParameterSpec> specs;
  for (const auto& parameter : module.named_parameters()) {
    ParameterSpec spec;
    spec.name = parameter.key();
    spec.shape = parameter.value().sizes().vec();
    spec.initial = parameter.value().detach().clone();
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

LayerPtr opaque_module(std::string name, torch::nn::AnyModule module) {
  std::vector<ParameterSpec> parameters = parameters_of(name, *module.ptr());
  try {
    module = module.clone();
  } catch (const std::exception&) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer \"{}\" (opaque): the module cannot be copied, and every "
                            "microbatch in flight needs a copy; derive it from "
                            "torch::nn::Cloneable<{}> and register what it holds in reset()",
                            name, module.ptr()->name()));
  }
  return std::make_unique<Opaque>(std::move(name), std::move(parameters), [module] {
    return std::make_unique<ModuleCallee>(module.clone());
  });
}

LayerPtr opaque_function(std::string name, std::function<at::Tensor(at::TensorList)> function) {
  const auto shared =
      std::make_shared<std::function<at::Tensor(at::TensorList)>>(std::move(function));
  return std::make_unique<Opaque>(
      std::move(name), std::vector<ParameterSpec>{},
      [shared]() -> std::unique_ptr<Callee> { return std::make_unique<FunctionCallee>(*shared); });
}

}  // namespace millrace

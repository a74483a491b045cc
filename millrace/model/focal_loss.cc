// Fused focal loss: forward and backward in one pass over blocks that stay in the cache.
//
// Source: ProfileDNN (training methodology for CPUs), whose case study fuses sigmoid, weighting,
// sum and analytic gradient; the loss is RetinaNet's (see loss.h). Its kernel was not published;
// this one is our reconstruction. With z = -x for the target's class and z = x for others, w =
// sigmoid(z) is how wrong the output is, and
//   L = -k w^gamma log(1-w),   dL/dz = k w^gamma (w - gamma (1-w) log(1-w)),
// where k is alpha or 1-alpha. Everything follows from e = exp(-|z|) and log1p(e), which neither
// overflow nor cancel for any z.
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log1p.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "millrace/model/internal/loss_checks.h"
#include "millrace/model/internal/native.h"
#include "millrace/model/loss.h"

namespace millrace {
namespace {

using internal::NativeGuard;

// Elements: a few arrays of them fit into a core's own cache, and a call of libtorch costs little
// beside them.
constexpr int64_t kBlock = 8192;

// Room for a block, allocated once an evaluation.
template <typename T>
struct Block {
  explicit Block(const at::TensorOptions& options)
      : decay(at::empty({kBlock}, options)), softened(at::empty({kBlock}, options)), z(kBlock) {}

  // e and log1p(e) of z's first n elements, by libtorch's vectorized kernels.
  void run(int64_t n) {
    T* e = decay.template data_ptr<T>();
    for (int64_t i = 0; i < n; ++i) {
      e[i] = -std::abs(z[static_cast<std::size_t>(i)]);
    }
    at::Tensor own = decay.narrow(0, 0, n);
    at::exp_(own);
    at::Tensor soft = softened.narrow(0, 0, n);
    at::log1p_out(soft, own);
  }

  at::Tensor decay;
  at::Tensor softened;
  std::vector<T> z;
};

// kSquare: gamma is 2, and the power a product.
template <typename T, bool kSquare>
double add_block(const Block<T>& block, int64_t n, T gamma, const T* weight, T* gradient) {
  const T* e = block.decay.template data_ptr<T>();
  const T* soft = block.softened.template data_ptr<T>();
  const T* z = block.z.data();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T inverse = T{1} / (T{1} + e[i]);
    const bool positive = z[i] > T{0};
    const T wrong = positive ? inverse : e[i] * inverse;
    const T right = positive ? e[i] * inverse : inverse;
    const T log_right = (positive ? -z[i] : T{0}) - soft[i];
    const T scale = weight[i] * (kSquare ? wrong * wrong : std::pow(wrong, gamma));
    sum -= static_cast<double>(scale * log_right);
    if (gradient != nullptr) {
      gradient[i] = scale * (wrong - gamma * right * log_right);
    }
  }
  return sum;
}

class FocalLoss final : public Loss {
 public:
  FocalLoss(double alpha, double gamma) : alpha_(alpha), gamma_(gamma) {
    if (!(alpha >= 0 && alpha <= 1) || !(gamma >= 0) || std::isinf(gamma)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("focal loss: expected alpha in [0, 1] and a finite gamma of at least "
                              "0, found {} and {}",
                              alpha, gamma));
    }
  }

  const char* kind() const override { return "focal"; }

  void check(const TensorSpec& output, const TensorSpec& target) const override {
    if (!internal::is_float(output.dtype) || output.sample_shape.size() != 1 ||
        output.sample_elements() < 1 || target != TensorSpec{{}, at::kLong}) {
      internal::refuse(*this, "an output [classes] of float32 or float64 and a target int64 []",
                       output, target);
    }
  }

  LossSums evaluate(const at::Tensor& output, const at::Tensor& target,
                    at::Tensor* gradient) const override {
    const NativeGuard guard;
    internal::check_batch_of(*this, output, target);
    const at::Tensor logits = output.contiguous();
    const at::Tensor labels = target.contiguous();
    if (gradient != nullptr) {
      *gradient = at::empty(logits.sizes(), logits.options());
    }
    LossSums sums;
    internal::with_float_type(logits.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      sums = run(logits.data_ptr<T>(), labels.data_ptr<int64_t>(), logits.size(0), logits.size(1),
                 gradient == nullptr ? nullptr : gradient->data_ptr<T>(), logits.options());
    });
    return sums;
  }

 private:
  template <typename T>
  LossSums run(const T* x, const int64_t* label, int64_t samples, int64_t classes, T* gradient,
               const at::TensorOptions& options) const {
    LossSums sums;
    sums.samples = samples;
    sums.correct = count_correct(x, label, samples, classes);
    Block<T> block(options);
    std::vector<T> weight(kBlock);
    // The target's place in each sample, walked along with the blocks.
    int64_t sample = 0;
    for (int64_t begin = 0; begin < samples * classes; begin += kBlock) {
      const int64_t n = std::min(kBlock, samples * classes - begin);
      std::copy(x + begin, x + begin + n, block.z.begin());
      std::fill(weight.begin(), weight.begin() + n, static_cast<T>(1 - alpha_));
      const int64_t first_sample = sample;
      const auto at_targets = [&](const auto& visit) {
        for (sample = first_sample; sample < samples && sample * classes < begin + n; ++sample) {
          const int64_t place = sample * classes + label[sample] - begin;
          if (label[sample] < classes && place >= 0 && place < n) {
            visit(static_cast<std::size_t>(place));
          }
        }
      };
      at_targets([&](std::size_t place) {
        block.z[place] = -block.z[place];
        weight[place] = static_cast<T>(alpha_);
      });
      block.run(n);
      T* own = gradient == nullptr ? nullptr : gradient + begin;
      const T gamma = static_cast<T>(gamma_);
      sums.loss += gamma_ == 2 ? add_block<T, true>(block, n, gamma, weight.data(), own)
                               : add_block<T, false>(block, n, gamma, weight.data(), own);
      if (own != nullptr) {
        at_targets([&](std::size_t place) { own[place] = -own[place]; });
      }
      // A sample may go on in the next block.
      if (sample > first_sample && sample * classes > begin + n) {
        --sample;
      }
    }
    return sums;
  }

  template <typename T>
  int64_t count_correct(const T* x, const int64_t* label, int64_t samples, int64_t classes) const {
    int64_t correct = 0;
    for (int64_t i = 0; i < samples; ++i, x += classes) {
      if (label[i] < 0 || label[i] > classes) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("the focal loss expects targets in [0, {}], the last being none of "
                                "the classes, found {}; the model needs as many outputs as the "
                                "data has classes",
                                classes, label[i]));
      }
      const int64_t best = std::max_element(x, x + classes) - x;
      correct += (x[best] > T{0} ? best : classes) == label[i] ? 1 : 0;
    }
    return correct;
  }

  double alpha_;
  double gamma_;
};

}  // namespace

std::unique_ptr<Loss> focal_loss(double alpha, double gamma) {
  return std::make_unique<FocalLoss>(alpha, gamma);
}

}  // namespace millrace

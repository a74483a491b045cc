// What `verify` compares, and how it notes what differs. Used by verify's drivers and by the laws
// of rules; one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "millrace/model/stage.h"
#include "millrace/train/verify.h"

namespace millrace::internal {

// max|a-b| / max|b|, |a-b| where b is zero; infinite when one side is not finite and the other
// differs.
double relative_difference(const at::Tensor& a, const at::Tensor& b);
double relative_difference(double a, double b);

// Notes what was compared in a result that outlives it. The first difference is that of the least
// step; of a step's, the one noted first.
class Comparison {
 public:
  Comparison(VerifyResult& result, double tolerance) : result_(result), tolerance_(tolerance) {}

  double tolerance() const { return tolerance_; }
  // What whoever reads the result should know.
  void say(const std::string& text) { result_.notes.push_back(text); }
  void note(int64_t step, int stage, const std::string& layer, const std::string& what,
            double relative);
  void tensor(int64_t step, int stage, const std::string& layer, const std::string& what,
              const at::Tensor& run, const at::Tensor& oracle) {
    note(step, stage, layer, what, relative_difference(run, oracle));
  }
  // Parameter by parameter of a stage's flat buffers: `before`, the parameter's name, `behind`.
  void flat(int64_t step, int stage, const std::vector<ParameterSlot>& slots,
            const std::string& before, const std::string& behind, const at::Tensor& run,
            const at::Tensor& oracle);

 private:
  VerifyResult& result_;
  double tolerance_;
};

}  // namespace millrace::internal

#include "millrace/train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/data/order.h"
#include "millrace/runtime/optimizer.h"

namespace millrace {
namespace {

// More differences than these say nothing more.
constexpr std::size_t kMostDifferences = 12;

// "float32 [16, 4]" by tensor name.
using Forms = std::map<std::string, std::string>;

std::string form_of(const std::string& dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

// What a checkpoint of this job holds.
Forms expected_tensors(const Job& job) {
  const OptimizerState state = optimizer_state(job.config.train);
  Forms forms;
  for (const auto& layer : job.model.layers) {
    for (const ParameterSpec& parameter : layer->parameters()) {
      const std::string name = layer->name() + "." + parameter.name;
      const std::string form = form_of(job.config.train.dtype, parameter.shape);
      forms[name] = form;
      for (const std::string& buffer : state.buffers) {
        forms[name + "/" + buffer] = form;
      }
      if (state.counts_updates) {
        forms[name + "/updates"] = form_of("float64", {});
      }
    }
    for (const BufferSpec& buffer : layer->buffers()) {
      forms[layer->name() + "." + buffer.name] = form_of(job.config.train.dtype, buffer.shape);
    }
  }
  return forms;
}

class Differences {
 public:
  template <typename T>
  void compare(const std::string& what, const T& saved, const T& own) {
    if (saved != own) {
      list_.push_back(fmt::format("{} = {}, this run has {}", what, saved, own));
    }
  }

  void compare_tensors(const Forms& saved, const Forms& own) {
    const std::string nothing = "nothing";
    for (const auto& [name, form] : own) {
      const auto found = saved.find(name);
      compare(name, found == saved.end() ? nothing : found->second, form);
    }
    for (const auto& [name, form] : saved) {
      if (own.count(name) == 0) {
        compare(name, form, nothing);
      }
    }
  }

  void refuse_any(const std::string& path) const {
    if (list_.empty()) {
      return;
    }
    std::vector<std::string> told(
        list_.begin(),
        list_.begin() + static_cast<std::ptrdiff_t>(std::min(list_.size(), kMostDifferences)));
    if (told.size() < list_.size()) {
      told.push_back(fmt::format("and {} more", list_.size() - told.size()));
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the checkpoint was made with {}; resume with the same, or start a new "
                            "run",
                            join(told, "; ")))
        .in_file(path);
  }

 private:
  std::vector<std::string> list_;
};

}  // namespace

void check_resume(const CheckpointManifest& checkpoint, const Job& job, const std::string& path) {
  const TrainConfig& config = job.config.train;
  Differences differences;
  differences.compare("model", checkpoint.model, job.model.name);
  differences.compare("batch", checkpoint.batch, config.batch);
  differences.compare("seed", checkpoint.seed, config.seed);
  differences.compare("training samples", checkpoint.samples, job.data.train->size());
  differences.compare("optimizer", checkpoint.optimizer, config.optimizer);
  Forms saved;
  for (const TensorEntry& tensor : checkpoint.tensors) {
    saved[tensor.name] = form_of(tensor.dtype, tensor.shape);
  }
  differences.compare_tensors(saved, expected_tensors(job));
  differences.refuse_any(path);

  const int64_t steps_per_epoch =
      SampleOrder(job.data.train->size(), config.batch, 0).steps_per_epoch();
  if (checkpoint.epoch != checkpoint.step / steps_per_epoch ||
      checkpoint.step_in_epoch != checkpoint.step % steps_per_epoch) {
    throw Error(
        ErrorCode::kBadFile,
        fmt::format("step {} of epochs of {} steps cannot be step {} of epoch {}; the "
                    "manifest is damaged, use another checkpoint",
                    checkpoint.step, steps_per_epoch, checkpoint.step_in_epoch, checkpoint.epoch))
        .in_file(path);
  }
}

}  // namespace millrace

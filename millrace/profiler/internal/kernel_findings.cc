#include "millrace/profiler/internal/kernel_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"

namespace millrace::internal {
namespace {

constexpr double kLeastShare = 0.001;  // of the step
constexpr double kLeastRatio = 1.25;   // in the step to alone: below, repeats differ as much
// The hooks lengthen short calls, and those that call others, by a microsecond or so a call.
constexpr double kLeastAloneSeconds = 10e-6;
constexpr double kLeastOwnShare = 0.9;    // of the time that a call takes
constexpr double kBusyShareOfBest = 0.5;  // of the best FLOPs a second: above, no fallback

class Findings {
 public:
  explicit Findings(const KernelProfile& profile) : profile_(profile) {}

  void add(KernelFindingKind kind, std::string what, std::vector<std::string> layers,
           double saves_s) {
    if (saves_s > 0 && saves_s >= kLeastShare * profile_.step_s) {
      found_.push_back({kind, std::move(what), std::move(layers), saves_s});
    }
  }
  std::vector<KernelFinding> ranked() && {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const KernelFinding& a, const KernelFinding& b) {
                       return a.saves_at_most_s > b.saves_at_most_s;
                     });
    return std::move(found_);
  }

 private:
  const KernelProfile& profile_;
  std::vector<KernelFinding> found_;
};

std::string named(const KernelRow& row) { return fmt::format("{} {}", row.name, row.shapes); }

bool converts(const OperatorCall& call) {
  const std::vector<TensorShape> tensors = call.tensors();
  return !tensors.empty() && !call.outputs.empty() &&
         (tensors.front().dtype != call.outputs.front().dtype ||
          (tensors.size() > 1 && tensors[1].defined && tensors[1].dtype != tensors[0].dtype));
}

bool reorders(const OperatorCall& call) {
  const std::vector<TensorShape> tensors = call.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorShape& tensor) {
    return tensor.defined && !is_contiguous(tensor);
  });
}

void find_reorders(const KernelProfile& profile, const std::vector<OperatorCall>& calls,
                   Findings& findings) {
  for (std::size_t r = 0; r < profile.rows.size(); ++r) {
    const KernelRow& row = profile.rows[r];
    if (row.kind != KernelRowKind::kOperator) {
      continue;
    }
    if (is_copy(row.name)) {
      const char* why = converts(calls[r])   ? "converts to another type; keep one"
                        : reorders(calls[r]) ? "reorders elements; keep one layout"
                                             : "copies; write into its place at once";
      findings.add(KernelFindingKind::kReorder, fmt::format("{} {}", named(row), why), row.layers,
                   row.self_s);
    } else if (row.blocked_s && row.alone_s) {
      findings.add(KernelFindingKind::kReorder,
                   fmt::format("{} reorders to and from oneDNN's layout; keep that from layer to "
                               "layer",
                               named(row)),
                   row.layers, (*row.alone_s - *row.blocked_s) * row.calls);
    }
  }
}

void find_chains(const KernelProfile& profile, Findings& findings) {
  for (const PointwiseChain& chain : profile.chains) {
    std::vector<std::string> names;
    std::vector<std::string> layers;
    for (const int r : chain.rows) {
      const KernelRow& row = profile.rows[static_cast<std::size_t>(r)];
      names.push_back(row.name);
      for (const std::string& layer : row.layers) {
        if (std::find(layers.begin(), layers.end(), layer) == layers.end()) {
          layers.push_back(layer);
        }
      }
    }
    const KernelRow& first = profile.rows[static_cast<std::size_t>(chain.rows.front())];
    findings.add(KernelFindingKind::kPointwise,
                 fmt::format("{} on {}: {} passes that one could make", join(names, ", "),
                             first.shapes, names.size()),
                 std::move(layers), chain.total_s - chain.longest_s);
  }
}

// Neither rows nor columns lie one element behind the other: the product copies it first.
bool scattered(const TensorShape& tensor) {
  const std::size_t n = tensor.sizes.size();
  return tensor.defined && tensor.strided && n >= 2 && tensor.strides[n - 1] != 1 &&
         tensor.strides[n - 2] != 1 && tensor.sizes[n - 1] > 1 && tensor.sizes[n - 2] > 1;
}

void find_fallbacks(const KernelProfile& profile, const std::vector<OperatorCall>& calls,
                    Findings& findings) {
  double best = 0;  // FLOPs a second
  for (const KernelRow& row : profile.rows) {
    if (row.flops > 0 && row.self_s > 0) {
      best = std::max(best, row.flops * row.calls / row.self_s);
    }
  }
  for (std::size_t r = 0; r < profile.rows.size(); ++r) {
    const KernelRow& row = profile.rows[r];
    const bool slow_convolution =
        row.name.find("slow_conv") != std::string::npos ||
        row.name.find("thnn_conv") != std::string::npos ||
        (row.name == "aten::convolution_backward" && row.dtype == "float64");
    const std::vector<TensorShape> tensors = calls[r].tensors();
    const bool slow_product = row.flops > 0 && row.name.find("mm") != std::string::npos &&
                              std::any_of(tensors.begin(), tensors.end(), scattered);
    if (!slow_convolution && !slow_product) {
      continue;
    }
    const double fast_s = row.flops * row.calls / best;
    if (row.flops > 0 && fast_s < kBusyShareOfBest * row.self_s) {
      findings.add(KernelFindingKind::kFallback,
                   slow_convolution
                       ? fmt::format("{} is not oneDNN's ({}); float32 on plain shapes is",
                                     named(row), row.dtype)
                       : fmt::format("{} takes an operand that is contiguous in no direction; "
                                     "make it so where it is made",
                                     named(row)),
                   row.layers, row.self_s - fast_s);
    }
  }
}

void find_slower_in_step(const KernelProfile& profile, Findings& findings) {
  for (const KernelRow& row : profile.rows) {
    const bool lengthened_by_hooks =
        row.alone_s.value_or(0) < kLeastAloneSeconds || row.self_s < kLeastOwnShare * row.total_s;
    if (!lengthened_by_hooks && row.ratio().value_or(0) >= kLeastRatio) {
      findings.add(
          KernelFindingKind::kInStep,
          fmt::format("{} takes {:.2f} times as long as alone: its operands have left the "
                      "cache, its result is in fresh memory, or other ranks use the memory",
                      named(row), *row.ratio()),
          row.layers, row.total_s - *row.alone_s * row.calls);
    }
  }
}

void find_threads(const KernelProfile& profile, Findings& findings) {
  const double used = static_cast<double>(profile.busy_ranks) * profile.threads;
  const auto cores = static_cast<double>(profile.cores);
  if (used < cores) {
    findings.add(KernelFindingKind::kThreads,
                 fmt::format("{} of {} cores idle: {} ranks with {} threads each; ranks are the "
                             "parallelism, add some",
                             profile.cores - profile.busy_ranks * profile.threads, profile.cores,
                             profile.busy_ranks, profile.threads),
                 {}, profile.step_s * (1 - used / cores));
  } else if (used > cores) {
    findings.add(KernelFindingKind::kThreads,
                 fmt::format("{} ranks with {} threads each on {} cores wait for one another",
                             profile.busy_ranks, profile.threads, profile.cores),
                 {}, profile.step_s * (1 - cores / used));
  }
}

void find_loading(const KernelProfile& profile, Findings& findings) {
  for (const KernelRow& row : profile.rows) {
    if (row.kind == KernelRowKind::kLoading) {
      findings.add(KernelFindingKind::kLoading,
                   "samples are fetched on the rank's own time; training fetches them ahead on a "
                   "thread beside it, which needs a core",
                   {}, row.total_s);
    }
  }
}

}  // namespace

std::vector<KernelFinding> find_what_to_mend(const KernelProfile& profile,
                                             const std::vector<OperatorCall>& calls) {
  Findings findings(profile);
  find_reorders(profile, calls, findings);
  find_chains(profile, findings);
  find_fallbacks(profile, calls, findings);
  find_slower_in_step(profile, findings);
  find_threads(profile, findings);
  find_loading(profile, findings);
  return std::move(findings).ranked();
}

}  // namespace millrace::internal

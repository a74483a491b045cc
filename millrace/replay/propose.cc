#include "millrace/replay/propose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/replay/regroup.h"

namespace millrace {
namespace {

// A stage's gradients as a fusion problem.
struct StageGradients {
  int stage = 0;
  Readiness readiness{};
  ReductionLine line{};
  double bytes = 0;
};

std::vector<StageGradients> gradients_of(const ProposalInput& input) {
  const std::vector<StageCost> costs =
      stage_costs(input.plan, input.profile, input.samples_per_part);
  std::set<int> reduced;
  for (const RecordedReduction& reduction : input.recording.reductions) {
    reduced.insert(reduction.stage);
  }
  std::vector<StageGradients> all;
  for (const int stage : reduced) {
    if (stage < 0) {
      continue;
    }
    const std::vector<GradientPiece>& pieces = costs.at(static_cast<std::size_t>(stage)).pieces;
    StageGradients own{.stage = stage};
    own.readiness = readiness_of(input.recording, stage, pieces);
    own.line = fit_reductions(input.recording, stage);
    for (const ReadyTensor& tensor : own.readiness.tensors) {
      own.bytes += tensor.bytes;
    }
    if (!own.readiness.tensors.empty()) {
      all.push_back(std::move(own));
    }
  }
  return all;
}

MessageSeconds seconds_of(const ReductionLine& line) {
  return [line](double bytes, int parts) { return line.fixed_s * parts + line.byte_s * bytes; };
}

double step_s(const Recording& recording, const ProposalInput& input) {
  return replay(recording, input.steps_each).step_s;
}

std::string basis(const std::vector<StageGradients>& stages) {
  std::vector<std::string> parts;
  for (const StageGradients& own : stages) {
    parts.push_back(fmt::format(
        "stage {}: a reduction takes {} + {} a MB ({}), gradients ready {}", own.stage,
        format_seconds(own.line.fixed_s), format_seconds(own.line.byte_s * 1e6),
        own.line.num_sizes > 1 ? fmt::format("from {} sizes", own.line.num_sizes)
                               : "one size; its fixed part is the cluster's latency",
        own.readiness.recorded ? "as recorded" : "by the profile's shares of the backward"));
  }
  return join(parts, "; ");
}

std::optional<Proposal> propose_partition(const ProposalInput& input,
                                          const std::vector<StageGradients>& stages) {
  constexpr int kMostParts = 16;
  Recording recording = input.recording;
  int most = 1;
  for (const StageGradients& own : stages) {
    const Fusion fusion = best_fusion(own.readiness.tensors, seconds_of(own.line), kMostParts);
    for (const FusedMessage& message : fusion.messages) {
      most = std::max(most, message.parts);
    }
    recording = regroup(std::move(recording), own.stage, own.readiness, fusion.messages, own.line);
  }
  Proposal proposal;
  proposal.kind = "partition";
  proposal.step_s = step_s(recording, input);
  proposal.what = fmt::format("the best contiguous fusion, each message in up to {} parts", most);
  proposal.note =
      most > 1 ? ""
               : "one part each: on a channel that carries one message at a time every part costs "
                 "its fixed time again";
  return proposal;
}

// Layers of a stage that follow each other directly, of which the second is short.
struct LayerPair {
  int stage = 0;
  const LayerProfile* first = nullptr;
  const LayerProfile* second = nullptr;
  double saved_s = 0;  // at most, of forward and backward of one part
};

std::vector<LayerPair> pairs_of(const ProposalInput& input) {
  const Profile& profile = input.profile;
  const double scale = input.samples_per_part / static_cast<double>(profile.samples_per_microbatch);
  const auto layer = [&](const std::string& name) {
    return std::find_if(profile.layers.begin(), profile.layers.end(),
                        [&](const LayerProfile& each) { return each.name == name; });
  };
  const auto uses = [&](const std::string& name) {
    return std::count_if(profile.edges.begin(), profile.edges.end(),
                         [&](const ProfileEdge& edge) { return edge.from == name; });
  };
  std::vector<LayerPair> pairs;
  for (int stage = 0; stage < input.plan.num_stages(); ++stage) {
    const std::vector<std::string>& names =
        input.plan.stages[static_cast<std::size_t>(stage)].layers;
    for (const ProfileEdge& edge : profile.edges) {
      const bool here = std::find(names.begin(), names.end(), edge.from) != names.end() &&
                        std::find(names.begin(), names.end(), edge.to) != names.end();
      const auto first = layer(edge.from);
      const auto second = layer(edge.to);
      // A layer with parameters of its own does arithmetic that does not vanish.
      if (!here || uses(edge.from) != 1 || second->parameter_bytes > 0) {
        continue;
      }
      pairs.push_back(
          {stage, &*first, &*second, scale * std::min(first->compute_s(), second->compute_s())});
    }
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const LayerPair& a, const LayerPair& b) { return a.saved_s > b.saved_s; });
  return pairs;
}

std::vector<Proposal> propose_operators(const ProposalInput& input,
                                        const std::vector<StageGradients>& stages) {
  constexpr std::size_t kMost = 3;
  std::vector<Proposal> proposals;
  const std::vector<StageCost> costs =
      stage_costs(input.plan, input.profile, input.samples_per_part);
  const double scale =
      input.samples_per_part / static_cast<double>(input.profile.samples_per_microbatch);
  for (const LayerPair& pair : pairs_of(input)) {
    if (proposals.size() == kMost) {
      break;
    }
    // A backward runs the second layer first; what it makes ready is delayed, where it has any.
    const auto own = std::find_if(stages.begin(), stages.end(), [&](const StageGradients& each) {
      return each.stage == pair.stage;
    });
    const double p1 = scale * pair.second->backward_s();
    const double p2 = scale * pair.first->backward_s();
    const double q = own == stages.end() || pair.second->parameter_bytes == 0
                         ? 0
                         : own->line.seconds(static_cast<double>(pair.second->parameter_bytes));
    if (!operator_fusion_is_sound(q, p1, p2, std::max(p1, p2))) {
      continue;
    }
    const StageCost& cost = costs[static_cast<std::size_t>(pair.stage)];
    const double whole_s = cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s;
    if (whole_s <= 0) {
      continue;
    }
    Recording recording = input.recording;
    const double factor = 1 - pair.saved_s / whole_s;
    for (std::vector<RecordedAction>& actions : recording.actions) {
      for (RecordedAction& each : actions) {
        if (each.action.stage == pair.stage && is_compute(each.action.kind)) {
          each.own_s *= factor;
          for (Ask& ask : each.asks) {
            ask.after_s *= factor;
          }
        }
      }
    }
    proposals.push_back(
        {"operator fusion",
         fmt::format("{} into {} (stage {})", pair.second->name, pair.first->name, pair.stage), "",
         step_s(recording, input),
         "at most: as if the shorter of the two cost nothing; needs a kernel for both"});
  }
  return proposals;
}

// Most microbatches of a stage on one rank between their F and their B.
int most_in_flight(const Recording& recording, int stage) {
  int most = 0;
  for (const std::vector<RecordedAction>& actions : recording.actions) {
    int in_flight = 0;
    for (const RecordedAction& each : actions) {
      if (each.action.stage != stage) {
        continue;
      }
      const auto count = static_cast<int>(each.action.num_microbatches());
      if (each.action.kind == ActionKind::kForward) {
        in_flight += count;
        most = std::max(most, in_flight);
      } else if (each.action.kind == ActionKind::kBackward ||
                 each.action.kind == ActionKind::kWeightGradient) {
        in_flight = std::max(0, in_flight - count);
      }
    }
  }
  return most;
}

std::optional<Proposal> propose_recompute(const ProposalInput& input) {
  if (input.plan.recompute != Recompute::kNothing) {
    return std::nullopt;
  }
  Plan plan = input.plan;
  const std::vector<StageCost> now = stage_costs(plan, input.profile, input.samples_per_part);
  plan.recompute = Recompute::kStage;
  const std::vector<StageCost> then = stage_costs(plan, input.profile, input.samples_per_part);
  std::vector<std::string> saved;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    const int in_flight = most_in_flight(input.recording, stage);
    const auto before = static_cast<double>(in_flight * now[s].stash_bytes);
    const auto after =
        static_cast<double>(in_flight * then[s].stash_bytes + then[s].recomputed_bytes);
    saved.push_back(fmt::format("stage {}: {} in place of {}", stage, format_bytes(after),
                                format_bytes(before)));
  }
  Recording recording = input.recording;
  for (std::vector<RecordedAction>& actions : recording.actions) {
    // A forward's recorded seconds, by stage and microbatches.
    std::map<std::pair<int, int64_t>, double> forward_s;
    for (const RecordedAction& each : actions) {
      if (each.action.kind == ActionKind::kForward) {
        forward_s[{each.action.stage, each.action.num_microbatches()}] = each.total_s();
      }
    }
    for (RecordedAction& each : actions) {
      if (each.action.kind == ActionKind::kBackward ||
          each.action.kind == ActionKind::kInputGradient) {
        const double more_s = forward_s[{each.action.stage, each.action.num_microbatches()}];
        (each.asks.empty() ? each.own_s : each.asks.front().after_s) += more_s;
      }
    }
  }
  return Proposal{"recompute", "stashes of " + join(saved, "; "), "parallel.recompute=stage",
                  step_s(recording, input), "for memory: every backward runs its forward again"};
}

std::vector<Promise> promises(const ProposalInput& input,
                              const std::vector<StageGradients>& stages) {
  double most = 0;
  for (const StageGradients& own : stages) {
    most = std::max(most, own.bytes);
  }
  std::vector<Promise> all;
  std::set<std::vector<int>> seen;  // groupings
  constexpr int64_t kKib = 1024;
  for (int64_t kib = 0; !stages.empty(); kib = kib == 0 ? 1 : 2 * kib) {
    Promise promise{.threshold_kib = kib};
    Recording recording = input.recording;
    std::vector<int> grouping;
    for (const StageGradients& own : stages) {
      const Fusion fusion = threshold_fusion(own.readiness.tensors, seconds_of(own.line),
                                             static_cast<double>(kib * kKib));
      for (const FusedMessage& message : fusion.messages) {
        grouping.push_back(message.last);
      }
      promise.num_messages += static_cast<int>(fusion.messages.size());
      recording =
          regroup(std::move(recording), own.stage, own.readiness, fusion.messages, own.line);
    }
    if (seen.insert(grouping).second) {
      promise.step_s = step_s(recording, input);
      all.push_back(promise);
    }
    if (static_cast<double>(kib * kKib) > most) {
      break;
    }
  }
  return all;
}

}  // namespace

std::vector<Promise> promise_thresholds(const ProposalInput& input) {
  return promises(input, gradients_of(input));
}

std::vector<Proposal> propose(const ProposalInput& input) {
  std::vector<Proposal> proposals;
  const std::vector<StageGradients> stages = gradients_of(input);
  std::vector<Promise> all = promises(input, stages);
  // Of equal ones the smaller threshold, which came first.
  const auto best =
      std::min_element(all.begin(), all.end(),
                       [](const Promise& a, const Promise& b) { return a.step_s < b.step_s; });
  if (best != all.end()) {
    std::vector<std::string> others;
    for (const Promise& each : all) {
      others.push_back(fmt::format("{}: {}", each.threshold_kib, format_seconds(each.step_s)));
    }
    proposals.push_back(
        {"gradient fusion",
         fmt::format("rule gradient-flow, messages of at least {} KiB: {} an update",
                     best->threshold_kib, best->num_messages),
         fmt::format("parallel.rule=gradient-flow rule.threshold_kib={}", best->threshold_kib),
         best->step_s, basis(stages) + "; by KiB: " + join(others, ", ")});
    if (std::optional<Proposal> partition = propose_partition(input, stages)) {
      proposals.push_back(std::move(*partition));
    }
  }
  for (Proposal& each : propose_operators(input, stages)) {
    proposals.push_back(std::move(each));
  }
  if (std::optional<Proposal> recompute = propose_recompute(input)) {
    proposals.push_back(std::move(*recompute));
  }
  return proposals;
}

}  // namespace millrace

#include "millrace/planner/latency_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/planner/device_fit.h"
#include "millrace/planner/planner.h"

namespace millrace {
namespace {

constexpr int64_t kFolds = 5;
constexpr uint64_t kDeviceDraws = 50;

constexpr std::array<const char*, kLayerPasses.size()> kPassNames = {"forward", "input gradient",
                                                                     "weight gradient"};

void add(const HeldOutLayer& judged, std::size_t pass, LatencyErrors& errors) {
  const double measured_s = seconds_of(*judged.layer, kLayerPasses[pass]);
  if (measured_s < kShortestJudgedS) {
    return;
  }
  ++errors.times;
  errors.spread += spread_of(*judged.layer, kLayerPasses[pass]) / measured_s;
  errors.predicted += std::abs(judged.predicted_s[pass] / measured_s - 1);
  errors.flops_only += std::abs(judged.flops_only_s[pass] / measured_s - 1);
}

void average(LatencyErrors& errors) {
  if (errors.times > 0) {
    const auto times = static_cast<double>(errors.times);
    errors.spread /= times;
    errors.predicted /= times;
    errors.flops_only /= times;
  }
}

// A pass of a layer on a device, beside what is known of it from the first.
struct OnDevice {
  const HeldOutLayer* first = nullptr;
  LayerPass pass{};
  double first_s = 0;
  double predicted_s = 0;
  double device_s = 0;
};

double fitted_error(const std::vector<OnDevice>& times, const std::vector<int64_t>& order,
                    int observations, double OnDevice::*base) {
  DeviceFit fit;
  double error = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const OnDevice& time = times[static_cast<std::size_t>(order[i])];
    if (i < static_cast<std::size_t>(observations)) {
      fit.observe(*time.first->layer, time.first->samples, time.pass, time.*base, time.device_s);
    } else {
      const double predicted =
          fit.predict(*time.first->layer, time.first->samples, time.pass, time.*base);
      error += std::abs(predicted / time.device_s - 1);
    }
  }
  return error / static_cast<double>(order.size() - static_cast<std::size_t>(observations));
}

double flops_error(const std::vector<OnDevice>& times, const std::vector<int64_t>& order,
                   int observations) {
  std::vector<FlopsTime> observed;
  double error = 0;
  double seconds_per_flop = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const OnDevice& time = times[static_cast<std::size_t>(order[i])];
    const double flops = pass_flops(*time.first->layer, time.first->samples, time.pass);
    if (i < static_cast<std::size_t>(observations)) {
      observed.push_back({flops, time.device_s});
      seconds_per_flop = fit_seconds_per_flop(observed);
    } else {
      error += std::abs(seconds_per_flop * flops / time.device_s - 1);
    }
  }
  return error / static_cast<double>(order.size() - static_cast<std::size_t>(observations));
}

// The slowest stage of the cut that planner `pipedream` makes by `planned_s`, by `true_s`.
double slowest_stage(const std::vector<double>& planned_s, const std::vector<double>& true_s,
                     int stages) {
  Profile profile;
  profile.model = "chain";
  std::map<std::string, double> seconds;
  for (std::size_t l = 0; l < planned_s.size(); ++l) {
    LayerProfile layer;
    layer.name = fmt::format("layer{}", l);
    layer.forward_s = planned_s[l];
    seconds[layer.name] = true_s[l];
    profile.layers.push_back(std::move(layer));
  }
  make_chain(profile);
  const Cluster cluster = free_cluster(stages);
  const PlanRequest request{.profile = profile,
                            .cluster = cluster,
                            .workers = stages,
                            .stages = stages,
                            .replicas = {},
                            .straight = true};
  const Plan plan = make_plan("pipedream", request);
  double slowest = 0;
  for (const PlanStage& stage : plan.stages) {
    double sum = 0;
    for (const std::string& name : stage.layers) {
      sum += seconds[name];
    }
    slowest = std::max(slowest, sum);
  }
  return slowest;
}

}  // namespace

std::vector<HeldOutLayer> hold_out(const std::vector<Profile>& profiles) {
  std::vector<HeldOutLayer> all;
  for (const Profile& profile : profiles) {
    for (const LayerProfile& layer : profile.layers) {
      all.push_back({&layer, profile.samples_per_microbatch, {}, {}});
    }
  }
  const std::vector<int64_t> order =
      permutation(RandomKey(1).with("held out"), static_cast<int64_t>(all.size()));
  std::vector<int64_t> fold(all.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    fold[static_cast<std::size_t>(order[i])] = static_cast<int64_t>(i) % kFolds;
  }
  for (int64_t f = 0; f < kFolds; ++f) {
    std::vector<Profile> seen;
    std::array<std::vector<FlopsTime>, kLayerPasses.size()> flops;
    std::size_t at = 0;
    for (const Profile& profile : profiles) {
      Profile part = profile;
      part.layers.clear();
      part.edges.clear();
      for (const LayerProfile& layer : profile.layers) {
        if (fold[at++] == f) {
          continue;
        }
        part.layers.push_back(layer);
        for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
          const double seconds = seconds_of(layer, kLayerPasses[p]);
          if (seconds >= kShortestJudgedS) {
            flops[p].push_back(
                {pass_flops(layer, profile.samples_per_microbatch, kLayerPasses[p]), seconds});
          }
        }
      }
      seen.push_back(std::move(part));
    }
    const LatencyModel model = learn_latencies(seen);
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      const double seconds_per_flop = fit_seconds_per_flop(flops[p]);
      for (std::size_t i = 0; i < all.size(); ++i) {
        HeldOutLayer& judged = all[i];
        if (fold[i] == f) {
          judged.predicted_s[p] =
              predict_latency(model, *judged.layer, judged.samples, kLayerPasses[p]);
          judged.flops_only_s[p] =
              seconds_per_flop * pass_flops(*judged.layer, judged.samples, kLayerPasses[p]);
        }
      }
    }
  }
  return all;
}

std::vector<HeldOutErrors> held_out_errors(const std::vector<HeldOutLayer>& layers) {
  LatencyErrors all;
  std::array<LatencyErrors, kLayerPasses.size()> passes;
  std::map<std::string, LatencyErrors> kinds;
  for (const HeldOutLayer& judged : layers) {
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      add(judged, p, all);
      add(judged, p, passes[p]);
      add(judged, p, kinds[judged.layer->kind]);
    }
  }
  std::vector<HeldOutErrors> rows = {{"all", all}};
  for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
    rows.push_back({kPassNames[p], passes[p]});
  }
  for (const auto& [kind, errors] : kinds) {
    rows.push_back({kind, errors});
  }
  for (HeldOutErrors& row : rows) {
    average(row.errors);
  }
  return rows;
}

DeviceErrors unseen_device_errors(const std::vector<HeldOutLayer>& first,
                                  const std::vector<Profile>& device, int observations) {
  std::map<std::pair<std::string, int64_t>, const HeldOutLayer*> by_name;
  for (const HeldOutLayer& judged : first) {
    by_name[{judged.layer->name, judged.samples}] = &judged;
  }
  std::vector<OnDevice> times;
  std::vector<double> ratios;
  for (const Profile& profile : device) {
    for (const LayerProfile& layer : profile.layers) {
      const auto found = by_name.find({layer.name, profile.samples_per_microbatch});
      if (found == by_name.end()) {
        continue;
      }
      const HeldOutLayer& judged = *found->second;
      for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
        const double first_s = seconds_of(*judged.layer, kLayerPasses[p]);
        const double device_s = seconds_of(layer, kLayerPasses[p]);
        if (first_s >= kShortestJudgedS && device_s >= kShortestJudgedS &&
            judged.predicted_s[p] > 0) {
          times.push_back({&judged, kLayerPasses[p], first_s, judged.predicted_s[p], device_s});
          ratios.push_back(device_s / first_s);
        }
      }
    }
  }
  if (times.size() <= static_cast<std::size_t>(observations)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected more than {} times of layers measured on both devices, found "
                            "{}; measure more layers",
                            observations, times.size()));
  }
  DeviceErrors errors;
  errors.times = static_cast<int64_t>(times.size()) - observations;
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2),
                   ratios.end());
  errors.slower = ratios[ratios.size() / 2];
  for (uint64_t draw = 0; draw < kDeviceDraws; ++draw) {
    const std::vector<int64_t> order =
        permutation(RandomKey(1).with("observed").with(draw), static_cast<int64_t>(times.size()));
    constexpr auto kShare = static_cast<double>(kDeviceDraws);
    errors.base_measured += fitted_error(times, order, observations, &OnDevice::first_s) / kShare;
    errors.base_predicted +=
        fitted_error(times, order, observations, &OnDevice::predicted_s) / kShare;
    errors.flops_only += flops_error(times, order, observations) / kShare;
  }
  return errors;
}

PartitionErrors partition_errors(const std::vector<HeldOutLayer>& held_out) {
  struct Times {
    double measured_s = 0;
    double predicted_s = 0;
    double flops_only_s = 0;
  };
  std::vector<Times> layers;
  for (const HeldOutLayer& judged : held_out) {
    Times times;
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      times.measured_s += seconds_of(*judged.layer, kLayerPasses[p]);
      times.predicted_s += judged.predicted_s[p];
      times.flops_only_s += judged.flops_only_s[p];
    }
    layers.push_back(times);
  }
  // The middle half: one layer that takes longer than all others leaves nothing to cut.
  std::sort(layers.begin(), layers.end(),
            [](const Times& a, const Times& b) { return a.measured_s < b.measured_s; });
  layers.erase(layers.begin() + static_cast<std::ptrdiff_t>(layers.size() - layers.size() / 4),
               layers.end());
  layers.erase(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(layers.size() / 3));
  PartitionErrors errors;
  for (int chain = 0; chain < errors.chains; ++chain) {
    std::vector<double> measured_s;
    std::vector<double> predicted_s;
    std::vector<double> flops_only_s;
    const RandomKey key = RandomKey(1).with("chain").with(static_cast<uint64_t>(chain));
    for (int l = 0; l < errors.layers; ++l) {
      const Times& times = layers[key.below(static_cast<uint64_t>(l), layers.size())];
      measured_s.push_back(times.measured_s);
      predicted_s.push_back(times.predicted_s);
      flops_only_s.push_back(times.flops_only_s);
    }
    const double best = slowest_stage(measured_s, measured_s, errors.stages);
    const double excess = slowest_stage(predicted_s, measured_s, errors.stages) / best - 1;
    const double by_flops = slowest_stage(flops_only_s, measured_s, errors.stages) / best - 1;
    errors.mean += excess / errors.chains;
    errors.most = std::max(errors.most, excess);
    errors.flops_mean += by_flops / errors.chains;
    errors.flops_most = std::max(errors.flops_most, by_flops);
  }
  return errors;
}

}  // namespace millrace

// Emulation: devices and links that are not there, for a session (see docs/emulation.md). Made from
// what the prediction is made from, so that both speak of the same times and bytes.
//
// Immutable but for abort(), which any thread may call; shared by all ranks of a process.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/comm/shaped/shaped.h"
#include "millrace/core/cluster.h"
#include "millrace/core/emulate_config.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/core/trace.h"
#include "millrace/model/model.h"
#include "millrace/runtime/emulated_device.h"

namespace millrace {

// What is emulated, independent of a plan.
struct EmulationConfig {
  double time_scale = 1;
  std::optional<Profile> profile;  // to wait by; without, the model computes
  Cluster cluster;                 // devices' speeds; links, those that are not shaped being free
  EmulateConfig spells;            // for spell_slowdown()
};

// From [emulate] and the cluster that the prediction is made for; `measured` when that was measured
// on this machine, whose links need no emulation: then only those that [emulate] names are shaped.
// Reads the profile's file.
EmulationConfig emulation_config(const EmulateConfig& config, const Cluster& cluster,
                                 bool measured);

class Emulation {
 public:
  // `model` is the one that runs: where it is emulated, its tensors are smaller than they count.
  Emulation(EmulationConfig config, const Plan& plan, const Model& model);

  // The engine's communicator of one rank, its links shaped.
  std::unique_ptr<Communicator> shape(std::unique_ptr<Communicator> engine);
  EmulatedDevice device(int rank) const;

  // Ends every wait, beside the engine's own abort.
  void abort(const Error& cause) { abort_.raise(cause); }

  // Deadline of a wait on another rank: all that a wait is for lasts longer.
  double timeout_s(double configured_s) const;

  double time_scale() const { return config_.time_scale; }
  // Measured times become the emulated devices' own.
  void unscale(Trace& trace) const;

 private:
  void find_tensors(const std::vector<std::vector<int>>& layers, const Model& model);
  double message_bytes(const MessageTag& tag, const at::Tensor& tensor) const;
  double reduction_bytes(int stage, const at::Tensor& tensor) const;

  // What a stage costs; all zero without a profile.
  struct StageFacts {
    StageSeconds seconds;
    double parameter_bytes = 0;
    double flat_elements = 0;
  };

  EmulationConfig config_;
  std::vector<StageFacts> stages_;
  // Bytes of a sample of each tensor that a link carries, and of its gradient, by layer.
  std::map<StageLink, std::vector<double>> sample_bytes_;
  std::vector<std::vector<int>> rank_stages_;
  ShapedNetwork network_;
  AbortFlag abort_;
};

}  // namespace millrace

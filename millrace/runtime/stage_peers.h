// StagePeers: where the parts of a replica's stage meet, over a Communicator. Outputs are gathered
// by messages, input gradients summed by a reduction; weights never travel.
//
// One object a stage of a rank, used from that rank's thread. Waits have the communicator's
// deadline.
#pragma once

#include <memory>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/model/layer.h"

namespace millrace {

class StagePeers final : public LayerPeers {
 public:
  // `ranks`: that hold the parts, in order of parts; at least 2. Collective over them. The
  // communicator outlives the object.
  StagePeers(Communicator& communicator, std::vector<int> ranks, int part, int stage);

  int part() const override { return part_; }
  int parts() const override { return static_cast<int>(ranks_.size()); }
  at::Tensor gather(const at::Tensor& own, int64_t dim) override;
  at::Tensor sum(at::Tensor own) override;

  // What was waited and sent since the last time.
  Transfer take_transfer();

 private:
  Communicator& communicator_;
  std::vector<int> ranks_;
  int part_;
  int stage_;
  std::unique_ptr<Group> group_;
  int64_t number_ = 0;  // of the next gathering; every part counts alike
  Transfer transfer_;
};

}  // namespace millrace

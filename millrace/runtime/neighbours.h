// Neighbours: a stage's borders by the stages at their other ends, and the messages across them.
// Every tensor goes straight from the stage that makes it to each stage that uses it, once; its
// gradient comes straight back.
//
// One object for each stage of a rank, used from that rank's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/core/action.h"
#include "millrace/model/model.h"
#include "millrace/model/stage.h"
#include "millrace/runtime/recorder.h"

namespace millrace {

// Which of a stage's tensors come from, and go to, each other stage.
class StageBorders {
 public:
  // `stage_of_layer`: of every layer of the model.
  StageBorders(const Model& model, const Stage& stage, const std::vector<int>& stage_of_layer);

  // Indices into Stage::inputs() and Stage::outputs(), ascending: the same tensors in the same
  // order at both ends. Empty for a stage that is no neighbour.
  const std::vector<int>& from(int stage) const {
    return from_.at(static_cast<std::size_t>(stage));
  }
  const std::vector<int>& to(int stage) const { return to_.at(static_cast<std::size_t>(stage)); }
  int num_sources() const { return num_sources_; }  // stages that tensors come from
  int num_stages() const { return static_cast<int>(from_.size()); }
  // The last stage that an output goes to, -1 for none.
  int last_user(int output) const { return last_user_[static_cast<std::size_t>(output)]; }

 private:
  std::vector<std::vector<int>> from_;
  std::vector<std::vector<int>> to_;
  std::vector<int> last_user_;
  int num_sources_ = 0;
};

// Executes SEND and RECV actions: all tensors of one link and microbatch.
class Neighbours {
 public:
  // `recorder` null: nothing is recorded. All outlive the object.
  Neighbours(const Stage& stage, const StageBorders& borders, Communicator& communicator,
             Recorder* recorder);

  // SEND_F: takes outputs of the stage, by its outputs(). SEND_B: input gradients, by its inputs().
  // A tensor that no later send needs is moved out.
  void send(const Action& action, Tensors& tensors);

  // RECV_F: fills in inputs of the stage. What must arrive is known from the borders: a part of no
  // `samples` is an undefined tensor.
  void receive_inputs(const Action& action, int64_t samples, Tensors& inputs);
  // RECV_B: appends gradients of outputs; none is undefined.
  void receive_gradients(const Action& action, int64_t samples,
                         std::vector<BorderGradient>& gradients);

 private:
  at::Tensor receive_one(const Action& action, const Border& border, bool is_gradient,
                         int64_t samples, int32_t index, Transfer& total);

  const Stage& stage_;
  const StageBorders& borders_;
  Communicator& communicator_;
  Recorder* recorder_;
};

}  // namespace millrace

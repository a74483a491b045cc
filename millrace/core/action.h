// Action: one thing that one rank does in a schedule. A small value with a text form that parses
// back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class ActionKind : uint8_t {
  kForward,          // F
  kBackward,         // B: both halves at once
  kInputGradient,    // I
  kWeightGradient,   // W
  kSendForward,      // SEND_F: activation to the next stage's rank
  kReceiveForward,   // RECV_F
  kSendBackward,     // SEND_B: gradient to the previous stage's rank
  kReceiveBackward,  // RECV_B
  kReduce,           // REDUCE: the stage's exchange among its replicas
  kNorm,             // NORM: all ranks sum the squared norms of their stages' gradients
  kStep,             // STEP: the optimizer's update; makes a weight version
  kGather,           // GATHER: the stage's replicas join their shards of its weights
  kFree,             // FREE: each keeps its own shard of them only
};

inline constexpr int64_t kNone = -1;

// Text forms: 2F0, 2B0-3, 2I0, 2W0-3, 2SEND_F0>1, 2RECV_F0<1, 2SEND_B0>1, 2RECV_B0<1, 2REDUCE,
// 2NORM, 2STEP, 2GATHER, 2FREE; with a weight version "@v" at the end: 2F5@3 reads version 3,
// 2STEP@4 makes version 4. REDUCE, NORM and STEP may carry the microbatches whose gradients they
// apply (2STEP0-3@1), GATHER and FREE those whose actions need the weights. A message goes to, or
// comes from, the next stage of its direction, unless another one is named: 2SEND_F0>1:5 goes to
// stage 5 on rank 1.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int32_t stage = 0;
  int64_t first = kNone;       // microbatch, or the first of a range
  int64_t last = kNone;        // the last of a range; equals first for one
  int32_t peer = kNone;        // rank at the other end of a send or receive
  int32_t peer_stage = kNone;  // stage at that end
  int64_t version = kNone;     // weight version read (F, B, I, W) or made (STEP)

  static Action of(ActionKind kind, int stage, int64_t microbatch);
  static Action range(ActionKind kind, int stage, int64_t first, int64_t last);
  int64_t num_microbatches() const { return first == kNone ? 0 : last - first + 1; }
  bool operator==(const Action&) const = default;
};

// The stage next to `stage` that a message of this kind goes to or comes from.
int32_t next_stage(ActionKind kind, int32_t stage);
bool is_compute(ActionKind kind);  // F, B, I, W
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);
const char* to_string(ActionKind kind);  // "F", "SEND_F", ...

std::string to_string(const Action& action);
// Throws Error(kInvalidArgument) that shows the text and what was expected.
Action parse_action(std::string_view text);

using ActionList = std::vector<Action>;       // of one rank, in order
using ActionLists = std::vector<ActionList>;  // one a rank

std::string to_string(const ActionList& list);  // "0F0 0F1 0B0"
ActionList parse_actions(std::string_view text);

}  // namespace millrace

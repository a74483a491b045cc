// What travels between ranks, apart from the payload: what a message is and what its payload looks
// like. Torch-free values; for mailboxes, engines and whoever sends.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace millrace {

// What a message is; equal on both sides. Travels in place of order: any interleaving is matched
// right.
struct MessageTag {
  uint8_t kind = 0;  // ActionKind of the send for stage borders; engines number their own above 100
  int32_t stage = 0;       // of the sender's action
  int64_t microbatch = 0;  // or sequence number
  int32_t tensor = 0;      // which of those that one action hands over
  int32_t to_stage = 0;    // of the receiver's action
  // Which of the receiver's boxes: each thread of a rank waits at one of its own. 0: the worker's.
  uint16_t lane = 0;
  bool operator==(const MessageTag&) const = default;
};
// "SEND_F of stage 1, microbatch 7"; "exchange rule message 3 of stage 1"; another engine's own:
// "message kind 101, stage 0, number 7".
std::string to_string(const MessageTag& tag);

// Whose kinds are whose, above those of actions.
inline constexpr uint8_t kFirstEngineKind = 100;
// A message between the replicas of a stage; `tensor` is the number that its exchange rule gives
// such messages.
inline constexpr uint8_t kRuleMessage = 112;

// What a payload looks like: compared on receive, so that a wrong shape or dtype is an error that
// shows both.
struct Fingerprint {
  static constexpr uint8_t kNoTensor = 255;
  static constexpr uint8_t kBarrier = 254;  // a meeting that brings nothing

  uint8_t dtype = 0;  // at::ScalarType's number, or one of the above
  uint8_t num_dimensions = 0;
  std::array<int64_t, 6> sizes{};  // beyond six dimensions the last holds the product of the rest
  bool operator==(const Fingerprint&) const = default;
};
std::string to_string(
    const Fingerprint& fingerprint);  // "float32 [4, 3]", "no tensor", "a barrier"

}  // namespace millrace

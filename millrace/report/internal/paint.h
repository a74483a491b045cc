// How actions look, the same in every picture: letter, name, colour. Colours are from Okabe and
// Ito's set, told apart with any kind of colour vision; letters and hatching repeat what they say.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "millrace/core/action.h"

namespace millrace::internal {

struct Paint {
  char letter;
  std::string_view name;
  std::string_view fill;  // CSS colour of the box
  std::string_view ink;   // CSS colour of text on it
};

inline constexpr std::array<Paint, 8> kPaints = {{
    {'F', "forward", "#0072b2", "#ffffff"},
    {'B', "backward", "#e69f00", "#000000"},
    {'I', "input gradient", "#d55e00", "#ffffff"},
    {'W', "weight gradient", "#f0e442", "#000000"},
    {'U', "update (STEP)", "#009e73", "#ffffff"},
    {'R', "reduce", "#cc79a7", "#000000"},
    {'s', "send, receive", "#8c8c8c", "#000000"},
    {'.', "wait", "#c9ced6", "#000000"},
}};
inline constexpr std::size_t kNumComputePaints = 4;  // F, B, I, W, the first ones
inline constexpr std::size_t kTransferPaint = 6;
inline constexpr std::size_t kWaitPaint = 7;

// Index into kPaints of an action, its wait aside.
constexpr std::size_t paint_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 0;
    case ActionKind::kBackward:
      return 1;
    case ActionKind::kInputGradient:
      return 2;
    case ActionKind::kWeightGradient:
      return 3;
    case ActionKind::kStep:
      return 4;
    case ActionKind::kReduce:
    case ActionKind::kNorm:
    case ActionKind::kGather:
    case ActionKind::kFree:
      return 5;
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      break;
  }
  return kTransferPaint;
}

}  // namespace millrace::internal

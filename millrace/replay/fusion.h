// Gradient fusion as a problem by itself: tensors that become ready one after another, and one
// channel that carries messages one at a time. Pure functions.
//
// Source: Hu et al., dPRO, MLSys 2022, arXiv:2205.02473, tensor fusion and partition, operator
// fusion. In place of its pairwise rule, which never joins more than it sees at once, the best of
// all contiguous fusions by a dynamic program, E(j) = min over i of max(p_j, E(i)) + t(size of
// i+1..j): our reconstruction, equal to brute force in tests.
#pragma once

#include <functional>
#include <vector>

namespace millrace {

struct ReadyTensor {
  double ready_s = 0;  // not falling from one to the next
  double bytes = 0;
};

// Seconds of a message of so many bytes in so many parts, one after another.
using MessageSeconds = std::function<double(double bytes, int parts)>;

struct FusedMessage {
  int first = 0;  // tensors [first, last]
  int last = 0;
  int parts = 1;
  double end_s = 0;
};

struct Fusion {
  std::vector<FusedMessage> messages;  // in the order of being ready
  double end_s = 0;                    // of the last one; 0 without tensors
};

// The contiguous fusion whose last message ends first, each message in whichever of 1..most_parts
// parts is fastest. O(n^2). Of equal ones: the last message with the fewest tensors.
Fusion best_fusion(const std::vector<ReadyTensor>& tensors, const MessageSeconds& seconds,
                   int most_parts = 1);

// What a rule does that joins tensors until `threshold_bytes` are together (gradient-flow).
Fusion threshold_fusion(const std::vector<ReadyTensor>& tensors, const MessageSeconds& seconds,
                        double threshold_bytes);

// Whether joining operators n-1 and n, which last p1 and p2 and joined `fused`, cannot make the end
// of all messages later, where the gradient of n-1, whose message lasts q, then is ready only with
// that of n. Sufficient, not necessary.
bool operator_fusion_is_sound(double q_s, double p1_s, double p2_s, double fused_s);

}  // namespace millrace

// Which of a rank's stages an action belongs to, for pictures that tell them apart by shade: the
// stages of a rank in their order, those of a bidirectional schedule once for each direction.
// Pure; made once from a trace.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/trace.h"

namespace millrace::internal {

class Shades {
 public:
  explicit Shades(const Trace& trace);

  // Below size(). 0 for an action of a stage that the rank does not list.
  int of(const RankTrace& rank, const Action& action) const;
  int size() const { return num_directions_ * num_chunks_; }
  std::string name(int shade) const;  // "chunk 0", "up", "down, chunk 1"

 private:
  // Ranks ascending along the stages of a microbatch, or not.
  bool goes_up(const Action& action) const;
  void find_directions(const Trace& trace);

  int num_chunks_ = 1;
  int num_directions_ = 1;
  std::map<int64_t, bool> up_;                                 // microbatch -> direction
  std::map<std::pair<int, bool>, std::vector<int>> of_ranks_;  // rank, direction -> its stages
};

// CSS colours of a box of paint `paint` (index into kPaints) and of text on it, for shade `shade`
// of `num_shades`. Text has a contrast of at least 4.5 to the box.
struct Colours {
  std::string fill;
  std::string ink;
};
Colours colours_of(std::size_t paint, int shade, int num_shades);

}  // namespace millrace::internal

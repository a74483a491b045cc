// What the builtins write their programs with: a builder that keeps both ends of a message and the
// order of operations inside a step right, and the two patterns that several of them share. Used by
// builtin/ only; single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/collective/program.h"

namespace millrace::internal {

// `whole` in `count` neighbouring pieces whose sizes differ by at most one, larger ones first.
// Pieces may be empty. Done again on a piece, it is the rule for grids of any size.
std::vector<Place> chunks_of(const Place& whole, int count);

// All N elements of the data buffer.
Place all_data(const CollectiveConfig& config);

// `list` without its empty places.
std::vector<Place> without_empty(const std::vector<Place>& list);

// Members by host, hosts in the order in which they first appear.
std::vector<std::vector<int>> members_by_host(const CollectiveConfig& config);

// Appends operations step by step. Within a step a member first sends, then receives, then sums, so
// no message can depend on another of its step. Nothing happens for empty places.
class Builder {
 public:
  Builder(std::string algorithm, const CollectiveConfig& config);

  // A part of a sum: `source` of `from` arrives at scratch [offset, offset + size) of `to`; the
  // answer is that place.
  Place send_to_scratch(int from, int to, const Place& source, int64_t offset = 0);
  // A complete sum: `place` arrives at the same place of `to`, encoded in these blocks.
  void send_final(int from, int to, const Place& place, const std::vector<Place>& blocks);
  // At the end of this step: place = sum of parts.
  void sum(int member, const Place& place, std::vector<Place> parts);
  void end_step();
  // Goes on to another step whose messages depend on nothing that arrives in this one: members send
  // them before they receive.
  void end_step_early();

  // Once, after the last end_step().
  CollectiveProgram finish();

 private:
  CollectiveProgram program_;
  std::vector<std::vector<CollectiveOp>> receives_;  // of this step, by member
  std::vector<std::vector<CollectiveOp>> sums_;
};

// A ring over members[0], members[1], ...: n-1 steps to reduce and scatter `chunks`, after which
// members[i] holds the sum of chunks[(i+1) mod n], and n-1 steps to gather them. Step t of each.
struct Ring {
  std::vector<int> members;
  std::vector<Place> chunks;               // as many
  std::vector<std::vector<Place>> blocks;  // of each chunk when it is gathered
};
void reduce_scatter_step(Builder& builder, const Ring& ring, int t);
void all_gather_step(Builder& builder, const Ring& ring, int t);

// A binary tree over members[0], the root, members[1], ...: ceil(log2 n) rounds up, as many down.
// Round t of each; a round that a smaller tree lacks does nothing.
int tree_rounds(std::size_t num_members);
void tree_reduce_round(Builder& builder, const std::vector<int>& members, const Place& place,
                       int t);
void tree_broadcast_round(Builder& builder, const std::vector<int>& members, const Place& place,
                          const std::vector<Place>& blocks, int t);

}  // namespace millrace::internal

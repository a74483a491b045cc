#include "millrace/collective/internal/builder.h"

#include <algorithm>
#include <utility>

namespace millrace::internal {

using Kind = CollectiveOp::Kind;

std::vector<Place> chunks_of(const Place& whole, int count) {
  std::vector<Place> chunks;
  chunks.reserve(static_cast<std::size_t>(count));
  const int64_t floor = whole.size() / count;
  const int64_t larger = whole.size() % count;
  int64_t begin = whole.begin;
  for (int i = 0; i < count; ++i) {
    const int64_t size = floor + (i < larger ? 1 : 0);
    chunks.push_back({whole.space, begin, begin + size});
    begin += size;
  }
  return chunks;
}

Place all_data(const CollectiveConfig& config) { return {Space::kData, 0, config.elements}; }

std::vector<Place> without_empty(const std::vector<Place>& list) {
  std::vector<Place> rest;
  rest.reserve(list.size());
  std::copy_if(list.begin(), list.end(), std::back_inserter(rest),
               [](const Place& place) { return place.size() > 0; });
  return rest;
}

std::vector<std::vector<int>> members_by_host(const CollectiveConfig& config) {
  std::vector<std::vector<int>> hosts;
  std::vector<int> names;
  for (int member = 0; member < config.num_members; ++member) {
    const int name =
        config.host_of_member.empty() ? member : config.host_of_member[std::size_t(member)];
    const auto found = std::find(names.begin(), names.end(), name);
    const auto host = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(name);
      hosts.emplace_back();
    }
    hosts[host].push_back(member);
  }
  return hosts;
}

Builder::Builder(std::string algorithm, const CollectiveConfig& config) {
  program_.algorithm = std::move(algorithm);
  program_.elements = config.elements;
  const auto count = static_cast<std::size_t>(config.num_members);
  program_.members.resize(count);
  receives_.resize(count);
  sums_.resize(count);
}

Place Builder::send_to_scratch(int from, int to, const Place& source, int64_t offset) {
  const Place target{Space::kScratch, offset, offset + source.size()};
  if (source.size() > 0) {
    MemberProgram& receiver = program_.members[to];
    receiver.scratch_elements = std::max(receiver.scratch_elements, target.end);
    program_.members[from].ops.push_back({Kind::kSend, to, program_.num_steps, false, source, {}});
    receives_[to].push_back({Kind::kReceive, from, program_.num_steps, false, target, {}});
  }
  return target;
}

void Builder::send_final(int from, int to, const Place& place, const std::vector<Place>& blocks) {
  if (place.size() > 0) {
    const std::vector<Place> parts = blocks.size() > 1 ? blocks : std::vector<Place>{};
    program_.members[from].ops.push_back({Kind::kSend, to, program_.num_steps, true, place, parts});
    receives_[to].push_back({Kind::kReceive, from, program_.num_steps, true, place, parts});
  }
}

void Builder::sum(int member, const Place& place, std::vector<Place> parts) {
  if (place.size() > 0) {
    sums_[member].push_back({Kind::kSum, -1, program_.num_steps, false, place, std::move(parts)});
  }
}

void Builder::end_step() {
  for (std::size_t member = 0; member < program_.members.size(); ++member) {
    std::vector<CollectiveOp>& ops = program_.members[member].ops;
    for (auto* pending : {&receives_[member], &sums_[member]}) {
      std::move(pending->begin(), pending->end(), std::back_inserter(ops));
      pending->clear();
    }
  }
  ++program_.num_steps;
}

void Builder::end_step_early() { ++program_.num_steps; }

CollectiveProgram Builder::finish() {
  if (program_.elements == 0) {
    program_.num_steps = 0;
  }
  return std::move(program_);
}

void reduce_scatter_step(Builder& builder, const Ring& ring, int t) {
  const int count = static_cast<int>(ring.members.size());
  for (int i = 0; i < count; ++i) {
    const Place& chunk = ring.chunks[(i - t + count) % count];
    const int to = ring.members[(i + 1) % count];
    const Place arrived = builder.send_to_scratch(ring.members[i], to, chunk);
    builder.sum(to, chunk, {arrived, chunk});
  }
}

void all_gather_step(Builder& builder, const Ring& ring, int t) {
  const int count = static_cast<int>(ring.members.size());
  for (int i = 0; i < count; ++i) {
    const int c = (i + 1 - t + count) % count;
    builder.send_final(ring.members[i], ring.members[(i + 1) % count], ring.chunks[c],
                       ring.blocks[c]);
  }
}

int tree_rounds(std::size_t num_members) {
  int rounds = 0;
  while ((std::size_t{1} << rounds) < num_members) {
    ++rounds;
  }
  return rounds;
}

void tree_reduce_round(Builder& builder, const std::vector<int>& members, const Place& place,
                       int t) {
  const std::size_t distance = std::size_t{1} << t;
  for (std::size_t i = 0; i + distance < members.size(); i += 2 * distance) {
    const Place arrived = builder.send_to_scratch(members[i + distance], members[i], place);
    builder.sum(members[i], place, {place, arrived});
  }
}

void tree_broadcast_round(Builder& builder, const std::vector<int>& members, const Place& place,
                          const std::vector<Place>& blocks, int t) {
  const int rounds = tree_rounds(members.size());
  if (t >= rounds) {
    return;
  }
  const std::size_t distance = std::size_t{1} << (rounds - 1 - t);
  for (std::size_t i = 0; i + distance < members.size(); i += 2 * distance) {
    builder.send_final(members[i], members[i + distance], place, blocks);
  }
}

}  // namespace millrace::internal

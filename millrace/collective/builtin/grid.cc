// Multi-ring: the members form a grid n1 x n2 x ..., matched to the hardware with the fastest
// dimension first. Rings along dimension 1 reduce and scatter everything, rings along dimension 2
// the n1-th part that is left, and so on; then the parts are gathered in reverse. The rings of one
// dimension run at the same time. Steps 2 sum(n_i - 1) instead of 2(P-1); dimension i carries
// 2N(n_i-1)/(n_1 .. n_i) a member, so slow outer links see little.
//
// Where sizes do not divide, each part is cut by the rule of the whole (larger pieces first), part
// by part. Members of one host are neighbours along dimension 1, in the order of members.
//
// Without a grid: members of a host x hosts where all hosts hold equally many (at least two hosts,
// two members each), else the most square pair, the larger first.
//
// Source: PowerAI DDL, arXiv:1708.02188, its multi-ring algorithm; the library is closed, so the
// rule for indivisible sizes and the default grid are ours (a reconstruction).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

std::string offers(const CollectiveConfig& config) {
  int64_t product = 1;
  for (const int size : config.grid) {
    product = size < 1 || product > config.num_members ? -1 : product * size;
    if (product < 0) {
      break;
    }
  }
  if (config.grid.empty() || product == config.num_members) {
    return "";
  }
  return fmt::format("expected a grid of sizes >= 1 with product {}, found {}", config.num_members,
                     fmt::join(config.grid, " x "));
}

std::vector<int> most_square(int count) {
  int smaller = 1;
  for (int i = 1; i <= count / i; ++i) {
    smaller = count % i == 0 ? i : smaller;
  }
  return {count / smaller, smaller};
}

std::vector<int> choose_grid(const CollectiveConfig& config,
                             const std::vector<std::vector<int>>& hosts) {
  if (!config.grid.empty()) {
    return config.grid;
  }
  const std::size_t size = hosts.front().size();
  const bool equal = std::all_of(hosts.begin(), hosts.end(),
                                 [size](const auto& host) { return host.size() == size; });
  return equal && size > 1 && hosts.size() > 1
             ? std::vector<int>{static_cast<int>(size), static_cast<int>(hosts.size())}
             : most_square(config.num_members);
}

// The pieces into which dimensions `first`, `first` + 1, ... cut `place`.
std::vector<Place> pieces_of(const Place& place, const std::vector<int>& sizes, std::size_t first) {
  std::vector<Place> pieces = {place};
  for (std::size_t i = first; i < sizes.size(); ++i) {
    std::vector<Place> finer;
    for (const Place& piece : pieces) {
      const std::vector<Place> chunks = internal::chunks_of(piece, sizes[i]);
      finer.insert(finer.end(), chunks.begin(), chunks.end());
    }
    pieces = finer;
  }
  return internal::without_empty(pieces);
}

// The rings along dimension `i`, whose neighbours stand `stride` apart in `order`; `held` is what
// each place of `order` holds before, and is replaced by what it holds after.
std::vector<internal::Ring> rings_along(const std::vector<int>& sizes, std::size_t i, int stride,
                                        const std::vector<int>& order, std::vector<Place>& held) {
  std::vector<internal::Ring> rings;
  for (int start = 0; start < static_cast<int>(order.size()); ++start) {
    if (start / stride % sizes[i] != 0) {
      continue;
    }
    internal::Ring ring;
    ring.chunks = internal::chunks_of(held[start], sizes[i]);
    for (int k = 0; k < sizes[i]; ++k) {
      ring.members.push_back(order[start + k * stride]);
      ring.blocks.push_back(pieces_of(ring.chunks[k], sizes, i + 1));
      held[start + k * stride] = ring.chunks[(k + 1) % sizes[i]];
    }
    rings.push_back(std::move(ring));
  }
  return rings;
}

CollectiveProgram make(const CollectiveConfig& config) {
  const std::vector<std::vector<int>> hosts = internal::members_by_host(config);
  const std::vector<int> sizes = choose_grid(config, hosts);
  std::vector<int> order;
  for (const std::vector<int>& host : hosts) {
    order.insert(order.end(), host.begin(), host.end());
  }
  internal::Builder builder("grid", config);
  std::vector<Place> held(order.size(), internal::all_data(config));
  std::vector<std::vector<internal::Ring>> dimensions;
  int stride = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    dimensions.push_back(rings_along(sizes, i, stride, order, held));
    for (int t = 0; t < sizes[i] - 1; ++t) {
      for (const internal::Ring& ring : dimensions.back()) {
        internal::reduce_scatter_step(builder, ring, t);
      }
      builder.end_step();
    }
    stride *= sizes[i];
  }
  for (std::size_t i = sizes.size(); i-- > 0;) {
    for (int t = 0; t < sizes[i] - 1; ++t) {
      for (const internal::Ring& ring : dimensions[i]) {
        internal::all_gather_step(builder, ring, t);
      }
      builder.end_step();
    }
  }
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin grid = {make, offers};

}  // namespace millrace::builtin_collectives

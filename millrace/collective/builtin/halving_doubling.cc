// Recursive halving and doubling: partners at distance 1, 2, 4, ... exchange halves of what they
// still hold, then gather in reverse. As many bytes as a ring in 2 log2 P steps, and every element
// is summed in the same order, so fused and unfused messages agree bit for bit. The largest halves
// go to the nearest partner, which suits members that are numbered by machine.
//
// With P = p + e, p the power of two below, members 1, 3, ..., 2e-1 first give everything to the
// even one before them and get the result at the end: two more steps.
//
// Source: Thakur, Rabenseifner and Gropp: Optimization of Collective Communication Operations in
// MPICH, IJHPCA 2005 (Rabenseifner's algorithm).
#include <algorithm>
#include <utility>

#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

bool before(const Place& a, const Place& b) { return a.begin < b.begin; }

// Neighbouring places as one.
Place joined(const Place& a, const Place& b) {
  return {a.space, std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

struct Held {
  int member = 0;
  Place place;
  std::vector<Place> blocks;  // by whom `place` was completed, once it is
};

CollectiveProgram make(const CollectiveConfig& config) {
  internal::Builder builder("halving-doubling", config);
  const Place whole = internal::all_data(config);
  int power = 1;
  while (2 * power <= config.num_members) {
    power *= 2;
  }
  const int extra = config.num_members - power;

  std::vector<Held> held;  // what the p members that stay hold
  for (int member = 0; member < config.num_members; ++member) {
    if (member >= 2 * extra || member % 2 == 0) {
      held.push_back({member, whole, {}});
    }
  }
  for (int i = 0; i < extra; ++i) {
    const Place arrived = builder.send_to_scratch(2 * i + 1, 2 * i, whole);
    builder.sum(2 * i, whole, {whole, arrived});
  }
  if (extra > 0) {
    builder.end_step();
  }

  for (int distance = 1; distance < power; distance *= 2) {
    for (int i = 0; i < power; ++i) {
      const std::vector<Place> halves = internal::chunks_of(held[i].place, 2);
      const bool keeps_first = (i & distance) == 0;
      const Held& partner = held[i ^ distance];
      const Place& given = halves[keeps_first ? 1 : 0];
      const Place arrived = builder.send_to_scratch(held[i].member, partner.member, given);
      builder.sum(partner.member, given, {given, arrived});
    }
    builder.end_step();
    for (int i = 0; i < power; ++i) {
      held[i].place = internal::chunks_of(held[i].place, 2)[(i & distance) == 0 ? 0 : 1];
    }
  }
  for (Held& one : held) {
    one.blocks = internal::without_empty({one.place});
  }
  for (int distance = power / 2; distance >= 1; distance /= 2) {
    std::vector<Held> after = held;
    for (int i = 0; i < power; ++i) {
      Held& partner = after[i ^ distance];
      builder.send_final(held[i].member, partner.member, held[i].place, held[i].blocks);
      std::vector<Place> blocks(partner.blocks.size() + held[i].blocks.size());
      std::merge(partner.blocks.begin(), partner.blocks.end(), held[i].blocks.begin(),
                 held[i].blocks.end(), blocks.begin(), before);
      partner.blocks = std::move(blocks);
      partner.place = joined(partner.place, held[i].place);
    }
    builder.end_step();
    held = std::move(after);
  }
  for (int i = 0; i < extra; ++i) {
    builder.send_final(2 * i, 2 * i + 1, whole, held[i].blocks);
  }
  if (extra > 0) {
    builder.end_step();
  }
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin halving_doubling = {make};

}  // namespace millrace::builtin_collectives

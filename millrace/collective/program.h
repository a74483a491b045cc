// Collective programs: an all-reduce (sum, in place) written as data, one list of operations a
// member. Torch-free: `comm` executes them on tensors over any engine, `cost.h` times them on a
// cluster, `check.h` proves them well formed. Plain values; making one is a pure function.
//
// Meaning. P members each bring a data buffer of N elements and a scratch buffer. A member walks
// its operations in order. A send never blocks and the member may go on; a receive blocks until its
// message is there. Messages between one ordered pair of members are matched in order. No message
// is empty, so a program for N = 0 or P = 1 has no operations.
//
// A place that was sent is not written again before the program's own messages prove that the
// receiver has it, or the program ends: the executor waits for its sends there and nowhere else.
//
// Steps are rounds: in one step a member sends at most one message and receives at most one, and a
// message depends on receives of earlier steps only. They order and count; nobody waits for a step,
// and a member may send the messages of several steps ahead of its receives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class Space : uint8_t { kData, kScratch };

// Elements [begin, end) of one of a member's two buffers.
struct Place {
  Space space = Space::kData;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Place&) const = default;
};

struct CollectiveOp {
  // kSum: place = parts[0] + parts[1] + ..., from the left; one part is a copy. `place` may be one
  // of the parts, and overlaps no other.
  enum class Kind : uint8_t { kSend, kReceive, kSum };
  Kind kind = Kind::kSend;
  int peer = -1;  // index of the other member; -1 for kSum
  int step = 0;
  // On both ends of a message: it carries sums that are complete, so all members must end with the
  // very values that it delivers. Under a lossy codec the sender overwrites `place` with what the
  // receiver decodes; since codecs return their own output unchanged, sending on changes nothing.
  bool final = false;
  Place place;
  // Of a message: its blocks, each encoded by itself, in order, together `place`; empty means one
  // block. A final message that joins what several members completed has their blocks, so a scale
  // belongs to the same elements all the way.
  std::vector<Place> parts;
  bool operator==(const CollectiveOp&) const = default;
};

struct MemberProgram {
  std::vector<CollectiveOp> ops;
  int64_t scratch_elements = 0;
  bool operator==(const MemberProgram&) const = default;
};

struct CollectiveProgram {
  std::string algorithm;  // the entry's name
  int64_t elements = 0;   // N
  int num_steps = 0;      // 0 without operations
  std::vector<MemberProgram> members;
  bool operator==(const CollectiveProgram&) const = default;
};

struct CollectiveConfig {
  int num_members = 1;
  int64_t elements = 0;
  // For `grid`: n1, n2, ... with product num_members, innermost first. Empty: chosen, see grid.cc.
  std::vector<int> grid;
  // Any number a host, one a member; empty: every member is a host of its own.
  std::vector<int> host_of_member;
};

// What one file under builtin/ defines.
struct CollectiveBuiltin {
  CollectiveProgram (*make)(const CollectiveConfig&);
  // Why a config is refused and what would be accepted, or "". Null: nothing is refused.
  std::string (*offers)(const CollectiveConfig&) = nullptr;
};

// The registry: one file under builtin/, one line in builtin.def.
struct CollectiveEntry {
  std::string name;
  std::string text;
  std::string steps;  // formula
  std::string sends;  // elements that member r sends, as a formula
  // Null for `native` alone: the engine's own all-reduce is no program, and `comm` calls it.
  const CollectiveBuiltin* builtin = nullptr;
};
const std::vector<CollectiveEntry>& collectives();
// Throws Error(kInvalidArgument) that names the nearest collective, or lists them all.
const CollectiveEntry& find_collective(const std::string& name);

// Why `entry` has no program for `config`, and what would be accepted, or "".
std::string refusal(const CollectiveEntry& entry, const CollectiveConfig& config);
// The program of `name`. Throws Error(kInvalidArgument) for an unknown name, Error(kUnsupported)
// with the refusal.
CollectiveProgram make_collective(const std::string& name, const CollectiveConfig& config);

}  // namespace millrace

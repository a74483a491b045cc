// Worlds of several processes, all in this one: their wires are real Gloo connections over
// loopback.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/comm/c10d/gloo_wire.h"
#include "millrace/comm/joined/joined.h"
#include "tests/transport/threads.h"

namespace millrace {

using Worlds = std::vector<std::unique_ptr<JoinedWorld>>;

inline std::vector<std::unique_ptr<Wire>> gloo_wires(int num_processes) {
  std::atomic<int> port{0};
  std::vector<std::unique_ptr<Wire>> wires(static_cast<std::size_t>(num_processes));
  const auto errors = run_ranks(num_processes, [&](int process) {
    WorldPlace place;
    place.process = process;
    place.num_processes = num_processes;
    place.engine = "gloo";
    place.store_host = "127.0.0.1";
    place.job_id = "a test";
    const PortExchange ports{[&](int found) { port = found; }, [&] { return port.load(); }};
    wires[static_cast<std::size_t>(process)] = join_gloo(place, ports, 30);
  });
  const std::string failed = thrown(errors);
  if (!failed.empty()) {
    throw Error(ErrorCode::kInternal, failed);
  }
  return wires;
}

inline Worlds joined_worlds(int num_ranks, int num_processes, double timeout_s,
                            const ChooseCollective& choose = {}) {
  Worlds worlds;
  for (std::unique_ptr<Wire>& wire : gloo_wires(num_processes)) {
    JoinedOptions options;
    options.num_ranks = num_ranks;
    options.timeout_s = timeout_s;
    options.choose = choose;
    worlds.push_back(std::make_unique<JoinedWorld>(std::move(wire), options));
  }
  return worlds;
}

// All at once, as processes do at the end of a run.
inline void close_all(Worlds& worlds, double timeout_s = 30) {
  run_ranks(static_cast<int>(worlds.size()),
            [&](int process) { worlds[static_cast<std::size_t>(process)]->close(timeout_s); });
}

// `body(rank, communicator)` on a thread for each rank of all processes; one that throws aborts its
// world, as a team does.
inline std::vector<std::optional<Error>> on_all_ranks(
    Worlds& worlds, const std::function<void(int, Communicator&)>& body) {
  const int num_ranks = worlds.front()->num_ranks();
  return run_ranks(num_ranks, [&](int rank) {
    JoinedWorld& world = *worlds[static_cast<std::size_t>(worlds.front()->process_of(rank))];
    const std::unique_ptr<Communicator> communicator = world.communicator(rank);
    try {
      body(rank, *communicator);
    } catch (const Error& error) {
      world.abort(error);
      throw;
    }
  });
}

}  // namespace millrace
